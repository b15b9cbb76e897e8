"""A shared folder: files are cut, swapped, replayed or planted, and sites are asked twice.

No attack gets a second draw, a second list of survivors, or a file read that is not whole.
"""

from __future__ import annotations

import errno
import logging
import os
import pickle
import random
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.transports.endpoints import MEMORY, counted
from torchmetrics_fed import (
    DistributedDP,
    FederatedROC,
    LocalDP,
    PrivacyLedger,
    Query,
    Release,
    Spec,
)
from torchmetrics_fed.app.folder import run_coordinator, run_site, status
from torchmetrics_fed.app.folder.files import Files
from torchmetrics_fed.errors import (
    FederatedMetricError,
    InputError,
    ReleaseError,
    SecureAggregationError,
    WireError,
)
from torchmetrics_fed.exchange import client as client_module
from torchmetrics_fed.release import rice

NAMES = ("ann", "ben", "cem", "dia")
VICTIM = "dia"
HIDDEN: dict[str, Any] = {"quantiles": 64, "privacy": DistributedDP(1.0, min_clients=3)}
EXACT: dict[str, Any] = {"quantiles": 64, "secure": True}
LOCAL: dict[str, Any] = {"quantiles": 64, "privacy": LocalDP(1.0)}
SETTINGS = {"private": HIDDEN, "secure": EXACT}
SOON = {"poll": 0.01, "timeout": 60.0}


class KilledError(BaseException):
    """A process has ended."""


class Federation:
    """Sites in threads, and a coordinator in this one, below one folder in memory."""

    def __init__(self, home: Path, pool: ThreadPoolExecutor) -> None:
        self.home = home
        self.shared = home / "shared"
        self.shared.mkdir()
        self._pool = pool

    def metric(self, name: str, options: dict[str, Any]) -> FederatedROC:
        generator = torch.Generator().manual_seed(NAMES.index(name))
        ledger = PrivacyLedger(budget=9.0, path=self.home / name)
        metric = FederatedROC(ledger=ledger, **options)
        target = torch.randint(0, 2, (2000,), generator=generator)
        preds = torch.rand(2000, generator=generator)
        return counted(metric, (preds, target), False)

    def site(self, name: str, options: dict[str, Any], **how: Any) -> Future[None]:
        metric = self.metric(name, options)
        return self._pool.submit(run_site, self.shared, name, metric, **{**SOON, **how})

    def coordinator(
        self, options: dict[str, Any], names: tuple[str, ...] = NAMES, **how: Any
    ) -> Release:
        metric = FederatedROC(**options)
        return run_coordinator(self.shared, metric, clients=names, **{**SOON, **how})

    def release(self, options: dict[str, Any], **how: Any) -> Release:
        sites = [self.site(name, options, **how) for name in NAMES]
        release = self.coordinator(options, **how)
        for site in sites:
            site.result()
        return release

    def entries(self) -> list[int]:
        return [len(PrivacyLedger(path=self.home / name)) for name in NAMES]

    def traces(self, name: str, options: dict[str, Any], *patterns: str) -> float:
        """How much of a site's raw counts can be read in files: a fraction of their bytes."""
        _, packed = rice.pack(self.metric(name, options).counts.reshape(-1).numpy())
        pieces = [packed[start : start + 16] for start in range(len(packed) - 15)]
        contents = []
        for pattern in patterns:
            paths = self.home.glob(pattern)
            contents += [path.read_bytes() for path in paths if path.is_file()]
        readable = [piece for piece in pieces if any(piece in content for content in contents)]
        return len(readable) / len(pieces)


@pytest.fixture
def federation() -> Iterator[Federation]:
    with TemporaryDirectory(dir=MEMORY) as home, ThreadPoolExecutor(8) as pool:
        yield Federation(Path(home), pool)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The cells that were drawn, in their order."""
    cells: list[Tensor] = []
    draw = client_module.noisy_cells

    def draw_and_record(spec: Spec, query: Query, counts: Tensor) -> Tensor:
        cells.append(draw(spec, query, counts))
        return cells[-1]

    monkeypatch.setattr(client_module, "noisy_cells", draw_and_record)
    return cells


# --- a coordinator that asks twice


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("where", ["the same folder", "another folder"])
def test_a_second_run_with_one_site_fewer_gets_nothing(
    where: str, setting: str, federation: Federation, drawn: list[Tensor]
) -> None:
    """The difference of two sums of the same draws would be the victim's share."""
    options = SETTINGS[setting]
    federation.release(options)
    draws = len(drawn)
    entries = federation.entries()
    with pytest.raises(ReleaseError, match="No site is asked again without the others"):
        federation.coordinator(options, NAMES[:-1])  # an honest one says so itself
    if where == "the same folder":
        shutil.rmtree(federation.shared / "coordinator")
    else:
        shutil.rmtree(federation.shared)
        federation.shared.mkdir()
    sites = [federation.site(name, options) for name in NAMES[:-1]]
    with pytest.raises(SecureAggregationError, match=r"nothing is opened|never began"):
        federation.coordinator(options, NAMES[:-1])
    for site in sites:
        with pytest.raises(ReleaseError, match="Round '1' is over for this client"):
            site.result()
    assert len(drawn) == draws
    assert federation.entries() == entries


