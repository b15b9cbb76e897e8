"""The command line: from tables to a release in commands that a script can use, with what a private study promises."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchmetrics_fed import FederatedROC, PrivacyLedger, Query, Release
from torchmetrics_fed.app import cli
from torchmetrics_fed.app.cli import main
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.release import ReleaseFlag

pyarrow = pytest.importorskip("pyarrow")

import pyarrow.feather as feather  # noqa: E402
import pyarrow.parquet as parquet  # noqa: E402

from torchmetrics_fed.app.tables import MOST_SKIPPED  # noqa: E402

LOCAL = (
    '[privacy]\nkind = "LocalDP"\nepsilon = 1.0\n[ledger]\npath = "{name}.ledger"\nbudget = 2.0\n'
)
TRUSTED = LOCAL.replace('"LocalDP"', '"DistributedDP"\nmin_clients = 3\ntrusted_aggregator = true')
HIDDEN = LOCAL.replace('"LocalDP"', '"DistributedDP"\nmin_clients = 3')


def rows(seed: int, count: int = 300) -> list[tuple[float, int]]:
    source = random.Random(seed)
    labels = [int(source.random() < 0.3) for _ in range(count)]
    return [
        (round(min(max(source.gauss(0.35 + 0.3 * label, 0.2), 0.0), 1.0), 5), label)
        for label in labels
    ]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three tables, in which commands run."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("abc"):
        lines = [f"{row},{score},{label}" for row, (score, label) in enumerate(rows(number))]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,score,label", *lines]))
    (tmp_path / "study.toml").write_text("clients = 3\n")
    return tmp_path


def count(name: str, *more: str) -> int:
    return main(
        ["count", "study.toml", f"{name}.csv", "--name", name, "-o", f"{name}.share", *more]
    )


def total() -> int:
    return main(["sum", "study.toml", "a.share", "b.share", "c.share", "-o", "all.release"])


def refused(code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that was refused says: one line, on stderr."""
    error = capsys.readouterr().err
    assert code == 1
    assert error.startswith("torchmetrics-fed: ")
    assert error.count("\n") == 1
    return error


def test_four_commands_give_the_counts_of_the_pooled_tables(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "study.toml").unlink()
    assert main(["init", "study.toml"]) == 0
    assert [count(name) for name in "abc"] == [0, 0, 0]
    assert total() == 0
    assert main(["report", "all.release"]) == 0
    assert main(["report", "all.release", "-o", "report.html"]) == 0
    assert (
        "<title>Evaluation (binary) of 3 shares, exact counts" in (site / "report.html").read_text()
    )
    pooled = FederatedROC()
    scores, labels = zip(*(row for seed in range(3) for row in rows(seed)), strict=True)
    pooled.update(torch.tensor(scores, dtype=torch.float64), torch.tensor(labels))
    assert torch.equal(Release.load("all.release").leaf, pooled.counts)
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "Counted 300 rows and wrote a.share" in shown.out
    assert "AUROC" in shown.out


COUNTED_OTHERWISE = {
    "labels": ('labels = ["0", "1"]', 'labels = ["1", "0"]'),
    "normalization": ("[grid]", '[grid]\nnormalization = "sigmoid"'),
    "ignore_index": ("[grid]", "ignore_index = 1\n[grid]"),
}


