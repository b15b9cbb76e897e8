"""FederatedAveragePrecision."""

from torch import Tensor

from torchmetrics_fed.functional.average_precision import average_precision_from_counts
from torchmetrics_fed.functional.band import average_precision_interval, precision_recall_band
from torchmetrics_fed.functional.noise import warn_of_precision
from torchmetrics_fed.functional.precision_recall import precision_recall_from_counts
from torchmetrics_fed.metrics.families import AreaMetric
from torchmetrics_fed.typing import Average


class FederatedAveragePrecision(AreaMetric):
    """Average precision of all ranks' or clients' data together: the area under the PR curve read as a step.

    Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        confidence: probability with which :meth:`interval` holds the exact average precision.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedAveragePrecision
        >>> metric = FederatedAveragePrecision()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute()
        tensor(0.8333, dtype=torch.float64)
    """

    bands_of, interval_of = staticmethod(precision_recall_band), staticmethod(average_precision_interval)
    curve_of = staticmethod(precision_recall_from_counts)
    short_name = "average_precision"
    plot_legend_name: str = "AP"

    def _area(self, average: Average | None) -> Tensor:
        """Return the average precision of the counts as they are."""
        source = self._read()
        if self.spec.privacy is not None:
            warn_of_precision(self._source())
        return average_precision_from_counts(source, average=average)
