"""A site: what it needs before it answers, and what it says when it is not asked or refuses."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.app.folder.conftest import SOON, updated_metric
from torchmetrics_fed import DistributedDP, FederatedROC, LocalDP, PrivacyLedger
from torchmetrics_fed.app.folder import run_coordinator, run_site, status
from torchmetrics_fed.errors import BudgetExceededError, InputError, ReleaseError

NAMES = ["Ann", "ben", "cem"]


def test_a_private_site_needs_a_ledger_that_lasts(shared: Path, tmp_path: Path) -> None:
    ledgers = [
        None,
        PrivacyLedger(budget=1.0),
        PrivacyLedger(path=tmp_path / "ledger"),
    ]
    for ledger in ledgers:
        metric = updated_metric(privacy=LocalDP(1.0), ledger=ledger)
        with pytest.raises(InputError, match="a ledger with a budget and a path"):
            run_site(shared, "ann", metric, timeout=0.0)


def test_notes_need_a_place_outside_the_shared_folder(shared: Path) -> None:
    for notes in (None, shared / "notes", shared / ".." / "shared" / "notes"):
        metric = updated_metric(secure=True)
        with pytest.raises(InputError, match="Expected a place for this site's notes"):
            run_site(shared, "ann", metric, notes=notes, timeout=0.0)
    assert status(shared) == "no rounds"


def test_a_silent_coordinator_is_named_and_nothing_is_lost(shared: Path, tmp_path: Path) -> None:
    metric = updated_metric(secure=True)
    with pytest.raises(ReleaseError, match=r"within 0 s but it did not. Nothing is lost"):
        run_site(shared, "Ann", metric, notes=tmp_path / "notes", timeout=0.0, poll=0.0)
    assert status(shared) == "round 1: not begun; here: Ann"


def test_a_site_that_comes_after_the_round_is_refused(
    shared: Path, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    site = pool.submit(run_site, shared, "ann", updated_metric(), **SOON)
    run_coordinator(shared, FederatedROC(quantiles=64), clients=["ann"], **SOON)
    site.result()
    with pytest.raises(ReleaseError, match=r"'1' is over\. This site was not asked in it"):
        run_site(shared, "ben", updated_metric(), timeout=0.0)


def test_a_site_that_cannot_pay_says_so_to_its_user_and_to_the_coordinator(
    shared: Path,
    tmp_path: Path,
    pool: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    budgets = {"Ann": 1.0, "ben": 0.5, "cem": 1.0}
    sites = {}
    for name, budget in budgets.items():
        ledger = PrivacyLedger(budget, tmp_path / name)
        metric = updated_metric(privacy=LocalDP(1.0), ledger=ledger)
        sites[name] = pool.submit(run_site, shared, name, metric, **SOON)
    common = FederatedROC(quantiles=64, privacy=LocalDP(1.0))
    with caplog.at_level(logging.WARNING):
        release = run_coordinator(shared, common, clients=NAMES, **SOON)
    assert release.shares == 2
    assert isinstance(sites.pop("ben").exception(), BudgetExceededError)
    assert "round 1, join: dropped out: ben. " in caplog.text
    for site in sites.values():
        site.result()


@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
def test_two_studies_with_one_ledger_may_name_their_rounds_alike(
    tmp_path: Path, pool: ThreadPoolExecutor, at_once: bool
) -> None:
    """Each study asks two queries, in a folder of its own."""
    path = tmp_path / "ledger"
    runs = []
    for quantiles in (64, 128):
        folder = tmp_path / f"{quantiles}"
        folder.mkdir()
        options: dict[str, Any] = {"quantiles": quantiles, "privacy": LocalDP(1.0)}
        metric = updated_metric(ledger=PrivacyLedger(2.0, path), **options)
        common = FederatedROC(**options)
        site = pool.submit(run_site, folder, "ann", metric, **SOON)
        coordinator = pool.submit(run_coordinator, folder, common, clients=["ann"], **SOON)
        runs.append((site, coordinator))
        if not at_once:
            site.result()
    for site, coordinator in runs:
        site.result()
        assert len(coordinator.result().queries) == 2
    assert PrivacyLedger(path=path).spent().epsilon == 2.0


def test_a_hidden_site_keeps_its_notes_beside_its_ledger(
    shared: Path, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    privacy = DistributedDP(1.0, min_clients=3)
    sites = []
    for name in NAMES:
        metric = updated_metric(privacy=privacy, ledger=PrivacyLedger(1.0, tmp_path / name))
        sites.append(pool.submit(run_site, shared, name, metric, **SOON))
    run_coordinator(shared, FederatedROC(quantiles=64, privacy=privacy), clients=NAMES, **SOON)
    for site in sites:
        site.result()
    for name in NAMES:
        assert (tmp_path / f"{name}.notes").exists()
