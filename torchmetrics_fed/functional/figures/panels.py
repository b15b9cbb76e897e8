"""Panels: histograms of the scores of both classes, and small multiples of results."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.counting.edges import SMALLEST
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.figures.canvas import (
    PALETTE,
    dress,
    figure,
    named_curves,
    open_axes,
)
from torchmetrics_fed.functional.figures.page import cut, ink, scale
from torchmetrics_fed.reconstruct.histograms import are_probabilities

FEWEST_BARS = 16
"""The least number of bars of a histogram."""

MOST_BARS = 64
"""The largest number of bars of a histogram."""

NEAR_END = 2.0**-6
"""If more than half of the scores are nearer to 0 or 1 than this, the axis shows their logits."""

NEAREST_TO_END = 2.0**-42
"""An axis of logits ends at this distance from 0 and 1."""

HIDDEN_TAIL = 0.001
"""The fraction of the scores that an axis of logits leaves out at either end."""

LOGIT_TICKS = (1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.5)
"""Scores at the ticks of an axis of logits, up to 1/2; the other half is their mirror image."""

LEGEND_ROOM = 1.28
"""The height of the axes of a histogram in units of its highest bar: the legend stands above."""

MOST_COLUMNS = 6
"""The largest number of panels in a row."""

BEHIND_POINTS = 256
"""Points of a curve that is drawn behind the curve of another panel."""


def plot_histograms(leaf: Tensor, edges: Tensor, ax: Any = None, label: str | None = None) -> Any:
    """Draw the density of the scores of negatives and of positives, and return ``(fig, ax)``.

    Leaves are joined to bars of about even width: twice the cube root of the size of the smaller
    class, but 16 to 64 of them. Where most scores are near 0 or 1, bars are even in the logit of
    the score. Counts with a class axis are summed over the classes.

    Args:
        leaf: counts of a :class:`Histograms`.
        edges: their ascending edges.
        ax: as in :meth:`ROCCurve.plot`.
        label: as in :meth:`ROCCurve.plot`.

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
    has_logits = False
    if _is_crowded_at_ends(counts, edges):
        logits, visible_counts = _logits(edges, counts)
        # if nearly all scores are exactly 0, or exactly 1, there is one logit only
        has_logits = bool(logits[-1] > logits[0])
        if has_logits:
            edges = logits
            counts = visible_counts
    smaller_class = float(total.min().clamp(min=0.0))
    cuts = _cuts(edges, bars=round(2 * smaller_class ** (1 / 3)))
    bars = [part.sum(-1) for part in counts.tensor_split(cuts[1:-1], -1)]
    density = torch.stack(bars, -1) / (total.clamp(min=1e-9)[:, None] * edges[cuts].diff())
    names = [f"negatives (n = {total[0]:,.0f})", f"positives (n = {total[1]:,.0f})"]
    if label:
        names = [f"{label}, {name}" for name in names]
    fig, ax = open_axes(ax, names)
    for name, heights in zip(names, density, strict=True):
        colour = PALETTE[len(ax.patches) % len(PALETTE)]
        ax.stairs(
            heights,
            edges[cuts],
            fill=True,
            label=name,
            facecolor=f"{colour}4D",
            edgecolor=colour,
            linewidth=0.9 * scale(),
        )
    _fit_histogram(ax, edges, highest=density.max().item())
    xlabel = "Score"
    if has_logits:
        xlabel = "Score, by its logit"
    dress(ax, xlabel, "Density", rates=False)
    if has_logits:
        _show_scores(ax, edges[0].item(), edges[-1].item())
    return fig, ax


def _fit_histogram(ax: Any, edges: Tensor, highest: float) -> None:
    """Set the limits of the axes: all bars are visible, and the legend has room above them."""
    low = edges[0].item()
    high = edges[-1].item()
    margin = 0.01 * (high - low)
    highest_before = 1e-9
    has_earlier_histograms = len(ax.patches) > 2
    if has_earlier_histograms:
        highest_before = ax.get_ylim()[1] / LEGEND_ROOM
    ax.set_xlim(low - margin, high + margin)
    ax.set_ylim(0, LEGEND_ROOM * max(highest, highest_before))


def _is_crowded_at_ends(counts: Tensor, edges: Tensor) -> bool:
    """Whether most scores are probabilities so near to 0 or 1 that even bars would show one bar.

    Scores of exactly 0 or 1 do not count: no axis shows them better.
    """
    if not are_probabilities(edges):
        return False
    is_near_end = (edges[1:] <= NEAR_END) | (1 - edges[:-1] <= NEAR_END)
    is_between_ends = edges.diff() > SMALLEST
    examples = counts.clamp(min=0.0)
    near = float(examples[:, is_near_end & is_between_ends].sum())
    return near > 0.5 * float(examples[:, is_between_ends].sum())


