"""What a federation does to a folder: sites that are missing, late, different, empty or killed, and a coordinator too.

The law is that of :mod:`tests.transports.test_faults`, and one more: whoever is killed goes on when it is started
again, except for a site that died between its charge and its note.
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
from torchmetrics_fed.app.folder.files import Files
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


class Federation:
    """Sites in threads, and a coordinator in this one."""

    def __init__(self, home: Path, pool: ThreadPoolExecutor) -> None:
        self.home, self.shared, self._pool = home, home / "shared", pool

    def site(
        self, name: str, options: dict[str, Any], part: Part | None = None, **how: Any
    ) -> Future[None]:
        """Start a site."""
        metric = counted(built(options, self.home / name), part or data_of(name), False)
        return self._pool.submit(
            run_site, self.shared, name, metric, **{"poll": POLL, "timeout": 60.0, **how}
        )

    def coordinator(self, options: dict[str, Any], **how: Any) -> Release:
        """Return what a coordinator makes of it."""
        how = {"clients": NAMES, "poll": POLL, "timeout": 60.0, **how}
        return run_coordinator(self.shared, built(options), **how)

    def gone(
        self, patch: pytest.MonkeyPatch, *names: str, only: tuple[str, ...] = tuple(map(str, Stage))
    ) -> None:
        """Let the coordinator's time be up, in some stages, as soon as all but these have answered."""
        files, seen = Files(self.shared, "1"), set[str]()

        def clock() -> float:
            (stage,) = files.requested_stages()[-1:] or ("",)
            silent = (
                {
                    name
                    for name in files.requested_sites(stage)
                    if not (files.site_folder(name) / stage).exists()
                }
                if stage
                else set()
            )
            up = stage in seen and stage[4:] in only and silent and silent <= set(names)
            seen.add(stage)  # the first look at a stage sets its deadline
            return time.monotonic() + (1e6 if up else 0.0)

        patch.setattr("torchmetrics_fed.app.folder.coordinator.monotonic", clock)

    def late(self, patch: pytest.MonkeyPatch, name: str) -> None:
        """Let a site's answers to queries come when the coordinator waits no more."""
        write, files = Files.write, Files(self.shared, "1")

        def writing(self: Files, path: Path, *parts: bytes) -> bytes:
            if path.parent == files.site_folder(name) and path.name[4:] in ("share", "mask"):
                wait_for((files.coordinator_folder / f"{path.name}.closed").exists)
            return write(self, path, *parts)

        patch.setattr(Files, "write", writing)
        self.gone(patch, name, only=("share", "mask"))


