"""The command line's advice: a table of every plan with real sizes, one recommended; and errors that help."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from torchmetrics_fed import CentralDP, DistributedDP, LocalDP, Privacy
from torchmetrics_fed.app.cli import main
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


def test_the_command_prints_advice() -> None:
    command = [
        sys.executable,
        "-m",
        "torchmetrics_fed",
        "plan",
        "--epsilon",
        "1",
        "--examples",
        "30000",
    ]
    done = subprocess.run(
        [*command, "--clients", "20", "--runs", "4"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 20
    assert lines[0] == "30,000 examples (6,000 positive) of 20 clients, AUROC 0.85, 1,024 quantiles"
    head = next(number for number, line in enumerate(lines) if line.startswith("plan "))
    assert [line[2:].split()[0] for line in lines[head + 1 : head + 5]] == PLANS
    assert sum(line.startswith("* ") and "±" in line for line in lines) == 1
    assert lines[lines.index("[privacy]") + 1] == 'kind = "DistributedDP"'


def test_the_table_is_aligned_and_says_what_the_rows_say(advice: Advice) -> None:
    lines = str(advice).splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("plan "))
    table = lines[head : head + 5]
    assert len({len(line) for line in table}) == 1
    for line, row in zip(table[1:], advice.rows, strict=True):
        assert line.startswith(f"{'*' if row['recommended'] else ' '} {row['plan']} ")
        assert line.split()[-2:] == [str(row["queries"]), f"{row['bytes']:,}"]
        assert line.split()[-3] == f"{row['noise']:.3g}"
    assert advice.rows[3]["bytes"] == 133_629  # cells 131,040, secure aggregation the rest
    assert json.loads(json.dumps(advice.rows)) == advice.rows
    assert [row["plan"] for row in advice.rows if row["recommended"]] == [
        advice.recommended and advice.recommended.name
    ]


def test_the_recommended_plan_is_good_and_simple(advice: Advice) -> None:
    assert [plan.name for plan in advice.plans] == PLANS  # the simplest first
    best = min(plan.score for plan in advice.plans)
    assert advice.recommended is not None
    assert advice.recommended.score <= 1.1 * best
    assert next(plan for plan in advice.plans if plan.score <= 1.1 * best) == advice.recommended
    assert advice.recommended.name in (
        "adaptive",
        "carry_over",
    )  # 8 runs cannot tell these two apart


def test_cells_and_bytes_are_those_of_all_queries(advice: Advice) -> None:
    sizes = {plan.name: plan for plan in advice.plans}
    assert sizes["paper"].cells == 16_380
    assert [len(plan.error.queries) for plan in advice.plans] == [1, 2, 1, 1]
    for plan in advice.plans:
        assert plan.cells == 2 * sum(query.tree.cells for query in plan.error.queries)
        assert plan.bytes == 8 * plan.cells + 2_589 * len(
            plan.error.queries
        )  # keys and boxes of each aggregation


@pytest.mark.parametrize(
    ("privacy", "clients", "expected"),
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
def test_the_settings_are_those_of_a_study(privacy: Privacy, clients: int, expected: str) -> None:
    advice = advise(privacy, 6_000, 24_000, clients=clients, runs=2)
    text = str(advice)
    assert max(map(len, text.splitlines())) <= 80
    assert expected in " ".join(text.split())
    assert text.endswith(advice.settings)
    study = Study.of(tomllib.loads(advice.settings))
    assert advice.recommended is not None
    assert study.metric().spec.privacy == privacy
    assert study.options["plan"] == advice.recommended.name


def test_the_noise_named_is_the_noise_in_a_release(advice: Advice) -> None:
    # one level, and 61/64 of epsilon for the second of two queries; 20 shares calibrated for 15 add up to a third more
    noise = {row["plan"]: row["noise"] for row in advice.rows}
    for name, epsilon in (("adaptive", 61 / 64), ("carry_over", 1.0)):
        a = math.exp(-epsilon)
        assert noise[name] == pytest.approx(math.sqrt(4 / 3 * 2 * a) / (1 - a))


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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--examples 100 --clients 2", "Expected --clients of at least 3"),
        (
            "--epsilon 1 --examples 100 --clients 1 --trusted-aggregator",
            "Expected --clients of at least 2",
        ),
        (
            "--epsilon 0 --examples 100 --central",
            "`epsilon` to be a positive finite number but got 0.0",
        ),
        ("--epsilon x --examples 100 --central", "argument --epsilon: invalid float value: 'x'"),
        ("--epsilon 1 --examples 1 --central", "--examples of at least 2"),
        (
            "--epsilon 1 --examples 100 --positives 1 --central",
            "--positives between 0 and 1 but got 100 and 1.0",
        ),
        (
            "--epsilon 1 --examples 100 --clients 5 --min-clients 9",
            "at least min_clients=9 clients but got 5",
        ),
        (
            "--epsilon 1 --examples 100 --clients 5 --local --min-clients 4",
            "no --min-clients with --local",
        ),
        (
            "--epsilon 1 --examples 100 --clients 5 --max-colluding 5",
            "`max_colluding` below `min_clients`",
        ),
        ("--epsilon 1 --examples 100 --central --local", "not allowed with argument --central"),
        (
            "--epsilon 1 --examples 100 --central --auroc 0.4",
            "`auroc` between 0.5 and 1 but got 0.4",
        ),
        ("--epsilon 1 --examples 100 --central --quantiles 1", "`quantiles` to be an int from 2"),
        (
            "--epsilon 1 --examples 9000 --clients 2000",
            "3 to 1024 clients of one secure aggregation but got 2000",
        ),
        ("--epsilon 99 --examples 100 --central", "up to about 40"),
    ],
)
@pytest.mark.filterwarnings("ignore:epsilon=99")
def test_bad_options_are_refused_and_named(
    options: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["plan", *options.split()])
    except SystemExit as ended:  # what argparse refuses by itself
        code = ended.code
    error = capsys.readouterr().err
    assert code == (2 if error.startswith("usage: ") else 1)
    assert expected in error
