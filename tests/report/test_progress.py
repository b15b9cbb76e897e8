"""Progress: the items pass unchanged, and the number of them is on one line of stderr."""

from __future__ import annotations

import pytest

from torchmetrics_fed.report.progress import Progress


def test_the_items_pass_unchanged_and_one_by_one() -> None:
    source = iter(range(5))
    items = Progress(visible=False)(source, "{} items")
    assert next(items) == 0
    assert next(source) == 1  # no item is taken before it is asked for
    assert list(items) == [2, 3, 4]


def test_the_line_ends_with_the_number_of_all_items(capsys: pytest.CaptureFixture[str]) -> None:
    list(Progress(visible=True)(["ab", "cde"] * 500, "{} letters", size=len))
    text = capsys.readouterr().err
    assert text.startswith("\r2,500 letters in ")
    assert text.endswith(" s\n")


def test_a_total_gives_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    list(Progress(visible=True)(range(4), "{} draws", total=8))
    assert "#  " in capsys.readouterr().err
    list(Progress(visible=True)(range(8), "{} draws", total=8))
    assert "#] 100% 8 draws" in capsys.readouterr().err


def test_nothing_is_written_where_stderr_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    list(Progress()(range(3), "{} items"))
    list(Progress(visible=False)(range(3), "{} items"))
    assert capsys.readouterr().err == ""