def _logits(edges: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of the edges, and the counts, without one in a thousand at either end."""
    logit = (edges.clamp(min=NEAREST_TO_END) / (1 - edges).clamp(min=NEAREST_TO_END)).log()
    below = counts.clamp(min=0.0).sum(0).cumsum(0)
    ends = torch.tensor([HIDDEN_TAIL, 1 - HIDDEN_TAIL], dtype=below.dtype)
    first, last = torch.searchsorted(below, below[-1] * ends).tolist()
    return logit[first : last + 2], counts[:, first : last + 1]


def _show_scores(ax: Any, low: float, high: float) -> None:
    """Name the scores on an axis of logits, at ticks that do not crowd."""
    ticks = [(math.log(score / (1 - score)), f"{score:g}") for score in LOGIT_TICKS]
    for logit, name in reversed(ticks[:-1]):
        if logit < -5:
            ticks.append((-logit, f"1 - {name}"))
        else:
            ticks.append((-logit, f"{1 - float(name):g}"))
    logits: list[float] = []
    names: list[str] = []
    for logit, name in ticks:
        is_visible = low <= logit <= high
        if is_visible and (not logits or logit - logits[-1] > (high - low) / 7):
            logits.append(logit)
            names.append(name)
    ax.set_xticks(logits, names)


def _cuts(edges: Tensor, bars: int) -> Tensor:
    """Return the indices of the edges nearest to the edges of this many even bars."""
    leaves = len(edges) - 1
    leaves_per_bar = math.ceil(leaves / min(max(bars, FEWEST_BARS), MOST_BARS))
    bars = math.ceil(leaves / leaves_per_bar)
    even = edges[0] + (edges[-1] - edges[0]) * torch.linspace(0, 1, bars + 1, dtype=torch.float64)
    above = torch.searchsorted(edges, even).clamp(1, leaves)
    is_nearer_below = even - edges[above - 1] < edges[above] - even
    nearest: Tensor = torch.where(is_nearer_below, above - 1, above).unique()
    return nearest


def small_multiples(
    results: Mapping[str, Any], labels: Sequence[str] | None = None, caption: str = ""
) -> Any:
    """Draw a panel for each result, the other results in grey behind it; return ``(fig, axes)``.

    Args:
        results: by the name of the client or group, all of one kind: ROC curves, for instance.
        labels: names of the classes.
        caption: at the foot of the page, for instance the epsilon of all results.

    Example:
        >>> from torchmetrics_fed.functional import roc_from_counts
        >>> edges = torch.tensor([0, 0.5, 1])
        >>> north = roc_from_counts(torch.tensor([[3, 1], [1, 3]]), edges)
        >>> south = roc_from_counts(torch.tensor([[2, 2], [2, 2]]), edges)
        >>> fig, axes = small_multiples({"north": north, "south": south})
        >>> [ax.get_title().split()[0] for ax in axes]
        ['north', 'south']
    """
    kinds = {type(result).__name__ for result in results.values()}
    if len(kinds) != 1:
        raise InputError(
            "Expected argument `results` to hold results of one kind but got "
            f"{sorted(kinds) or 'none'}."
        )
    columns = min(math.ceil(math.sqrt(len(results))), MOST_COLUMNS)
    rows = math.ceil(len(results) / columns)
    fig, axes = figure(rows, columns, (1.75 * columns + 0.3, 2.05 * rows + 0.5))
    fig.supxlabel(caption, fontsize=7.5 * scale())
    panels, unused = np.split(np.atleast_1d(axes).flatten(), [len(results)])
    for ax in unused:
        ax.remove()
    for ax, result in zip(panels, results.values(), strict=True):
        result.plot(ax=ax, labels=labels)
        ax.get_legend().remove()
    curves = [named_curves(ax) for ax in panels]
    for place, name in enumerate(results):
        ax = panels[place]
        _draw_behind(ax, curves[:place] + curves[place + 1 :])
        ax.set_title(f"{cut(name)}\n{_score(curves[place])}".rstrip(), fontsize=8 * scale())
        _label_outer_axes(
            ax, is_leftmost=place % columns == 0, is_lowest=place + columns >= len(results)
        )
    _share_widest_axis(panels, "x")
    _share_widest_axis(panels, "y")
    if len(curves[0]) > 1:
        _draw_common_legend(fig, panels[columns - 1], curves[0])
    return fig, axes


def _draw_behind(ax: Any, curves: Sequence[Sequence[Any]]) -> None:
    """Draw the curves of the other panels in grey."""
    for line in (line for panel_curves in curves for line in panel_curves):
        x, y = line.get_data()
        points = np.linspace(0, len(x) - 1, BEHIND_POINTS).astype(int)
        ax.plot(
            x[points],
            y[points],
            drawstyle=line.get_drawstyle(),
            color=ink(ax, min(0.25, 4 / (len(curves) + 1))),
            linewidth=0.5 * scale(),
            zorder=1.1,
            gid="behind",
        )


def _score(curves: Sequence[Any]) -> str:
    """Return the score in the legend entry of a single curve; nothing for several curves."""
    if len(curves) != 1:
        return ""
    score = curves[0].get_label().rpartition(" (")[2]
    return str(score[:-1].replace("\n", " "))


def _label_outer_axes(ax: Any, *, is_leftmost: bool, is_lowest: bool) -> None:
    ax.tick_params(labelleft=is_leftmost, labelbottom=is_lowest)
    if not is_lowest:
        ax.set_xlabel("")
    if not is_leftmost:
        ax.set_ylabel("")


def _share_widest_axis(panels: Any, axis: str) -> None:
    """Give all panels the limits of the panel with the widest "x" or "y" axis."""
    widths = [np.ptp(getattr(ax, f"get_{axis}lim")()) for ax in panels]
    widest = panels[np.argmax(widths)]
    for ax in panels:
        if ax is not widest:
            getattr(ax, f"share{axis}")(widest)


def _draw_common_legend(fig: Any, ax: Any, curves: Sequence[Any]) -> None:
    """Name the classes beside the panels: a class has the same colour in each."""
    names = [cut(line.get_label().rpartition(" (")[0].split(": ")[0]) for line in curves]
    longest = max(len(name) for name in names)
    fig.set_figwidth(fig.get_figwidth() + (0.5 + 0.062 * longest) * scale())
    ax.legend(
        curves,
        names,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize=7.5 * scale(),
        frameon=False,
        labelcolor=ink(ax, 1.0),
    )
