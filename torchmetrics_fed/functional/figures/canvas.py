"""Canvas: axes, colours, one line per class, the legend."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Band, Interval
from torchmetrics_fed.functional.figures.page import LINE, caption, fitted, ink, scale

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
"""Colour-blind readers can tell these apart, on white and on black: Okabe and Ito's without their yellow and black."""

Score: TypeAlias = Tensor | float | None
"""What a legend shows of a curve: nothing for False, the curve's own value for None and True."""
Labels: TypeAlias = Sequence[str] | None
"""Names of the classes, their numbers if None."""
Names: TypeAlias = tuple[str, str | None, Labels]
"""What a single curve is called by itself, then ``label`` and ``labels`` of :meth:`ROCCurve.plot`."""

_STYLES = ("-", "--")
_MANY = 10  # of more classes than this the best and the worst are named, and the rest is grey
_INSIDE = 3  # a legend with more entries than this, or with long ones, stands beside the axes


def figure(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (3.6, 3.5)
) -> tuple[Any, Any]:
    """Return a new figure of this size in inches on paper, and its axes."""
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Expected matplotlib for plots but it is not installed: pip install matplotlib"
        ) from error
    # compressed: axes that are squares would push what stands beside them off the page
    return plt.subplots(
        rows, columns, figsize=[side * scale() for side in size], layout="compressed"
    )


def open_axes(ax: Any, names: Sequence[str] = ()) -> tuple[Any, Any]:
    """Return ``(fig, ax)``: those of ``ax``, or new ones with room for these legend entries and the chance line's."""
    if ax is not None:
        return ax.figure, ax
    return figure(size=(3.6 + room([*names, "mean chance (0.123)"]), 3.5))


def room(names: Sequence[str]) -> float:
    """Return the inches, on paper, of a legend with these entries beside the axes; 0 where it need not stand there."""
    longest = max((len(line) for name in names for line in fitted(name).splitlines()), default=0)
    return 0.4 + 0.06 * longest if len(names) > _INSIDE or longest > LINE else 0.0


def rows(values: Tensor) -> Tensor:
    """Return a curve's coordinates as float64 ``(curves, points)`` on the CPU."""
    return values.detach().cpu().double().reshape(-1, values.shape[-1])


def entries(
    curves: int,
    names: Names,
    score: Score,
    form: str,
    interval: Interval | None = None,
    lowest_is_best: bool = False,
) -> list[str]:
    """Return a legend entry for each curve; of many those of the best and the worst, "" for the rest, and the mean's.

    ``score`` is a value for each curve, or ``(values, curves)`` where an entry shows several, as ``form`` says. One
    value for several curves has an entry of its own, the last. None is for names alone. The ``interval`` is shown
    behind it, and with ``lowest_is_best`` the first value of a score is an error.
    """
    kind, label, labels = names
    if labels is not None and len(labels) != curves:
        raise InputError(
            f"Expected argument `labels` to name {curves} curves but got {len(labels)} names. Give one for each class."
        )
    model = f"{label}, " if label else ""
    each = [model + name for name in labels or map("class {}".format, range(curves))]
    if curves == 1 and labels is None:
        each = [label or kind]
    if score is None:
        return each if curves <= _MANY else [*[""] * curves, f"{model}{curves} classes"]
    form += " [{:.4f}, {:.4f}]" * (interval is not None)
    parts = [
        torch.as_tensor(part, dtype=torch.float64).detach().cpu().flatten()
        for part in (score, *(interval or ()))
    ]
    flat, per = torch.cat(parts), form.count("{")
    if len(flat) not in (per, per * curves):
        raise InputError(
            f"Expected argument `score` to hold {per} for each of {curves} curves, or {per} for all, but got "
            f"{len(flat)} values. Leave it out, and the curves' own are shown."
        )
    values = flat.reshape(per, -1)
    shown = [f" ({form.format(*value)})" for value in values.T.tolist()]
    if len(shown) == curves <= _MANY:
        return [name + score for name, score in zip(each, shown, strict=True)]
    if len(shown) < curves <= _MANY:
        return [*each, model + shown[0][2:-1]]
    if len(shown) < curves:
        return [*[""] * curves, f"{model}{curves} classes{shown[0]}"]
    goodness = -values[0] if lowest_is_best else values[0]
    best, worst = (
        int(goodness.nan_to_num(-torch.inf).argmax()),
        int(goodness.nan_to_num(torch.inf).argmin()),
    )
    some = [""] * curves
    for index, rank in ((worst, "worst"), (best, "best")):
        some[index] = f"{model}{rank}: {each[index].removeprefix(model)}{shown[index]}"
    return [*some, f"{model}mean of {curves} ({form.format(*values.nanmean(-1).tolist())})"]


