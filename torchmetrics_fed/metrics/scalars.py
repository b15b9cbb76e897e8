"""Metrics that are one number: scores at a threshold, error rates, areas and losses.

Each is a function of histograms, :meth:`FederatedScalar.scalar_of`, so it reads exact counts, a
private release and simulated counts alike.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed import functional as F
from torchmetrics_fed.functional.calibration import CalibrationNorm, check_bins, check_norm
from torchmetrics_fed.functional.confusion import (
    ScoreName,
    check_beta,
    check_score,
    check_threshold,
)
from torchmetrics_fed.functional.figures.canvas import Labels, Score, plot_values
from torchmetrics_fed.functional.figures.page import caption, provenance
from torchmetrics_fed.functional.roc import checked_fpr_range
from torchmetrics_fed.metrics.definition import Definition
from torchmetrics_fed.metrics.metric import FederatedMetric
from torchmetrics_fed.metrics.options import MetricOptions
from torchmetrics_fed.reconstruct.histograms import Readable
from torchmetrics_fed.typing import Task

LOWER_IS_BETTER = ("hamming_distance", "negative_likelihood_ratio")
"""The scores at a threshold that are errors."""


class FederatedScalar(FederatedMetric):
    """Base of metrics that are one number, or one of each class, of all data together.

    A subclass has a name, its averages, and :meth:`scalar_of`. Arguments are those of
    :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> from torchmetrics_fed import FederatedEER
        >>> from torchmetrics_fed.metrics import FederatedScalar
        >>> issubclass(FederatedEER, FederatedScalar)
        True
    """

    @abstractmethod
    def scalar_of(self, source: Readable) -> Tensor:
        """Return the number that histograms hold, over classes by the metric's ``average``."""

    def compute(self) -> Tensor:
        """Return the number of all ranks' counts."""
        return self._answer(self.scalar_of(self._read()))

    def plot(
        self,
        curve: Any = None,
        score: Score = None,
        ax: Any = None,
        *,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw the number, or given values, and return ``(fig, ax)``.

        Args:
            curve: a value that :meth:`compute` returned, drawn as a point for each class, or a list
                of such values, drawn as lines over steps, as in torchmetrics. Nothing is computed
                or released for values that are given.
            score: a number to draw in place of the metric's own.
            ax: as in :meth:`FederatedMetric.plot`.
            label: as in :meth:`FederatedMetric.plot`.
            labels: as in :meth:`FederatedMetric.plot`.
            line_kwargs: as in :meth:`FederatedMetric.plot`.
        """
        names = self._plot_names(label, labels)
        if curve is None:
            curve = score
        if curve is not None:
            return plot_values(curve, ax, names, **line_kwargs)
        fig, ax = plot_values(self.compute(), ax, names, **line_kwargs)
        caption(ax, provenance(self.spec.privacy), label)
        return fig, ax

    def _plot_names(self, label: str | None, labels: Labels) -> tuple[str, str | None, Labels]:
        return self.plot_legend_name or self.definition.name, label, labels


class FederatedScoreAtThreshold(FederatedScalar):
    """One score of the calls "score >= threshold" of all data together, chosen by its name.

    The scores are those of :class:`~torchmetrics_fed.functional.Confusion`, and F-beta. With
    several classes each class has calls of its own, against the rest: the score is that of
    torchmetrics' *multi-label* metric of one-hot labels, not of the arg-max over classes, which
    histograms do not hold. Other arguments are those of :class:`~torchmetrics_fed.FederatedMetric`.

    Args:
        score: ``"accuracy"``, ``"balanced_accuracy"``, ``"precision"``, ``"recall"``,
            ``"specificity"``, ``"negative_predictive_value"``, ``"f1"``, ``"fbeta"``,
            ``"jaccard_index"``, ``"matthews_corrcoef"``, ``"cohen_kappa"``,
            ``"hamming_distance"``, ``"positive_likelihood_ratio"`` or
            ``"negative_likelihood_ratio"``.
        task: as in :class:`~torchmetrics_fed.FederatedMetric`.
        threshold: the least score that is called positive. The edge of the grid that is nearest is
            used; 0.5 is an edge.
        beta: the weight of recall in ``"fbeta"``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedScoreAtThreshold
        >>> metric = FederatedScoreAtThreshold("f1", threshold=0.5)
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better: bool | None = True
    definition = Definition(
        "score_at_threshold",
        averages=("micro", "macro", "weighted"),
        default_average="macro",
        has_order=False,
    )

    def __init__(
        self,
        score: ScoreName,
        task: Task = "binary",
        *,
        threshold: float = 0.5,
        beta: float = 1.0,
        **kwargs: Unpack[MetricOptions],
    ) -> None:
        check_score(score)
        check_threshold(threshold)
        check_beta(beta)
        super().__init__(task, **kwargs)
        self.score: ScoreName = score
        self.threshold = threshold
        self.beta = beta
        # torchmetrics guards its constants
        object.__setattr__(self, "plot_legend_name", score)
        if score in LOWER_IS_BETTER:
            object.__setattr__(self, "higher_is_better", False)

    def scalar_of(self, source: Readable) -> Tensor:
        """Return the score of the calls at the threshold."""
        return F.score_at_threshold(
            source, self.score, self.threshold, beta=self.beta, average=self.average
        )


class FederatedEER(FederatedScalar):
    """Equal error rate of all data together: as many positives as negatives are wrong there.

    ``average`` is None, ``"micro"`` or ``"macro"``, as in torchmetrics. Arguments are those of
    :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedEER
        >>> metric = FederatedEER()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better: bool | None = False
    plot_legend_name: str = "EER"
    definition = Definition("equal_error_rate", averages=("micro", "macro"))

    def scalar_of(self, source: Readable) -> Tensor:
        """Return the rate at which both errors are equally frequent."""
        return F.equal_error_rate(source, average=self.average)


class FederatedLogAUC(FederatedScalar):
    """Area under the ROC curve of all data together over the logarithm of the false positive rate.

    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        task: as in :class:`~torchmetrics_fed.FederatedMetric`.
        fpr_range: the false positive rates from which, and up to which, the area is taken.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedLogAUC
        >>> metric = FederatedLogAUC(fpr_range=(0.01, 1.0))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.5753, dtype=torch.float64)
    """

    higher_is_better: bool | None = True
    plot_legend_name: str = "LogAUC"
    definition = Definition("log_auc", averages=("micro", "macro", "weighted"))

    def __init__(
        self,
        task: Task = "binary",
        *,
        fpr_range: tuple[float, float] = (0.001, 0.1),
        **kwargs: Unpack[MetricOptions],
    ) -> None:
        super().__init__(task, **kwargs)
        self.fpr_range = checked_fpr_range(fpr_range)

    def scalar_of(self, source: Readable) -> Tensor:
        """Return the area between the two false positive rates."""
        return F.log_auc(source, self.fpr_range, average=self.average)


class FederatedCalibrationError(FederatedScalar):
    """Calibration error of all data together, of probabilities.

    With several classes it is that of each class against the rest. torchmetrics' multi-class error
    is that of the top label, which histograms do not hold. Arguments are those of
    :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        task: as in :class:`~torchmetrics_fed.FederatedMetric`.
        n_bins: number of calibration bins, even over [0, 1].
        norm: ``"l1"``, the expected calibration error; ``"l2"``, its root mean square; ``"max"``,
            the largest distance.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedCalibrationError
        >>> metric = FederatedCalibrationError(n_bins=2)
        >>> metric.update(torch.tensor([0.2, 0.2, 0.8, 0.8]), torch.tensor([0, 0, 1, 0]))
        >>> round(metric.compute().item(), 3)
        0.25
    """

    higher_is_better: bool | None = False
    plot_legend_name: str = "Calibration error"
    definition = Definition(
        "calibration_error",
        averages=("micro", "macro", "weighted"),
        default_average="macro",
        has_order=False,
    )

    def __init__(
        self,
        task: Task = "binary",
        *,
        n_bins: int = 15,
        norm: CalibrationNorm = "l1",
        **kwargs: Unpack[MetricOptions],
    ) -> None:
        check_bins(n_bins)
        check_norm(norm)
        super().__init__(task, **kwargs)
        self.n_bins = n_bins
        self.norm: CalibrationNorm = norm

    def scalar_of(self, source: Readable) -> Tensor:
        """Return the distance of scores and shares of positives."""
        return F.calibration_error(source, self.n_bins, self.norm, average=self.average)


class FederatedLogLoss(FederatedScalar):
    """Log loss of all data together: the binary cross-entropy of each class's probabilities.

    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedLogLoss
        >>> metric = FederatedLogLoss()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> round(metric.compute().item(), 3)
        0.511
    """

    higher_is_better: bool | None = False
    plot_legend_name: str = "Log loss"
    definition = Definition(
        "log_loss",
        averages=("micro", "macro", "weighted"),
        default_average="macro",
        has_order=False,
    )

    def scalar_of(self, source: Readable) -> Tensor:
        """Return the mean of minus the logarithm of the label's probability."""
        return F.log_loss(source, average=self.average)


