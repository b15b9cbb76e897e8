"""Page: how large a figure is, what its small print says, and names that fit it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.privacy import Privacy

FigureSize = Literal["paper", "slide"]
NAME, LINE = 26, 31
"""Longest name, and longest line of a legend that stands inside the axes, in characters."""

_UNKNOWN = "as given"


class Scale(NamedTuple):
    """How many times the size on paper: of the page, and of letters and lines."""

    inches: float
    points: float


_SCALES: dict[str, Scale] = {"paper": Scale(1.0, 1.0), "slide": Scale(1.8, 2.0)}
_scale: ContextVar[Scale] = ContextVar("scale", default=_SCALES["paper"])


@contextmanager
def figure_size(size: FigureSize) -> Iterator[None]:
    """Return a context in which every figure of this package is made for ``"paper"``, the default, or a ``"slide"``.

    On paper a figure is 3.6 inches wide, as a column is, with letters of 7 to 9 points; on a slide 1.8 times as wide,
    with letters twice as large.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import figure_size, roc_from_counts
        >>> with figure_size("slide"):
        ...     fig, ax = roc_from_counts(torch.tensor([[3, 1], [1, 3]])).plot()
        >>> ax.xaxis.label.get_size()
        18.0
    """
    if size not in _SCALES:
        raise InputError(f"Expected argument `size` to be one of {tuple(_SCALES)} but got {size!r}.")
    token = _scale.set(_SCALES[size])
    try:
        yield
    finally:
        _scale.reset(token)


def scale() -> Scale:
    """Return the scale of the size that is asked for."""
    return _scale.get()


def ink(ax: Any, share: float) -> tuple[float, ...]:
    """Return the colour of the axes' own letters, so faint: a grey on white, on black and on nothing at all."""
    from matplotlib.colors import to_rgba

    return to_rgba(ax.xaxis.label.get_color(), share)


def cut(name: str, longest: int = NAME) -> str:
    """Return a name with its middle left out where it is longer: names tend to differ at either end."""
    kept = longest - 1
    return name if len(name) <= longest else f"{name[: kept - kept // 2].rstrip()}…{name[-(kept // 2) :].lstrip()}"


def fitted(entry: str) -> str:
    """Return what a legend shows of an entry: its name cut, its score on a line of its own where both are long."""
    name, space, score = entry.rpartition(" (")
    if not space:
        return cut(entry, LINE)
    short, score = cut(name), cut(score, 2 * LINE)
    return f"{short} ({score}" if len(short) + len(score.splitlines()[0]) < LINE else f"{short}\n({score}"


def provenance(privacy: Privacy | None, confidence: float | None = None) -> str:
    """Return a caption's words for where numbers come from, and for how sure a band is."""
    words = "exact" if privacy is None else f"epsilon = {privacy.epsilon:g}"
    if privacy is not None and privacy.delta:
        words += f", delta = {privacy.delta:g}"
    return words if confidence is None else f"{words}, {100 * confidence:g}% band"


def open_caption(ax: Any) -> None:
    """Begin the caption of what was just drawn; until :func:`caption` says more, nothing is known of it."""
    _say(ax, [*_said(ax).get_label().splitlines()[1:], _UNKNOWN])


def caption(ax: Any, words: str, label: str | None = None) -> None:
    """Say what was drawn last: of this ``label``, or of all that is on the axes if all of it is said to be the same."""
    _say(ax, [*_said(ax).get_label().splitlines()[1:-1], f"{cut(label)}: {words}" if label else words])


def page_caption(fig: Any, words: str) -> None:
    """Write a caption at the foot of a figure of several axes."""
    if words:
        fig.supxlabel(textwrap.fill(words, 100), fontsize=7.5 * scale().points)


def _said(ax: Any) -> Any:
    """The axes' caption. Its label keeps a line for each call that drew something."""
    found = [text for text in ax.texts if text.get_gid() == "caption"]
    look = {"fontsize": 6.5 * scale().points, "color": ink(ax, 0.7), "gid": "caption", "transform": ax.transAxes}
    return found[0] if found else ax.text(1.0, 1.01, "", ha="right", va="bottom", **look)


def _say(ax: Any, parts: list[str]) -> None:
    text, different = _said(ax), list(dict.fromkeys(parts))
    text.set_label("\n".join(["_caption", *parts]))  # a legend leaves out what begins with an underscore
    text.set_text("" if different == [_UNKNOWN] else textwrap.fill("; ".join(different), 56))
