"""The command line and a ledger: what is drawn is charged once, what is refused costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.command_line import HIDDEN, LOCAL, SITES, TRUSTED, count, refusal, sum_shares
from torchmetrics_fed import PrivacyLedger, Release
from torchmetrics_fed.app.cli import main
from torchmetrics_fed.release import ReleaseFlag

pytest.importorskip("pyarrow")

from torchmetrics_fed.app.tables import MOST_SKIPPED

# --- a private study


@pytest.mark.parametrize("privacy", [LOCAL, TRUSTED], ids=["local", "trusted"])
def test_a_private_count_is_charged_once_and_drawn_once(
    folder: Path, privacy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").write_text(f"clients = 3\n{privacy}")
    for name in SITES:
        assert count(name) == 0
    share = Path("a.share").read_bytes()
    (entry,) = PrivacyLedger(path="a.ledger")
    assert (entry.data, entry.round, entry.epsilon) == ("a", "1", 1.0)
    capsys.readouterr()
    assert "send the file that was written then" in refusal(count("a"), capsys)
    assert Path("a.share").read_bytes() == share
    assert list(PrivacyLedger(path="a.ledger")) == [entry]
    assert sum_shares() == 0
    release = Release.load("all.release")
    assert release.shares == 3
    assert release.spec.epsilon == 1.0
    assert len(release.queries) == 1


def test_a_new_round_is_a_new_draw_until_the_budget_is_spent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").write_text(f"clients = 3\n{LOCAL}")
    assert count("a") == 0
    share = Path("a.share").read_bytes()
    Path("study.toml").write_text(f'round = "2"\nclients = 3\n{LOCAL}')
    assert count("a") == 0
    assert Path("a.share").read_bytes() != share
    Path("study.toml").write_text(f'round = "3"\nclients = 3\n{LOCAL}')
    capsys.readouterr()
    assert "budget" in refusal(count("a"), capsys)
    assert len(PrivacyLedger(path="a.ledger")) == 2


def test_no_person_counts_twice_and_the_statement_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every row of b.csv has an id that is in a.csv as well."""
    Path("study.toml").write_text(f'clients = 1\n[columns]\nperson = "id"\n{LOCAL}')
    assert main(["count", "study.toml", "a.csv", "b.csv", "--name", "a", "-o", "a.share"]) == 0
    output = capsys.readouterr().out
    assert "Counted 600 rows (300 beyond `examples_per_person` left out) and wrote" in output
    assert main(["sum", "study.toml", "a.share", "-o", "all.release"]) == 0
    assert main(["report", "all.release", "-o", "report.md"]) == 0
    assert "at most 1, enforced where they were counted" in Path("report.md").read_text()