def test_an_honest_second_run_is_the_first(federation: Federation, drawn: list[Tensor]) -> None:
    release = federation.release(HIDDEN)
    draws = len(drawn)
    assert bytes(federation.coordinator(HIDDEN)) == bytes(release)
    federation.site("ann", HIDDEN).result()  # it has nothing to do
    assert len(drawn) == draws


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_coordinator_that_forgets_a_stage_opens_no_second_list(
    setting: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have replied for four survivors; the coordinator throws that away and names three."""
    options = SETTINGS[setting]
    write = Files.write

    def write_or_die(files: Files, path: Path, *parts: bytes) -> bytes:
        if path.name == "1.5-unmask.closed":
            raise KilledError
        return write(files, path, *parts)

    sites = {name: federation.site(name, options) for name in NAMES}
    with monkeypatch.context() as patch:
        patch.setattr(Files, "write", write_or_die)
        with pytest.raises(KilledError):
            federation.coordinator(options)
    files = Files(federation.shared, "1")
    for path in files.coordinator_folder.glob("1.5-*"):
        path.unlink()
    files.closed_path("1.3-mask").unlink()
    files.reply_path("1.3-mask", VICTIM).unlink()
    with pytest.raises(SecureAggregationError, match="nothing is opened"):
        federation.coordinator(options)
    assert isinstance(sites[VICTIM].exception(), FederatedMetricError)  # it was asked to mask again
    for name in NAMES[:-1]:
        assert "two lists together expose clients" in str(sites[name].exception())


@pytest.mark.parametrize("options", [HIDDEN, LOCAL], ids=["hidden", "visible"])
def test_counts_are_in_the_notes_between_two_queries_and_nowhere_else(
    options: dict[str, Any], federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Files.write
    traces: dict[str, float] = {}
    modes: list[int] = []

    def search_and_write(files: Files, path: Path, *parts: bytes) -> bytes:
        is_second_query = path.parent == files.coordinator_folder and path.name.startswith("2.")
        if is_second_query and not traces:
            for pattern in ("dia.notes", "dia", "shared/*/*/*"):
                traces[pattern] = federation.traces(VICTIM, options, pattern)
            modes.append(stat.S_IMODE((federation.home / "dia.notes").stat().st_mode))
        return write(files, path, *parts)

    monkeypatch.setattr(Files, "write", search_and_write)
    federation.release(options)
    assert traces["dia.notes"] > 0.9
    assert modes == [0o600]
    assert traces["dia"] == 0.0
    assert traces["shared/*/*/*"] == 0.0
    assert federation.traces(VICTIM, options, "*", "shared/*/*/*") == 0.0


# --- files that were cut, swapped, replayed or planted


def truncated(path: Path, federation: Federation) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def swapped(path: Path, federation: Federation) -> None:
    """The file of another site takes its place."""
    source = Path(str(path).replace("site-dia", "site-ann"))
    path.write_bytes(source.read_bytes() if source.exists() else b"")


def replayed(path: Path, federation: Federation) -> None:
    """The file of an earlier round takes its place."""
    shutil.copy(str(path).replace("round-1", "round-0"), path)


def foreign(path: Path, federation: Federation) -> None:
    path.write_bytes(pickle.dumps(["anything"]))


def linked(path: Path, federation: Federation) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def piped(path: Path, federation: Federation) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = [truncated, swapped, replayed, foreign, linked, piped]


class Saboteur:
    """Damages a file before any party can read it.

    Args:
        target: the file.
        damage: how it is damaged.
        kills: whether the party that wrote it ends with it.
    """

    def __init__(self, target: Path, damage: Callable[[Path], None], kills: bool) -> None:
        self._target = target
        self._damage = damage
        self._kills = kills
        self._turn = Lock()
        self._write = Files.write
        self._read = Files.read
        self.is_done = False

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Files, "write", lambda files, path, *parts: self.write(files, path, *parts))
        patch.setattr(Files, "read", lambda files, path: self.read(files, path))

    def write(self, files: Files, path: Path, *parts: bytes) -> bytes:
        if self.is_done or path != self._target:
            return self._write(files, path, *parts)
        with self._turn:
            digest = self._write(files, path, *parts)
            self.is_done = True
            self._damage(path)
        if self._kills:
            raise KilledError
        return digest

    def read(self, files: Files, path: Path) -> Any:
        if path != self._target:
            return self._read(files, path)
        with self._turn:
            return self._read(files, path)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_site_replaces_a_damaged_reply(
    damage: Callable[[Path, Federation], None],
    federation: Federation,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    federation.release(HIDDEN, round="0")
    target = Files(federation.shared, "1").reply_path("1.3-mask", VICTIM)
    saboteur = Saboteur(target, lambda path: damage(path, federation), kills=False)
    saboteur.install(monkeypatch)
    release = federation.release(HIDDEN, round="1")
    assert saboteur.is_done
    assert [total.shares for total in release.sums] == [4, 4]
    assert federation.entries() == [2] * 4
    assert "dia waits. Expected" not in caplog.text


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_coordinator_that_is_started_again_replaces_a_damaged_request(
    damage: Callable[[Path, Federation], None],
    federation: Federation,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    federation.release(HIDDEN, round="0")
    target = Files(federation.shared, "1").request_path("1.3-mask", VICTIM)
    saboteur = Saboteur(target, lambda path: damage(path, federation), kills=True)
    saboteur.install(monkeypatch)
    sites = [federation.site(name, HIDDEN, round="1") for name in NAMES]
    with pytest.raises(KilledError):
        federation.coordinator(HIDDEN, round="1")
    metric = federation.metric(VICTIM, HIDDEN)
    with pytest.raises(WireError):
        run_site(federation.shared, VICTIM, metric, round="1", poll=0.01, timeout=0.1)
    assert federation.entries()[-1] == 1  # of round 0
    release = federation.coordinator(HIDDEN, round="1")
    for site in sites:
        site.result()
    assert saboteur.is_done
    assert [total.shares for total in release.sums] == [4, 4]
    assert federation.entries() == [2] * 4
    assert "dia waits. Expected" in caplog.text


class PatientClock:
    """A clock that jumps ahead once all sites have replied and the coordinator has looked again.

    Args:
        paths: the replies.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._looks = 0

    def __call__(self) -> float:
        if all(os.path.lexists(path) for path in self._paths):
            self._looks += 1
        jump = 1e6 if self._looks > 1 else 0.0
        return time.monotonic() + jump


@pytest.mark.parametrize("damage", [truncated, foreign, linked])
def test_a_site_that_cannot_replace_its_damaged_reply_has_dropped_out(
    damage: Callable[[Path, Federation], None],
    federation: Federation,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = Files(federation.shared, "1")
    replies = {name: files.reply_path("1.0-share", name) for name in NAMES}
    saboteur = Saboteur(replies[VICTIM], lambda path: damage(path, federation), kills=True)
    saboteur.install(monkeypatch)
    clock = PatientClock(list(replies.values()))
    monkeypatch.setattr("torchmetrics_fed.app.folder.coordinator.monotonic", clock)
    sites = {name: federation.site(name, {}) for name in NAMES}
    with caplog.at_level(logging.WARNING):
        assert federation.coordinator({}).shares == 3
    assert "dropped out: dia. Expected" in caplog.text
    assert isinstance(sites.pop(VICTIM).exception(), KilledError)
    for site in sites.values():
        site.result()


@pytest.fixture(scope="module")
def written() -> Iterator[Files]:
    """The files of a whole round."""
    with TemporaryDirectory(dir=MEMORY) as home, ThreadPoolExecutor(4) as pool:
        federation = Federation(Path(home), pool)
        federation.release(HIDDEN)
        yield Files(federation.shared, "1")


def mutant(content: bytes, donor: bytes, kind: int, generator: random.Random) -> bytes:
    """A content that was cut, flipped, made longer, spliced or replaced, by its kind."""
    place = generator.randrange(len(content))
    if kind == 0:
        return content[:place]
    if kind == 1:
        flipped = content[place] ^ (1 << generator.randrange(8))
        return content[:place] + bytes([flipped]) + content[place + 1 :]
    if kind == 2:
        return content[:place] + bytes([generator.randrange(256)]) + content[place:]
    if kind == 3:
        return content[:place] + donor[place:]
    return donor


def test_no_mutant_of_a_file_is_read(written: Files) -> None:
    """Every mutant raises a typed error; the file as it was can be read."""
    paths = sorted(path for path in written.folder.glob("*/*/*") if path.is_file())
    contents = {path: path.read_bytes() for path in paths}
    generator = random.Random(5)
    for number in range(1500):
        path = generator.choice(paths)
        donor = contents[generator.choice(paths)]
        data = mutant(contents[path], donor, number % 5, generator)
        if data == contents[path]:
            continue
        path.write_bytes(data)
        with pytest.raises(WireError):
            written.read(path)
        path.write_bytes(contents[path])
    assert all(written.read(path) for path in paths)


# --- hostile and clumsy neighbours


def test_a_planted_link_overwrites_no_file_of_the_site(federation: Federation) -> None:
    """Whoever can create a site's folder first plants links at the names that it writes."""
    precious = federation.home / "precious"
    precious.write_bytes(b"my only copy")
    folder = Files(federation.shared, "1").site_folder(VICTIM)
    folder.mkdir(parents=True)
    for label in ("0.6-join", "1.0-share", "2.0-share"):
        (folder / f".{label}.part").symlink_to(precious)
        (folder / label).symlink_to(precious)
    federation.release(LOCAL)
    assert precious.read_bytes() == b"my only copy"


@pytest.mark.parametrize("level", ["party", "round"])
def test_a_folder_that_is_a_link_is_refused(level: str, federation: Federation) -> None:
    elsewhere = federation.home / "elsewhere"
    elsewhere.mkdir()
    folder = Files(federation.shared, "1").site_folder(VICTIM)
    link = folder.parent
    if level == "round":
        link.mkdir()
        link = folder
    link.symlink_to(elsewhere)
    with pytest.raises(WireError, match="but got a link"):
        federation.site(VICTIM, LOCAL).result()
    assert list(elsewhere.rglob("*.part")) == []


def test_a_link_in_the_place_of_a_reply_is_not_read(tmp_path: Path) -> None:
    files = Files(tmp_path, "1")
    files.write(files.state_path, b"content")
    target = tmp_path / "target"
    target.write_bytes(files.state_path.read_bytes())
    files.state_path.unlink()
    files.state_path.symlink_to(target)
    with pytest.raises(WireError, match="something else"):
        files.read(files.state_path)


def test_a_pipe_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    files = Files(tmp_path, "1")
    files.state_path.parent.mkdir(parents=True)
    os.mkfifo(files.state_path)
    with pytest.raises(WireError, match="something else"):
        files.read(files.state_path)


def test_two_coordinators_at_once_give_one_release(federation: Federation) -> None:
    sites = [federation.site(name, LOCAL) for name in NAMES]
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(federation.coordinator, LOCAL) for _ in range(2)]
        outcomes = [run.exception(60) for run in runs]
    for outcome in outcomes:
        assert outcome is None or isinstance(outcome, FederatedMetricError)
    for site in sites:
        site.exception(60)
    assert federation.entries() == [1] * 4


def test_a_site_started_twice_fails_with_an_error_of_this_package(federation: Federation) -> None:
    sites = [federation.site(name, LOCAL) for name in (*NAMES, VICTIM)]
    release = federation.coordinator(LOCAL)
    assert release.shares >= 3
    for site in sites:
        error = site.exception(60)
        assert error is None or isinstance(error, FederatedMetricError)
    assert federation.entries() == [1] * 4


def test_a_ledger_inside_the_folder_is_refused(federation: Federation) -> None:
    metric = FederatedROC(
        ledger=PrivacyLedger(budget=9.0, path=federation.shared / "ledger"), **LOCAL
    )
    with pytest.raises(InputError, match="Expected the ledger on this site's own disk"):
        run_site(federation.shared, VICTIM, metric, notes=federation.home / "notes")


def test_status_prints_no_escapes_of_a_terminal(federation: Federation) -> None:
    name = "\x1b[2Jann\n"
    Files(federation.shared, "\x1b]0;x\x07").site_folder(name).mkdir(parents=True)
    text = status(federation.shared)
    assert text.isprintable()
    assert "\\x1b[2Jann\\n" in text


def test_the_replies_of_a_stage_are_files_of_their_own(federation: Federation) -> None:
    """One file of all replies could exceed what is read, and would end the round for ever."""
    federation.release(HIDDEN)
    files = Files(federation.shared, "1")
    for stage_label in files.requested_stages():
        for name in files.requested_sites(stage_label):
            assert files.taken_path(stage_label, name).exists()
        assert files.closed_path(stage_label).stat().st_size < 400


def test_a_full_disk_is_an_error_of_this_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path, "1")

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(WireError, match="No space left on device"):
            files.write(files.state_path, b"content")
    assert list(files.coordinator_folder.iterdir()) == []
