"""FederatedAUROC."""

from typing import Any

from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.auroc import auroc_from_counts
from torchmetrics_fed.functional.band import auroc_interval, roc_band
from torchmetrics_fed.functional.roc import checked_max_fpr, roc_from_counts
from torchmetrics_fed.metrics.families import AreaMetric
from torchmetrics_fed.typing import Average, Task


class FederatedAUROC(AreaMetric):
    """Area under the ROC curve of all ranks' or clients' data together; ties within a bin count half.

    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        max_fpr: only the area up to this false positive rate, on McClish's scale from 1/2 (chance) to 1.
        confidence: probability with which :meth:`interval` holds the exact area; for the whole area only.

    With ``multi_class="ovo"`` it is the mean over pairs of classes (Hand and Till 2001), as scikit-learn has it.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedAUROC
        >>> metric = FederatedAUROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
    """

    bands_of, interval_of = staticmethod(roc_band), staticmethod(auroc_interval)
    curve_of = staticmethod(roc_from_counts)
    short_name = "auroc"
    plot_legend_name: str = "AUROC"

    def __init__(self, task: Task = "binary", *, max_fpr: float | None = None, **kwargs: Any) -> None:
        super().__init__(task, **kwargs)
        self.max_fpr = checked_max_fpr(max_fpr)
        if self.max_fpr is not None and self.confidence is not None:
            raise InputError(
                f"Expected no `max_fpr` with `confidence` but got {max_fpr!r}: intervals are made of the whole area. "
                "The band of FederatedROC bounds the curve up to any false positive rate."
            )

    def _area(self, average: Average | None) -> Tensor:
        """Return the area of the counts as they are."""
        return auroc_from_counts(self._read(), max_fpr=self.max_fpr, average=average)
