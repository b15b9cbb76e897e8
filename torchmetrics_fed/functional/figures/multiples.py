"""Small multiples: one panel for each client or group, all on common axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.figures.canvas import figure, named
from torchmetrics_fed.functional.figures.page import cut, ink, scale


def small_multiples(results: Mapping[str, Any], labels: Sequence[str] | None = None, caption: str = "") -> Any:
    """Draw a panel for each result, the others in grey behind it, and return ``(fig, axes)``.

    Args:
        results: by the name of the client or group, all of one kind: ROC curves, for instance.
        labels: names of the classes.
        caption: at the foot of the page, for instance which epsilon all of them have.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import roc_from_counts, small_multiples
        >>> good, bad = torch.tensor([[3, 1], [1, 3]]), torch.tensor([[2, 2], [2, 2]])
        >>> fig, axes = small_multiples({"north": roc_from_counts(good), "south": roc_from_counts(bad)})
        >>> [ax.get_title().split()[0] for ax in axes]
        ['north', 'south']
    """
    kinds = {type(result).__name__ for result in results.values()}
    if len(kinds) != 1:
        raise InputError(f"Expected argument `results` to hold results of one kind but got {sorted(kinds) or 'none'}.")
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
        look = {"color": ink(ax, min(0.25, 4 / number)), "linewidth": 0.5 * times, "zorder": 1.1, "gid": "behind"}
        for line in (line for other in drawn if other is not own for line in other):
            x, y = line.get_data()
            some = np.linspace(0, len(x) - 1, 256).astype(int)
            ax.plot(x[some], y[some], drawstyle=line.get_drawstyle(), **look)
        score = own[0].get_label().rpartition(" (")[2][:-1].replace("\n", " ") if len(own) == 1 else ""
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
        panels[columns - 1].legend(drawn[0], names, loc="upper left", bbox_to_anchor=(1.0, 1.0), **look)
    return fig, axes
