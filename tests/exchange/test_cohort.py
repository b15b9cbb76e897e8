"""A cohort: all clients of a simulated federation make one release, and pay for one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import FederatedROC, LocalDP
from torchmetrics_fed.errors import LedgerConflictError
from torchmetrics_fed.exchange.cohort import Cohort
from torchmetrics_fed.metrics import terms_of


def updated(scored: tuple[Tensor, Tensor], privacy: LocalDP | None = None) -> FederatedROC:
    metric = FederatedROC(privacy=privacy, quantiles=16)
    metric.update(*scored)
    return metric


@pytest.mark.parametrize("clients", [1, 5, 300])
def test_one_cohort_charges_once_however_many_clients_it_sums(
    clients: int, scored: tuple[Tensor, Tensor]
) -> None:
    metric = updated(scored, LocalDP(1.0))
    query = metric.spec.all_bins
    cohort = Cohort(terms_of(metric), round="1")
    total = cohort.sum(query, metric.counts, clients=clients, draws=iter(range(clients)))
    assert total.shares == clients
    assert [entry.epsilon for entry in metric.ledger] == [1.0]


def test_a_query_is_charged_before_its_noise_is_drawn_and_only_once(
    scored: tuple[Tensor, Tensor],
) -> None:
    metric = updated(scored, LocalDP(1.0))
    query = metric.spec.all_bins
    cohort = Cohort(terms_of(metric), round="1")
    cohort.charge(query)
    draws = iter(range(3))
    with pytest.raises(LedgerConflictError):
        cohort.sum(query, metric.counts, clients=3, draws=draws)
    assert next(draws) == 0
    assert len(metric.ledger) == 1


def test_exact_counts_cost_nothing_and_stay_as_they_are(scored: tuple[Tensor, Tensor]) -> None:
    metric = updated(scored)
    query = metric.spec.all_bins
    cohort = Cohort(terms_of(metric))
    total = cohort.sum(query, metric.counts, clients=3, draws=iter(range(3)))
    assert torch.equal(total.cells, cohort.share(query, metric.counts).cells)
    assert torch.equal(total.cells, metric.spec.cells(query, metric.counts))
    assert len(metric.ledger) == 0
