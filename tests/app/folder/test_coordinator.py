"""A coordinator: a round from its beginning to its end, and its progress on the way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.app.folder.conftest import SOON, updated_metric
from torchmetrics_fed import (
    DistributedDP,
    FederatedROC,
    PrivacyLedger,
    federated_collection,
)
from torchmetrics_fed.aggregation.secure import new_signing_keys
from torchmetrics_fed.app.folder import run_coordinator, run_site, status
from torchmetrics_fed.errors import ReleaseError

NAMES = ["Ann", "ben", "cem"]


def test_a_round_from_its_beginning_to_its_end(
    shared: Path, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """With collections, a number of sites instead of their names, and signed aggregations."""
    privacy = DistributedDP(1.0, min_clients=3)
    keys = {name: new_signing_keys() for name in NAMES}
    public_keys = {name: pair.verification for name, pair in keys.items()}
    sites = []
    for name in NAMES:
        ledger = PrivacyLedger(2.0, tmp_path / name)
        metrics = federated_collection(quantiles=64, privacy=privacy, ledger=ledger)
        metrics.update(torch.rand(100), torch.randint(0, 2, (100,)))
        site = pool.submit(
            run_site,
            shared,
            name,
            metrics,
            signing_key=keys[name].signing,
            verification_keys=public_keys,
            **SOON,
        )
        sites.append(site)
    common = FederatedROC(quantiles=64, privacy=privacy)
    release = run_coordinator(shared, common, clients=3, keys=public_keys, **SOON)
    for site in sites:
        site.result()
    assert release.shares == 3
    assert (shared / "site-ben" / "round-1" / "2.4-sign").exists()
    assert status(shared) == "round 1: released, with Ann, ben, cem"


def test_a_round_belongs_to_its_sites_and_its_spec(shared: Path, pool: ThreadPoolExecutor) -> None:
    common = FederatedROC(quantiles=64)
    site = pool.submit(run_site, shared, "ann", updated_metric(), **SOON)
    run_coordinator(shared, common, clients=["ann"], **SOON)
    site.result()
    with pytest.raises(ReleaseError, match="No site is asked again without the others"):
        run_coordinator(shared, common, clients=["ben"], timeout=0.0)
    with pytest.raises(ValueError, match="a coordinator of this metric"):
        run_coordinator(shared, FederatedROC(quantiles=32), clients=["ann"], timeout=0.0)
    assert run_coordinator(shared, common, timeout=0.0).shares == 1


def test_the_progress_of_a_round_names_the_silent_sites(
    shared: Path, pool: ThreadPoolExecutor
) -> None:
    common = FederatedROC(quantiles=64)
    coordinator = pool.submit(run_coordinator, shared, common, clients=["ann", "ben"], **SOON)
    while status(shared) != "round 1: query 1, share: 0 of 2 answered; waits for ann, ben":
        assert not coordinator.done()
    site = pool.submit(run_site, shared, "ann", updated_metric(), **SOON)
    while status(shared) != "round 1: query 1, share: 1 of 2 answered; waits for ben":
        assert not coordinator.done()
    run_site(shared, "ben", updated_metric(), **SOON)
    site.result()
    assert coordinator.result().shares == 2


def test_a_round_without_a_release_says_why(shared: Path, pool: ThreadPoolExecutor) -> None:
    """The site refuses because its spec differs, and no other site is left."""
    site = pool.submit(run_site, shared, "ann", updated_metric(quantiles=32), **SOON)
    common = FederatedROC(quantiles=64)
    with pytest.raises(ReleaseError):
        run_coordinator(shared, common, clients=["ann"], **SOON)
    assert site.exception() is not None
    assert status(shared).startswith("round 1: over without a release. ")
    with pytest.raises(ReleaseError, match="Round '1' is over"):
        run_coordinator(shared, common, clients=["ann"], **SOON)
