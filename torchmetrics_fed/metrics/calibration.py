"""FederatedCalibration."""

from typing import Any

from torchmetrics_fed.functional.calibration import Calibration, calibration_from_counts
from torchmetrics_fed.metrics.families import CurveMetric
from torchmetrics_fed.typing import Average, Task


class FederatedCalibration(CurveMetric):
    """Calibration of all ranks' or clients' data together: calibration error, Brier score and reliability curve.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.Calibration`; each bin stands for its centre. Scores must
    be probabilities. Arguments are those of :class:`~torchmetrics_fed.FederatedMetric`, and:

    Args:
        bins: number of calibration bins, even over [0, 1].

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedCalibration
        >>> metric = FederatedCalibration(bins=2)
        >>> metric.update(torch.tensor([0.2, 0.2, 0.8, 0.8]), torch.tensor([0, 0, 1, 0]))
        >>> metric.compute().observed
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """

    higher_is_better: bool | None = False
    result = Calibration
    short_name = "calibration"
    scalar_names = ("expected_calibration_error", "brier_score")
    plot_legend_name: str = "Calibration"
    averages: tuple[Average, ...] = ("micro",)

    def __init__(self, task: Task = "binary", *, bins: int = 15, **kwargs: Any) -> None:
        super().__init__(task, **kwargs)
        self.bins = bins

    def compute(self) -> Calibration:
        """Return the calibration of all ranks' counts."""
        return self._answer(calibration_from_counts(self._read(), bins=self.bins, average=self.average))
