"""The command line: from tables to a release in commands that a script can use."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.app.command_line import (
    HIDDEN,
    LOCAL,
    SITES,
    count,
    refusal,
    sum_shares,
    table_rows,
)
from torchmetrics_fed import FederatedROC, PrivacyLedger, Query, Release
from torchmetrics_fed.app.cli import main
from torchmetrics_fed.counting import Tree

pyarrow = pytest.importorskip("pyarrow")

import pyarrow.feather as feather  # noqa: E402
import pyarrow.parquet as parquet  # noqa: E402

# --- arguments


def test_help_and_version_import_no_torch() -> None:
    program = """
import sys
from torchmetrics_fed.app.cli import main
try:
    main(["{}"])
finally:
    assert "torch" not in sys.modules
"""
    for option in ("--help", "--version"):
        process = subprocess.run(
            [sys.executable, "-c", program.format(option)], capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("torchmetrics-fed 0.")


def test_the_module_is_the_command(folder: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "torchmetrics_fed", "init", "x.toml"],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0
    assert process.stderr == ""
    assert Path("x.toml").exists()


@pytest.mark.parametrize(
    "arguments",
    ["", "no", "count study.toml a.csv", "sum study.toml -o x", "plan --epsilon x"],
)
def test_arguments_that_are_no_command_exit_with_2(folder: Path, arguments: str) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments.split())
    assert raised.value.code == 2


def test_no_argument_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    error = capsys.readouterr().err
    assert "count tables at a site, and write its share" in error
    assert "error:" not in error


# --- files: init, count, sum, report


def test_four_commands_give_the_counts_of_the_pooled_tables(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").unlink()
    assert main(["init", "study.toml"]) == 0
    for name in SITES:
        assert count(name) == 0
    assert sum_shares() == 0
    pooled = FederatedROC()
    for seed in range(len(SITES)):
        scores, labels = zip(*table_rows(seed), strict=True)
        pooled.update(torch.tensor(scores, dtype=torch.float64), torch.tensor(labels))
    assert torch.equal(Release.load("all.release").leaf, pooled.counts)
    output = capsys.readouterr()
    assert output.err == ""
    assert "Counted 300 rows and wrote a.share" in output.out


def test_a_report_is_printed_or_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in SITES:
        count(name)
    sum_shares()
    assert main(["report", "all.release"]) == 0
    assert "AUROC" in capsys.readouterr().out
    assert main(["report", "all.release", "-o", "report.html"]) == 0
    assert capsys.readouterr().out == "Wrote report.html.\n"
    page = Path("report.html").read_text()
    assert "<title>Evaluation (binary) of 3 shares, exact counts" in page


def test_a_study_that_exists_is_not_overwritten(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "study.toml: File exists" in refusal(main(["init"]), capsys)
    assert Path("study.toml").read_text() == "clients = 3\n"


DIFFERENT_STUDIES = {
    "labels": ('labels = ["0", "1"]', 'labels = ["1", "0"]'),
    "normalization": ("[grid]", '[grid]\nnormalization = "sigmoid"'),
    "ignore_index": ("[grid]", "ignore_index = 1\n[grid]"),
}
"""By field, a part of the study, and the same part where this field differs."""


@pytest.mark.parametrize("field", DIFFERENT_STUDIES)
def test_sites_whose_studies_differ_are_not_summed(
    field: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Path("study.toml")
    text = 'clients = 3\n[columns]\nlabels = ["0", "1"]\n[grid]\n'
    study.write_text(text)
    assert count("a") == 0
    assert count("b") == 0
    old, new = DIFFERENT_STUDIES[field]
    study.write_text(text.replace(old, new))
    assert count("c") == 0
    study.write_text(text)
    capsys.readouterr()
    assert f"differ in {field}" in refusal(sum_shares(), capsys)
    assert not Path("all.release").exists()


def test_a_command_that_fails_says_why_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.toml").write_text("taks = 1")
    Path("b.csv").write_text("score,label\n0.5,1\n1.5,0\n")
    failures = {
        "sum no.toml a.share -o x": "no.toml: No such file",
        "sum bad.toml a.share -o x": "Did you mean 'task'?",
        "count study.toml b.csv --name b -o b.share": (
            "b.csv: Expected scores in [0.0, 1.0] but row 2, column 'score'"
        ),
        "inspect no.share": "no.share: No such file",
        "inspect study.toml": "Expected bytes that this package wrote",
        "ledger no.ledger": "no.ledger: No such file",
    }
    for command, message in failures.items():
        assert message in refusal(main(command.split()), capsys)
    assert not list(folder.glob("*.share*"))
    assert not Path("no.ledger").exists()


def test_shares_that_are_missing_doubled_or_cut_are_not_summed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert count("a") == 0
    Path("cut.share").write_bytes(Path("a.share").read_bytes()[:-3])
    failures = {
        "a.share": "all 3 `clients` but got 1",
        "a.share a.share a.share": "a.share: Expected every client once",
        "a.share cut.share a.share": "cut.share: ",
    }
    for shares, message in failures.items():
        code = main(["sum", "study.toml", *shares.split(), "-o", "x"])
        assert message in refusal(code, capsys)
    assert not Path("x").exists()


ENDING = """
import sys, time
from torchmetrics_fed.app.cli import main


