"""The command line's advice: every plan, real sizes, privacy in words, one recommended; and errors that help."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from torchmetrics_fed import CentralDP, DistributedDP, LocalDP, Privacy
from torchmetrics_fed.cli import main
from torchmetrics_fed.planning.advice import Advice, advise

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
    assert lines[0] == "30,000 examples (6,000 positive) of 20 clients, epsilon 1"
    assert [
        line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in PLANS
    ] == PLANS
    assert "Recommended: " in done.stdout
    assert "min_clients=16: a sum of fewer is not opened." in done.stdout


def test_the_table_is_aligned(advice: Advice) -> None:
    lines = str(advice).splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("plan "))
    rows = lines[head : head + 5]
    assert len({len(row) for row in rows}) == 1
    assert len({row.index("±") for row in rows[1:]}) == 1 or all("±" in row for row in rows[1:])
    assert rows[4].split()[-2:] == [
        "16,380",
        "133,629",
    ]  # of cells 131,040 bytes, of secure aggregation the rest


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
            [
                "holds against the aggregator and up to 1 colluding client",
                "calibrated for 15 clients",
                "33% more variance",
            ],
        ),
        (LocalDP(1.0), 20, ["holds against everyone", "of each client"]),
        (CentralDP(1.0), 1, ["not this job's processes", "added once by the party"]),
        (
            DistributedDP(epsilon=1.0, min_clients=16, trusted_aggregator=True),
            20,
            ["not the trusted aggregator", "trusted_aggregator=True"],
        ),
    ],
    ids=["distributed", "local", "central", "trusted"],
)
def test_privacy_is_put_in_words(privacy: Privacy, clients: int, expected: list[str]) -> None:
    text = str(advise(privacy, 600, 2_400, clients=clients, runs=2))
    assert max(map(len, text.splitlines())) <= 80
    flowing = " ".join(text.split())
    for words in expected:
        assert words in flowing
    assert f"{type(privacy).__name__}(epsilon=1" in flowing


def test_the_noise_named_is_the_noise_in_a_release(advice: Advice) -> None:
    # one level, and 61/64 of epsilon for the second of two queries; 20 shares calibrated for 15 add up to a third more
    assert advice.recommended is not None
    a = math.exp({"adaptive": -61 / 64, "carry_over": -1}[advice.recommended.name])
    asked, summed = (math.sqrt(more * 2 * a) / (1 - a) for more in (1, 4 / 3))
    assert f"standard deviation {asked:.2f} asked for, {summed:.2f} in the sum of 20" in " ".join(
        str(advice).split()
    )


def test_few_bins_leave_out_the_plans_that_need_more() -> None:
    advice = advise(CentralDP(1.0), 600, 2_400, quantiles=16, runs=2)
    assert [plan.name for plan in advice.plans] == ["single", "paper"]
    assert "need 256 bins" in str(advice)


def test_much_data_and_little_get_different_advice() -> None:
    assert "a smaller epsilon would do, too" in " ".join(
        str(advise(CentralDP(5.0), 5_000, 5_000, runs=2)).split()
    )
    assert "would show" in " ".join(str(advise(CentralDP(0.05), 500, 500, runs=2)).split())


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
