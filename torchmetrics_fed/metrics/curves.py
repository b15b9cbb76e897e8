"""Metrics of curves and of the areas under them, each around one function of a release."""

from typing import Any

from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed import functional as F
from torchmetrics_fed.functional.figures.canvas import Labels
from torchmetrics_fed.functional.intervals import warn_of_precision
from torchmetrics_fed.functional.roc import checked_max_fpr
from torchmetrics_fed.metrics.definition import Definition
from torchmetrics_fed.metrics.metric import FederatedMetric
from torchmetrics_fed.metrics.options import MetricOptions
from torchmetrics_fed.typing import Average, Task


class FederatedROC(FederatedMetric):
    """ROC curve of all ranks' or clients' data together.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.ROCCurve` ``(fpr, tpr, thresholds)``
    in torchmetrics' order: thresholds decrease, from (0, 0) to (1, 1). A score equal to a threshold
    counts as above it. Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`; with
    ``confidence``, :meth:`band` holds the whole curve of the population.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC, ScoreGrid
        >>> metric = FederatedROC(grid=ScoreGrid.from_edges([0, 0.25, 0.5, 0.75, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute().tpr
        tensor([0.0000, 0.5000, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
    """

    definition = Definition("roc", result=F.ROCCurve, scalars=("auroc",), band=F.roc_band)

    def compute(self) -> F.ROCCurve:
        """Return the ROC curve of all ranks' counts."""
        return self._answer(F.roc_from_counts(self._read(), average=self.average))


class FederatedPrecisionRecallCurve(FederatedMetric):
    """Precision-recall curve of all ranks' or clients' data together.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.PrecisionRecallCurve` ``(precision,
    recall, thresholds)`` in torchmetrics' order: thresholds increase, and a last point (1, 0) has
    no threshold. Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedPrecisionRecallCurve, ScoreGrid
        >>> grid = ScoreGrid.from_edges([0, 0.25, 0.5, 0.75, 1])
        >>> metric = FederatedPrecisionRecallCurve(grid=grid)
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute().precision
        tensor([0.5000, 0.6667, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
    """

    definition = Definition(
        "precision_recall_curve",
        result=F.PrecisionRecallCurve,
        scalars=("average_precision",),
        band=F.precision_recall_band,
    )

    def compute(self) -> F.PrecisionRecallCurve:
        """Return the PR curve of all ranks' counts."""
        return self._answer(F.precision_recall_from_counts(self._read(), average=self.average))


class FederatedPrecisionRecallGain(FederatedMetric):
    """Precision-recall-gain curve (Flach and Kull 2015) of all data together, with its area.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.PrecisionRecallGainCurve`
    ``(precision_gain, recall_gain, thresholds, area)``, thresholds increasing. Arguments are those
    of :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedPrecisionRecallGain, ScoreGrid
        >>> metric = FederatedPrecisionRecallGain(grid=ScoreGrid.from_edges([0, 0.5, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.2, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute().precision_gain
        tensor([0., 1.], dtype=torch.float64)
    """

    definition = Definition(
        "precision_recall_gain",
        result=F.PrecisionRecallGainCurve,
        scalars=("area_under_gain",),
        averages=("micro",),
    )

    def compute(self) -> F.PrecisionRecallGainCurve:
        """Return the precision-recall-gain curve of all ranks' counts."""
        return self._answer(F.precision_recall_gain_from_counts(self._read(), average=self.average))


class FederatedDET(FederatedMetric):
    """Detection error tradeoff of all data together: false negatives against false positives.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.DETCurve` ``(fpr, fnr, thresholds)``
    in scikit-learn's order: thresholds increase. Arguments are those of
    :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedDET, ScoreGrid
        >>> metric = FederatedDET(grid=ScoreGrid.from_edges([0, 0.5, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute().fnr
        tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """

    definition = Definition(
        "det", result=F.DETCurve, scalars=("equal_error_rate",), averages=("micro",)
    )

    def compute(self) -> F.DETCurve:
        """Return the detection error tradeoff of all ranks' counts."""
        return self._answer(F.det_from_counts(self._read(), average=self.average))


