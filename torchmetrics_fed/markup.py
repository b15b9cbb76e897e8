"""HTML for notebooks: tables whose every text is escaped.

Names of classes, groups and models are texts of users. No text leaves this module unescaped.
"""

from collections.abc import Sequence
from html import escape


def html_table(rows: Sequence[Sequence[str]], head: Sequence[str] = (), caption: str = "") -> str:
    """Return a table, with a head and a caption if they are given.

    Args:
        rows: the texts of the cells. The first cell of a row names it.
        head: the names of the columns.
        caption: the text above the table.
    """
    parts = ["<table>"]
    if caption:
        parts.append(f"<caption>{escape(caption)}</caption>")
    if head:
        cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
        parts.append(f"<thead><tr>{cells}</tr></thead>")
    parts.append("<tbody>")
    for name, *values in rows:
        cells = "".join(f"<td>{escape(value)}</td>" for value in values)
        parts.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    parts.append("</tbody></table>")
    return "".join(parts)
