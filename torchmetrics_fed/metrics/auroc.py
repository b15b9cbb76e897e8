"""FederatedAUROC."""

from typing import Any

from torch import Tensor

from torchmetrics_fed.functional.auroc import auroc_of, checked_max_fpr
from torchmetrics_fed.functional.average import Average
from torchmetrics_fed.functional.roc import roc_of
from torchmetrics_fed.kernel import Task
from torchmetrics_fed.metrics.base import FederatedCurve
from torchmetrics_fed.plot import plot_roc

__all__ = ["FederatedAUROC"]


class FederatedAUROC(FederatedCurve):
    """Area under the ROC curve of data that nobody may pool; ties within a bin count half.

    Arguments are those of :class:`~torchmetrics_fed.FederatedCurve`, and:

    Args:
        max_fpr: only the area up to this false positive rate, on McClish's scale from 1/2 (chance) to 1.

    With ``multi_class="ovo"`` it is the mean over pairs of classes (Hand and Till 2001), as scikit-learn has it.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedAUROC
        >>> metric = FederatedAUROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
    """

    is_scalar: bool = True
    higher_is_better: bool | None = True
    plot_legend_name: str = "AUROC"
    averages: tuple[Average, ...] = ("micro", "macro", "weighted")
    default_average: Average | None = "macro"

    def __init__(self, task: Task = "binary", *, max_fpr: float | None = None, **kwargs: Any) -> None:
        super().__init__(task, **kwargs)
        self.max_fpr = checked_max_fpr(max_fpr)

    def compute(self) -> Tensor:
        """Return the area of all ranks' counts."""
        pairs = None
        if self.spec.multi_class == "ovo":
            pairs = self.reconstruction.levels(self._source())
        return self._out(auroc_of(self._read(), self.average, self.max_fpr, pairs))

    def plot(self, val: Tensor | None = None, ax: Any = None) -> Any:
        """Draw the curves whose areas these are, with the areas (``val``, or what :meth:`compute` returns) shown.

        A mean over classes belongs to no one curve: each class then shows its own.
        """
        area: Tensor | None = self.compute() if val is None else val
        if self.average in ("macro", "weighted"):
            area = None
        with self._summed():
            curve = roc_of(self._read(), "micro" if self.average == "micro" else None)
        return plot_roc(curve, area, ax)
