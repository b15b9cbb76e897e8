"""Panels: histograms of both classes' scores, and small multiples of any results, all on common axes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.counting.binning import SMALLEST
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.figures.canvas import PALETTE, dress, figure, named, open_axes
from torchmetrics_fed.functional.figures.page import cut, ink, scale
from torchmetrics_fed.reconstruct.histograms import are_probabilities

_FEWEST, _MOST = 16, 64
# Where more than half of the scores are this near to 0 or 1, the axis shows their logits, out to the second distance.
_NEAR, _NEAREST = 2.0**-6, 2.0**-42
_TICKS = (1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.5)


def plot_histograms(leaf: Tensor, edges: Tensor, ax: Any = None, label: str | None = None) -> Any:
    """Draw the scores of negatives and of positives, each as a density, and return ``(fig, ax)``.

    Leaves are joined to bars of about even width, twice the cube root of the smaller class's size, but 16 to 64 of
    them. Where most scores crowd at 0 or 1, bars are even in the logit of the score. Counts with a class axis are
    summed over it.

    Counts and their ascending edges are those of a :class:`Histograms`, ``ax`` and ``label`` as in :meth:`ROCCurve.plot`.

    Example:
        >>> fig, ax = plot_histograms(torch.tensor([[3, 1], [1, 3]]), torch.tensor([0, 0.5, 1]))
        >>> ax.get_legend_handles_labels()[1]
        ['negatives (n = 4)', 'positives (n = 4)']
    """
    edges = edges.detach().cpu().double()
    counts = leaf.detach().cpu().double().reshape(-1, 2, leaf.shape[-1]).sum(0)
    total = counts.sum(-1)
    if are_probabilities(edges):
        edges = edges.clamp(max=1.0)
    crowded = _at_the_ends(counts, edges)
    if crowded:
        logits, shown = _logits(edges, counts)
        crowded = bool(
            logits[-1] > logits[0]
        )  # not if nearly all scores are exactly 0, or exactly 1
        if crowded:
            edges, counts = logits, shown
    cuts = _cuts(edges, round(2 * float(total.min().clamp(min=0.0)) ** (1 / 3)))
    bars = torch.stack([part.sum(-1) for part in counts.tensor_split(cuts[1:-1], -1)], -1)
    density = bars / (total.clamp(min=1e-9)[:, None] * edges[cuts].diff())
    names = [f"{label}, {name}" if label else name for name in ("negatives", "positives")]
    names = [
        f"{name} (n = {number:,.0f})" for name, number in zip(names, total.tolist(), strict=True)
    ]
    fig, ax = open_axes(ax, names)
    for row, name in enumerate(names):
        colour = PALETTE[len(ax.patches) % len(PALETTE)]
        look = {"facecolor": f"{colour}4D", "edgecolor": colour, "linewidth": 0.9 * scale()}
        ax.stairs(density[row], edges[cuts], fill=True, label=name, **look)
    low, high = edges[0].item(), edges[-1].item()
    highest = max(density.max().item(), ax.get_ylim()[1] / 1.28 if len(ax.patches) > 2 else 1e-9)
    ax.set_xlim(low - 0.01 * (high - low), high + 0.01 * (high - low))
    ax.set_ylim(0, 1.28 * highest)  # the legend's room
    dress(ax, "Score, by its logit" if crowded else "Score", "Density", rates=False)
    if crowded:
        _show_scores(ax, low, high)
    return fig, ax


def _at_the_ends(counts: Tensor, edges: Tensor) -> bool:
    """Whether most scores are probabilities so near to 0 or 1 that even bars would show a single one.

    Scores of exactly 0 or 1 do not count: no axis shows them better.
    """
    if not are_probabilities(edges):
        return False
    near = (edges[1:] <= _NEAR) | (1 - edges[:-1] <= _NEAR)
    between = edges.diff() > SMALLEST
    held = counts.clamp(min=0.0)
    return float(held[:, near & between].sum()) > 0.5 * float(held[:, between].sum())


def _logits(edges: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of the edges, and the counts, of all scores but one in a thousand at either end."""
    logit = (edges.clamp(min=_NEAREST) / (1 - edges).clamp(min=_NEAREST)).log()
    below = counts.clamp(min=0.0).sum(0).cumsum(0)
    first, last = torch.searchsorted(
        below, below[-1] * torch.tensor([0.001, 0.999], dtype=below.dtype)
    ).tolist()
    return logit[first : last + 2], counts[:, first : last + 1]


