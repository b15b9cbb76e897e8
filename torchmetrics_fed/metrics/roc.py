"""FederatedROC."""

from typing import Any

from torch import Tensor

from torchmetrics_fed.functional.roc import ROCCurve, roc_of
from torchmetrics_fed.metrics.base import FederatedCurve
from torchmetrics_fed.plot import plot_roc

__all__ = ["FederatedROC"]


class FederatedROC(FederatedCurve):
    """ROC curve of data that nobody may pool.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.ROCCurve` ``(fpr, tpr, thresholds)`` in torchmetrics'
    order: thresholds decrease, from (0, 0) to (1, 1). A score equal to a threshold counts as above it.

    Arguments are those of :class:`~torchmetrics_fed.FederatedCurve`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> metric = FederatedROC(score_edges=[0, 0.25, 0.5, 0.75, 1])
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> fpr, tpr, thresholds = metric.compute()
        >>> tpr
        tensor([0.0000, 0.5000, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
        >>> thresholds
        tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
    """

    plot_legend_name: str = "ROC"

    def compute(self) -> ROCCurve:
        """Return the ROC curve of all ranks' counts."""
        return self._answer(roc_of(self._read(), self.average))

    def plot(self, curve: ROCCurve | None = None, score: Tensor | None = None, ax: Any = None) -> Any:
        """Draw ``curve``, or the one :meth:`compute` returns, and return ``(fig, ax)``."""
        return plot_roc(self.compute() if curve is None else curve, score, ax)
