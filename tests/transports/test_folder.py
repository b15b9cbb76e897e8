"""What a federation does to a folder: sites that are missing, late, different, empty or killed.

The law is that of :mod:`tests.transports.test_faults`, and one more: a site or a coordinator that
is killed goes on when it is started again, except for a site that died between its charge and its
note.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from tests.transports.endpoints import MEMORY, Part, built, counted
from tests.transports.folder_sites import (
    HIDDEN_POINTS,
    POLL,
    VISIBLE_POINTS,
    CoordinatorProcess,
    SiteProcess,
    wait_for,
)
from tests.transports.test_faults import (
    EPSILON,
    FAULTS,
    NAMES,
    PRIVATE,
    SETTINGS,
    VICTIM,
    agreed,
    at_fault,
    charged,
)
from tests.transports.test_faults import check as check_release
from tests.transports.test_faults import data as data_of
from torchmetrics_fed import DistributedDP, FederatedAUROC, PrivacyLedger, Release
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.app.folder import run_coordinator, run_site
from torchmetrics_fed.app.folder.files import Files, stage_name
from torchmetrics_fed.errors import FederatedMetricError, ReleaseError
from torchmetrics_fed.simulate import simulate

_log = logging.getLogger(__name__)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:No (positive|negative) examples"),
]


@pytest.fixture
def home() -> Iterator[Path]:
    """Ledgers are in it, and the shared folder."""
    with TemporaryDirectory(dir=MEMORY) as path:
        Path(path, "shared").mkdir()
        yield Path(path)


STAGE_NAMES = tuple(str(stage) for stage in Stage)
DATA_STAGES = ("share", "mask")


class Federation:
    """Sites in threads, and a coordinator in this one."""

    def __init__(self, home: Path, pool: ThreadPoolExecutor) -> None:
        self.home = home
        self.shared = home / "shared"
        self._pool = pool

    def site(
        self, name: str, options: dict[str, Any], part: Part | None = None, **how: Any
    ) -> Future[None]:
        """Start a site."""
        if part is None:
            part = data_of(name)
        metric = counted(built(options, self.home / name), part, False)
        how = {"poll": POLL, "timeout": 60.0, **how}
        return self._pool.submit(run_site, self.shared, name, metric, **how)

    def coordinator(self, options: dict[str, Any], **how: Any) -> Release:
        """Run a coordinator."""
        how = {"clients": NAMES, "poll": POLL, "timeout": 60.0, **how}
        return run_coordinator(self.shared, built(options), **how)

    def set_silent(
        self, patch: pytest.MonkeyPatch, *names: str, stages: tuple[str, ...] = STAGE_NAMES
    ) -> None:
        """End the coordinator's time in these stages once all sites but these have replied."""
        clock = _ImpatientClock(Files(self.shared, "1"), set(names), stages)
        patch.setattr("torchmetrics_fed.app.folder.coordinator.monotonic", clock)

    def set_late(self, patch: pytest.MonkeyPatch, name: str) -> None:
        """Let a site's replies to queries come when the coordinator waits no more."""
        write = Files.write
        folder = Files(self.shared, "1").site_folder(name)

        def write_late(files: Files, path: Path, *parts: bytes) -> bytes:
            if path.parent == folder and stage_name(path.name) in DATA_STAGES:
                wait_for(files.closed_path(path.name).exists)
            return write(files, path, *parts)

        patch.setattr(Files, "write", write_late)
        self.set_silent(patch, name, stages=DATA_STAGES)


class _ImpatientClock:
    """A clock that jumps ahead when nothing but silent sites is waited for.

    Args:
        files: the files of the round.
        silent: the sites that will not reply.
        stages: the stages in which the clock may jump.
    """

    def __init__(self, files: Files, silent: set[str], stages: tuple[str, ...]) -> None:
        self._files = files
        self._silent = silent
        self._stages = stages
        self._begun: set[str] = set()

    def __call__(self) -> float:
        stages = self._files.requested_stages()
        label = stages[-1] if stages else ""
        jump = 0.0
        if label in self._begun and self._waits_in_vain(label):
            jump = 1e6
        self._begun.add(label)  # the first call in a stage sets its deadline
        return time.monotonic() + jump

    def _waits_in_vain(self, label: str) -> bool:
        missing = set()
        for name in self._files.requested_sites(label):
            if not self._files.reply_path(label, name).exists():
                missing.add(name)
        return stage_name(label) in self._stages and bool(missing) and missing <= self._silent


@pytest.fixture
def federation(home: Path) -> Iterator[Federation]:
    with ThreadPoolExecutor(8) as pool:
        yield Federation(home, pool)


FOLDER_FAULTS = [fault for fault in FAULTS if fault != "doubled"]
"""A reply has one place in a folder, so that none is doubled."""

