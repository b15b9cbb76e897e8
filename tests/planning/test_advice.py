"""Advice: a table of every plan with real sizes, and one plan recommended."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from torchmetrics_fed import CentralDP, DistributedDP, LocalDP, Privacy
from torchmetrics_fed.app.study import Study
from torchmetrics_fed.planning.advice import Advice, advise

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PLANS = ["single", "adaptive", "carry_over", "paper"]


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(DistributedDP(epsilon=1.0, min_clients=16), 6_000, 24_000, clients=20, runs=8)


def head_of_table(lines: list[str]) -> int:
    """The number of the line with the titles of the columns."""
    return next(number for number, line in enumerate(lines) if line.startswith("plan "))


def test_the_command_prints_advice() -> None:
    options = "plan --epsilon 1 --examples 30000 --clients 20 --runs 4"
    process = subprocess.run(
        [sys.executable, "-m", "torchmetrics_fed", *options.split()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    lines = process.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 20
    assert lines[0] == "30,000 examples (6,000 positive) of 20 clients, AUROC 0.85, 1,024 quantiles"
    head = head_of_table(lines)
    assert [line[2:].split()[0] for line in lines[head + 1 : head + 5]] == PLANS
    assert sum(line.startswith("* ") and "±" in line for line in lines) == 1
    assert lines[lines.index("[privacy]") + 1] == 'kind = "DistributedDP"'


def test_the_table_is_aligned_and_says_what_the_rows_say(advice: Advice) -> None:
    lines = str(advice).splitlines()
    head = head_of_table(lines)
    table = lines[head : head + 5]
    assert len({len(line) for line in table}) == 1
    for line, row in zip(table[1:], advice.rows, strict=True):
        mark = "*" if row["recommended"] else " "
        assert line.startswith(f"{mark} {row['plan']} ")
        noise, queries, size = line.split()[-3:]
        assert noise == f"{row['noise']:.3g}"
        assert queries == str(row["queries"])
        assert size == f"{row['bytes']:,}"


def test_rows_are_plain_values_and_mark_the_recommended_plan(advice: Advice) -> None:
    assert json.loads(json.dumps(advice.rows)) == advice.rows
    assert advice.recommended is not None
    recommended = [row["plan"] for row in advice.rows if row["recommended"]]
    assert recommended == [advice.recommended.name]


def test_the_recommended_plan_is_good_and_simple(advice: Advice) -> None:
    assert [plan.name for plan in advice.plans] == PLANS  # the simplest first
    best = min(plan.score for plan in advice.plans)
    assert advice.recommended is not None
    assert advice.recommended.score <= 1.1 * best
    assert next(plan for plan in advice.plans if plan.score <= 1.1 * best) == advice.recommended
    # 8 runs cannot tell these two apart
    assert advice.recommended.name in ("adaptive", "carry_over")


def test_cells_and_bytes_are_those_of_all_queries(advice: Advice) -> None:
    sizes = {plan.name: plan for plan in advice.plans}
    assert sizes["paper"].cells == 16_380
    assert [len(plan.error.queries) for plan in advice.plans] == [1, 2, 1, 1]
    for plan in advice.plans:
        queries = plan.error.queries
        assert plan.cells == 2 * sum(query.tree.cells for query in queries)
        # keys and boxes of each aggregation take 2,589 bytes
        assert plan.bytes == 8 * plan.cells + 2_589 * len(queries)


@pytest.mark.parametrize(
    ("privacy", "clients", "protection"),
    [
        (
            DistributedDP(epsilon=1.0, min_clients=16),
            20,
            "holds against the aggregator and up to 1 colluding client",
        ),
        (LocalDP(1.0), 20, "holds against everyone"),
        (CentralDP(1.0), 1, "not this job's processes"),
        (
            DistributedDP(epsilon=1.0, min_clients=16, trusted_aggregator=True),
            20,
            "not the trusted aggregator",
        ),
    ],
    ids=["distributed", "local", "central", "trusted"],
)
def test_the_settings_are_those_of_a_study(privacy: Privacy, clients: int, protection: str) -> None:
    advice = advise(privacy, 6_000, 24_000, clients=clients, runs=2)
    text = str(advice)
    assert max(map(len, text.splitlines())) <= 80
    assert protection in " ".join(text.split())
    assert text.endswith(advice.settings)
    study = Study.of(tomllib.loads(advice.settings))
    assert advice.recommended is not None
    assert study.metric().spec.privacy == privacy
    assert study.options["plan"] == advice.recommended.name


def test_the_noise_named_is_the_noise_in_a_release(advice: Advice) -> None:
    """Two-sided geometric noise; 20 shares calibrated for 15 add up to a third more."""
    noise = {row["plan"]: row["noise"] for row in advice.rows}
    second_query = 61 / 64  # of epsilon 1
    for name, epsilon in (("adaptive", second_query), ("carry_over", 1.0)):
        alpha = math.exp(-epsilon)
        variance = 2 * alpha / (1 - alpha) ** 2
        assert noise[name] == pytest.approx(math.sqrt(4 / 3 * variance))


def test_few_bins_leave_out_the_plans_that_need_more() -> None:
    advice = advise(CentralDP(1.0), 600, 2_400, quantiles=16, runs=2)
    assert [plan.name for plan in advice.plans] == ["single", "paper"]
    assert [row["plan"] for row in advice.rows] == ["single", "paper"]


def test_nothing_is_recommended_where_noise_leaves_little() -> None:
    advice = advise(CentralDP(0.05), 50, 50, runs=2)
    assert advice.recommended is None
    assert not any(row["recommended"] for row in advice.rows)
    assert advice.reason.startswith("No plan is recommended: noise would move the ROC curve by")
    assert advice.settings == ""
    assert "[privacy]" not in str(advice)