class FederatedCalibration(FederatedMetric):
    """Calibration of all data together: calibration error, Brier score, reliability curve.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.Calibration`; each bin stands for its
    centre. Scores must be probabilities. Arguments are those of
    :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        bins: number of calibration bins, even over [0, 1].

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedCalibration
        >>> metric = FederatedCalibration(bins=2)
        >>> metric.update(torch.tensor([0.2, 0.2, 0.8, 0.8]), torch.tensor([0, 0, 1, 0]))
        >>> metric.compute().observed
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """

    higher_is_better: bool | None = False
    definition = Definition(
        "calibration",
        result=F.Calibration,
        scalars=("expected_calibration_error", "brier_score"),
        averages=("micro",),
    )

    def __init__(
        self, task: Task = "binary", *, bins: int = 15, **kwargs: Unpack[MetricOptions]
    ) -> None:
        super().__init__(task, **kwargs)
        self.bins = bins

    def compute(self) -> F.Calibration:
        """Return the calibration of all ranks' counts."""
        return self._answer(
            F.calibration_from_counts(self._read(), bins=self.bins, average=self.average)
        )


class FederatedAUROC(FederatedMetric):
    """Area under the ROC curve of all ranks' or clients' data together.

    Ties within a bin count half.

    With ``multi_class="ovo"`` it is the mean over pairs of classes (Hand and Till 2001), as
    scikit-learn has it. Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        max_fpr: only the area up to this false positive rate, on McClish's scale from 1/2 (chance)
            to 1.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedAUROC
        >>> metric = FederatedAUROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
    """

    higher_is_better: bool | None = True
    plot_legend_name: str = "AUROC"
    definition = Definition(
        "auroc",
        averages=("micro", "macro", "weighted"),
        default_average="macro",
        band=F.roc_band,
        interval=F.auroc_interval,
        curve=F.roc_from_counts,
    )

    def __init__(
        self,
        task: Task = "binary",
        *,
        max_fpr: float | None = None,
        **kwargs: Unpack[MetricOptions],
    ) -> None:
        super().__init__(task, **kwargs)
        self.max_fpr = checked_max_fpr(max_fpr)

    def compute(self) -> Tensor:
        """Return the area of all ranks' counts."""
        return self._answer(self._area(self.average))

    def plot(  # type: ignore[override]
        self,
        val: Any = None,
        ax: Any = None,
        *,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw the curve that the area is under, or given values, and return ``(fig, ax)``.

        If ``val`` is a value that :meth:`compute` returned, it is drawn as a point for each class;
        a list of such values is drawn as lines over steps, as in torchmetrics. Nothing is computed
        or released then. Other arguments are those of :meth:`FederatedMetric.plot`.
        """
        return self._plot_area(
            val,
            ax,
            area_of=self._area,
            label=label,
            labels=labels,
            line_kwargs=line_kwargs,
        )

    def _area(self, average: Average | None) -> Tensor:
        """Return the area of the counts as they are, for counts that are summed already."""
        return F.auroc_from_counts(self._read(), max_fpr=self.max_fpr, average=average)


class FederatedAveragePrecision(FederatedMetric):
    """Average precision of all data together: the area under the PR curve read as a step.

    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedAveragePrecision
        >>> metric = FederatedAveragePrecision()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.8333, dtype=torch.float64)
    """

    higher_is_better: bool | None = True
    plot_legend_name: str = "AP"
    definition = Definition(
        "average_precision",
        averages=("micro", "macro", "weighted"),
        default_average="macro",
        band=F.precision_recall_band,
        interval=F.average_precision_interval,
        curve=F.precision_recall_from_counts,
    )

    def compute(self) -> Tensor:
        """Return the area of all ranks' counts."""
        return self._answer(self._area(self.average))

    def plot(  # type: ignore[override]
        self,
        val: Any = None,
        ax: Any = None,
        *,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw the curve that the area is under, or given values, and return ``(fig, ax)``.

        If ``val`` is a value that :meth:`compute` returned, it is drawn as a point for each class;
        a list of such values is drawn as lines over steps, as in torchmetrics. Nothing is computed
        or released then. Other arguments are those of :meth:`FederatedMetric.plot`.
        """
        return self._plot_area(
            val,
            ax,
            area_of=self._area,
            label=label,
            labels=labels,
            line_kwargs=line_kwargs,
        )

    def _area(self, average: Average | None) -> Tensor:
        """Return the area of the counts as they are, for counts that are summed already."""
        histograms = self._read()
        if self.spec.privacy.charges:
            warn_of_precision(self._source())
        return F.average_precision_from_counts(histograms, average=average)
