"""Threat: a party counts the same data in another way, and its counts are added up without a
word."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.aggregation.threads import run_threads
from torchmetrics_fed import Coordinator, FederatedROC, Release, Spec
from torchmetrics_fed.aggregation import Ranks
from torchmetrics_fed.errors import SpecMismatchError

SETTINGS: dict[str, Any] = {
    "normalization": {"normalization": "sigmoid"},
    "ignore_index": {"ignore_index": -1},
    "labels": {"labels": ("yes", "no")},
}
USUAL: dict[str, Any] = {"labels": ("no", "yes")}


def counted(**options: Any) -> FederatedROC:
    """A client's metric with data that every setting can count."""
    metric = FederatedROC(**{**USUAL, **options})
    metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
    return metric


@pytest.mark.parametrize("field", SETTINGS)
def test_shares_that_were_counted_differently_are_not_summed(field: str) -> None:
    shares = [counted().share(), counted(**SETTINGS[field]).share()]
    with pytest.raises(SpecMismatchError, match=f"{field}: expected"):
        Release.sum(shares)


@pytest.mark.parametrize("field", SETTINGS)
def test_a_coordinator_refuses_bytes_that_were_counted_differently(field: str) -> None:
    coordinator = Coordinator(FederatedROC(**USUAL), round="1")
    coordinator.receive("ann", bytes(counted().share(round="1")))
    with pytest.raises(SpecMismatchError, match=f"differ in {field}"):
        coordinator.receive("ben", bytes(counted(**SETTINGS[field]).share(round="1")))
    coordinator.advance()
    assert coordinator.release.shares == 1


@pytest.mark.parametrize("field", SETTINGS)
def test_ranks_that_count_differently_all_raise(field: str) -> None:
    def work(gather: Any) -> Spec:
        ranks = Ranks(torch.device("cpu"), gather=gather)
        metric = counted(**(SETTINGS[field] if ranks.rank == 1 else {}))
        ranks.agree(metric.spec, {}, 0, True)
        return metric.spec

    for error in run_threads(work):
        assert isinstance(error, SpecMismatchError)
        assert f"differ in {field}" in str(error)


@pytest.mark.parametrize("field", SETTINGS)
def test_counts_that_were_made_differently_are_not_merged(field: str) -> None:
    metric = counted()
    before = metric.counts.clone()
    with pytest.raises(SpecMismatchError, match=field):
        metric.merge_state(counted(**SETTINGS[field]))
    assert torch.equal(metric.counts, before)


def test_a_release_knows_how_its_data_was_read() -> None:
    release = counted(normalization="sigmoid", ignore_index=-1).release()
    reader = FederatedROC.from_release(Release.from_bytes(bytes(release)))
    assert reader.spec == release.spec
    assert (reader.spec.normalization, reader.spec.ignore_index) == ("sigmoid", -1)
