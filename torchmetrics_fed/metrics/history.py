"""History: the values of a metric in all evaluations so far, for their trend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchmetrics_fed.errors import FederatedMetricError
from torchmetrics_fed.functional.trend import Trend, deviation_of, smoothed
from torchmetrics_fed.metrics.counts import CountsMetric
from torchmetrics_fed.release import Release


class History:
    """The values of all evaluations so far, by name, with their deviations where these are known.

    It holds numbers that were computed from releases, and no release.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.metrics.history import History
        >>> history = History()
        >>> for value in (0.7, 0.75, 0.72):
        ...     trend = history.add_value("val_auroc", torch.tensor(value))
        >>> len(trend.value)
        3
    """

    def __init__(self) -> None:
        self.values: dict[str, list[Tensor]] = {}
        self.deviations: dict[str, list[Tensor | None]] = {}

    def add(self, name: str, scalar: str, value: Tensor, metric: CountsMetric) -> Trend:
        """Add the value of a metric's release, and return the trend of all values of that name.

        Args:
            name: the name of the value.
            scalar: the name of the scalar; ``"auroc"`` and ``"average_precision"`` have intervals.
            value: the value, of each class if there are several.
            metric: the metric that was computed.
        """
        deviation = None
        if metric.spec.privacy.charges:
            deviation = _deviation(metric.release(), metric.definition.name, scalar, value)
        return self.add_value(name, value, deviation)

    def add_scalar(self, name: str, value: float, release: Release) -> Trend:
        """Add a number of a release, by a name such as ``federated-average-precision``."""
        number = torch.tensor(value, dtype=torch.float64)
        deviation = None
        if release.spec.privacy.charges:
            scalar = name.removeprefix("federated-").replace("-", "_")
            deviation = _deviation(release, scalar, scalar, number)
        return self.add_value(name, number, deviation)

    def add_value(self, name: str, value: Tensor, deviation: Tensor | None = None) -> Trend:
        """Add a value with its standard deviation, and return the trend of all values so far."""
        self.values.setdefault(name, []).append(value.detach().double().cpu())
        self.deviations.setdefault(name, []).append(deviation)
        return self.trend(name)

    def trend(self, name: str) -> Trend:
        """Return the trend of all values of a name."""
        values = torch.stack(self.values[name])
        deviations = [part for part in self.deviations[name] if part is not None]
        if len(deviations) < len(values):
            return smoothed(values)
        return smoothed(values, deviations=torch.stack(deviations))

    @property
    def state(self) -> dict[str, Any]:
        """The content, for a checkpoint."""
        return {"values": dict(self.values), "deviations": dict(self.deviations)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> History:
        """Return the history whose :attr:`state` this is."""
        history = cls()
        history.values = {name: list(values) for name, values in state["values"].items()}
        history.deviations = {name: list(parts) for name, parts in state["deviations"].items()}
        return history


def _deviation(release: Release, kind: str, scalar: str, value: Tensor) -> Tensor | None:
    """Return the deviation of a value of which an interval is known, else None."""
    names = (scalar, kind)
    try:
        if "auroc" in names:
            deviation = deviation_of(release, "auroc")
        elif "average_precision" in names:
            deviation = deviation_of(release, "average_precision")
        else:
            return None
    except FederatedMetricError:  # releases without intervals, as of two models
        return None
    if deviation.shape != value.shape:  # a mean over classes
        return None
    return deviation