class Late:
    sleep = staticmethod(time.sleep)

    def __del__(self):
        self.sleep(0.3)  # while the interpreter ends, other threads may ask for its lock


late = Late()
sys.exit(main(["count", "study.toml", sys.argv[1], "--name", "a", "-o", "a.share"]))
"""


@pytest.mark.slow
def test_a_wrong_column_ends_the_process_with_its_error_and_no_signal(folder: Path) -> None:
    """With a reader on another thread, 4 in 10 aborted; without the late object 1 in 4."""
    Path("study.toml").write_text('clients = 3\n[columns]\nscore = "p"\n')
    table = pyarrow.table({"score": [0.2, 0.8], "label": [0, 1]})
    parquet.write_table(table, "t.parquet")
    feather.write_feather(table, "t.feather")
    Path("t.csv").write_text("score,label\n0.2,0\n0.8,1\n")
    message = "Expected one column 'p' but the columns are ['score', 'label']. Name the right one."
    for name in ["t.parquet", "t.feather"] + ["t.csv"] * 12:
        process = subprocess.run(
            [sys.executable, "-c", ENDING, name], capture_output=True, text=True, timeout=60
        )
        assert process.returncode == 1, process.stderr
        assert process.stderr == f"torchmetrics-fed: {name}: {message}\n"


# --- a folder: site, coordinator, status


def run_and_exit(arguments: list[str]) -> None:
    sys.exit(main(arguments))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("study", ["secure = true\n", HIDDEN], ids=["secure", "distributed"])
def test_sites_and_a_coordinator_meet_in_a_folder(folder: Path, study: str) -> None:
    Path("study.toml").write_text(f"clients = ['a', 'b', 'c']\n{study}")
    Path("shared").mkdir()
    place = ["--folder", "shared", "--timeout", "100"]
    commands = [["site", "study.toml", f"{name}.csv", "--name", name, *place] for name in SITES]
    commands.append(["coordinator", "study.toml", "-o", "all.release", *place])
    fork = multiprocessing.get_context("fork")  # which need not import torch again
    processes = [fork.Process(target=run_and_exit, args=(command,)) for command in commands]
    for process in processes:
        process.start()
    for process in processes:
        process.join(150)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    release = Release.load("all.release")
    assert release.shares == 3
    assert main(["status", "--folder", "shared"]) == 0
    if study == HIDDEN:
        assert len(release.queries) == 2
        for name in SITES:
            assert len(PrivacyLedger(path=f"{name}.ledger")) == 1
    else:
        assert len(release.queries) == 1
        assert int(release.leaf.sum()) == 900


# --- inspect, plan, audit


def test_inspect_says_what_files_are_and_never_shows_counts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").write_text(LOCAL)
    for name in SITES:
        assert count(name) == 0
    assert sum_shares() == 0
    Path("a.query").write_bytes(bytes(Query(Tree.binary(64), 0.5)))
    capsys.readouterr()
    descriptions = {
        "a.share": ["share", "pass --study"],
        "a.share --study study.toml": [
            "share",
            "round '1'",
            "LocalDP(epsilon=1",
            "binary",
            "4096 two_sided bins",
        ],
        "all.release": ["release", "round '1'", "3 shares", "LocalDP(epsilon=1", "16, 64, 1024"],
        "a.ledger": ["round 1", "epsilon 1 ", "1 release"],
        "a.query": ["query", "64 leaves", "0.5 of epsilon"],
    }
    for arguments, description in descriptions.items():
        assert main(["inspect", *arguments.split()]) == 0
        output = capsys.readouterr().out
        for words in description:
            assert words in output
    cells = {str(int(cell)) for cell in Release.load("all.release").leaf.flatten() if cell > 99}
    assert main(["inspect", "all.release"]) == 0
    assert not cells & set(capsys.readouterr().out.replace(",", " ").split())


def test_the_shortest_plan_works_and_ten_examples_get_no_recommendation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--runs", "2"]) == 0
    shortest = capsys.readouterr().out
    assert "10,000 examples (2,000 positive) of 10 clients, AUROC 0.85" in shortest
    assert "is recommended: " in shortest
    assert main(["plan", "--runs", "2", "--examples", "10"]) == 0
    ten_examples = capsys.readouterr().out
    assert "10 examples (2 positive)" in ten_examples
    assert "[privacy]" not in ten_examples
    assert "No plan is recommended" in ten_examples
    for line in (shortest + ten_examples).splitlines():
        assert len(line) <= 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--examples 100 --clients 2", "Expected --clients of at least 3"),
        (
            "--examples 100 --clients 1 --trusted-aggregator",
            "Expected --clients of at least 2",
        ),
        (
            "--epsilon 0 --examples 100 --central",
            "`epsilon` to be a positive finite number but got 0.0",
        ),
        ("--examples 1 --central", "--examples of at least 2"),
        (
            "--examples 100 --positives 1 --central",
            "--positives between 0 and 1 but got 100 and 1.0",
        ),
        (
            "--examples 100 --clients 5 --min-clients 9",
            "at least min_clients=9 clients but got 5",
        ),
        (
            "--examples 100 --clients 5 --local --min-clients 4",
            "no --min-clients with --local",
        ),
        (
            "--examples 100 --clients 5 --max-colluding 5",
            "`max_colluding` below `min_clients`",
        ),
        (
            "--examples 100 --central --auroc 0.4",
            "`auroc` between 0.5 and 1 but got 0.4",
        ),
        ("--examples 100 --central --quantiles 1", "`quantiles` to be an int from 2"),
        (
            "--examples 9000 --clients 2000",
            "3 to 1024 clients of one secure aggregation but got 2000",
        ),
        ("--epsilon 99 --examples 100 --central", "up to about 40"),
    ],
)
@pytest.mark.filterwarnings("ignore:epsilon=99")
def test_bad_options_of_plan_are_refused_and_named(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["plan", *options.split()])
    error = capsys.readouterr().err
    assert code == 1
    assert message in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--epsilon x --central", "argument --epsilon: invalid float value: 'x'"),
        ("--central --local", "not allowed with argument --central"),
    ],
)
def test_options_of_plan_that_do_not_parse_exit_with_2(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["plan", *options.split()])
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_audit_is_the_audit(capsys: pytest.CaptureFixture[str]) -> None:
    confidence = ["--confidence", "0.999999"]
    assert main(["audit", "--epsilon", "1", "--trials", "2000", *confidence]) == 0
    assert "audited with 2000 trials" in capsys.readouterr().out
    one_survivor = ["--epsilon", "3", "--clients", "4", "--survivors", "1", "--trials", "20000"]
    assert main(["audit", *one_survivor, *confidence]) == 1
