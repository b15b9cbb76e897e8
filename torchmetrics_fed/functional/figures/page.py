"""Page: how large a figure is, what its small print says, and names that fit it."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from torchmetrics_fed.errors import check_choice
from torchmetrics_fed.privacy import Privacy

LINE = 31
"""The longest line of a legend inside the axes, in characters."""

_SIZES = {"paper": 1.0, "slide": 2.0}
_scale = ContextVar("scale", default=1.0)
scale = _scale.get


@contextmanager
def figure_size(size: Literal["paper", "slide"]) -> Iterator[None]:
    """Return a context in which figures are made for ``"paper"``, the default, or twice as large for a ``"slide"``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import roc_from_counts
        >>> with figure_size("slide"):
        ...     fig, ax = roc_from_counts(torch.tensor([[3, 1], [1, 3]])).plot()
        >>> ax.xaxis.label.get_size()
        18.0
    """
    check_choice("size", size, tuple(_SIZES))
    token = _scale.set(_SIZES[size])
    try:
        yield
    finally:
        _scale.reset(token)


def ink(ax: Any, share: float) -> tuple[float, ...]:
    """Return the colour of the axes' own letters, so faint: a grey on white, on black and on nothing at all."""
    from matplotlib.colors import to_rgba

    return to_rgba(ax.xaxis.label.get_color(), share)


def cut(name: str, longest: int = 26) -> str:
    """Return a name with its middle left out where it is longer: names tend to differ at either end."""
    head, tail = longest // 2, (longest - 1) // 2
    return name if len(name) <= longest else f"{name[:head].rstrip()}…{name[-tail:].lstrip()}"


def fitted(entry: str) -> str:
    """Return what a legend shows of an entry: its name cut, its score on a line of its own where both are long."""
    name, space, score = entry.rpartition(" (")
    if not space:
        return cut(entry, LINE)
    name, score = cut(name), cut(score, 2 * LINE)
    return (
        f"{name} ({score}" if len(name) + len(score.splitlines()[0]) < LINE else f"{name}\n({score}"
    )


def provenance(privacy: Privacy, confidence: float | None = None) -> str:
    """Return a caption's words for where numbers come from, and for how sure a band is."""
    words = "exact"
    if privacy.charges:
        words = f"epsilon = {privacy.epsilon:g}"
    if privacy.delta:
        words += f", delta = {privacy.delta:g}"
    if confidence is not None:
        words += f", {100 * confidence:g}% band"
    return words


def caption(ax: Any, words: str = "", label: str | None = None) -> None:
    """Say ``words`` of what was drawn last; without any, that something was drawn of which nothing is known yet."""
    text = next((text for text in ax.texts if text.get_gid() == "caption"), None)
    if text is None:
        look = {
            "fontsize": 6.5 * scale(),
            "color": ink(ax, 0.7),
            "gid": "caption",
            "transform": ax.transAxes,
        }
        text = ax.text(1.0, 1.01, "", ha="right", va="bottom", **look)
    said = text.get_label().splitlines()[1:]  # one line for each call that drew something
    said = (
        [*said[:-1], f"{cut(label)}: {words}" if label else words] if words else [*said, "as given"]
    )
    text.set_label(
        "\n".join(["_caption", *said])
    )  # a legend leaves out what begins with an underscore
    text.set_text(
        "" if set(said) == {"as given"} else textwrap.fill("; ".join(dict.fromkeys(said)), 56)
    )
