"""FederatedPrecisionRecallCurve."""

from typing import Any

from torchmetrics_fed.functional.band import precision_recall_band
from torchmetrics_fed.functional.precision_recall import (
    PrecisionRecallCurve,
    Strategy,
    check_strategy,
    precision_recall_from_counts,
)
from torchmetrics_fed.metrics.families import CurveMetric
from torchmetrics_fed.typing import Task


class FederatedPrecisionRecallCurve(CurveMetric):
    """Precision-recall curve of all ranks' or clients' data together.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.PrecisionRecallCurve` ``(precision, recall,
    thresholds)`` in torchmetrics' order: thresholds increase, and a last point (1, 0) has no threshold.

    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        strategy: with ``Reconstruction(method="quantile")``, whether precision's denominator comes from both classes'
            quantiles (``"separate"``) or from those of all examples (``"combine"``).
        confidence: as in :class:`~torchmetrics_fed.FederatedROC`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedPrecisionRecallCurve, ScoreGrid
        >>> metric = FederatedPrecisionRecallCurve(grid=ScoreGrid.from_edges([0, 0.25, 0.5, 0.75, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute().precision
        tensor([0.5000, 0.6667, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
    """

    bands_of = staticmethod(precision_recall_band)
    result = PrecisionRecallCurve
    short_name = "precision_recall_curve"
    scalar_names = ("average_precision",)
    plot_legend_name: str = "PR"

    def __init__(self, task: Task = "binary", *, strategy: Strategy = "separate", **kwargs: Any) -> None:
        super().__init__(task, **kwargs)
        check_strategy(strategy)
        self.strategy: Strategy = strategy

    def compute(self) -> PrecisionRecallCurve:
        """Return the precision-recall curve of all ranks' counts."""
        return self._answer(precision_recall_from_counts(self._read(), strategy=self.strategy, average=self.average))
