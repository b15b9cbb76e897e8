"""Small multiples: one panel for each client or group, all on common axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.figures.canvas import figure
from torchmetrics_fed.functional.figures.page import cut, ink, page_caption, scale

_PANEL = 1.75  # inches
_POINTS = 256  # of a line behind


def small_multiples(
    results: Mapping[str, Any], *, labels: Sequence[str] | None = None, columns: int | None = None, caption: str = ""
) -> Any:
    """Draw a panel for each result, the others in grey behind it, and return ``(fig, axes)``.

    Args:
        results: by the name of the client or group, all of one kind: ROC curves, for instance.
        labels: names of the classes.
        columns: how many panels stand side by side; about as many as below each other if not given.
        caption: at the foot of the page, for instance which epsilon all of them have.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import roc_from_counts, small_multiples
        >>> good, bad = torch.tensor([[3, 1], [1, 3]]), torch.tensor([[2, 2], [2, 2]])
        >>> fig, axes = small_multiples({"north": roc_from_counts(good), "south": roc_from_counts(bad)})
        >>> [ax.get_title() for ax in axes.flat]
        ['north\\nAUROC 0.7500', 'south\\nAUROC 0.5000']
    """
    if not results or len({type(result) for result in results.values()}) > 1:
        kinds = sorted({type(result).__name__ for result in results.values()})
        raise InputError(f"Expected argument `results` to hold results of one kind but got {kinds or 'none'}.")
    columns = columns or min(math.ceil(math.sqrt(len(results))), 6)
    below = math.ceil(len(results) / columns)
    fig, axes = figure(below, columns, (_PANEL * columns + 0.3, (_PANEL + 0.3) * below + 0.5))
    fig.set_layout_engine("compressed")
    panels = list(axes.flat) if len(results) > 1 else [axes]
    for unused in panels[len(results) :]:
        unused.remove()
    drawn = []
    for ax, result in zip(panels, results.values(), strict=False):
        result.plot(ax=ax, labels=labels)
        drawn.append([line for line in ax.get_lines() if line.get_gid() == "curve" and line.get_zorder() >= 2])
    for place, (ax, name) in enumerate(zip(panels, results, strict=False)):
        for line in (line for other in drawn if other is not drawn[place] for line in other):
            some = np.linspace(0, len(line.get_xdata()) - 1, _POINTS).astype(int)
            look = {
                "color": ink(ax, min(0.25, 4 / len(results))),
                "linewidth": 0.5 * scale().points,
                "drawstyle": line.get_drawstyle(),
            }
            ax.plot(line.get_xdata()[some], line.get_ydata()[some], zorder=1.1, gid="behind", **look)
        _dress(ax, name, drawn[place], left=place % columns == 0, bottom=place + columns >= len(results))
    for axis, share in (("xlim", "sharex"), ("ylim", "sharey")):
        widest = max(panels[: len(results)], key=lambda ax: np.ptp(getattr(ax, f"get_{axis}")()))
        for ax in panels[: len(results)]:
            if ax is not widest:
                getattr(ax, share)(widest)
    if len(drawn[0]) > 1:  # the same colours in every panel; what is best differs
        names = [cut(line.get_label().rpartition(" (")[0].split(": ")[0]) for line in drawn[0]]
        wide, high = fig.get_size_inches()
        fig.set_size_inches(wide + (0.4 + 0.06 * max(map(len, names))) * scale().points, high)
        look = {"fontsize": 7.5 * scale().points, "frameon": False, "labelcolor": ink(panels[0], 1.0)}
        panels[columns - 1].legend(drawn[0], names, loc="upper left", bbox_to_anchor=(1.0, 1.0), **look)
    page_caption(fig, caption)
    return fig, axes


def _dress(ax: Any, name: str, curves: Sequence[Any], left: bool, bottom: bool) -> None:
    """Put the name and a single curve's score above a panel, and leave out what stands at the next one, too."""
    ax.get_legend().remove()
    score = curves[0].get_label().rpartition(" (")[2].removesuffix(")") if len(curves) == 1 else ""
    ax.set_title("\n".join([cut(name), score.replace("\n", " ")]).rstrip(), fontsize=8 * scale().points)
    ax.tick_params(labelleft=left, labelbottom=bottom)
    ax.set(**({} if left else {"ylabel": ""}), **({} if bottom else {"xlabel": ""}))
