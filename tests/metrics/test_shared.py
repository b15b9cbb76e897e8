"""A shared client: begun by the first update, closed by a reset, and shared by copies with data."""

from __future__ import annotations

import copy
import pickle
from typing import Any

from torch import Tensor

from torchmetrics_fed import CentralDP, FederatedROC, Release
from torchmetrics_fed.metrics import terms_of
from torchmetrics_fed.metrics.shared import SharedClient

TERMS = terms_of(FederatedROC(privacy=CentralDP(1.0)))


def test_there_is_one_client_until_it_is_closed() -> None:
    shared = SharedClient()
    client = shared.begun(TERMS)
    assert shared.begun(TERMS) is client
    shared.close(client)
    assert shared.begun(TERMS) is not client


def test_only_the_open_client_is_closed() -> None:
    shared = SharedClient()
    old_client = shared.begun(TERMS)
    shared.close(old_client)
    new_client = shared.begun(TERMS)
    shared.close(old_client)
    assert shared.client is new_client


def test_a_copy_before_the_first_update_begins_a_client_of_its_own(
    scored: tuple[Tensor, Tensor],
) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0))
    twin = copy.deepcopy(metric)
    metric.update(*scored)
    twin.update(*scored)
    assert bytes(metric.release()) != bytes(twin.release())


def test_a_copy_with_data_shares_the_release_but_not_the_one_after_a_reset(
    scored: tuple[Tensor, Tensor],
) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0))
    metric.update(*scored)
    twin = copy.deepcopy(metric)
    release = metric.release()
    assert bytes(twin.release()) == bytes(release)
    assert len(metric.ledger) == 1
    twin.reset()
    twin.update(*scored)
    assert bytes(twin.release()) != bytes(release)
    assert bytes(metric.release()) == bytes(release)


def test_metrics_that_share_a_client_share_it_in_their_copies() -> None:
    shared = SharedClient()
    first, second = copy.deepcopy((shared, shared))
    assert first is second
    assert first is not shared


def test_a_closed_client_leaves_its_release_and_a_pickle_takes_no_client(
    scored: tuple[Tensor, Tensor],
) -> None:
    metric: Any = FederatedROC(privacy=CentralDP(1.0))
    metric.update(*scored)
    release: Release = metric.release()
    metric.reset()
    metric.update(*scored)
    shared = pickle.loads(pickle.dumps(metric._shared))
    assert shared.client is None
    assert bytes(shared.previous) == bytes(release)
