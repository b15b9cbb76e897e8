"""FederatedPrecisionRecallGain."""

from torchmetrics_fed.functional.gain import PrecisionRecallGainCurve, precision_recall_gain_from_counts
from torchmetrics_fed.metrics.families import CurveMetric
from torchmetrics_fed.typing import Average


class FederatedPrecisionRecallGain(CurveMetric):
    """Precision-recall-gain curve (Flach and Kull 2015) of all ranks' or clients' data together, with its area.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.PrecisionRecallGainCurve`
    ``(precision_gain, recall_gain, thresholds, area)``, thresholds increasing. Arguments are those of
    :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedPrecisionRecallGain, ScoreGrid
        >>> metric = FederatedPrecisionRecallGain(grid=ScoreGrid.from_edges([0, 0.5, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.2, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> metric.compute().precision_gain
        tensor([0., 1.], dtype=torch.float64)
    """

    result = PrecisionRecallGainCurve
    short_name = "precision_recall_gain"
    scalar_names = ("area_under_gain",)
    plot_legend_name: str = "PR gain"
    averages: tuple[Average, ...] = ("micro",)

    def compute(self) -> PrecisionRecallGainCurve:
        """Return the PR-gain curve of all ranks' counts."""
        return self._answer(precision_recall_gain_from_counts(self._read(), average=self.average))