SEVERAL_NEEDED = [setting for setting in SETTINGS if setting not in ("exact", "local")]
"""Settings that one client is not enough for."""


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("fault", FOLDER_FAULTS)
def test_one_folder_site_at_fault(
    fault: str, setting: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = agreed(setting)
    parts, victim_options = at_fault(fault, options)
    if fault == "missing":
        federation.set_silent(monkeypatch, VICTIM)
    if fault == "late":
        federation.set_late(monkeypatch, VICTIM)
    sites = {name: federation.site(name, options, parts[name]) for name in NAMES[:-1]}
    if fault != "missing":
        sites[VICTIM] = federation.site(VICTIM, victim_options, parts[VICTIM])
    check_release(federation.coordinator(options), fault, parts, federation.home)
    if fault == "that counts differently":
        with pytest.raises(FederatedMetricError, match="Expected one spec"):
            sites.pop(VICTIM).result()
    for site in sites.values():
        site.result()


@pytest.mark.parametrize("setting", SEVERAL_NEEDED)
def test_too_few_are_there_or_left(
    setting: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is asked the same round can be tried again; afterwards it is over."""
    options = agreed(setting)
    federation.set_silent(monkeypatch, *NAMES[2:])
    sites = [federation.site(name, options) for name in NAMES[:2]]
    with pytest.raises(ReleaseError, match="Nothing was asked"):
        federation.coordinator(options, clients=2)
    with pytest.raises(FederatedMetricError, match="Expected") as failure:
        federation.coordinator(options)
    for site in sites:
        with pytest.raises(ReleaseError, match="A retry is a new round") as raised:
            site.result()
        assert str(failure.value) in str(raised.value)
    with pytest.raises(ReleaseError, match="A retry is a new round"):
        federation.coordinator(options)


@pytest.mark.parametrize("setting", SETTINGS)
def test_two_rounds_at_once_in_a_folder(setting: str, federation: Federation) -> None:
    """A site takes part in one after the other, and draws and pays for each."""
    options = agreed(setting)
    rounds = ("one", "two")
    with ThreadPoolExecutor(2) as pool:
        coordinators = [
            pool.submit(federation.coordinator, options, round=round) for round in rounds
        ]
        for round in rounds:
            sites = [federation.site(name, options, round=round) for name in NAMES]
            for site in sites:
                site.result()
        for coordinator in coordinators:
            assert coordinator.result().shares == 4
    expected = [EPSILON, EPSILON] if setting in PRIVATE else []
    assert charged(federation.home) == dict.fromkeys(NAMES, expected)


class KilledError(BaseException):
    """The coordinator's process has ended."""


@pytest.mark.parametrize("setting", ["local", "distributed"])
def test_a_coordinator_is_killed_after_any_of_its_writes(
    setting: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first life ends with its first write, its second with its second, and so on."""
    options = agreed(setting)
    killer = _KilledWriter()
    killer.install(monkeypatch)
    sites = [federation.site(name, options) for name in NAMES]
    for life in count(1):
        killer.writes_left = life
        try:
            release = federation.coordinator(options)
        except KilledError:
            continue
        break
    for site in sites:
        site.result()
    assert life > 3
    assert [total.shares for total in release.sums] == [4, 4]
    assert charged(federation.home) == {name: [EPSILON] for name in NAMES}
    assert bytes(federation.coordinator(options)) == bytes(release)


class _KilledWriter:
    """Kills a coordinator after a number of writes, and checks that no life asks anything else."""

    def __init__(self) -> None:
        self.writes_left = 0
        self._write = Files.write
        self._request_digests: dict[Path, bytes] = {}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Files, "write", lambda files, path, *parts: self.write(files, path, *parts))

    def write(self, files: Files, path: Path, *parts: bytes) -> bytes:
        digest = self._write(files, path, *parts)
        if path.parent == files.coordinator_folder:
            if ".site-" in path.name:
                assert self._request_digests.setdefault(path, digest) == digest
            self.writes_left -= 1
            if self.writes_left == 0:
                raise KilledError
        return digest


# --- real processes, and SIGKILL


FIVE = (*NAMES, "eve")
LARGE = {"quantiles": 256, "privacy": DistributedDP(1.0, min_clients=3)}
FIVE_OPTIONS = {"local": {**LARGE, **SETTINGS["local"]}, "distributed": LARGE}
POINTS = [("local", query, point) for query in (1, 2) for point in VISIBLE_POINTS]
POINTS += [("distributed", query, point) for query in (1, 2) for point in HIDDEN_POINTS]
ALIVE = (0, "")
"""No point of any query: the site does not die."""


@pytest.fixture
def start(home: Path, request: pytest.FixtureRequest) -> Callable[..., SiteProcess]:
    def begin(
        name: str, options: dict[str, Any], part: Part, dies: tuple[int, str] = ALIVE
    ) -> SiteProcess:
        site = SiteProcess(home / "shared", name, options, part, home / name, dies)
        request.addfinalizer(site.close)
        return site

    return begin


def many(name: str) -> Part:
    """4,000 examples of a site."""
    generator = torch.Generator().manual_seed(FIVE.index(name))
    target = torch.randint(0, 2, (4000,), generator=generator)
    return (torch.randn(4000, generator=generator) + target).sigmoid(), target


@pytest.mark.integration
@pytest.mark.parametrize(("setting", "query", "point"), POINTS)
def test_one_of_five_sites_is_killed_and_comes_back(
    setting: str, query: int, point: str, home: Path, start: Callable[..., SiteProcess]
) -> None:
    """One is killed at a point, another starts late; the release is as that of a simulation."""
    options = FIVE_OPTIONS[setting]
    sites = {name: start(name, options, many(name)) for name in NAMES[:-1]}
    sites[VICTIM] = start(VICTIM, options, many(VICTIM), (query, point))
    shared = home / "shared"
    with ThreadPoolExecutor(1) as pool:
        coordinator = pool.submit(
            run_coordinator, shared, built(options), clients=FIVE, timeout=90.0, poll=POLL
        )
        wait_for((shared / "site-ann" / "round-1").exists)
        wait_for(lambda: any(shared.glob("coordinator/*/*")))
        sites["eve"] = start("eve", options, many("eve"))
        assert sites[VICTIM].wait() == -9
        sites[VICTIM] = start(VICTIM, options, many(VICTIM))
        release = coordinator.result(timeout=180)
    dropped_out = point in ("charged", "drawn")
    shares = [5, 5]
    members = list(FIVE)
    exit_codes = dict.fromkeys(FIVE, 0)
    if dropped_out:
        shares = [4, 4] if query == 1 else [5, 4]
        members.remove(VICTIM)
        exit_codes[VICTIM] = 1  # it says why it is out
    assert [total.shares for total in release.sums] == shares
    assert {name: site.wait() for name, site in sites.items()} == exit_codes
    for name in FIVE:
        assert len(PrivacyLedger(path=home / name)) == 1
    check_like_simulation(release, options, [many(name) for name in members])


def check_like_simulation(release: Release, options: dict[str, Any], parts: list[Part]) -> None:
    """The release asks the queries of a simulation, and errs as little."""
    simulated = simulate([[part] for part in parts], built(options), round="1").release
    assert simulated.spec == release.spec
    assert simulated.queries[0] == release.queries[0]
    assert len(simulated.queries) == len(release.queries) == 2
    exact = built({"quantiles": 256})
    for part in parts:
        exact.update(*part)
    truth = auroc_of(exact.release())
    folder_error = auroc_of(release) - truth
    simulated_error = auroc_of(simulated) - truth
    _log.info("AUROC: folder %+.5f, simulate %+.5f", folder_error, simulated_error)
    bound = 0.005 if release.spec.hides_shares else 0.015  # ten times what either errs by
    assert abs(folder_error) < bound
    assert abs(simulated_error) < bound


def auroc_of(release: Release) -> float:
    return float(FederatedAUROC.from_release(release).compute())


@pytest.mark.integration
@pytest.mark.parametrize("point", ["share_keys", "mask", "mask written", "unmask"])
def test_a_killed_site_that_stays_away_has_dropped_out(
    point: str, home: Path, start: Callable[..., SiteProcess]
) -> None:
    for name in FIVE:
        start(name, LARGE, many(name), (1, point) if name == VICTIM else ALIVE)
    release = run_coordinator(home / "shared", built(LARGE), clients=FIVE, timeout=15.0, poll=POLL)
    is_summed = point in ("mask written", "unmask")
    assert [total.shares for total in release.sums] == [4 + is_summed, 4]
    assert len(PrivacyLedger(path=home / VICTIM)) == is_summed


@pytest.mark.integration
@pytest.mark.parametrize("dies", [1, 4, 7, 14, 29, 50, 51])
def test_a_killed_coordinator_goes_on(
    dies: int,
    home: Path,
    start: Callable[..., SiteProcess],
    request: pytest.FixtureRequest,
) -> None:
    """A release of five sites takes 51 writes.

    They are the state three times, five requests and a close in each of eight stages, and the end.
    """
    sites = [start(name, LARGE, many(name)) for name in FIVE]
    first = CoordinatorProcess(home / "shared", LARGE, list(FIVE), home / "out", dies)
    request.addfinalizer(first.close)
    assert first.wait() == -9
    second = CoordinatorProcess(home / "shared", LARGE, list(FIVE), home / "out")
    request.addfinalizer(second.close)
    assert second.wait() == 0
    assert [site.wait() for site in sites] == [0] * 5
    assert [total.shares for total in Release.load(home / "out").sums] == [5, 5]
    for name in FIVE:
        assert len(PrivacyLedger(path=home / name)) == 1
