"""Releases on the server's disk, one file per round, for curves and figures afterwards."""

from __future__ import annotations

from pathlib import Path

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.metrics import FederatedPrecisionRecallCurve, FederatedROC
from torchmetrics_fed.release import Release

__all__ = ["draw_release", "load_releases", "save_release"]


def save_release(folder: str | Path, number: int, release: Release) -> Path:
    """Write the release of round ``number``, whole or not at all, and return where."""
    path = Path(folder, f"round-{number:04d}.release")
    path.parent.mkdir(parents=True, exist_ok=True)
    release.save(path)
    return path


def load_releases(folder: str | Path) -> dict[int, Release]:
    """Return the releases that an aggregator has left in ``folder``, by the number of their round.

    Args:
        folder: the aggregator's; in the simulator ``server/simulate_job/torchmetrics_fed`` of the workspace.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.integrations.nvflare.archive import load_releases, save_release
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_release(folder, 3, metric.release())
        ...     list(load_releases(folder))
        [3]
    """
    if not Path(folder).is_dir():
        raise InputError(f"Expected argument `folder` to be the folder of an aggregator's releases but got {folder!s}.")
    paths = sorted(Path(folder).glob("round-*.release"))
    return {int(path.stem.removeprefix("round-")): Release.load(path) for path in paths}


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
