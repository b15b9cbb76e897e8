"""Draw data_flow.svg, the data flow for concepts.md, beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# Lengths are in pixels.

BOX = 104
"""The width of a box."""
GAP = 44
"""The space between two boxes of a client."""
STEP = BOX + GAP
"""From one box to the next."""
LEFT = 16
"""Where the first box begins."""
ROWS = {"client 1": 40, "client 2": 160, "client n": 280}
"""Where the boxes of each client begin, from the top."""
MIDDLE = 160
"""Where the box of the release begins, from the top."""
ANSWER_BOX = 128
"""The width of a box with an answer."""
HEIGHT = 386
"""The height of the drawing."""

INK = "#1f2937"
"""The colour of text."""
RULE = "#64748b"
"""The colour of lines."""
SAFE = "#dcefe3"
"""The colour of boxes that may leave the client."""
RAW = "#fde8d7"
"""The colour of boxes that stay at the client."""


class Words(NamedTuple):
    """The two lines in a box, and the word on the arrow behind it."""

    title: str
    below: str
    step: str = ""


CLIENT = (
    Words("scores", "and labels", "grid"),
    Words("counts", "on the grid", "query"),
    Words("levels", "of the tree", "noise"),
)
SHARE = Words("share", "what is sent")
RELEASE = Words("release", "sums of shares")
ANSWERS = {
    70: Words("curves", "ROC, PR, DET, gain"),
    160: Words("numbers", "AUROC, AP, F1"),
    250: Words("report", "tables, figures"),
}
"""By where their boxes begin, from the top."""


def text(x: float, y: float, words: str, size: int = 13, weight: str = "normal") -> str:
    """Return words in the middle of x."""
    style = f'font-size="{size}" font-weight="{weight}" fill="{INK}" text-anchor="middle"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{words}</text>'


def box(x: float, y: float, words: Words, fill: str, width: float = BOX) -> str:
    """Return a box with two lines in it."""
    frame = f'x="{x:g}" y="{y:g}" width="{width:g}" height="52" rx="6"'
    shape = f'<rect {frame} fill="{fill}" stroke="{RULE}"/>'
    middle = x + width / 2
    title = text(middle, y + 22, words.title, size=14, weight="bold")
    below = text(middle, y + 41, words.below, size=11)
    return shape + title + below


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return an arrow from the first point to the second."""
    ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f'<line {ends} stroke="{RULE}" marker-end="url(#head)"/>'


def client(y: float, name: str) -> list[str]:
    """Return one client's row: raw data stays inside its frame, its share leaves."""
    frame = f'x="{LEFT - 8}" y="{y - 30:g}" width="{3 * STEP + BOX + 16:g}" height="98" rx="10"'
    parts = [f'<rect {frame} fill="none" stroke="{RULE}" stroke-dasharray="5 4"/>']
    parts.append(f'<text x="{LEFT}" y="{y - 12:g}" font-size="12" fill="{INK}">{name}</text>')
    x = LEFT
    for words in CLIENT:
        parts.append(box(x, y, words, RAW))
        parts.append(arrow(x + BOX + 3, y + 26, x + STEP - 5, y + 26))
        parts.append(text(x + BOX + GAP / 2, y + 19, words.step, size=11))
        x += STEP
    parts.append(box(x, y, SHARE, SAFE))
    return parts


def legend(x: float, fill: str, words: str) -> list[str]:
    """Return the meaning of a colour."""
    return [
        f'<rect x="{x}" y="362" width="14" height="14" rx="3" fill="{fill}" stroke="{RULE}"/>',
        f'<text x="{x + 22}" y="373" font-size="11" fill="{INK}">{words}</text>',
    ]


def drawing() -> str:
    """Return the drawing."""
    parts: list[str] = []
    for name, y in ROWS.items():
        parts += client(y, name)
    share_end = LEFT + 3 * STEP + BOX
    release = LEFT + 4 * STEP + 44
    for y in ROWS.values():
        parts.append(arrow(share_end + 10, y + 26, release - 6, 186 + (y - MIDDLE) / 8))
    parts.append(text(share_end + 50, 178, "sum", size=12))
    parts.append(box(release, MIDDLE, RELEASE, SAFE))
    answer = release + BOX + 40
    for y, words in ANSWERS.items():
        parts.append(box(answer, y, words, SAFE, ANSWER_BOX))
        parts.append(arrow(release + BOX + 4, 186 + (y - MIDDLE) / 8, answer - 6, y + 26))
    parts.append(text(answer + 52, 330, "read from the release:", size=11))
    parts.append(text(answer + 52, 346, "no further privacy cost", size=11))
    parts += legend(LEFT, RAW, "stays at the client under privacy")
    parts += legend(LEFT + 240, SAFE, "may leave the client")
    return page(parts, width=answer + ANSWER_BOX + 20)


def page(parts: list[str], width: float) -> str:
    """Return the file with these parts."""
    head = '<marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
    head += f'<path d="M0,0 L9,4 L0,8 z" fill="{RULE}"/></marker>'
    size = f'width="{width}" height="{HEIGHT}" viewBox="0 0 {width} {HEIGHT}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    paper = f'<rect width="{width}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([opening, f"<defs>{head}</defs>", paper, *parts, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(drawing())
