"""Canvas: axes, colours, one line per class, the legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Band, Interval

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can tell apart; without their yellow, which is pale on paper."""

_STYLES = ("-", "--")
_MANY = 10  # more classes than this are drawn in grey
_INSIDE, _SHORT = 3, 31  # a legend with more entries than this, or with longer ones, stands beside the axes


def figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (3.6, 3.5)) -> tuple[Any, Any]:
    """Return a new figure of this size in inches and its axes."""
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Expected matplotlib for plots but it is not installed: pip install matplotlib"
        ) from error
    return plt.subplots(rows, columns, figsize=size, layout="constrained")


def open_axes(ax: Any, names: Sequence[str] = ()) -> tuple[Any, Any]:
    """Return ``(fig, ax)``: those of ``ax``, or new ones with room for these legend entries and the chance line's."""
    if ax is not None:
        return ax.figure, ax
    return figure(size=(3.6 + room([*names, "mean chance (0.123)"]), 3.5))


def room(names: Sequence[str]) -> float:
    """Return the width in inches of a legend with these entries beside the axes; 0 where it need not stand there."""
    longest = max(len(line) for name in names for line in name.splitlines())
    return 0.5 + 0.062 * longest if len(names) > _INSIDE or longest > _SHORT else 0.0


def rows(values: Tensor) -> Tensor:
    """Return a curve's coordinates as float64 ``(curves, points)`` on the CPU."""
    return values.detach().cpu().double().reshape(-1, values.shape[-1])


def shown(score: Tensor | float | None, own: Tensor) -> Tensor | float | None:
    """Return what a legend shows: the figure's ``own`` value for None and True, None for False, or the score given."""
    if score is None or score is True:
        return own
    return None if score is False else score


def entries(
    curves: int,
    names: tuple[str, str | None, Sequence[str] | None],
    score: Tensor | float | None,
    form: str,
    interval: Interval | None = None,
) -> list[str]:
    """Return a legend entry for each curve, or one for all where they are too many.

    Args:
        curves: how many there are.
        names: what a single curve is called by itself, then ``label`` and ``labels`` of :meth:`ROCCurve.plot`.
        score: a value for each curve, or ``(values, curves)`` where an entry shows several. A single value for several
            curves has an entry of its own, the last. None for names alone.
        form: how an entry shows them.
        interval: of the score, shown behind it.
    """
    kind, label, labels = names
    if labels is not None and len(labels) != curves:
        raise InputError(
            f"Expected argument `labels` to name {curves} curves but got {len(labels)} names. Give one for each class."
        )
    model = f"{label}, " if label else ""
    each = [model + name for name in labels or (f"class {index}" for index in range(curves))]
    if curves == 1 and labels is None:
        each = [label or kind]
    if score is None:
        return each if curves <= _MANY else [f"{model}{curves} classes"]
    form += " [{:.4f}, {:.4f}]" * (interval is not None)
    parts = [torch.as_tensor(part, dtype=torch.float64).detach().cpu().flatten() for part in (score, *(interval or ()))]
    flat, per = torch.cat(parts), form.count("{")
    if len(flat) not in (per, per * curves):
        raise InputError(
            f"Expected argument `score` to hold {per} for each of {curves} curves, or {per} for all, but got "
            f"{len(flat)} values. Leave it out, and the curves' own are shown."
        )
    values = flat.reshape(per, -1)
    overall = form.format(*values.nanmean(-1).tolist())
    if curves > _MANY:
        return [f"{model}{curves} classes ({'mean ' * (values.shape[-1] > 1)}{overall})"]
    if values.shape[-1] < curves:
        return [*each, model + overall]
    return [f"{name} ({form.format(*value)})" for name, value in zip(each, values.T.tolist(), strict=True)]


def draw_bands(ax: Any, colours: Sequence[str], band: Band | None) -> None:
    """Shade the band behind each curve, in its colour."""
    if band is None:
        return
    for colour, x, low, high in zip(colours, *map(rows, band), strict=True):
        ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, gid="band", zorder=1.2)


def draw_chance(ax: Any, x: Sequence[float], y: Sequence[float], label: str) -> None:
    """Draw a dashed grey line to compare with, unless it is there already."""
    drawn = (line for line in ax.get_lines() if line.get_gid() == "chance")
    if not any(list(line.get_xdata()) == list(x) and list(line.get_ydata()) == list(y) for line in drawn):
        ax.plot(x, y, color="0.4", linestyle=(0, (4, 3)), linewidth=0.8, label=label, gid="chance", zorder=1.5)