@pytest.mark.parametrize(
    ("study", "message"),
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
    folder: Path, study: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").write_text(study)
    assert message in refusal(count("a"), capsys)
    assert not Path("a.share").exists()
    assert not list(PrivacyLedger(path="a.ledger"))


def test_nothing_is_charged_for_tables_that_cannot_be_counted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").write_text(LOCAL)
    Path("b.csv").write_text("score,label\n0.123456,yes\n")
    error = refusal(count("b"), capsys)
    for value in ("0.123456", "yes"):
        assert value not in error
    assert not list(PrivacyLedger(path="b.ledger"))


def test_nothing_is_charged_for_a_share_that_cannot_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").write_text(LOCAL)
    code = main(["count", "study.toml", "a.csv", "--name", "a", "-o", "no/folder.share"])
    assert "No such file" in refusal(code, capsys)
    assert not list(PrivacyLedger(path="a.ledger"))


# --- bad rows


def test_the_site_sees_how_many_rows_were_left_out_and_the_reader_that_some_may_be(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("b.csv").write_text("score,label\n0.5,1\nNaN,0\n,1\n0.5,2\n0.5\n0.25,0\n")
    assert count("b", "--skip-bad", "--most-skipped", "0.7") == 0
    output = capsys.readouterr().out
    assert "Counted 2 rows, left out 4 bad ones, and wrote b.share" in output
    assert count("a") == 0
    assert count("c") == 0
    assert sum_shares() == 0
    assert ReleaseFlag.ROWS_SKIPPED in Release.load("all.release").flags
    assert main(["inspect", "all.release"]) == 0
    assert "note: rows that cannot be counted were left out" in capsys.readouterr().out


def test_a_share_says_that_bad_rows_may_be_left_out_whether_there_were_any_or_not(
    folder: Path,
) -> None:
    sizes = []
    for table in ("score,label\n0.5,1\nNaN,0\n0.25,0\n", "score,label\n0.5,1\n0.25,0\n"):
        Path("b.csv").write_text(table)
        assert count("b", "--skip-bad", "--most-skipped", "0.7") == 0
        sizes.append(len(Path("b.share").read_bytes()))
    assert sizes[0] == sizes[1]
    assert count("a") == 0
    assert count("c") == 0
    assert sum_shares() == 0
    assert ReleaseFlag.ROWS_SKIPPED in Release.load("all.release").flags
    assert count("b") == 0
    assert sum_shares() == 0
    assert not Release.load("all.release").flags


MOSTLY_BAD = "score,label\n0.5,1\n" + "NaN,0\n" * 2_999
ONE_BAD_IN_TWENTY = "score,label\n" + "0.25,0\n0.75,1\n" * 10 + "NaN,0\n"


@pytest.mark.parametrize("command", ["count", "site"])
@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (
            "score,label\n",
            [],
            "Read 0 rows. Cannot count: no row of the table",
        ),
        (
            "score,label\nNaN,0\n",
            ["--skip-bad", "--most-skipped", "1"],
            "left out 1 bad ones. Cannot",
        ),
        (
            "score,label\n0.5,-1\n",
            [],
            "Read 1 rows. Cannot count: no row of the table",
        ),
        (
            MOSTLY_BAD,
            ["--skip-bad"],
            "Read 1 rows, left out 2,999 bad ones. Cannot count: more than 0.05",
        ),
        (
            ONE_BAD_IN_TWENTY,
            ["--skip-bad", "--most-skipped", "0.04"],
            "left out 1 bad ones. Cannot",
        ),
        (
            ONE_BAD_IN_TWENTY,
            ["--skip-bad", "--most-skipped", "5"],
            "a fraction from 0 to 1 but got 5",
        ),
        (
            ONE_BAD_IN_TWENTY,
            [],
            "or leave out such rows with `skip_bad` (--skip-bad)",
        ),
    ],
    ids=["header", "one bad", "ignored", "mostly bad", "fraction", "no fraction", "not skipped"],
)
def test_tables_with_next_to_nothing_to_count_are_refused_and_nothing_is_charged(
    folder: Path,
    command: str,
    table: str,
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("study.toml").write_text(f"clients = 3\n[columns]\nignore_index = -1\n{LOCAL}")
    Path("b.csv").write_text(table)
    Path("shared").mkdir()
    place = ["-o", "b.share"]
    if command == "site":
        place = ["--folder", "shared", "--timeout", "1"]
    code = main([command, "study.toml", "b.csv", "--name", "b", *place, *options])
    assert message in refusal(code, capsys)
    assert not list(PrivacyLedger(path="b.ledger"))
    assert not Path("b.share").exists()
    assert not list(Path("shared").iterdir())  # the other sites learn nothing, not even a refusal


def test_bad_rows_are_judged_over_all_tables_of_a_site(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty.csv").write_text("score,label\n")
    Path("b.csv").write_text(ONE_BAD_IN_TWENTY)
    tables = ["a.csv", "b.csv", "empty.csv"]
    options = ["--name", "a", "-o", "a.share", "--skip-bad", "--most-skipped", "0.01"]
    assert main(["count", "study.toml", *tables, *options]) == 0
    output = capsys.readouterr().out
    assert "Counted 320 rows, left out 1 bad ones, and wrote a.share" in output


def test_the_command_line_and_python_refuse_the_same_fraction(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["count", "--help"])
    assert f"nothing is counted ({MOST_SKIPPED})" in " ".join(capsys.readouterr().out.split())
