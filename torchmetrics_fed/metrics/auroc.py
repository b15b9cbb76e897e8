"""FederatedAUROC."""

from typing import Any

from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.auroc import auroc_from_counts
from torchmetrics_fed.functional.band import Interval, auroc_interval, roc_band
from torchmetrics_fed.functional.roc import checked_max_fpr, roc_from_counts
from torchmetrics_fed.metrics.base import FederatedMetric
from torchmetrics_fed.typing import Average, Task

__all__ = ["FederatedAUROC"]


class FederatedAUROC(FederatedMetric):
    """Area under the ROC curve of all ranks' or clients' data together; ties within a bin count half.

    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        max_fpr: only the area up to this false positive rate, on McClish's scale from 1/2 (chance) to 1.
        confidence: probability with which :meth:`interval` holds the exact area; for the whole area only.
        population: as in :class:`~torchmetrics_fed.FederatedROC`.

    With ``multi_class="ovo"`` it is the mean over pairs of classes (Hand and Till 2001), as scikit-learn has it.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedAUROC
        >>> metric = FederatedAUROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
    """

    has_bands = True
    is_scalar: bool = True
    higher_is_better: bool | None = True
    short_name = "auroc"
    plot_legend_name: str = "AUROC"
    averages: tuple[Average, ...] = ("micro", "macro", "weighted")
    default_average: Average | None = "macro"

    def __init__(self, task: Task = "binary", *, max_fpr: float | None = None, **kwargs: Any) -> None:
        super().__init__(task, **kwargs)
        self.max_fpr = checked_max_fpr(max_fpr)
        if self.max_fpr is not None and self.confidence is not None:
            raise InputError(
                f"Expected no `max_fpr` with `confidence` but got {max_fpr!r}: intervals are made of the whole area. "
                "The band of FederatedROC bounds the curve up to any false positive rate."
            )

    def compute(self) -> Tensor:
        """Return the area of all ranks' counts."""
        return self._out(auroc_from_counts(self._read(), max_fpr=self.max_fpr, average=self.average))

    def interval(self) -> Interval:
        """Return the interval of the area, with the ``confidence`` that this metric was built with.

        Example:
            >>> import torch
            >>> from torchmetrics_fed import CentralDP, FederatedAUROC
            >>> metric = FederatedAUROC(privacy=CentralDP(epsilon=1.0), confidence=0.95)
            >>> metric.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
            >>> low, high = metric.interval()
            >>> bool(0 <= low < high <= 1)
            True
        """
        return self._answer(auroc_interval(self.release(), self._asked_confidence(), self.population))

    def plot(self, val: Tensor | None = None, ax: Any = None) -> Any:
        """Draw the curves whose areas these are, with the areas (``val``, or what :meth:`compute` returns) shown."""
        with self._summed():
            area = self._value() if val is None else val
            if self.average in ("macro", "weighted"):  # a mean over classes belongs to none of their curves
                area = None
            curve = roc_from_counts(self._read(), average="micro" if self.average == "micro" else None)
            if self.confidence is None or val is not None:
                return curve.plot(area, ax)
            band = roc_band(self._source(), self.confidence, self.population)
            return curve.plot(area, ax, band=band, interval=self.interval())