def draw_curves(ax: Any, x: Tensor, y: Tensor, names: Sequence[str], **style: Any) -> list[str]:
    """Draw ``(curves, points)`` as :func:`entries` names them, grey where one is for all; return the colours."""
    grey = len(names) < len(x)
    before = sum(line.get_gid() == "curve" for line in ax.get_lines())
    colours = ["0.65" if grey else PALETTE[(before + index) % len(PALETTE)] for index in range(len(x))]
    look = {"linewidth": 0.5 if grey else 1.4, "gid": "curve", "solid_joinstyle": "round", **style}
    for index, colour in enumerate(colours):
        dashes = _STYLES[0 if grey else (before + index) // len(PALETTE) % len(_STYLES)]
        name = names[index] if index < len(names) else "_nolegend_"
        ax.plot(x[index], y[index], color=colour, linestyle=dashes, label=name, **look)
    for name in names[len(x) :]:
        ax.plot([], [], linestyle="none", label=name)
    return colours


def plot_areas(
    curves: tuple[Tensor, Tensor],
    score: tuple[Tensor | float | None, str],
    chance: tuple[Sequence[float], Sequence[float], str],
    axes: tuple[str, str],
    ax: Any,
    names: tuple[str, str | None, Sequence[str] | None],
    band: Band | None = None,
    interval: Interval | None = None,
    **style: Any,
) -> Any:
    """Draw curves with a line to compare with, bands, and their areas in the legend; return ``(fig, ax)``.

    ``curves`` are x and y, ``score`` the areas and how the legend shows one, ``chance`` the line's x, y and name,
    ``axes`` the names of both axes, and ``names`` those that :func:`entries` takes.
    """
    x, y = map(rows, curves)
    legend = entries(len(x), names, *score, interval)
    fig, ax = open_axes(ax, legend)
    draw_chance(ax, *chance)
    draw_bands(ax, draw_curves(ax, x, y, legend, **style), band)
    dress(ax, *axes)
    return fig, ax


def plot_values(values: Any, ax: Any, names: tuple[str, str | None, Sequence[str] | None]) -> Any:
    """Draw values in [0, 1] as points, one for each class, or a list of them as lines over steps.

    ``names`` are those that :func:`entries` takes. Returns ``(fig, ax)``.
    """
    steps = isinstance(values, list | tuple)
    try:
        table = [torch.as_tensor(step, dtype=torch.float64).detach().cpu() for step in (values if steps else [values])]
        y = torch.stack([step.reshape(len(step) if step.ndim else 1) for step in table], -1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            "Expected argument `val` to be what `compute` returned, or a list of such values, but got "
            f"{type(values).__name__} of something else. Give one number, or one for each class, at each step."
        ) from error
    x = torch.arange(y.shape[1]).expand_as(y) if steps else torch.arange(len(y))[:, None]
    legend = entries(len(y), names, None, "")
    fig, ax = figure(size=(3.6 + room(legend), 3.5)) if ax is None else (ax.figure, ax)
    from matplotlib.ticker import MaxNLocator, NullLocator

    draw_curves(ax, x, y, legend, marker="o", markersize=4)
    ax.set_ylim(-0.02, 1.02)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True) if x.numel() > 1 else NullLocator())
    dress(ax, "Step" if steps else "Class" * (len(y) > 1), names[0], rates=False)
    return fig, ax


def dress(ax: Any, x: str, y: str, rates: bool = True) -> None:
    """Name the axes, set fonts and grid, and put the legend where it covers no curve: outside, if they are many.

    With ``rates`` both axes go from 0 to 1.
    """
    if rates:
        ticks = [0, 0.2, 0.4, 0.6, 0.8, 1]
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xticks=ticks, yticks=ticks)
        ax.set_aspect("equal", adjustable="box")
    ax.set_xlabel(x, fontsize=9)
    ax.set_ylabel(y, fontsize=9)
    ax.tick_params(labelsize=8, width=0.6, length=3, color="0.4")
    ax.grid(color="0.92", linewidth=0.5)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):  # matplotlib 3.7 cannot set both at once
        ax.spines[side].set(linewidth=0.6, color="0.4")
    box = {"frameon": True, "facecolor": "white", "edgecolor": "none", "framealpha": 0.8}
    look: dict[str, Any] = {"fontsize": 7.5, **box}
    if room(ax.get_legend_handles_labels()[1]):
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0, **look)
    elif sum(line.get_gid() == "curve" for line in ax.get_lines()) > _MANY:
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.0, **look)
    else:
        ax.legend(loc="best", **look)
