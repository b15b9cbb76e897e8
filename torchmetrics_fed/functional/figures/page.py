"""Page: the size of figures, the caption, and names that fit a legend."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from torchmetrics_fed.errors import check_choice
from torchmetrics_fed.privacy import Privacy

LINE = 31
"""The longest line of a legend inside the axes, in characters."""

NAME_LENGTH = 26
"""The longest name of a curve in a legend, in characters."""

CAPTION_LINE = 56
"""The longest line of a caption, in characters."""

SIZES = {"paper": 1.0, "slide": 2.0}
"""The scale of fonts, lines and figures for each kind of page."""

UNKNOWN_ORIGIN = "as given"
"""The caption of curves whose release is unknown."""

_scale = ContextVar("scale", default=1.0)
scale = _scale.get


@contextmanager
def figure_size(size: Literal["paper", "slide"]) -> Iterator[None]:
    """Return a context in which figures are made for ``"paper"``, the default, or a ``"slide"``.

    Figures for a slide are twice as large, with their fonts and lines.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import roc_from_counts
        >>> counts = torch.tensor([[3, 1], [1, 3]])
        >>> curve = roc_from_counts(counts, edges=torch.tensor([0, 0.5, 1]))
        >>> with figure_size("slide"):
        ...     fig, ax = curve.plot()
        >>> ax.xaxis.label.get_size()
        18.0
    """
    check_choice("size", size, tuple(SIZES))
    token = _scale.set(SIZES[size])
    try:
        yield
    finally:
        _scale.reset(token)


def ink(ax: Any, opacity: float) -> tuple[float, ...]:
    """Return the colour of the text of the axes with this opacity.

    So a grey is visible on white, on black, and on a transparent page.
    """
    from matplotlib.colors import to_rgba

    return to_rgba(ax.xaxis.label.get_color(), opacity)


def cut(name: str, longest: int = NAME_LENGTH) -> str:
    """Return a name, without its middle if it is longer: names tend to differ at their ends."""
    if len(name) <= longest:
        return name
    head = name[: longest // 2].rstrip()
    tail = name[-((longest - 1) // 2) :].lstrip()
    return f"{head}…{tail}"


def fitted(entry: str) -> str:
    """Return a legend entry whose name is cut, with the score on a second line if both are long."""
    name, separator, score = entry.rpartition(" (")
    if not separator:
        return cut(entry, LINE)
    name = cut(name)
    score = cut(score, 2 * LINE)
    if len(name) + len(score.splitlines()[0]) < LINE:
        return f"{name} ({score}"
    return f"{name}\n({score}"


def provenance(privacy: Privacy, confidence: float | None = None) -> str:
    """Return the words of a caption: the privacy of the numbers, and the confidence of a band."""
    words = "exact"
    if privacy.charges:
        words = f"epsilon = {privacy.epsilon:g}"
    if privacy.delta:
        words += f", delta = {privacy.delta:g}"
    if privacy.evaluations is not None:
        words += f" in {privacy.evaluations} evaluations"
    if confidence is not None:
        words += f", {100 * confidence:g}% band of the population"
    return words


def caption(ax: Any, words: str = "", label: str | None = None) -> None:
    """Describe the curves that were drawn last by ``words``.

    Every call that draws begins a line of unknown origin, by a call without words. A later call
    with words replaces this line. The figure shows the lines, each text once, unless the origin of
    all curves is unknown.
    """
    text = next((text for text in ax.texts if text.get_gid() == "caption"), None)
    if text is None:
        text = ax.text(
            1.0,
            1.01,
            "",
            ha="right",
            va="bottom",
            fontsize=6.5 * scale(),
            color=ink(ax, 0.7),
            gid="caption",
            transform=ax.transAxes,
        )
    lines = text.get_label().splitlines()[1:]
    if not words:
        lines.append(UNKNOWN_ORIGIN)
    elif label:
        lines[-1:] = [f"{cut(label)}: {words}"]
    else:
        lines[-1:] = [words]
    # the text remembers the lines in its label; legends leave out labels with an underscore
    text.set_label("\n".join(["_caption", *lines]))
    if set(lines) == {UNKNOWN_ORIGIN}:
        text.set_text("")
    else:
        text.set_text(textwrap.fill("; ".join(dict.fromkeys(lines)), CAPTION_LINE))
