"""FederatedAveragePrecision."""

from typing import Any

from torch import Tensor

from torchmetrics_fed.functional.average_precision import average_precision_from_counts
from torchmetrics_fed.functional.band import Interval, average_precision_interval, precision_recall_band
from torchmetrics_fed.functional.precision_recall import precision_recall_from_counts
from torchmetrics_fed.metrics.base import FederatedMetric
from torchmetrics_fed.typing import Average

__all__ = ["FederatedAveragePrecision"]


class FederatedAveragePrecision(FederatedMetric):
    """Average precision of all ranks' or clients' data together: the area under the PR curve read as a step.

    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        confidence: probability with which :meth:`interval` holds the exact average precision.
        population: as in :class:`~torchmetrics_fed.FederatedROC`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedAveragePrecision
        >>> metric = FederatedAveragePrecision()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.8333, dtype=torch.float64)
    """

    has_bands = True
    is_scalar: bool = True
    higher_is_better: bool | None = True
    short_name = "average_precision"
    plot_legend_name: str = "AP"
    averages: tuple[Average, ...] = ("micro", "macro", "weighted")
    default_average: Average | None = "macro"

    def compute(self) -> Tensor:
        """Return the average precision of all ranks' counts."""
        return self._out(average_precision_from_counts(self._read(), average=self.average))

    def interval(self) -> Interval:
        """Return the interval of the average precision, as :meth:`FederatedAUROC.interval` does."""
        return self._answer(average_precision_interval(self.release(), self._asked_confidence(), self.population))

    def plot(self, val: Tensor | None = None, ax: Any = None) -> Any:
        """Draw the curves whose areas these are, with the areas (``val``, or what :meth:`compute` returns) shown."""
        with self._summed():
            area = self._value() if val is None else val
            if self.average in ("macro", "weighted"):  # a mean over classes belongs to none of their curves
                area = None
            curve = precision_recall_from_counts(self._read(), average="micro" if self.average == "micro" else None)
            if self.confidence is None or val is not None:
                return curve.plot(area, ax)
            band = precision_recall_band(self._source(), self.confidence, self.population)
            return curve.plot(area, ax, band=band, interval=self.interval())
