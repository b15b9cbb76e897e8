"""Canvas: axes, colours, one line for each class, and the legend.

Every result draws itself with :func:`plot_curves`. The canvas chooses defaults only: keywords of
matplotlib's ``Line2D`` that a caller passes to ``plot`` reach the lines unchanged, and win.

Lines carry a ``gid``, by which later calls on the same axes recognise them: ``"curve"``,
``"chance"`` (a line to compare with), ``"band"``, and ``"behind"`` (a curve of another panel).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Band, Interval
from torchmetrics_fed.functional.figures.page import LINE, caption, fitted, ink, scale
from torchmetrics_fed.typing import Floats

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
"""Okabe and Ito's colours without yellow and black.

Colour-blind readers can tell them apart, on white and on black.
"""

LINE_STYLES = ("-", "--")
"""The second style is for curves beyond the number of colours."""

MANY_CURVES = 10
"""Above this number of curves the legend names the best and the worst; the others are grey."""

ENTRIES_INSIDE = 3
"""A legend with more entries than this stands beside the axes."""

AXES_SIZE = (3.6, 3.5)
"""Width and height, in inches on paper, of a figure with one pair of axes."""

RATE_TICKS = (0, 0.2, 0.4, 0.6, 0.8, 1)
"""Ticks of an axis from 0 to 1."""

RATE_LIMITS = (-0.02, 1.02)
"""Limits of an axis from 0 to 1, in which lines at both ends are visible."""

DASHED = (0, (4, 3))
"""Matplotlib's line style of a line to compare with: dashes of 4 points, gaps of 3."""

MEAN_POINTS = 1025
"""Even points at which the mean of many curves is drawn."""

Score: TypeAlias = Tensor | float | None
"""The score in a legend: False for no score, None or True for the value of the curve itself."""
Labels: TypeAlias = Sequence[str] | None
"""Names of the classes; their numbers if None."""
LineKwargs: TypeAlias = Mapping[str, Any]
"""Keywords of matplotlib's ``Line2D``."""


class ReferenceLine(NamedTuple):
    """A grey line to compare curves with, for example that of random scores."""

    x: Sequence[float]
    y: Sequence[float]
    label: str
    linestyle: Any = DASHED


CHANCE = ReferenceLine((0, 1), (0, 1), "chance")
"""The ROC curve of random scores."""


def figure(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = AXES_SIZE
) -> tuple[Any, Any]:
    """Return a new figure of this size, in inches on paper, and its axes."""
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Cannot draw: matplotlib is not installed. Install it: pip install matplotlib"
        ) from error
    # "constrained" would push the legend beside a square pair of axes off the page
    return plt.subplots(
        rows, columns, figsize=[side * scale() for side in size], layout="compressed"
    )


def open_axes(ax: Any, names: Sequence[str] = ()) -> tuple[Any, Any]:
    """Return ``(fig, ax)``: those of ``ax``, or new ones with room for these legend entries.

    New axes have room for the entry of one reference line, too.
    """
    if ax is not None:
        return ax.figure, ax
    return _axes_beside_legend([*names, "mean chance (0.123)"])


def _axes_beside_legend(names: Sequence[str]) -> tuple[Any, Any]:
    width, height = AXES_SIZE
    return figure(size=(width + room(names), height))


def room(names: Sequence[str]) -> float:
    """Return the width, in inches on paper, of a legend with these entries beside the axes.

    The width is 0 for a legend that fits into the axes.
    """
    lengths = [len(line) for name in names for line in fitted(name).splitlines()]
    longest = max(lengths, default=0)
    if len(names) <= ENTRIES_INSIDE and longest <= LINE:
        return 0.0
    return 0.4 + 0.06 * longest


def rows(values: Tensor) -> Tensor:
    """Return the coordinates of curves as float64 ``(curves, points)`` on the CPU."""
    return values.detach().cpu().double().reshape(-1, values.shape[-1])


