"""What a site asks for before it answers, what it says when nobody asks, and how far a round has come."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from torchmetrics_fed import (
    DistributedDP,
    FederatedROC,
    LocalDP,
    PrivacyLedger,
    federated_collection,
)
from torchmetrics_fed.aggregation.secure import new_signing_keys
from torchmetrics_fed.app.folder import run_coordinator, run_site, status
from torchmetrics_fed.errors import BudgetExceededError, InputError, ReleaseError

NAMES = ["Ann", "ben", "cem"]
HIDDEN = DistributedDP(1.0, min_clients=3)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def counted(**options: Any) -> FederatedROC:
    metric = FederatedROC(quantiles=64, **options)
    metric.update(torch.rand(100), torch.randint(0, 2, (100,)))
    return metric


def test_a_private_site_needs_a_ledger_that_lasts(shared: Path, tmp_path: Path) -> None:
    for ledger in (None, PrivacyLedger(budget=1.0), PrivacyLedger(path=tmp_path / "ledger")):
        with pytest.raises(InputError, match="a ledger with a budget and a path"):
            run_site(shared, "ann", counted(privacy=LocalDP(1.0), ledger=ledger), timeout=0.0)


def test_notes_need_a_place_outside_the_shared_folder(shared: Path) -> None:
    for notes in (None, shared / "notes", shared / ".." / "shared" / "notes"):
        with pytest.raises(InputError, match="Expected a place for this site's notes"):
            run_site(shared, "ann", counted(secure=True), notes=notes, timeout=0.0)
    assert status(shared) == "no rounds"


def test_nobody_asks(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"within 0 s but it did not. Nothing is lost"):
        run_site(
            shared, "Ann", counted(secure=True), notes=tmp_path / "notes", timeout=0.0, poll=0.0
        )
    assert status(shared) == "round 1: not begun; here: Ann"


@pytest.mark.parametrize("at_once", [False, True], ids=["one after the other", "at once"])
def test_two_studies_with_one_ledger_may_name_their_rounds_alike(
    tmp_path: Path, pool: ThreadPoolExecutor, at_once: bool
) -> None:
    """Each of two queries, in a folder of its own."""
    ledger = tmp_path / "ledger"
    running = []
    for quantiles in (64, 128):
        folder = tmp_path / f"{quantiles}"
        folder.mkdir()
        options: dict[str, Any] = {"quantiles": quantiles, "privacy": LocalDP(1.0)}
        metric = FederatedROC(ledger=PrivacyLedger(2.0, ledger), **options)
        metric.update(torch.rand(100), torch.randint(0, 2, (100,)))
        site = pool.submit(run_site, folder, "ann", metric, timeout=60.0, poll=0.01)
        coordinator = pool.submit(
            run_coordinator,
            folder,
            FederatedROC(**options),
            clients=["ann"],
            timeout=60.0,
            poll=0.01,
        )
        running.append((site, coordinator))
        if not at_once:
            site.result()
    for site, coordinator in running:
        site.result()
        assert len(coordinator.result().queries) == 2
    assert PrivacyLedger(path=ledger).spent().epsilon == 2.0


def test_a_round_from_its_beginning_to_its_end(
    shared: Path, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """With a collection at the sites, sites that are counted rather than named, and signed aggregations."""
    keys = {name: new_signing_keys() for name in NAMES}
    public = {name: key.verification for name, key in keys.items()}
    sites = []
    for name in NAMES:
        metrics = federated_collection(
            quantiles=64, privacy=HIDDEN, ledger=PrivacyLedger(2.0, tmp_path / name)
        )
        metrics.update(torch.rand(100), torch.randint(0, 2, (100,)))
        how: dict[str, Any] = {
            "signing_key": keys[name].signing,
            "verification_keys": public,
            "poll": 0.01,
            "timeout": 60.0,
        }
        sites.append(pool.submit(run_site, shared, name, metrics, **how))
    common = FederatedROC(quantiles=64, privacy=HIDDEN)
    release = run_coordinator(shared, common, clients=3, keys=public, poll=0.01, timeout=60.0)
    for site in sites:
        site.result()
    assert release.shares == 3
    assert (shared / "site-ben" / "round-1" / "2.4-sign").exists()
    assert status(shared) == "round 1: released, with Ann, ben, cem"
    with pytest.raises(ReleaseError, match=r"'1' is over\. This site was not asked in it"):
        run_site(
            shared,
            "dia",
            counted(ledger=PrivacyLedger(2.0, tmp_path / "dia"), privacy=HIDDEN),
            timeout=0.0,
        )


def test_a_site_that_cannot_pay_says_so_to_both(
    shared: Path, tmp_path: Path, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = {
        name: counted(
            privacy=LocalDP(1.0),
            ledger=PrivacyLedger(0.5 if name == "ben" else 1.0, tmp_path / name),
        )
        for name in NAMES
    }
    sites = {
        name: pool.submit(run_site, shared, name, metric, poll=0.01, timeout=60.0)
        for name, metric in metrics.items()
    }
    with caplog.at_level(logging.WARNING):
        common = FederatedROC(quantiles=64, privacy=LocalDP(1.0))
        assert run_coordinator(shared, common, clients=NAMES, poll=0.01, timeout=60.0).shares == 2
    assert isinstance(sites.pop("ben").exception(), BudgetExceededError)
    assert "query 1, share: dropped out: ben. Expected" in caplog.text
    assert all(site.result() is None for site in sites.values())


def test_a_round_is_of_one_spec(shared: Path, pool: ThreadPoolExecutor) -> None:
    site = pool.submit(run_site, shared, "ann", counted(), poll=0.01, timeout=60.0)
    run_coordinator(shared, FederatedROC(quantiles=64), clients=["ann"], poll=0.01, timeout=60.0)
    site.result()
    with pytest.raises(ReleaseError, match="nobody is asked again without the others"):
        run_coordinator(shared, FederatedROC(quantiles=64), clients=["ben"], timeout=0.0)
    with pytest.raises(ValueError, match="a coordinator of this metric"):
        run_coordinator(shared, FederatedROC(quantiles=32), clients=["ann"], timeout=0.0)
    assert run_coordinator(shared, FederatedROC(quantiles=64), timeout=0.0).shares == 1


def test_the_state_of_a_round_says_who_is_waited_for(
    shared: Path, pool: ThreadPoolExecutor
) -> None:
    made = pool.submit(
        run_coordinator,
        shared,
        FederatedROC(quantiles=64),
        clients=["ann", "ben"],
        poll=0.01,
        timeout=60.0,
    )
    while status(shared) != "round 1: query 1, share: 0 of 2 answered; waits for ann, ben":
        assert not made.done()
    site = pool.submit(run_site, shared, "ann", counted(), poll=0.01, timeout=60.0)
    while status(shared) != "round 1: query 1, share: 1 of 2 answered; waits for ben":
        assert not made.done()
    run_site(shared, "ben", counted(), poll=0.01, timeout=60.0)
    site.result()
    assert made.result().shares == 2
