"""Metrics of one threshold: the confusion matrix at it, or the threshold that meets a minimum."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed import functional as F
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.averages import averaged
from torchmetrics_fed.functional.confusion import check_threshold
from torchmetrics_fed.functional.figures.canvas import Labels, Score, plot_values
from torchmetrics_fed.functional.figures.page import caption, provenance
from torchmetrics_fed.functional.operating import check_fraction
from torchmetrics_fed.metrics.definition import Definition
from torchmetrics_fed.metrics.metric import FederatedMetric
from torchmetrics_fed.metrics.options import MetricOptions
from torchmetrics_fed.reconstruct.histograms import Readable
from torchmetrics_fed.typing import Task


class FederatedConfusionMatrix(FederatedMetric):
    """Confusion matrix of the calls "score >= threshold" of all data together, with its scores.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.Confusion`: ``matrix``, the counts
    [[tn, fp], [fn, tp]], ``threshold``, the edge of the grid that was used, and ``scalars``, all
    that follows from the matrix: accuracy, precision, recall, specificity, F1 and others.

    With several classes or labels there is a matrix of two rows and two columns for each, ``(K, 2,
    2)``: a class against the rest, called by its own score. Two histograms of each class hold these
    calls. They do not hold the arg-max over classes, so there is no matrix of classes against
    classes. Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        task: as in :class:`~torchmetrics_fed.FederatedMetric`.
        threshold: the least score that is called positive. The edge of the grid that is nearest is
            used; 0.5 is an edge.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedConfusionMatrix
        >>> metric = FederatedConfusionMatrix(threshold=0.5)
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute().matrix
        tensor([[1, 1],
                [1, 1]])
        >>> metric.compute().scalars["accuracy"]
        tensor(0.5000, dtype=torch.float64)
    """

    definition = Definition(
        "confusion_matrix",
        result=F.Confusion,
        scalars=tuple(name for name in F.SCORE_NAMES if name != "fbeta"),
        averages=("micro",),
        has_order=False,
    )

    def __init__(
        self, task: Task = "binary", *, threshold: float = 0.5, **kwargs: Unpack[MetricOptions]
    ) -> None:
        check_threshold(threshold)
        super().__init__(task, **kwargs)
        self.threshold = threshold

    def compute(self) -> F.Confusion:
        """Return the confusion matrix of all ranks' counts. Exact counts stay integers."""
        confusion = F.confusion_at(self._read(), self.threshold, average=self.average)
        return F.Confusion(
            matrix=confusion.matrix.to(self.device),
            threshold=self._answer(confusion.threshold),
        )


class FederatedOperatingPoint(FederatedMetric):
    """Base of metrics that look for the best threshold which meets a minimum.

    ``compute`` returns the value and its threshold, as in torchmetrics. Only a number can be
    logged, tracked or averaged: ``with_threshold=False`` returns the value alone. Other arguments
    are those of :class:`~torchmetrics_fed.FederatedMetric`.

    Args:
        task: as in :class:`~torchmetrics_fed.FederatedMetric`.
        with_threshold: whether ``compute`` returns an
            :class:`~torchmetrics_fed.functional.OperatingPoint` ``(value, threshold)``, or the
            value alone.

    Example:
        >>> from torchmetrics_fed import FederatedRecallAtFixedPrecision
        >>> from torchmetrics_fed.metrics import FederatedOperatingPoint
        >>> issubclass(FederatedRecallAtFixedPrecision, FederatedOperatingPoint)
        True
    """

    higher_is_better: bool | None = True

    def __init__(
        self,
        task: Task = "binary",
        *,
        with_threshold: bool = True,
        **kwargs: Unpack[MetricOptions],
    ) -> None:
        super().__init__(task, **kwargs)
        if with_threshold and self.average in ("macro", "weighted"):
            raise InputError(
                f"Expected no `average` of thresholds but got {self.average!r}. Pass "
                "`with_threshold=False` for the mean of the values."
            )
        self.with_threshold = with_threshold
        has_one_value = self.spec.task == "binary" or self.average is not None
        self._is_scalar = has_one_value and not with_threshold

    @abstractmethod
    def point_of(self, source: Readable) -> F.OperatingPoint:
        """Return the best value that histograms hold, and its threshold."""

    def scalar_of(self, source: Readable) -> Tensor:
        """Return the value that histograms hold, over classes by the metric's ``average``."""
        histograms = F.read(source)
        value = self.point_of(histograms.pooled(self.average)).value
        return averaged(value, histograms, self.average)

    def compute(self) -> F.OperatingPoint | Tensor:
        """Return the value and its threshold, or the value, of all ranks' counts."""
        histograms = self._read()
        if not self.with_threshold:
            return self._answer(self.scalar_of(histograms))
        return self._answer(self.point_of(histograms.pooled(self.average)))

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
        """Draw the value at its threshold, or given values, and return ``(fig, ax)``.

        Args:
            curve: an operating point that :meth:`compute` returned. A number is drawn as a point, a
                list of numbers as a line over steps.
            score: as in :meth:`FederatedMetric.plot`.
            ax: as in :meth:`FederatedMetric.plot`.
            label: as in :meth:`FederatedMetric.plot`.
            labels: as in :meth:`FederatedMetric.plot`.
            line_kwargs: as in :meth:`FederatedMetric.plot`.
        """
        if isinstance(curve, F.OperatingPoint):
            return curve.plot(score, ax, label, labels, **line_kwargs)
        if curve is not None:
            return plot_values(curve, ax, (self.definition.name, label, labels), **line_kwargs)
        with self._summed():
            # only a micro-average pools; a mean of values belongs to no threshold
            point = self._answer(self.point_of(self._read().pooled(self.average)))
        fig, ax = point.plot(score, ax, label, labels, **line_kwargs)
        caption(ax, provenance(self.spec.privacy), label)
        return fig, ax


class FederatedRecallAtFixedPrecision(FederatedOperatingPoint):
    """Highest recall of all data together whose precision is at least ``min_precision``.

    Arguments are those of :class:`~torchmetrics_fed.metrics.FederatedOperatingPoint`, and:

    Args:
        min_precision: the least precision, in [0, 1].
        task: as in :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedRecallAtFixedPrecision
        >>> metric = FederatedRecallAtFixedPrecision(0.9)
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> value, threshold = metric.compute()
        >>> value
        tensor(0.5000, dtype=torch.float64)
    """

    definition = Definition(
        "recall_at_fixed_precision",
        result=F.OperatingPoint,
        averages=("micro", "macro", "weighted"),
    )

    def __init__(
        self,
        min_precision: float,
        task: Task = "binary",
        *,
        with_threshold: bool = True,
        **kwargs: Unpack[MetricOptions],
    ) -> None:
        check_fraction("min_precision", min_precision)
        super().__init__(task, with_threshold=with_threshold, **kwargs)
        self.min_precision = min_precision

    def point_of(self, source: Readable) -> F.OperatingPoint:
        """Return the highest recall, and its threshold."""
        return F.recall_at_precision(source, self.min_precision)


class FederatedPrecisionAtFixedRecall(FederatedOperatingPoint):
    """Highest precision of all data together whose recall is at least ``min_recall``.

    Arguments are those of :class:`~torchmetrics_fed.metrics.FederatedOperatingPoint`, and:

    Args:
        min_recall: the least recall, in [0, 1].
        task: as in :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedPrecisionAtFixedRecall
        >>> metric = FederatedPrecisionAtFixedRecall(0.9, with_threshold=False)
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.6667, dtype=torch.float64)
    """

    definition = Definition(
        "precision_at_fixed_recall",
        result=F.OperatingPoint,
        averages=("micro", "macro", "weighted"),
    )

    def __init__(
        self,
        min_recall: float,
        task: Task = "binary",
        *,
        with_threshold: bool = True,
        **kwargs: Unpack[MetricOptions],
    ) -> None:
        check_fraction("min_recall", min_recall)
        super().__init__(task, with_threshold=with_threshold, **kwargs)
        self.min_recall = min_recall

    def point_of(self, source: Readable) -> F.OperatingPoint:
        """Return the highest precision, and its threshold."""
        return F.precision_at_recall(source, self.min_recall)


class FederatedSensitivityAtSpecificity(FederatedOperatingPoint):
    """Highest sensitivity of all data together whose specificity is at least a minimum.

    Arguments are those of :class:`~torchmetrics_fed.metrics.FederatedOperatingPoint`, and:

    Args:
        min_specificity: the least specificity, in [0, 1].
        task: as in :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedSensitivityAtSpecificity
        >>> metric = FederatedSensitivityAtSpecificity(0.9, with_threshold=False)
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    definition = Definition(
        "sensitivity_at_specificity",
        result=F.OperatingPoint,
        averages=("micro", "macro", "weighted"),
    )

    def __init__(
        self,
        min_specificity: float,
        task: Task = "binary",
        *,
        with_threshold: bool = True,
        **kwargs: Unpack[MetricOptions],
    ) -> None:
        check_fraction("min_specificity", min_specificity)
        super().__init__(task, with_threshold=with_threshold, **kwargs)
        self.min_specificity = min_specificity

    def point_of(self, source: Readable) -> F.OperatingPoint:
        """Return the highest sensitivity, and its threshold."""
        return F.sensitivity_at_specificity(source, self.min_specificity)


class FederatedSpecificityAtSensitivity(FederatedOperatingPoint):
    """Highest specificity of all data together whose sensitivity is at least a minimum.

    Arguments are those of :class:`~torchmetrics_fed.metrics.FederatedOperatingPoint`, and:

    Args:
        min_sensitivity: the least sensitivity, in [0, 1].
        task: as in :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedSpecificityAtSensitivity
        >>> metric = FederatedSpecificityAtSensitivity(0.9, with_threshold=False)
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    definition = Definition(
        "specificity_at_sensitivity",
        result=F.OperatingPoint,
        averages=("micro", "macro", "weighted"),
    )

    def __init__(
        self,
        min_sensitivity: float,
        task: Task = "binary",
        *,
        with_threshold: bool = True,
        **kwargs: Unpack[MetricOptions],
    ) -> None:
        check_fraction("min_sensitivity", min_sensitivity)
        super().__init__(task, with_threshold=with_threshold, **kwargs)
        self.min_sensitivity = min_sensitivity

    def point_of(self, source: Readable) -> F.OperatingPoint:
        """Return the highest specificity, and its threshold."""
        return F.specificity_at_sensitivity(source, self.min_sensitivity)
