"""Tables of notebooks: no text of a user becomes an element."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from torchmetrics_fed.markup import html_table

HOSTILE = [
    "</table><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '" onmouseover="alert(3)',
    "{{script}} & <!-- \u2028",
]


class Elements(HTMLParser):
    """The tags and the texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_table_has_its_rows_head_and_caption() -> None:
    page = Elements(html_table([["a", "1"], ["b", "2"]], head=["", "x"], caption="numbers"))
    assert page.texts == ["numbers", "x", "a", "1", "b", "2"]
    assert page.tags.count("tr") == 3
    assert page.tags.count("td") == 2


def test_head_and_caption_may_be_left_out() -> None:
    assert set(Elements(html_table([["a", "1"]])).tags) == {"table", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_texts_and_nothing_else(name: str) -> None:
    page = Elements(html_table([[name, name]], head=[name, name], caption=name))
    assert set(page.tags) == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert "".join(page.texts) == 5 * name
