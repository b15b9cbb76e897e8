"""FederatedDET."""

from torchmetrics_fed.functional.det import DETCurve, det_from_counts
from torchmetrics_fed.metrics.families import CurveMetric
from torchmetrics_fed.typing import Average


class FederatedDET(CurveMetric):
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

    result = DETCurve
    short_name = "det"
    scalar_names = ("equal_error_rate",)
    plot_legend_name: str = "DET"
    averages: tuple[Average, ...] = ("micro",)

    def compute(self) -> DETCurve:
        """Return the DET curve of all ranks' counts."""
        return self._answer(det_from_counts(self._read(), average=self.average))
