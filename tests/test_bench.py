"""The arithmetic of the benchmark: tables, goals and the gate. Nothing here is timed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.bench.binary import drawn
from benchmarks.bench.chart import draw
from benchmarks.bench.figure import Figure, markdown
from benchmarks.bench.gate import GOALS, Goal, failures, goals_table
from benchmarks.bench.peers import PEERS, missing
from benchmarks.bench.timing import Times, interleaved


def exactly(goal: Goal, factor: float = 1.0) -> Figure:
    """Return a figure at the goal's bound, or ``factor`` times worse."""
    if goal.least is not None:
        value = goal.least / factor
    else:
        assert goal.most is not None
        value = goal.most * factor
    return Figure(goal.section, goal.case, goal.name, value)


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    times = Times({"a": [1.0, 20.0, 3.0], "b": [1.0, 10.0, 1.0]})
    assert times.seconds("a") == 3.0
    assert times.ratio("a", "b") == 2.0


def test_candidates_take_turns_and_the_first_round_is_not_counted() -> None:
    calls: list[str] = []
    times = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert calls == ["a", "b"] * 3
    assert [len(seconds) for seconds in times.rounds.values()] == [2, 2]


def test_a_table_has_a_row_for_each_case_and_blanks_for_missing_figures() -> None:
    table = markdown([Figure("S", "x", "one", 1234.5), Figure("S", "y", "two", 0.01234)])
    assert table == "## S\n\n| | one | two |\n|---|---|---|\n| x | 1,234 |  |\n| y |  | 0.0123 |"


def test_a_section_with_many_columns_is_turned_and_notes_stand_above_their_table() -> None:
    figures = [Figure("S", "case", f"peer {number}", float(number)) for number in range(6)]
    lines = markdown(figures, {"S": "A note."}).splitlines()
    assert lines[:6] == ["## S", "", "A note.", "", "| | case |", "|---|---|"]
    assert lines[6:] == [f"| peer {number} | {number} |" for number in range(6)]


def test_the_gate_names_figures_that_are_off_by_more_than_their_margin() -> None:
    assert not list(failures([exactly(goal) for goal in GOALS]))
    assert not list(failures([exactly(goal, 0.99 * goal.margin) for goal in GOALS]))
    broken = GOALS[0]
    figures = [exactly(goal) for goal in GOALS[1:]]
    figures.append(exactly(broken, 1.01 * broken.margin))
    (sentence,) = failures(figures)
    assert sentence.startswith(f"Expected {broken.meaning} >= 20, 2 times over, but measured 9.9")


def test_a_goal_missed_within_its_margin_is_shown_but_passes() -> None:
    table = goals_table([exactly(GOALS[0], 1.5)])
    assert table.count("| no |") == 1
    assert table.count("not measured") == len(GOALS) - 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torcheval, on import
@pytest.mark.parametrize("name", [name for name in PEERS if name not in missing()])
def test_every_peer_runs_twice(name: str) -> None:
    run = PEERS[name](drawn(1_000, 300))
    run()
    run()


def test_batches_add_up() -> None:
    batches = drawn(1_000, 300, torch.bfloat16)
    assert [len(preds) for preds, _ in batches] == [300, 300, 300, 100]


def test_the_chart_is_drawn(tmp_path: Path) -> None:
    draw([exactly(goal) for goal in GOALS], tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 10_000
