"""A shared folder in which somebody cuts, swaps, replays and plants files, or a coordinator asks twice."""

from __future__ import annotations

import logging
import os
import pickle
import random
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
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
from torchmetrics_fed.app.folder import run_coordinator, run_site
from torchmetrics_fed.app.folder.files import Files
from torchmetrics_fed.errors import (
    FederatedMetricError,
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
        self.home, self.shared, self._pool = home, home / "shared", pool
        self.shared.mkdir()

    def metric(self, name: str, options: dict[str, Any]) -> FederatedROC:
        generator = torch.Generator().manual_seed(NAMES.index(name))
        metric = FederatedROC(ledger=PrivacyLedger(budget=9.0, path=self.home / name), **options)
        target = torch.randint(0, 2, (2000,), generator=generator)
        return counted(metric, (torch.rand(2000, generator=generator), target), False)

    def site(self, name: str, options: dict[str, Any], **how: Any) -> Future[None]:
        return self._pool.submit(
            run_site, self.shared, name, self.metric(name, options), **{**SOON, **how}
        )

    def coordinator(
        self, options: dict[str, Any], names: tuple[str, ...] = NAMES, **how: Any
    ) -> Release:
        return run_coordinator(
            self.shared, FederatedROC(**options), clients=names, **{**SOON, **how}
        )

    def release(self, options: dict[str, Any], **how: Any) -> Release:
        sites = [self.site(name, options, **how) for name in NAMES]
        release = self.coordinator(options, **how)
        for site in sites:
            site.result()
        return release

    def entries(self) -> list[int]:
        return [len(PrivacyLedger(path=self.home / name)) for name in NAMES]

    def traces(self, name: str, options: dict[str, Any], *folders: str) -> float:
        """How much of a site's raw counts can be read in files: a fraction of their bytes."""
        _, packed = rice.pack(self.metric(name, options).counts.reshape(-1).numpy())
        pieces = [packed[start : start + 16] for start in range(len(packed) - 15)]
        files = [
            path.read_bytes() for each in folders for path in self.home.glob(each) if path.is_file()
        ]
        return sum(any(piece in data for data in files) for piece in pieces) / len(pieces)


@pytest.fixture
def federation() -> Iterator[Federation]:
    with TemporaryDirectory(dir=MEMORY) as home, ThreadPoolExecutor(8) as pool:
        yield Federation(Path(home), pool)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The cells that were drawn, in their order."""
    cells: list[Tensor] = []
    draw = client_module.noisy_cells

    def drawing(spec: Spec, query: Query, counts: Tensor) -> Tensor:
        cells.append(draw(spec, query, counts))
        return cells[-1]

    monkeypatch.setattr(client_module, "noisy_cells", drawing)
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
    before, entries = len(drawn), federation.entries()
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
    assert len(drawn) == before
    assert federation.entries() == entries


def test_an_honest_second_run_is_the_first(federation: Federation, drawn: list[Tensor]) -> None:
    release = federation.release(HIDDEN)
    before = len(drawn)
    assert bytes(federation.coordinator(HIDDEN)) == bytes(release)
    federation.site("ann", HIDDEN).result()  # it has nothing to do
    assert len(drawn) == before


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_coordinator_that_forgets_a_stage_opens_no_second_list(
    setting: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have answered for four survivors; the coordinator throws that away and names three."""
    options, write = SETTINGS[setting], Files.write

    def writing(files: Files, path: Path, *parts: bytes) -> bytes:
        if path.name == "1.5-unmask.closed":
            raise KilledError
        return write(files, path, *parts)

    sites = {name: federation.site(name, options) for name in NAMES}
    with monkeypatch.context() as patch:
        patch.setattr(Files, "write", writing)
        with pytest.raises(KilledError):
            federation.coordinator(options)
    own = federation.shared / "coordinator" / "round-1"
    for path in [
        *own.glob("1.5-*"),
        own / "1.3-mask.closed",
        federation.shared / "site-dia" / "round-1" / "1.3-mask",
    ]:
        path.unlink()
    with pytest.raises(SecureAggregationError, match="nothing is opened"):
        federation.coordinator(options)
    assert isinstance(sites[VICTIM].exception(), FederatedMetricError)  # a mask once more
    refused = [sites[name].exception() for name in NAMES[:-1]]
    assert all("two lists together expose clients" in str(error) for error in refused)


@pytest.mark.parametrize("options", [HIDDEN, LOCAL], ids=["hidden", "visible"])
def test_counts_are_in_the_notes_between_two_queries_and_nowhere_else(
    options: dict[str, Any], federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, found = Files.write, dict[str, float]()

    def writing(files: Files, path: Path, *parts: bytes) -> bytes:
        if path.parent == files.coordinator_folder and path.name.startswith("2.") and not found:
            for where in ("dia.notes", "dia", "shared/*/*/*"):
                found[where] = federation.traces(VICTIM, options, where)
            found["mode"] = stat.S_IMODE((federation.home / "dia.notes").stat().st_mode)
        return write(files, path, *parts)

    monkeypatch.setattr(Files, "write", writing)
    federation.release(options)
    assert found.pop("dia.notes") > 0.9
    assert found.pop("mode") == 0o600
    assert set(found.values()) == {0.0}
    assert federation.traces(VICTIM, options, "*", "shared/*/*/*") == 0.0


# --- files that somebody has cut, swapped, replayed or planted


def truncated(path: Path, federation: Federation) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def swapped(path: Path, federation: Federation) -> None:
    name = path.name.replace("site-dia", "site-ann")
    other = Path(str(path.parent).replace("site-dia", "site-ann")) / name
    path.write_bytes(other.read_bytes() if other.exists() else b"")


def replayed(path: Path, federation: Federation) -> None:
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


def damage_unseen(
    monkeypatch: pytest.MonkeyPatch,
    is_target: Callable[[Path], bool],
    damage: Callable[[Path], None],
    killed: bool,
) -> list[Path]:
    """Damage the first of some files before anybody can read it, and kill whoever wrote it; return which it was."""
    write, read, turn, done = Files.write, Files.read, Lock(), list[Path]()

    def writing(files: Files, path: Path, *parts: bytes) -> bytes:
        if done or not is_target(path):
            return write(files, path, *parts)
        with turn:
            mark = write(files, path, *parts)
            done.append(path)
            damage(path)
        if killed:
            raise KilledError
        return mark

    def reading(files: Files, path: Path) -> Any:
        with turn if is_target(path) else nullcontext():
            return read(files, path)

    monkeypatch.setattr(Files, "write", writing)
    monkeypatch.setattr(Files, "read", reading)
    return done


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("what", ["an answer", "a request"])
def test_a_damaged_file_is_refused_and_loses_nothing(
    what: str,
    damage: Callable[[Path, Federation], None],
    federation: Federation,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A site gives its answer again; the coordinator, when it is started again, its request."""
    federation.release(HIDDEN, round="0")
    own, request = federation.shared / "coordinator" / "round-1", what == "a request"
    target = (
        own / "1.3-mask.site-dia" if request else federation.shared / "site-dia/round-1/1.3-mask"
    )
    done = damage_unseen(monkeypatch, target.__eq__, lambda path: damage(path, federation), request)
    sites = [federation.site(name, HIDDEN, round="1") for name in NAMES]
    if what == "a request":
        with pytest.raises(KilledError):
            federation.coordinator(HIDDEN, round="1")
        with pytest.raises(WireError):
            run_site(
                federation.shared,
                VICTIM,
                federation.metric(VICTIM, HIDDEN),
                round="1",
                poll=0.01,
                timeout=0.1,
            )
        assert federation.entries()[-1] == 1  # of round 0
    release = federation.coordinator(HIDDEN, round="1")
    for site in sites:
        site.result()
    assert done
    assert [each.shares for each in release.sums] == [4, 4]
    assert federation.entries() == [2] * 4
    assert ("dia waits. Expected" in caplog.text) == (what == "a request")


@pytest.mark.parametrize("damage", [truncated, foreign, linked])
def test_who_cannot_give_its_answer_again_has_dropped_out(
    damage: Callable[[Path, Federation], None],
    federation: Federation,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hers = federation.shared / "site-dia/round-1/1.0-share"
    damage_unseen(monkeypatch, hers.__eq__, lambda path: damage(path, federation), killed=True)
    files, looks = Files(federation.shared, "1"), [0]

    def clock() -> float:
        """Up once all have answered and were looked at after that; the first look sets the deadline."""
        looks[0] += all(os.path.lexists(files.site_folder(name) / "1.0-share") for name in NAMES)
        return time.monotonic() + (1e6 if looks[0] > 1 else 0.0)

    monkeypatch.setattr("torchmetrics_fed.app.folder.coordinator.monotonic", clock)
    sites = [federation.site(name, {}) for name in NAMES]
    with caplog.at_level(logging.WARNING):
        assert federation.coordinator({}).shares == 3
    assert "dropped out: dia. Expected" in caplog.text
    assert [type(site.exception()) for site in sites] == [type(None)] * 3 + [KilledError]


@pytest.fixture(scope="module")
def written() -> Iterator[tuple[Files, list[Path]]]:
    """The files of a whole round."""
    with TemporaryDirectory(dir=MEMORY) as home, ThreadPoolExecutor(4) as pool:
        federation = Federation(Path(home), pool)
        federation.release(HIDDEN)
        yield (
            Files(federation.shared, "1"),
            sorted(path for path in federation.shared.glob("*/*/*") if path.is_file()),
        )


def test_no_mutant_of_a_file_is_read(written: tuple[Files, list[Path]]) -> None:
    """Cut, flipped, longer, spliced or moved: a typed error, whatever it is; and as it was, it can be read."""
    files, paths = written
    generator, assorted = random.Random(5), [path.read_bytes() for path in paths]
    scratch = dict(zip(paths, assorted, strict=True))
    for number in range(1500):
        path = generator.choice(paths)
        data = bytearray(scratch[path])
        at = generator.randrange(len(data))
        other = generator.choice(assorted)
        kind = number % 5
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at] ^= 1 << generator.randrange(8)
        elif kind == 2:
            data.insert(at, generator.randrange(256))
        elif kind == 3:
            data[at:] = other[at:]
        else:
            data[:] = other
        if bytes(data) == scratch[path]:
            continue
        path.write_bytes(data)
        with pytest.raises(WireError):
            files.read(path)
        path.write_bytes(scratch[path])
    assert all(files.read(path) for path in paths)