class FederatedBrierScore(FederatedScalar):
    """Brier score of all data together: the mean squared distance of score and label.

    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedBrierScore
        >>> metric = FederatedBrierScore()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> round(metric.compute().item(), 3)
        0.185
    """

    higher_is_better: bool | None = False
    plot_legend_name: str = "Brier score"
    definition = Definition(
        "brier_score",
        averages=("micro", "macro", "weighted"),
        default_average="macro",
        has_order=False,
    )

    def scalar_of(self, source: Readable) -> Tensor:
        """Return the mean squared distance of score and label."""
        return F.brier_score(source, average=self.average)


class FederatedHingeLoss(FederatedScalar):
    """Hinge loss of all data together, of probabilities as in torchmetrics' ``BinaryHingeLoss``.

    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        task: as in :class:`~torchmetrics_fed.FederatedMetric`.
        squared: whether to square before the mean.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedHingeLoss
        >>> metric = FederatedHingeLoss()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> round(metric.compute().item(), 2)
        0.85
    """

    higher_is_better: bool | None = False
    plot_legend_name: str = "Hinge loss"
    definition = Definition(
        "hinge_loss",
        averages=("micro", "macro", "weighted"),
        default_average="macro",
        has_order=False,
    )

    def __init__(
        self, task: Task = "binary", *, squared: bool = False, **kwargs: Unpack[MetricOptions]
    ) -> None:
        super().__init__(task, **kwargs)
        self.squared = squared

    def scalar_of(self, source: Readable) -> Tensor:
        """Return the mean distance from a sure and right call."""
        return F.hinge_loss(source, self.squared, average=self.average)
