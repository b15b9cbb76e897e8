"""Draw badges.svg from pyproject.toml: what is required and promised, without asking a server.

python docs/images/badges.py
"""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
LETTER = 6.6
"""The mean width of a letter, in pixels."""
PAD = 7
"""The space at both ends of a text, in pixels."""
HEIGHT = 20
"""The height of a badge, in pixels."""
GAP = 6
"""The space between two badges, in pixels."""


def badge(x: float, name: str, value: str) -> tuple[str, float]:
    """Return one badge at x, and where it ends."""
    name_width = _width(name)
    value_width = _width(value)
    end = x + name_width + value_width
    inner = value_width - 3  # the corners have a radius of 3
    style = 'y="14" fill="#fff" text-anchor="middle"'
    parts = [
        f'<rect x="{x:g}" width="{end - x:g}" height="{HEIGHT}" rx="3" fill="#555"/>',
        f'<path d="M{x + name_width:g} 0h{inner:g}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h{-inner:g}z" '
        'fill="#0067a5"/>',
        f'<text x="{x + name_width / 2:g}" {style}>{name}</text>',
        f'<text x="{x + name_width + value_width / 2:g}" {style}>{value}</text>',
    ]
    return "\n".join(parts), end


def _width(text: str) -> float:
    """Return the width of a half of a badge."""
    return LETTER * len(text) + 2 * PAD


def main() -> None:
    """Write the file."""
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
    badges = []
    x = 0.0
    for name, value in facts.items():
        text, end = badge(x, name, value)
        badges.append(text)
        x = end + GAP
    label = ", ".join(f"{name} {value}" for name, value in facts.items())
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{x - GAP:g}" height="{HEIGHT}"'
    head += f' role="img" aria-label="{label}"'
    look = 'font-family="Verdana,DejaVu Sans,sans-serif" font-size="11"'
    (HERE / "badges.svg").write_text(
        "\n".join([f"{head} {look}>", f"<title>{label}</title>", *badges, "</svg>\n"])
    )


if __name__ == "__main__":
    main()
