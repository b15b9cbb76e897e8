"""FederatedROC."""

from torchmetrics_fed.functional.band import roc_band
from torchmetrics_fed.functional.roc import ROCCurve, roc_from_counts
from torchmetrics_fed.metrics.families import CurveMetric


class FederatedROC(CurveMetric):
    """ROC curve of all ranks' or clients' data together.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.ROCCurve` ``(fpr, tpr, thresholds)`` in torchmetrics'
    order: thresholds decrease, from (0, 0) to (1, 1). A score equal to a threshold counts as above it.

    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        confidence: probability with which :meth:`band` holds the whole exact curve; ``plot`` then shades it.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC, ScoreGrid
        >>> metric = FederatedROC(grid=ScoreGrid.from_edges([0, 0.25, 0.5, 0.75, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> fpr, tpr, thresholds = metric.compute()
        >>> tpr
        tensor([0.0000, 0.5000, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
        >>> thresholds
        tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
    """

    bands_of = staticmethod(roc_band)
    result = ROCCurve
    short_name = "roc"
    scalar_names = ("auroc",)
    plot_legend_name: str = "ROC"

    def compute(self) -> ROCCurve:
        """Return the ROC curve of all ranks' counts."""
        return self._answer(roc_from_counts(self._read(), average=self.average))