def legend_entries(
    curves: int,
    *,
    name: str,
    label: str | None = None,
    labels: Labels = None,
    score: Score = None,
    score_format: str = "",
    interval: Interval | None = None,
    lowest_is_best: bool = False,
) -> list[str]:
    """Return one legend entry for each curve; "" for a curve that the legend does not name.

    Of more than :data:`MANY_CURVES` curves the best and the worst are named. One more entry at the
    end is for all curves: their mean, or a single score.

    Args:
        curves: number of curves.
        name: the name of a single curve without a label.
        label: the name of the model.
        labels: the names of the classes.
        score: a value for each curve, ``(values, curves)`` for several, or one for all curves.
            None for names without scores.
        score_format: the text of the values of one curve.
        interval: shown behind the score.
        lowest_is_best: whether the first value of a score is an error.
    """
    names = _curve_names(curves, name, label, labels)
    model = ""
    if label:
        model = f"{label}, "
    unnamed = [""] * curves
    if score is None:
        if curves > MANY_CURVES:
            return [*unnamed, f"{model}{curves} classes"]
        return names
    parts = [score]
    if interval is not None:
        score_format += " [{:.4f}, {:.4f}]"
        parts += interval
    values = _score_values(curves, parts, score_format.count("{"))
    texts = [score_format.format(*value) for value in values.T.tolist()]
    one_for_all = len(texts) < curves
    if one_for_all and curves > MANY_CURVES:
        return [*unnamed, f"{model}{curves} classes ({texts[0]})"]
    if one_for_all:
        return [*names, model + texts[0]]
    if curves <= MANY_CURVES:
        return [f"{name} ({text})" for name, text in zip(names, texts, strict=True)]
    entries = unnamed
    worst, best = _worst_and_best(values[0], lowest_is_best)
    for rank, curve in (("worst", worst), ("best", best)):
        entries[curve] = f"{model}{rank}: {names[curve].removeprefix(model)} ({texts[curve]})"
    mean = score_format.format(*values.nanmean(-1).tolist())
    return [*entries, f"{model}mean of {curves} ({mean})"]


def _curve_names(curves: int, name: str, label: str | None, labels: Labels) -> list[str]:
    if labels is not None and len(labels) != curves:
        raise InputError(
            f"Expected argument `labels` to name {curves} curves but got {len(labels)} names. "
            "Give one for each class."
        )
    if curves == 1 and labels is None:
        return [label or name]
    if labels is None:
        labels = [f"class {number}" for number in range(curves)]
    if label:
        return [f"{label}, {class_name}" for class_name in labels]
    return list(labels)


def _score_values(curves: int, parts: Sequence[Score], per_curve: int) -> Tensor:
    """Return the numbers that the legend shows, ``(per_curve, curves)`` or ``(per_curve, 1)``."""
    flat = [torch.as_tensor(part, dtype=torch.float64).detach().cpu().flatten() for part in parts]
    values = torch.cat(flat)
    if len(values) not in (per_curve, per_curve * curves):
        raise InputError(
            f"Expected argument `score` to hold {per_curve} for each of {curves} curves, or "
            f"{per_curve} for all, but got {len(values)} values. Leave it out, and the legend "
            "shows the scores of the curves."
        )
    return values.reshape(per_curve, -1)


def _worst_and_best(values: Tensor, lowest_is_best: bool) -> tuple[int, int]:
    goodness = values
    if lowest_is_best:
        goodness = -values
    worst = int(goodness.nan_to_num(torch.inf).argmin())
    best = int(goodness.nan_to_num(-torch.inf).argmax())
    return worst, best


def named_curves(ax: Any) -> list[Any]:
    """Return the lines of curves on these axes that the legend names."""
    return [line for line in ax.get_lines() if line.get_gid() == "curve" and line.get_zorder() >= 2]


