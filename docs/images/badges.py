"""Draws badges.svg from pyproject.toml: what is required and promised, without asking a server.

python docs/images/badges.py
"""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
LETTER, PAD, HEIGHT, GAP = 6.6, 7, 20, 6


def badge(x: float, name: str, value: str) -> tuple[str, float]:
    """Return one badge at x, and where it ends."""
    left, right = (LETTER * len(text) + 2 * PAD for text in (name, value))
    text = 'y="14" fill="#fff" text-anchor="middle"'
    parts = [
        f'<rect x="{x:g}" width="{left + right:g}" height="{HEIGHT}" rx="3" fill="#555"/>',
        f'<path d="M{x + left:g} 0h{right - 3:g}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h{3 - right:g}z" '
        'fill="#0067a5"/>',
        f'<text x="{x + left / 2:g}" {text}>{name}</text>',
        f'<text x="{x + left + right / 2:g}" {text}>{value}</text>',
    ]
    return "\n".join(parts), x + left + right


def main() -> None:
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    versions = dict(
        line.split(",")[0].split(">=") for line in project["dependencies"] if ";" not in line
    )
    facts = {
        "python": project["requires-python"].replace(">=", "") + "+",
        **{name: versions[name] + "+" for name in ("torch", "torchmetrics")},
        "license": project["license"],
        "types": "mypy strict",
    }
    drawn, x = [], 0.0
    for name, value in facts.items():
        text, end = badge(x, name, value)
        drawn.append(text)
        x = end + GAP
    label = ", ".join(f"{name} {value}" for name, value in facts.items())
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{x - GAP:g}" height="{HEIGHT}"'
    head += f' role="img" aria-label="{label}"'
    look = 'font-family="Verdana,DejaVu Sans,sans-serif" font-size="11"'
    (HERE / "badges.svg").write_text(
        "\n".join([f"{head} {look}>", f"<title>{label}</title>", *drawn, "</svg>\n"])
    )


if __name__ == "__main__":
    main()
