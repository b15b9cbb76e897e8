"""Progress: items pass unchanged, and a line counts them where it is visible."""

from __future__ import annotations

import pytest

from torchmetrics_fed.report.progress import Progress


def test_items_pass_in_their_order_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(Progress(False)([3, 1, 2], "counted {} rows")) == [3, 1, 2]
    assert list(Progress()([3, 1, 2], "counted {} rows")) == [3, 1, 2]  # stderr is no terminal
    assert capsys.readouterr().err == ""


def test_the_last_line_has_the_whole_number(capsys: pytest.CaptureFixture[str]) -> None:
    batches = ["ab", "cde"]
    assert list(Progress(True)(batches, "counted {} rows", size=len)) == batches
    line = capsys.readouterr().err.rpartition("\r")[2]
    assert line.startswith("counted 5 rows in ")
    assert line.endswith(" s\n")


def test_a_bar_is_full_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    list(Progress(True)(range(4), "tried {} plans", total=4))
    line = capsys.readouterr().err.rpartition("\r")[2]
    assert line.startswith(f"[{'#' * 24}] 100% tried 4 plans in ")
