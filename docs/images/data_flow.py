"""Draw data_flow.svg, the data flow for concepts.md, beside this file."""

from __future__ import annotations

from pathlib import Path

BOX, GAP, LEFT = 104, 44, 16
INK, RULE, SAFE, RAW = "#1f2937", "#64748b", "#dcefe3", "#fde8d7"

CLIENT = [
    ("scores", "and labels", RAW),
    ("counts", "on the grid", RAW),
    ("levels", "of the tree", RAW),
]
STEPS = ["grid", "query", "noise"]


def text(
    x: float, y: float, words: str, size: int = 13, weight: str = "normal", colour: str = INK
) -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="middle"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{words}</text>'


def box(x: float, y: float, title: str, below: str, fill: str, width: float = BOX) -> str:
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="52" rx="6" fill="{fill}" stroke="{RULE}"/>'
    return (
        shape
        + text(x + width / 2, y + 22, title, 14, "bold")
        + text(x + width / 2, y + 41, below, 11)
    )


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{RULE}" marker-end="url(#head)"/>'


def client(y: float, name: str) -> list[str]:
    """One client's row: raw data stays inside its frame, its share leaves."""
    step = BOX + GAP
    frame = f'x="{LEFT - 8}" y="{y - 30:g}" width="{3 * step + BOX + 16:g}" height="98" rx="10"'
    parts = [f'<rect {frame} fill="none" stroke="{RULE}" stroke-dasharray="5 4"/>']
    parts.append(f'<text x="{LEFT}" y="{y - 12:g}" font-size="12" fill="{INK}">{name}</text>')
    for place, (title, below, fill) in enumerate(CLIENT):
        x = LEFT + place * step
        parts += [box(x, y, title, below, fill), arrow(x + BOX + 3, y + 26, x + step - 5, y + 26)]
        parts.append(text(x + BOX + GAP / 2, y + 19, STEPS[place], 11))
    parts.append(box(LEFT + 3 * step, y, "share", "what is sent", SAFE))
    return parts


def drawing() -> str:
    step, rows = BOX + GAP, [40, 160, 280]
    parts: list[str] = []
    for y, name in zip(rows, ("client 1", "client 2", "client n"), strict=True):
        parts += client(y, name)
    share_end, release = LEFT + 3 * step + BOX, LEFT + 4 * step + 44
    for y in rows:
        parts.append(arrow(share_end + 10, y + 26, release - 6, 186 + (y - 160) / 8))
    parts.append(text(share_end + 50, 178, "sum", 12))
    parts.append(box(release, 160, "release", "sums of shares", SAFE))
    answer = release + BOX + 40
    for y, title, below in (
        (70, "curves", "ROC, PR, DET, gain"),
        (160, "numbers", "AUROC, AP, F1"),
        (250, "report", ""),
    ):
        parts += [box(answer, y, title, below or "tables, figures", SAFE, 128)]
        parts.append(arrow(release + BOX + 4, 186 + (y - 160) / 8, answer - 6, y + 26))
    parts.append(text(answer + 52, 330, "read from the release:", 11))
    parts.append(text(answer + 52, 346, "no further privacy cost", 11))
    for x, fill, words in (
        (LEFT, RAW, "stays at the client under privacy"),
        (LEFT + 240, SAFE, "may leave the client"),
    ):
        parts.append(
            f'<rect x="{x}" y="362" width="14" height="14" rx="3" fill="{fill}" stroke="{RULE}"/>'
        )
        parts.append(f'<text x="{x + 22}" y="373" font-size="11" fill="{INK}">{words}</text>')
    width, height = answer + 128 + 20, 386
    head = '<marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
    head += f'<path d="M0,0 L9,4 L0,8 z" fill="{RULE}"/></marker>'
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    paper = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([opening, f"<defs>{head}</defs>", paper, *parts, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(drawing())
