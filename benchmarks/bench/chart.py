"""Chart: how many times longer each peer takes than this package, on a logarithmic axis."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bench.binary import IN_BATCHES, PEER_SECTION
from benchmarks.bench.figure import Figure, rounded
from benchmarks.bench.peers import OURS, PEERS, READ

__all__ = ["draw"]


def draw(figures: list[Figure], path: Path) -> None:
    """Draw the case of the goals into ``path``."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    of_case = [figure for figure in figures if figure[:2] == (PEER_SECTION, IN_BATCHES)]
    ratios = {figure.name: figure.value for figure in of_case if figure.name in PEERS}
    ratios[OURS] = 1.0
    order = sorted(ratios, key=lambda name: -ratios[name])
    figure, axes = plt.subplots(figsize=(8, 0.36 * len(order) + 1.2), layout="constrained")
    colors = {OURS: "tab:blue", READ: "0.45"}
    least = 0.5 * min(ratios.values())
    axes.barh(
        order,
        [ratios[name] - least for name in order],
        left=least,
        color=[colors.get(name, "0.75") for name in order],
    )
    for row, name in enumerate(order):
        axes.annotate(
            rounded(ratios[name]),
            (ratios[name], row),
            (4, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_xscale("log")
    axes.set_xlim(least, 3 * max(ratios.values()))
    axes.set_xlabel("CPU time of all updates and one compute, relative to this package")
    axes.set_title(f"float32 scores, {IN_BATCHES}, one thread", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