def named(ax: Any) -> list[Any]:
    """Return the curves on these axes that have a colour of their own."""
    return [line for line in ax.get_lines() if line.get_gid() == "curve" and line.get_zorder() >= 2]


def draw_chance(ax: Any, x: Any, y: Any, label: str, dashes: Any = (0, (4, 3))) -> None:
    """Draw a grey line to compare with, dashed or not, unless it is there already."""
    drawn = (line for line in ax.get_lines() if line.get_gid() == "chance")
    if not any(
        list(line.get_xdata()) == list(x) and list(line.get_ydata()) == list(y) for line in drawn
    ):
        look = {"color": ink(ax, 0.6), "linestyle": dashes, "linewidth": 0.8 * scale()}
        ax.plot(x, y, label=label, gid="chance", zorder=1.5, **look)


def draw_curves(ax: Any, x: Any, y: Any, names: Sequence[str], **style: Any) -> list[Any]:
    """Draw ``(curves, points)`` with the :func:`entries` as their names, grey without one; return the colours."""
    before, many = len(named(ax)), not all(names)
    places = {
        name: before + place
        for place, name in enumerate(sorted(filter(None, names)) if many else names)
    }
    colours = [PALETTE[places[name] % len(PALETTE)] if name else ink(ax, 0.25) for name in names]
    look = {
        "gid": "curve",
        "solid_joinstyle": "round",
        "zorder": 2.0,
        "linewidth": 1.4 * scale(),
        **style,
    }
    faint = {"zorder": 1.8, "linewidth": 0.5 * scale(), "markersize": 2.5, "markeredgewidth": 0}
    for name, colour, across, up in zip(names, colours, x, y, strict=False):
        dashes = _STYLES[places.get(name, 0) // len(PALETTE) % len(_STYLES)]
        shape = look if name else look | faint
        ax.plot(across, up, color=colour, linestyle=dashes, label=name or "_nolegend_", **shape)
    for name in names[len(x) :]:
        ax.plot([], [], color=ink(ax, 0.25), linestyle="-" if many else "none", label=name)
    return colours


def plot_curves(
    curves: tuple[Tensor, Tensor],
    score: tuple[Score, Score, str],
    axes: tuple[str, str],
    ax: Any,
    names: Names,
    *chance: tuple[Any, ...],
    band: Band | None = None,
    interval: Interval | None = None,
    sizes: Tensor | None = None,
    mean: bool = False,
    lowest_is_best: bool = False,
    rates: bool = True,
    **style: Any,
) -> Any:
    """Draw curves with lines to compare with, bands, and their scores in the legend; return ``(fig, ax)``.

    Args:
        curves: x and y.
        score: as given, the curves' own, and how the legend shows one.
        axes: the names of both; with ``rates`` they go from 0 to 1.
        chance: x, y and name of each line to compare with, and its dashes.
        sizes: areas of markers, in square points; those that are 0 are left out.
        mean: whether of many curves the mean is drawn, too: that of y at each x, whose area is the mean of the areas.
    """
    (x, y), (given, own, form) = map(rows, curves), score
    if given is None or given is True:
        given = own
    legend = entries(
        len(x), names, None if given is False else given, form, interval, lowest_is_best
    )
    fig, ax = open_axes(ax, [*legend, *(line[2] for line in chance[1:])])
    for line in chance:
        draw_chance(ax, *line)
    across, up = (
        _with_mean(x, y, "drawstyle" in style) if mean and "mean of" in legend[-1] else ([*x], [*y])
    )
    colours = draw_curves(ax, across, up, legend, **style)
    for name, colour, *sides in zip(legend, colours, *map(rows, band or ()), strict=False):
        if name and sides:
            ax.fill_between(*sides, color=colour, alpha=0.22, linewidth=0, gid="band", zorder=1.2)
    for name, colour, *marks, size in zip(
        legend, colours, x, y, [] if sizes is None else sizes, strict=False
    ):
        if name:
            xs, ys, area = (each[size > 0] for each in (*marks, size))
            ax.scatter(xs, ys, area, color=colour, alpha=0.8, linewidth=0, zorder=2.5)
    dress(ax, *axes, rates=rates)
    return fig, ax


def _with_mean(x: Tensor, y: Tensor, steps: bool) -> tuple[list[Any], list[Any]]:
    """The curves, and the mean of their y at even x from 1 to 0, read as lines or, as they are drawn, in steps."""
    wide, high = (
        (x.repeat_interleave(2, -1)[:, 1:], y.repeat_interleave(2, -1)[:, :-1]) if steps else (x, y)
    )
    order = -1 if x.diff().nansum() < 0 else 1
    at = np.linspace(1, 0, 1025)
    curves = zip(wide.numpy(), (high + 0 * wide).numpy(), strict=True)  # NaN where either is
    return [*x, at], [
        *y,
        np.nanmean([np.interp(at, one[::order], other[::order]) for one, other in curves], 0),
    ]


def plot_values(values: Any, ax: Any, names: Names) -> Any:
    """Draw values in [0, 1] as points, one for each class, or a list as lines over steps; return ``(fig, ax)``."""
    steps = isinstance(values, list | tuple)
    try:
        table = [
            torch.as_tensor(step, dtype=torch.float64).detach().cpu()
            for step in (values if steps else [values])
        ]
        y = torch.stack([step.reshape(len(step) if step.ndim else 1) for step in table], -1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            "Expected argument `val` to be what `compute` returned, or a list of such values, but got "
            f"{type(values).__name__} of something else. Give one number, or one for each class, at each step."
        ) from error
    x = torch.arange(y.shape[1]).expand_as(y) if steps else torch.arange(len(y))[:, None]
    many = len(y) > _MANY
    legend = entries(len(y), names, y[:, -1] if many else None, "{:.4f}")
    if many and steps:
        x, y = torch.cat([x, x[:1]]), torch.cat([y, y.nanmean(0, keepdim=True)])
    fig, ax = figure(size=(3.6 + room(legend), 3.5)) if ax is None else (ax.figure, ax)
    from matplotlib.ticker import MaxNLocator, NullLocator

    draw_curves(ax, x, y, legend, marker="o", markersize=4 * scale())
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
    points = scale()
    ax.set_xlabel(x, fontsize=9 * points)
    ax.set_ylabel(y, fontsize=9 * points)
    ax.tick_params(labelsize=8 * points, width=0.6 * points, length=3 * points, color=ink(ax, 0.6))
    ax.grid(color=ink(ax, 0.08), linewidth=0.5 * points)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):  # matplotlib 3.7 cannot set both at once
        ax.spines[side].set(linewidth=0.6 * points, color=ink(ax, 0.6))
    caption(ax)
    handles, names = ax.get_legend_handles_labels()
    if not names:
        return
    look = {"fontsize": 7.5 * points, "labelcolor": ink(ax, 1.0), "labelspacing": 0.35}
    # beside the axes, but not where the page makes no room for it and would cut it off
    if room(names) and (len(names) > 2 * _INSIDE or ax.figure.get_layout_engine() is not None):
        look |= {
            "loc": "upper left",
            "bbox_to_anchor": (1.0, 1.0),
            "borderaxespad": 0.0,
            "frameon": False,
        }
    else:  # in a box of the axes' own colour, and in none where they have no colour
        back = ax.get_facecolor()
        look |= {
            "loc": "best",
            "frameon": back[3] > 0,
            "facecolor": back,
            "framealpha": 0.8,
            "edgecolor": "none",
        }
    ax.legend(handles, [fitted(name) for name in names], **look)