@pytest.fixture
def federation(home: Path) -> Iterator[Federation]:
    with ThreadPoolExecutor(8) as pool:
        yield Federation(home, pool)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault != "doubled"]
)  # an answer has one place
def test_one_folder_site_at_fault(
    fault: str, setting: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = agreed(setting)
    parts, own = at_fault(fault, options)
    if fault == "missing":
        federation.gone(monkeypatch, VICTIM)
    if fault == "late":
        federation.late(monkeypatch, VICTIM)
    sites = {
        name: federation.site(name, own if name == VICTIM else options, part)
        for name, part in parts.items()
        if name != VICTIM or fault != "missing"
    }
    check_release(federation.coordinator(options), fault, parts, federation.home)
    if fault == "that counts differently":
        with pytest.raises(FederatedMetricError, match="Expected one spec"):
            sites.pop(VICTIM).result()
    for site in sites.values():
        site.result()


@pytest.mark.parametrize(
    "setting", [setting for setting in SETTINGS if setting not in ("exact", "local")]
)
def test_too_few_are_there_or_left(
    setting: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is asked the same round can be tried again; afterwards it is over, for everybody."""
    options = agreed(setting)
    federation.gone(monkeypatch, *NAMES[2:])
    sites = [federation.site(name, options) for name in NAMES[:2]]
    with pytest.raises(ReleaseError, match="Nothing was asked"):
        federation.coordinator(options, clients=2)
    with pytest.raises(FederatedMetricError, match="Expected") as raised:
        federation.coordinator(options)
    for site in sites:
        with pytest.raises(ReleaseError, match="A retry is a new round") as raised_again:
            site.result()
        assert str(raised.value) in str(raised_again.value)
    with pytest.raises(ReleaseError, match="A retry is a new round"):
        federation.coordinator(options)


@pytest.mark.parametrize("setting", SETTINGS)
def test_two_rounds_at_once_in_a_folder(setting: str, federation: Federation) -> None:
    """One after the other for each site, and each is drawn and charged whole."""
    options = agreed(setting)
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(federation.coordinator, options, round=name) for name in ("one", "two")]
        for name in ("one", "two"):
            for site in [federation.site(each, options, round=name) for each in NAMES]:
                site.result()
        assert [each.result().shares for each in made] == [4, 4]
    assert charged(federation.home) == {
        name: [EPSILON, EPSILON] * (setting in PRIVATE) for name in NAMES
    }


class KilledError(BaseException):
    """The coordinator's process has ended."""


@pytest.mark.parametrize("setting", ["local", "distributed"])
def test_a_coordinator_is_killed_after_any_of_its_writes(
    setting: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first life ends with its first write, its second with its second, and so on: none asks anything again."""
    options, write, lives = agreed(setting), Files.write, 0
    asks: dict[Path, bytes] = {}
    left = [0]

    def writing(files: Files, path: Path, *parts: bytes) -> bytes:
        mark = write(files, path, *parts)
        if path.parent == files.coordinator_folder:
            if ".site-" in path.name:
                assert asks.setdefault(path, mark) == mark
            left[0] -= 1
            if left[0] == 0:
                raise KilledError
        return mark

    monkeypatch.setattr(Files, "write", writing)
    sites = [federation.site(name, options) for name in NAMES]
    for life in count(1):
        left[0], lives = life, life
        try:
            release = federation.coordinator(options)
        except KilledError:
            continue
        break
    for site in sites:
        site.result()
    assert lives > 3
    assert [each.shares for each in release.sums] == [4, 4]
    assert charged(federation.home) == {name: [EPSILON] for name in NAMES}
    assert bytes(federation.coordinator(options)) == bytes(release)


# --- real processes, and SIGKILL


FIVE = (*NAMES, "eve")
LARGE = {"quantiles": 256, "privacy": DistributedDP(1.0, min_clients=3)}
POINTS = [
    (setting, query, point)
    for setting, points in (("local", VISIBLE_POINTS), ("distributed", HIDDEN_POINTS))
    for query in (1, 2)
    for point in points
]


@pytest.fixture
def start(home: Path, request: pytest.FixtureRequest) -> Callable[..., SiteProcess]:
    def begin(
        name: str, options: dict[str, Any], part: Part, dies: tuple[int, str] = (0, "")
    ) -> SiteProcess:
        site = SiteProcess(home / "shared", name, options, part, home / name, dies)
        request.addfinalizer(site.close)
        return site

    return begin


def many(name: str) -> Part:
    generator = torch.Generator().manual_seed(FIVE.index(name))
    target = torch.randint(0, 2, (4000,), generator=generator)
    return (torch.randn(4000, generator=generator) + target).sigmoid(), target


@pytest.mark.integration
@pytest.mark.parametrize(("setting", "query", "point"), POINTS)
def test_one_of_five_sites_is_killed_and_comes_back(
    setting: str, query: int, point: str, home: Path, start: Callable[..., SiteProcess]
) -> None:
    """One is killed at a point, another starts late; the release is as that of a simulation of those who are in it."""
    options = {**LARGE, **({} if setting == "distributed" else SETTINGS["local"])}
    sites = {
        name: start(name, options, many(name), (query, point) if name == VICTIM else (0, ""))
        for name in NAMES
    }
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(
            run_coordinator, home / "shared", built(options), clients=FIVE, timeout=90.0, poll=POLL
        )
        wait_for(
            lambda: (
                (home / "shared" / "site-ann" / "round-1").exists()
                and any(home.glob("shared/coordinator/*/*"))
            )
        )
        sites["eve"] = start("eve", options, many("eve"))
        assert sites[VICTIM].wait() == -9
        sites[VICTIM] = start(VICTIM, options, many(VICTIM))
        release = made.result(timeout=180)
    out = point in ("charged", "drawn")
    assert [each.shares for each in release.sums] == [5 - (out and query == 1), 5 - out]
    codes = {name: site.wait() for name, site in sites.items()}
    assert codes == {
        name: int(out and name == VICTIM) for name in FIVE
    }  # the victim says why it is out
    assert {name: len(PrivacyLedger(path=home / name)) for name in FIVE} == dict.fromkeys(FIVE, 1)
    parts = [many(name) for name in FIVE if name != VICTIM or not out]
    simulated = simulate([[part] for part in parts], built(options), round="1").release
    assert simulated.spec == release.spec
    assert simulated.queries[0] == release.queries[0]
    assert len(simulated.queries) == len(release.queries) == 2
    exact = built({"quantiles": 256})
    for part in parts:
        exact.update(*part)
    truth, ours, theirs = (
        float(FederatedAUROC.from_release(each).compute())
        for each in (exact.release(), release, simulated)
    )
    _log.info(
        "AUROC of %s %s %s: folder %+.5f, simulate %+.5f",
        setting,
        query,
        point,
        ours - truth,
        theirs - truth,
    )
    bound = 0.005 if setting == "distributed" else 0.015  # ten times what either errs by
    assert max(abs(ours - truth), abs(theirs - truth)) < bound


@pytest.mark.integration
@pytest.mark.parametrize("point", ["share_keys", "mask", "mask written", "unmask"])
def test_a_killed_site_that_stays_away_has_dropped_out(
    point: str, home: Path, start: Callable[..., SiteProcess]
) -> None:
    for name in FIVE:
        start(name, LARGE, many(name), (1, point) if name == VICTIM else (0, ""))
    release = run_coordinator(home / "shared", built(LARGE), clients=FIVE, timeout=15.0, poll=POLL)
    summed = point in ("mask written", "unmask")
    assert [each.shares for each in release.sums] == [4 + summed, 4]
    assert len(PrivacyLedger(path=home / VICTIM)) == summed


@pytest.mark.integration
@pytest.mark.parametrize("dies", [1, 4, 7, 14, 29, 50, 51])
def test_a_killed_coordinator_goes_on(
    dies: int, home: Path, start: Callable[..., SiteProcess], request: Any
) -> None:
    """51 writes make a release of five sites: the state three times, five asks and a close in eight stages, the end."""
    sites = [start(name, LARGE, many(name)) for name in FIVE]
    first = CoordinatorProcess(home / "shared", LARGE, list(FIVE), home / "out", dies)
    request.addfinalizer(first.close)
    assert first.wait() == (-9 if dies <= 51 else 0)
    again = CoordinatorProcess(home / "shared", LARGE, list(FIVE), home / "out")
    request.addfinalizer(again.close)
    assert again.wait() == 0
    assert [site.wait() for site in sites] == [0] * 5
    assert [each.shares for each in Release.load(home / "out").sums] == [5, 5]
    assert [len(PrivacyLedger(path=home / name)) for name in FIVE] == [1] * 5
