"""Metrics of curves and of the areas under them, each around one function of a release."""

from typing import Any

from torch import Tensor

from torchmetrics_fed import functional as F
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import warn_of_precision
from torchmetrics_fed.functional.precision_recall import check_strategy
from torchmetrics_fed.functional.roc import checked_max_fpr
from torchmetrics_fed.metrics.areas import AreaMetric
from torchmetrics_fed.metrics.metric import FederatedMetric
from torchmetrics_fed.typing import Average, Task


class FederatedROC(FederatedMetric):
    """ROC curve of all ranks' or clients' data together.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.ROCCurve` ``(fpr, tpr, thresholds)`` in torchmetrics'
    order: thresholds decrease, from (0, 0) to (1, 1). A score equal to a threshold counts as above it. Arguments are
    those of :class:`~torchmetrics_fed.FederatedMetric`; with ``confidence``, :meth:`band` holds the whole exact curve.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC, ScoreGrid
        >>> metric = FederatedROC(grid=ScoreGrid.from_edges([0, 0.25, 0.5, 0.75, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute().tpr
        tensor([0.0000, 0.5000, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
    """

    bands_of = staticmethod(F.roc_band)
    result = F.ROCCurve
    short_name = "roc"
    scalar_names = ("auroc",)

    def compute(self) -> F.ROCCurve:
        return self._answer(F.roc_from_counts(self._read(), average=self.average))


class FederatedPrecisionRecallCurve(FederatedMetric):
    """Precision-recall curve of all ranks' or clients' data together.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.PrecisionRecallCurve` ``(precision, recall,
    thresholds)`` in torchmetrics' order: thresholds increase, and a last point (1, 0) has no threshold. Arguments are
    those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        strategy: with ``Reconstruction(method="quantile")``, whether precision's denominator comes from both classes'
            quantiles (``"separate"``) or from those of all examples (``"combine"``).

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedPrecisionRecallCurve, ScoreGrid
        >>> metric = FederatedPrecisionRecallCurve(grid=ScoreGrid.from_edges([0, 0.25, 0.5, 0.75, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute().precision
        tensor([0.5000, 0.6667, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
    """

    bands_of = staticmethod(F.precision_recall_band)
    result = F.PrecisionRecallCurve
    short_name = "precision_recall_curve"
    scalar_names = ("average_precision",)

    def __init__(
        self, task: Task = "binary", *, strategy: F.Strategy = "separate", **kwargs: Any
    ) -> None:
        super().__init__(task, **kwargs)
        check_strategy(strategy)
        self.strategy: F.Strategy = strategy

    def compute(self) -> F.PrecisionRecallCurve:
        return self._answer(
            F.precision_recall_from_counts(
                self._read(), strategy=self.strategy, average=self.average
            )
        )


class FederatedPrecisionRecallGain(FederatedMetric):
    """Precision-recall-gain curve (Flach and Kull 2015) of all ranks' or clients' data together, with its area.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.PrecisionRecallGainCurve` ``(precision_gain, recall_gain,
    thresholds, area)``, thresholds increasing. Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedPrecisionRecallGain, ScoreGrid
        >>> metric = FederatedPrecisionRecallGain(grid=ScoreGrid.from_edges([0, 0.5, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.2, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute().precision_gain
        tensor([0., 1.], dtype=torch.float64)
    """

    result = F.PrecisionRecallGainCurve
    short_name = "precision_recall_gain"
    scalar_names = ("area_under_gain",)
    averages: tuple[Average, ...] = ("micro",)

    def compute(self) -> F.PrecisionRecallGainCurve:
        return self._answer(F.precision_recall_gain_from_counts(self._read(), average=self.average))


class FederatedDET(FederatedMetric):
    """Detection error tradeoff of all ranks' or clients' data together: false negatives against false positives.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.DETCurve` ``(fpr, fnr, thresholds)`` in scikit-learn's
    order: thresholds increase. Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedDET, ScoreGrid
        >>> metric = FederatedDET(grid=ScoreGrid.from_edges([0, 0.5, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute().fnr
        tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """

    result = F.DETCurve
    short_name = "det"
    scalar_names = ("equal_error_rate",)
    averages: tuple[Average, ...] = ("micro",)

    def compute(self) -> F.DETCurve:
        return self._answer(F.det_from_counts(self._read(), average=self.average))


class FederatedCalibration(FederatedMetric):
    """Calibration of all ranks' or clients' data together: calibration error, Brier score and reliability curve.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.Calibration`; each bin stands for its centre. Scores must
    be probabilities. Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

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
    result = F.Calibration
    short_name = "calibration"
    scalar_names = ("expected_calibration_error", "brier_score")
    averages: tuple[Average, ...] = ("micro",)

    def __init__(self, task: Task = "binary", *, bins: int = 15, **kwargs: Any) -> None:
        super().__init__(task, **kwargs)
        self.bins = bins

    def compute(self) -> F.Calibration:
        return self._answer(
            F.calibration_from_counts(self._read(), bins=self.bins, average=self.average)
        )


class FederatedAUROC(AreaMetric):
    """Area under the ROC curve of all ranks' or clients' data together; ties within a bin count half.

    With ``multi_class="ovo"`` it is the mean over pairs of classes (Hand and Till 2001), as scikit-learn has it.
    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        max_fpr: only the area up to this false positive rate, on McClish's scale from 1/2 (chance) to 1. ``confidence``
            is for the whole area only.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedAUROC
        >>> metric = FederatedAUROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
    """

    bands_of, interval_of = staticmethod(F.roc_band), staticmethod(F.auroc_interval)
    curve_of = staticmethod(F.roc_from_counts)
    short_name = "auroc"
    plot_legend_name: str = "AUROC"

    def __init__(
        self, task: Task = "binary", *, max_fpr: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(task, **kwargs)
        self.max_fpr = checked_max_fpr(max_fpr)
        if self.max_fpr is not None and self.confidence is not None:
            raise InputError(
                f"Expected no `max_fpr` with `confidence` but got {max_fpr!r}: intervals are made of the whole area. "
                "The band of FederatedROC bounds the curve up to any false positive rate."
            )

    def _area(self, average: Average | None) -> Tensor:
        return F.auroc_from_counts(self._read(), max_fpr=self.max_fpr, average=average)


class FederatedAveragePrecision(AreaMetric):
    """Average precision of all ranks' or clients' data together: the area under the PR curve read as a step.

    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedAveragePrecision
        >>> metric = FederatedAveragePrecision()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.8333, dtype=torch.float64)
    """

    bands_of, interval_of = (
        staticmethod(F.precision_recall_band),
        staticmethod(F.average_precision_interval),
    )
    curve_of = staticmethod(F.precision_recall_from_counts)
    short_name = "average_precision"
    plot_legend_name: str = "AP"

    def _area(self, average: Average | None) -> Tensor:
        source = self._read()
        if self.spec.privacy.charges:
            warn_of_precision(self._source())
        return F.average_precision_from_counts(source, average=average)