def _show_scores(ax: Any, low: float, high: float) -> None:
    """Name the scores on an axis of logits."""
    below = [(math.log(score / (1 - score)), f"{score:g}") for score in _TICKS]
    above = [
        (-place, f"1 - {name}" if place < -5 else f"{1 - float(name):g}")
        for place, name in reversed(below[:-1])
    ]
    ticks: list[tuple[float, str]] = []
    for place, name in below + above:
        if low <= place <= high and (not ticks or place - ticks[-1][0] > (high - low) / 7):
            ticks.append((place, name))
    ax.set_xticks([place for place, _ in ticks], [name for _, name in ticks])


def _cuts(edges: Tensor, wanted: int) -> Tensor:
    """Indices of the edges that are nearest to those of ``wanted`` even bars."""
    leaves = len(edges) - 1
    bars = math.ceil(leaves / math.ceil(leaves / min(max(wanted, _FEWEST), _MOST)))
    even = edges[0] + (edges[-1] - edges[0]) * torch.linspace(0, 1, bars + 1, dtype=torch.float64)
    above = torch.searchsorted(edges, even).clamp(1, leaves)
    nearest: Tensor = torch.where(
        even - edges[above - 1] < edges[above] - even, above - 1, above
    ).unique()
    return nearest


def small_multiples(
    results: Mapping[str, Any], labels: Sequence[str] | None = None, caption: str = ""
) -> Any:
    """Draw a panel for each result, the others in grey behind it, and return ``(fig, axes)``.

    Results are by the name of the client or group, all of one kind: ROC curves, for instance. ``labels`` name the
    classes, and the ``caption`` is at the foot of the page, for instance which epsilon all of them have.

    Example:
        >>> from torchmetrics_fed.functional import roc_from_counts
        >>> good, bad = torch.tensor([[3, 1], [1, 3]]), torch.tensor([[2, 2], [2, 2]])
        >>> fig, axes = small_multiples({"north": roc_from_counts(good), "south": roc_from_counts(bad)})
        >>> [ax.get_title().split()[0] for ax in axes]
        ['north', 'south']
    """
    kinds = {type(result).__name__ for result in results.values()}
    if len(kinds) != 1:
        raise InputError(
            f"Expected argument `results` to hold results of one kind but got {sorted(kinds) or 'none'}."
        )
    number, times = len(results), scale()
    columns = min(math.ceil(math.sqrt(number)), 6)
    rows = math.ceil(number / columns)
    fig, axes = figure(rows, columns, (1.75 * columns + 0.3, 2.05 * rows + 0.5))
    fig.supxlabel(caption, fontsize=7.5 * times)
    panels, unused = np.split(np.atleast_1d(axes).flatten(), [number])
    for ax in unused:
        ax.remove()
    for ax, result in zip(panels, results.values(), strict=True):
        result.plot(ax=ax, labels=labels)
        ax.get_legend().remove()
    drawn = [named(ax) for ax in panels]
    for place, (ax, name, own) in enumerate(zip(panels, results, drawn, strict=True)):
        look = {
            "color": ink(ax, min(0.25, 4 / number)),
            "linewidth": 0.5 * times,
            "zorder": 1.1,
            "gid": "behind",
        }
        for line in (line for other in drawn if other is not own for line in other):
            x, y = line.get_data()
            some = np.linspace(0, len(x) - 1, 256).astype(int)
            ax.plot(x[some], y[some], drawstyle=line.get_drawstyle(), **look)
        score = (
            own[0].get_label().rpartition(" (")[2][:-1].replace("\n", " ") if len(own) == 1 else ""
        )
        ax.set_title(f"{cut(name)}\n{score}".rstrip(), fontsize=8 * times)
        left, bottom = place % columns == 0, place + columns >= number
        ax.tick_params(labelleft=left, labelbottom=bottom)
        ax.set(xlabel=ax.get_xlabel() * bottom, ylabel=ax.get_ylabel() * left)
    for axis in "xy":
        widest = panels[np.argmax([np.ptp(getattr(ax, f"get_{axis}lim")()) for ax in panels])]
        for ax in (ax for ax in panels if ax is not widest):
            getattr(ax, f"share{axis}")(widest)
    if len(drawn[0]) > 1:  # the same colours in every panel; which class is best differs
        names = [cut(line.get_label().rpartition(" (")[0].split(": ")[0]) for line in drawn[0]]
        fig.set_figwidth(fig.get_figwidth() + (0.5 + 0.062 * max(map(len, names))) * times)
        look = {"fontsize": 7.5 * times, "frameon": False, "labelcolor": ink(panels[0], 1.0)}
        panels[columns - 1].legend(
            drawn[0], names, loc="upper left", bbox_to_anchor=(1.0, 1.0), **look
        )
    return fig, axes