def draw_reference(ax: Any, reference: ReferenceLine) -> None:
    """Draw a line to compare with, unless the axes have this line already."""
    for line in ax.get_lines():
        same_x = list(line.get_xdata()) == list(reference.x)
        same_y = list(line.get_ydata()) == list(reference.y)
        if line.get_gid() == "chance" and same_x and same_y:
            return
    ax.plot(
        reference.x,
        reference.y,
        color=ink(ax, 0.6),
        linestyle=reference.linestyle,
        linewidth=0.8 * scale(),
        label=reference.label,
        gid="chance",
        zorder=1.5,
    )


def draw_curves(
    ax: Any,
    x: Any,
    y: Any,
    names: Sequence[str],
    *,
    style: LineKwargs | None = None,
    line_kwargs: LineKwargs | None = None,
) -> list[Any]:
    """Draw ``(curves, points)`` with their legend entries, and return the colours of the lines.

    A curve whose name is "" is thin and grey. Names beyond the last curve are entries without line.

    Args:
        ax: the axes.
        x: first coordinates, one row for each curve.
        y: second coordinates.
        names: what :func:`legend_entries` returned.
        style: keywords of this kind of figure for named curves.
        line_kwargs: keywords of the caller for all curves; they win.
    """
    line_kwargs = _full_names(line_kwargs)
    has_unnamed = not all(names)
    in_order = list(names)
    if has_unnamed:
        in_order = sorted(filter(None, names))
    first_place = len(named_curves(ax))
    places = {name: first_place + place for place, name in enumerate(in_order)}
    colours = []
    for curve_x, curve_y, name in zip(x, y, names, strict=False):
        keywords = {
            "gid": "curve",
            "solid_joinstyle": "round",
            "zorder": 2.0,
            "linewidth": 1.4 * scale(),
            **(style or {}),
        }
        if name:
            keywords |= _named_style(name, places[name])
        else:
            keywords |= _unnamed_style(ax)
        (line,) = ax.plot(curve_x, curve_y, **(keywords | line_kwargs))
        colours.append(line.get_color())
    linestyle = "none"
    if has_unnamed:
        linestyle = "-"
    for name in names[len(x) :]:
        ax.plot([], [], color=ink(ax, 0.25), linestyle=linestyle, label=name)
    return colours