@pytest.mark.parametrize("field", COUNTED_OTHERWISE)
def test_sites_whose_studies_count_otherwise_are_not_summed(
    field: str, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = site / "study.toml"
    text = 'clients = 3\n[columns]\nlabels = ["0", "1"]\n[grid]\n'
    study.write_text(text)
    assert [count(name) for name in "ab"] == [0, 0]
    old, new = COUNTED_OTHERWISE[field]
    study.write_text(text.replace(old, new))
    assert count("c") == 0
    study.write_text(text)
    capsys.readouterr()
    assert f"differ in {field}" in refused(total(), capsys)
    assert not Path("all.release").exists()


def test_help_and_version_import_no_torch() -> None:
    program = "import sys\nfrom torchmetrics_fed.app.cli import main\n"
    program += "try:\n    main(['{}'])\nfinally:\n    assert 'torch' not in sys.modules"
    for option in ("--help", "--version"):
        done = subprocess.run(
            [sys.executable, "-c", program.format(option)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torchmetrics-fed 0.")


def test_the_module_is_the_command(site: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torchmetrics_fed", "init", "x.toml"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("x.toml").exists()


@pytest.mark.parametrize(
    "arguments", ["", "no", "count study.toml a.csv", "sum study.toml -o x", "plan --epsilon x"]
)
def test_what_is_no_command_exits_with_2(site: Path, arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    shown = capsys.readouterr().err
    assert "count tables at a site, and write its share" in shown
    assert "error:" not in shown


def test_a_study_that_is_there_is_not_overwritten(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "study.toml: File exists" in refused(main(["init"]), capsys)
    assert Path("study.toml").read_text() == "clients = 3\n"


def test_what_fails_says_why_in_one_line(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.toml").write_text("taks = 1")
    Path("b.csv").write_text("score,label\n0.5,1\n1.5,0\n")
    assert "no.toml: No such file" in refused(
        main(["sum", "no.toml", "a.share", "-o", "x"]), capsys
    )
    assert "Did you mean 'task'?" in refused(
        main(["sum", "bad.toml", "a.share", "-o", "x"]), capsys
    )
    assert "b.csv: Expected scores in [0.0, 1.0] but row 2, column 'score'" in refused(
        count("b"), capsys
    )
    assert not list(site.glob("*.share*"))
    assert count("a") == 0
    assert "all 3 `clients` but got 1" in refused(
        main(["sum", "study.toml", "a.share", "-o", "x"]), capsys
    )
    twice = ["sum", "study.toml", "a.share", "a.share", "a.share", "-o", "x"]
    assert "a.share: Expected every client once" in refused(main(twice), capsys)
    Path("b.share").write_bytes(Path("a.share").read_bytes()[:-3])
    cut = ["sum", "study.toml", "a.share", "b.share", "a.share", "-o", "x"]
    assert "b.share: " in refused(main(cut), capsys)
    assert "no.share: No such file" in refused(main(["inspect", "no.share"]), capsys)
    assert "Expected bytes that this package wrote" in refused(
        main(["inspect", "study.toml"]), capsys
    )
    assert "no.ledger: No such file" in refused(main(["ledger", "no.ledger"]), capsys)
    assert not Path("no.ledger").exists()
    assert not Path("x").exists()


@pytest.mark.parametrize("privacy", [LOCAL, TRUSTED], ids=["local", "trusted"])
def test_a_private_count_is_charged_once_and_drawn_once(
    site: Path, privacy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").write_text(f"clients = 3\n{privacy}")
    assert [count(name) for name in "abc"] == [0, 0, 0]
    share, charged = Path("a.share").read_bytes(), list(PrivacyLedger(path="a.ledger"))
    assert [(entry.data, entry.round, entry.epsilon) for entry in charged] == [("a", "1", 1.0)]
    capsys.readouterr()
    assert "send the file that was written then" in refused(count("a"), capsys)
    assert Path("a.share").read_bytes() == share
    assert list(PrivacyLedger(path="a.ledger")) == charged
    assert total() == 0
    release = Release.load("all.release")
    assert (release.shares, release.spec.epsilon, len(release.queries)) == (3, 1.0, 1)
    Path("study.toml").write_text(
        f'round = "2"\nclients = 3\n{privacy}'
    )  # a new round is a new draw
    assert count("a") == 0
    assert Path("a.share").read_bytes() != share
    Path("study.toml").write_text(f'round = "3"\nclients = 3\n{privacy}')
    capsys.readouterr()
    assert "budget" in refused(count("a"), capsys)
    assert len(PrivacyLedger(path="a.ledger")) == 2


def test_no_person_counts_twice_and_the_statement_says_who_saw_to_it(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every row of b.csv has an id that is in a.csv as well."""
    (site / "study.toml").write_text(f'clients = 1\n[columns]\nperson = "id"\n{LOCAL}')
    assert main(["count", "study.toml", "a.csv", "b.csv", "--name", "a", "-o", "a.share"]) == 0
    assert (
        "Counted 600 rows (300 beyond `examples_per_person` left out) and wrote"
        in capsys.readouterr().out
    )
    assert main(["sum", "study.toml", "a.share", "-o", "all.release"]) == 0
    assert main(["report", "all.release", "-o", "report.md"]) == 0
    assert "at most 1, enforced where they were counted" in (site / "report.md").read_text()


@pytest.mark.parametrize(
    ("study", "expected"),
    [
        (HIDDEN, "use `torchmetrics-fed site` and `torchmetrics-fed coordinator`"),
        ("secure = true", "use `torchmetrics-fed site`"),
        (LOCAL.replace("LocalDP", "CentralDP"), "or LocalDP"),
        (LOCAL.replace("[ledger]", 'plan = "adaptive"\n[ledger]'), "Expected a plan of one query"),
        (LOCAL.partition("[ledger]")[0], "Add a table [ledger]"),
    ],
    ids=["distributed", "secure", "central", "two queries", "no ledger"],
)
def test_shares_that_may_not_travel_as_files_are_refused(
    site: Path, study: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").write_text(study)
    assert expected in refused(count("a"), capsys)
    assert not Path("a.share").exists()
    assert not Path("a.ledger").exists() or not list(PrivacyLedger(path="a.ledger"))


def test_nothing_is_charged_for_what_cannot_be_counted_or_written(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").write_text(LOCAL)
    Path("b.csv").write_text("score,label\n0.123456,yes\n")
    text = refused(count("b"), capsys)
    assert "labels from 0 to 1" not in text or "yes" not in text  # no values of private data
    assert "0.123456" not in text
    code = main(["count", "study.toml", "a.csv", "--name", "a", "-o", "no/folder.share"])
    assert "No such file" in refused(code, capsys)
    for name in "ab":
        assert not list(PrivacyLedger(path=f"{name}.ledger"))


def test_the_sender_sees_how_many_rows_were_left_out_and_the_reader_that_some_may_be(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("b.csv").write_text("score,label\n0.5,1\nNaN,0\n,1\n0.5,2\n0.5\n0.25,0\n")
    assert count("b", "--skip-bad", "--most-skipped", "0.7") == 0
    assert "Counted 2 rows, left out 4 bad ones, and wrote b.share" in capsys.readouterr().out
    assert count("a") == count("c") == total() == 0
    release = Release.load("all.release")
    assert ReleaseFlag.ROWS_SKIPPED in release.flags
    assert main(["inspect", "all.release"]) == 0
    assert "note: rows that cannot be counted were left out" in capsys.readouterr().out
    assert count("b", "--skip-bad", "--most-skipped", "0.7") == 0
    clean = Path("b.csv").read_text().replace("NaN,0\n,1\n0.5,2\n0.5\n", "")
    Path("b.csv").write_text(clean)
    shown = len(Path("b.share").read_bytes())
    assert (
        count("b", "--skip-bad") == total() == 0
    )  # the policy, whether there were bad rows or not
    assert ReleaseFlag.ROWS_SKIPPED in Release.load("all.release").flags
    assert len(Path("b.share").read_bytes()) == shown
    assert count("b") == total() == 0
    assert not Release.load("all.release").flags


MOSTLY_BAD = "score,label\n0.5,1\n" + "NaN,0\n" * 2_999
ONE_BAD_IN_TWENTY = "score,label\n" + "0.25,0\n0.75,1\n" * 10 + "NaN,0\n"


@pytest.mark.parametrize("command", ["count", "site"])
@pytest.mark.parametrize(
    ("table", "more", "message"),
    [
        ("score,label\n", [], "Read 0 rows. Cannot count: no row of the table"),
        ("score,label\nNaN,0\n", ["--skip-bad", "--most-skipped", "1"], "left out 1 bad ones. Cannot"),
        ("score,label\n0.5,-1\n", [], "Read 1 rows. Cannot count: no row of the table"),
        (MOSTLY_BAD, ["--skip-bad"], "Read 1 rows, left out 2,999 bad ones. Cannot count: more than 0.05"),
        (ONE_BAD_IN_TWENTY, ["--skip-bad", "--most-skipped", "0.04"], "left out 1 bad ones. Cannot"),
        (ONE_BAD_IN_TWENTY, ["--skip-bad", "--most-skipped", "5"], "a fraction from 0 to 1 but got 5"),
        (ONE_BAD_IN_TWENTY, [], "or leave out such rows with `skip_bad` (--skip-bad)"),
    ],
    ids=["header", "one bad", "ignored", "mostly bad", "fraction", "no fraction", "not skipped"],
)  # fmt: skip
def test_tables_with_next_to_nothing_to_count_are_refused_and_nothing_is_charged(
    site: Path,
    command: str,
    table: str,
    more: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("study.toml").write_text(f"clients = 3\n[columns]\nignore_index = -1\n{LOCAL}")
    Path("b.csv").write_text(table)
    place = {"count": ["-o", "b.share"], "site": ["--folder", "shared", "--timeout", "1"]}[command]
    Path("shared").mkdir()
    code = main([command, "study.toml", "b.csv", "--name", "b", *place, *more])
    assert message in refused(code, capsys)
    assert not list(PrivacyLedger(path="b.ledger"))
    assert not Path("b.share").exists()
    assert not list(Path("shared").iterdir())  # the other sites learn nothing, not even a refusal


def test_bad_rows_are_judged_over_all_tables_of_a_site(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty.csv").write_text("score,label\n")
    Path("b.csv").write_text(ONE_BAD_IN_TWENTY)
    tables = ["a.csv", "b.csv", "empty.csv"]
    more = ["--name", "a", "-o", "a.share", "--skip-bad", "--most-skipped", "0.01"]
    assert main(["count", "study.toml", *tables, *more]) == 0
    assert "Counted 320 rows, left out 1 bad ones, and wrote a.share" in capsys.readouterr().out


def test_the_command_line_and_python_refuse_the_same_fraction() -> None:
    given = cli._parser().parse_args(["count", "s", "t", "--name", "a", "-o", "x"])
    assert given.most_skipped == MOST_SKIPPED


ENDING = """
import sys, time
from torchmetrics_fed.app import cli
from torchmetrics_fed.app.cli import main


class Late:
    sleep = staticmethod(time.sleep)

    def __del__(self):
        self.sleep(0.3)  # while the interpreter ends, other threads may ask for its lock


late = Late()
sys.exit(main(["count", "study.toml", sys.argv[1], "--name", "a", "-o", "a.share"]))
"""


@pytest.mark.slow
def test_a_wrong_column_ends_the_process_with_its_error_and_no_signal(site: Path) -> None:
    """A reader that another thread still reads for aborted 4 in 10 of these, and 1 in 4 without the late object."""
    Path("study.toml").write_text('clients = 3\n[columns]\nscore = "p"\n')
    table = pyarrow.table({"score": [0.2, 0.8], "label": [0, 1]})
    parquet.write_table(table, "t.parquet")
    feather.write_feather(table, "t.feather")
    Path("t.csv").write_text("score,label\n0.2,0\n0.8,1\n")
    for name in ["t.parquet", "t.feather"] + ["t.csv"] * 12:
        done = subprocess.run(
            [sys.executable, "-c", ENDING, name], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1, done.stderr
        text = f"torchmetrics-fed: {name}: Expected one column 'p' but the columns are ['score', 'label']."
        assert done.stderr == f"{text} Name the right one.\n"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("study", ["secure = true\n", HIDDEN], ids=["secure", "distributed"])
def test_sites_and_a_coordinator_meet_in_a_folder(site: Path, study: str) -> None:
    Path("study.toml").write_text(f"clients = ['a', 'b', 'c']\n{study}")
    Path("shared").mkdir()
    ends = ["--folder", "shared", "--timeout", "100"]
    commands = [["site", "study.toml", f"{name}.csv", "--name", name, *ends] for name in "abc"]
    commands.append(["coordinator", "study.toml", "-o", "all.release", *ends])
    fork = multiprocessing.get_context("fork")  # which need not import torch again
    processes = [
        fork.Process(target=lambda command=command: sys.exit(main(command))) for command in commands
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(150)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    release = Release.load("all.release")
    assert (release.shares, len(release.queries)) == (3, 1 if "secure" in study else 2)
    assert main(["status", "--folder", "shared"]) == 0
    if "secure" in study:
        assert int(release.leaf.sum()) == 900
    else:
        assert [len(PrivacyLedger(path=f"{name}.ledger")) for name in "abc"] == [1, 1, 1]


def test_inspect_says_what_files_are_and_never_shows_counts(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").write_text(LOCAL)
    assert [count(name) for name in "abc"] == [0, 0, 0]
    assert total() == 0
    Path("a.query").write_bytes(bytes(Query(Tree.binary(64), 0.5)))
    capsys.readouterr()
    for file, expected in {
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
    }.items():
        assert main(["inspect", *file.split()]) == 0
        shown = capsys.readouterr().out
        for words in expected:
            assert words in shown
    cells = {str(int(cell)) for cell in Release.load("all.release").leaf.flatten() if cell > 99}
    assert main(["inspect", "all.release"]) == 0
    assert not cells & set(capsys.readouterr().out.replace(",", " ").split())


def test_the_shortest_plan_works_and_ten_examples_get_no_recommendation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--runs", "2"]) == 0
    assert main(["plan", "--runs", "2", "--examples", "10"]) == 0
    shortest, _, few = capsys.readouterr().out.partition("10 examples (2 positive)")
    assert "10,000 examples (2,000 positive) of 10 clients, AUROC 0.85" in shortest
    assert "is recommended: " in shortest
    assert "[privacy]" not in few
    assert "No plan is recommended" in few
    assert max(map(len, (shortest + few).splitlines())) <= 80


def test_audit_is_the_audit(capsys: pytest.CaptureFixture[str]) -> None:
    sure = ["--confidence", "0.999999"]
    assert main(["audit", "--epsilon", "1", "--trials", "2000", *sure]) == 0
    assert "audited with 2000 trials" in capsys.readouterr().out
    short = ["--epsilon", "3", "--clients", "4", "--survivors", "1", "--trials", "20000"]
    assert main(["audit", *short, *sure]) == 1
