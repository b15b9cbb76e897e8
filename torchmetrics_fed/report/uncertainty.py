"""The intervals and bands of a report, by the names of its numbers and curves."""

from __future__ import annotations

from typing import Any

from torchmetrics_fed import functional as F
from torchmetrics_fed.release.release import Release


def uncertainty(
    release: Release, line: F.CalibrationLine | None, confidence: float, population: bool
) -> tuple[dict[str, F.Interval], dict[str, F.Band]]:
    """Return intervals and bands, by name."""
    how = {"confidence": confidence, "population": population}
    intervals = {
        "auroc": F.auroc_interval(release, confidence, population),
        "average_precision": F.average_precision_interval(release, confidence, population),
    }
    curves: dict[str, Any] = {"cumulative_gains": F.cumulative_gains(release, **how)}  # type: ignore[arg-type]
    if line is not None and line.intervals is not None:
        intervals |= dict(zip(line.scalars, line.intervals, strict=True))
        curves["net_benefit"] = F.net_benefit(release, **how)  # type: ignore[arg-type]
    intervals |= {name: F.Interval(curve.low, curve.high) for name, curve in curves.items()}
    bands = {
        "roc": F.roc_band(release, confidence, population),
        "precision_recall": F.precision_recall_band(release, confidence, population),
    }
    return intervals, bands