def _full_names(line_kwargs: LineKwargs | None) -> dict[str, Any]:
    """Return the keywords with their full names: ``linewidth`` for ``lw``."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    return normalize_kwargs(dict(line_kwargs or {}), Line2D)


def _named_style(name: str, place: int) -> dict[str, Any]:
    turn = place // len(PALETTE)
    return {
        "label": name,
        "color": PALETTE[place % len(PALETTE)],
        "linestyle": LINE_STYLES[turn % len(LINE_STYLES)],
    }


def _unnamed_style(ax: Any) -> dict[str, Any]:
    return {
        "label": "_nolegend_",
        "color": ink(ax, 0.25),
        "linestyle": LINE_STYLES[0],
        "zorder": 1.8,
        "linewidth": 0.5 * scale(),
        "markersize": 2.5,
        "markeredgewidth": 0,
    }


def draw_bands(ax: Any, band: Band, names: Sequence[str], colours: Sequence[Any]) -> None:
    """Shade the band of each curve that the legend names."""
    bounds = zip(names, colours, rows(band.x), rows(band.low), rows(band.high), strict=False)
    for name, colour, x, low, high in bounds:
        if name:
            ax.fill_between(
                x, low, high, color=colour, alpha=0.22, linewidth=0, gid="band", zorder=1.2
            )


def draw_markers(
    ax: Any, x: Tensor, y: Tensor, areas: Tensor, names: Sequence[str], colours: Sequence[Any]
) -> None:
    """Draw markers of these areas, in square points, on the curves that the legend names.

    Markers without area are left out.
    """
    curves = zip(names, colours, x, y, areas, strict=False)
    for name, colour, curve_x, curve_y, area in curves:
        if name:
            has_area = area > 0
            ax.scatter(
                curve_x[has_area],
                curve_y[has_area],
                area[has_area],
                color=colour,
                alpha=0.8,
                linewidth=0,
                zorder=2.5,
            )


def plot_curves(
    x: Tensor,
    y: Tensor,
    *,
    ax: Any,
    xlabel: str,
    ylabel: str,
    name: str,
    label: str | None = None,
    labels: Labels = None,
    score: Score = None,
    curve_score: Score = None,
    score_format: str = "",
    lowest_is_best: bool = False,
    references: Sequence[ReferenceLine] = (),
    band: Band | None = None,
    interval: Interval | None = None,
    marker_areas: Tensor | None = None,
    has_mean: bool = False,
    rates: bool = True,
    style: LineKwargs | None = None,
    line_kwargs: LineKwargs | None = None,
) -> Any:
    """Draw curves with reference lines, bands, and their scores in the legend.

    Args:
        x: first coordinates, ``(..., points)``.
        y: second coordinates, ``(..., points)``.
        ax: axes to draw on; new ones if None.
        xlabel: name of the first axis.
        ylabel: name of the second axis.
        name: name of a single curve without a label.
        label: name of the model.
        labels: names of the classes.
        score: the argument of ``plot``: False for no score, None or True for ``curve_score``.
        curve_score: the score of the curves themselves.
        score_format: the text of the score of one curve.
        lowest_is_best: whether the score is an error.
        references: lines to compare with.
        band: shaded behind the curves.
        interval: of the score, shown behind it.
        marker_areas: areas of markers, in square points, ``(curves, points)``.
        has_mean: whether the mean of more than :data:`MANY_CURVES` curves is drawn: the mean of y
            at each x, whose area is the mean of the areas.
        rates: whether both axes go from 0 to 1.
        style: keywords of this kind of figure for the lines.
        line_kwargs: keywords of the caller for the lines; they win.

    Returns:
        ``(fig, ax)``.
    """
    x = rows(x)
    y = rows(y)
    if score is None or score is True:
        score = curve_score
    if score is False:
        score = None
    names = legend_entries(
        len(x),
        name=name,
        label=label,
        labels=labels,
        score=score,
        score_format=score_format,
        interval=interval,
        lowest_is_best=lowest_is_best,
    )
    further_references = [reference.label for reference in references[1:]]
    fig, ax = open_axes(ax, [*names, *further_references])
    for reference in references:
        draw_reference(ax, reference)
    lines_x = [*x]
    lines_y = [*y]
    if has_mean and "mean of" in names[-1]:
        keywords = {**(style or {}), **_full_names(line_kwargs)}
        mean_x, mean_y = mean_curve(x, y, in_steps=keywords.get("drawstyle") == "steps-post")
        lines_x.append(mean_x)
        lines_y.append(mean_y)
    colours = draw_curves(ax, lines_x, lines_y, names, style=style, line_kwargs=line_kwargs)
    if band is not None:
        draw_bands(ax, band, names, colours)
    if marker_areas is not None:
        draw_markers(ax, x, y, marker_areas, names, colours)
    dress(ax, xlabel, ylabel, rates=rates)
    return fig, ax


def mean_curve(x: Tensor, y: Tensor, in_steps: bool) -> tuple[Floats, Floats]:
    """Return the mean of the curves' y at even x from 1 to 0.

    Curves are read as they are drawn: as lines, or ``in_steps`` after each point. Where x or y of a
    curve is NaN, the mean leaves the curve out.
    """
    direction = 1
    if x.diff().nansum() < 0:
        direction = -1
    if in_steps:
        x = x.repeat_interleave(2, -1)[:, 1:]
        y = y.repeat_interleave(2, -1)[:, :-1]
    y = y + 0 * x
    at = np.linspace(1, 0, MEAN_POINTS)
    values = [
        np.interp(at, curve_x[::direction], curve_y[::direction])
        for curve_x, curve_y in zip(x.numpy(), y.numpy(), strict=True)
    ]
    mean: Floats = np.nanmean(values, 0)
    return at, mean


def plot_values(
    values: Any, ax: Any, names: tuple[str, str | None, Labels], **line_kwargs: Any
) -> Any:
    """Draw values as points, one for each class, or a list of them as lines over steps.

    The ``names`` are the name of the metric, and ``label`` and ``labels`` of ``plot``. The axis
    goes from 0 to 1, unless a value is outside.

    Returns:
        ``(fig, ax)``.
    """
    metric, label, labels = names
    has_steps = isinstance(values, list | tuple)
    if has_steps:
        y = _table(values, values)
        x = torch.arange(y.shape[1]).expand_as(y)
    else:
        y = _table([values], values)
        x = torch.arange(len(y))[:, None]
    score = None
    if len(y) > MANY_CURVES:
        score = y[:, -1]
    legend = legend_entries(
        len(y), name=metric, label=label, labels=labels, score=score, score_format="{:.4f}"
    )
    if len(y) > MANY_CURVES and has_steps:
        x = torch.cat([x, x[:1]])
        y = torch.cat([y, y.nanmean(0, keepdim=True)])
    if ax is None:
        _, ax = _axes_beside_legend(legend)
    from matplotlib.ticker import MaxNLocator, NullLocator

    style = {"marker": "o", "markersize": 4 * scale()}
    draw_curves(ax, x, y, legend, style=style, line_kwargs=line_kwargs)
    are_rates = bool(((y >= 0) & (y <= 1) | ~y.isfinite()).all())
    if are_rates:
        ax.set_ylim(*RATE_LIMITS)
    if x.numel() > 1:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        ax.xaxis.set_major_locator(NullLocator())
    xlabel = ""
    if has_steps:
        xlabel = "Step"
    elif len(y) > 1:
        xlabel = "Class"
    dress(ax, xlabel, metric, rates=False)
    return ax.figure, ax


def _table(steps: Sequence[Any], argument: Any) -> Tensor:
    """Return the values of each class at each step, ``(classes, steps)``."""
    try:
        columns = []
        for step in steps:
            column = torch.as_tensor(step, dtype=torch.float64).detach().cpu()
            if column.ndim == 0:
                column = column.reshape(1)
            columns.append(column.reshape(len(column)))
        return torch.stack(columns, -1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            "Expected argument `val` to be what `compute` returned, or a list of such values, but "
            f"got {type(argument).__name__} of something else. Give one number, or one for each "
            "class, at each step."
        ) from error


def dress(ax: Any, x: str, y: str, rates: bool = True) -> None:
    """Name the axes, set fonts and grid, and place the legend where it covers no curve.

    With ``rates`` both axes go from 0 to 1.
    """
    if rates:
        ax.set(xlim=RATE_LIMITS, ylim=RATE_LIMITS, xticks=RATE_TICKS, yticks=RATE_TICKS)
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
    _place_legend(ax)


def _place_legend(ax: Any) -> None:
    """Place the legend inside the axes, or beside them if it has many or long entries."""
    handles, names = ax.get_legend_handles_labels()
    if not names:
        return
    # axes of the caller may have no room beside them: a legend there would be cut off
    has_room = len(names) > 2 * ENTRIES_INSIDE or ax.figure.get_layout_engine() is not None
    if room(names) and has_room:
        place = {
            "loc": "upper left",
            "bbox_to_anchor": (1.0, 1.0),
            "borderaxespad": 0.0,
            "frameon": False,
        }
    else:
        # a frame of the colour of the axes; no frame on axes without colour
        background = ax.get_facecolor()
        opacity = background[3]
        place = {
            "loc": "best",
            "frameon": opacity > 0,
            "facecolor": background,
            "framealpha": 0.8,
            "edgecolor": "none",
        }
    ax.legend(
        handles,
        [fitted(name) for name in names],
        fontsize=7.5 * scale(),
        labelcolor=ink(ax, 1.0),
        labelspacing=0.35,
        **place,
    )
