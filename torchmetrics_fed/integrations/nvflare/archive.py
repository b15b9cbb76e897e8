"""Releases on the server's disk, one file per round, for curves and pictures afterwards."""

from __future__ import annotations

import os
from pathlib import Path

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.metrics import FederatedPrecisionRecallCurve, FederatedROC
from torchmetrics_fed.plot import plot_precision_recall, plot_roc
from torchmetrics_fed.release import Release
from torchmetrics_fed.spec import Spec

__all__ = ["draw_release", "load_releases", "save_release"]


def save_release(folder: str | Path, number: int, release: Release) -> Path:
    """Write the release of round ``number``, whole or not at all, and return where."""
    path = Path(folder, f"round-{number:04d}.release")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(bytes(release))
    os.replace(part, path)
    return path


def load_releases(folder: str | Path, spec: Spec) -> dict[int, Release]:
    """Return the releases that an aggregator has left in ``folder``, by the number of their round.

    Args:
        folder: the aggregator's; in the simulator ``server/simulate_job/torchmetrics_fed`` of the workspace.
        spec: that of the aggregator, or of any client's metric.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC, Release
        >>> from torchmetrics_fed.integrations.nvflare.archive import load_releases, save_release
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_release(folder, 3, Release.sum([metric.release()]))
        ...     list(load_releases(folder, metric.spec))
        [3]
    """
    if not Path(folder).is_dir():
        raise InputError(f"Expected argument `folder` to be the folder of an aggregator's releases but got {folder!s}.")
    paths = sorted(Path(folder).glob("round-*.release"))
    return {int(path.stem.removeprefix("round-")): Release.from_bytes(path.read_bytes(), spec) for path in paths}


def draw_release(path: Path, release: Release) -> None:
    """Draw both curves of ``release``, as a picture at ``path``. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # no pyplot: it would keep the figure, and ask for a display
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    plot_roc(FederatedROC.from_release(release).compute(), ax=left)
    plot_precision_recall(FederatedPrecisionRecallCurve.from_release(release).compute(), ax=right)
    figure.savefig(path, dpi=150)
