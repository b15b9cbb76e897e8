"""The figure of a round: both curves of its release."""

from __future__ import annotations

from pathlib import Path

from torchmetrics_fed.metrics import FederatedPrecisionRecallCurve, FederatedROC
from torchmetrics_fed.release import Release

__all__ = ["draw_release"]


def draw_release(path: Path, release: Release) -> None:
    """Draw both curves of ``release``, as a figure at ``path``. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # no pyplot: it would keep the figure, and ask for a display
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    FederatedROC.from_release(release).compute().plot(ax=left)
    FederatedPrecisionRecallCurve.from_release(release).compute().plot(ax=right)
    figure.savefig(path, dpi=150)
