"""FederatedPrecisionRecallCurve."""

from typing import Any

from torch import Tensor

from torchmetrics_fed.functional.band import Band, precision_recall_band
from torchmetrics_fed.functional.precision_recall import (
    PrecisionRecallCurve,
    Strategy,
    check_strategy,
    precision_recall_of,
)
from torchmetrics_fed.kernel import Task
from torchmetrics_fed.metrics.base import FederatedCurve
from torchmetrics_fed.plot import plot_precision_recall

__all__ = ["FederatedPrecisionRecallCurve"]


class FederatedPrecisionRecallCurve(FederatedCurve):
    """Precision-recall curve of data that nobody may pool.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.PrecisionRecallCurve` ``(precision, recall,
    thresholds)`` in torchmetrics' order: thresholds increase, and a last point (1, 0) has no threshold.

    Arguments are those of :class:`~torchmetrics_fed.FederatedCurve`, and:

    Args:
        strategy: with ``method="quantile"``, whether precision's denominator comes from both classes' quantiles
            (``"separate"``) or from those of all examples (``"combine"``).
        confidence: as in :class:`~torchmetrics_fed.FederatedROC`.
        population: as in :class:`~torchmetrics_fed.FederatedROC`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedPrecisionRecallCurve
        >>> metric = FederatedPrecisionRecallCurve(score_edges=[0, 0.25, 0.5, 0.75, 1])
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute().precision
        tensor([0.5000, 0.6667, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
    """

    has_bands = True
    plot_legend_name: str = "PR"

    def __init__(self, task: Task = "binary", *, strategy: Strategy = "separate", **kwargs: Any) -> None:
        super().__init__(task, **kwargs)
        check_strategy(strategy)
        self.strategy: Strategy = strategy

    def compute(self) -> PrecisionRecallCurve:
        """Return the precision-recall curve of all ranks' counts."""
        return self._answer(precision_recall_of(self._read(), self.strategy, self.average))

    def band(self) -> Band:
        """Return the band of precision over recall, as :meth:`FederatedROC.band` does."""
        return self._answer(precision_recall_band(self.total(), self._asked_confidence(), self.population))

    def plot(self, curve: PrecisionRecallCurve | None = None, score: Tensor | None = None, ax: Any = None) -> Any:
        """Draw ``curve``, or the one :meth:`compute` returns with its band, and return ``(fig, ax)``."""
        band = None if self.confidence is None or curve is not None else self.band()
        return plot_precision_recall(self.compute() if curve is None else curve, score, ax, band=band)
