"""Threat 7: dropouts and colluding clients lower the noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import special

from torchmetrics_fed import (
    Coordinator,
    DistributedDP,
    FederatedROC,
    InputError,
    Release,
    ReleaseError,
    Share,
)


def polya_pmf(epsilon: float, shares: int, honest: int) -> NDArray[np.float64]:
    """Return the law of the noise of ``honest`` clients, calibrated for ``shares`` clients."""
    k = np.arange(int(60 / epsilon))
    r = honest / shares
    log_binomial = special.gammaln(k + r) - special.gammaln(r) - special.gammaln(k + 1)
    half = np.exp(log_binomial - epsilon * k + r * np.log(-np.expm1(-epsilon)))
    return np.convolve(half, half[::-1])


def loss(epsilon: float, shares: int, honest: int) -> float:
    """Return the exact privacy loss of a count that moves by 1, from the pmf."""
    pmf = polya_pmf(epsilon, shares, honest)
    middle = len(pmf) // 2
    reach = int(25 / epsilon)  # beyond, float64 has no digits left
    core = pmf[middle - reach : middle + reach + 1]
    return float(np.abs(np.diff(np.log(core))).max())


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("colluding", [0, 1, 2])
@pytest.mark.parametrize("min_clients", [3, 5, 10])
def test_from_min_clients_up_the_loss_is_within_epsilon(
    epsilon: float, colluding: int, min_clients: int
) -> None:
    privacy = DistributedDP(epsilon, min_clients, colluding)
    for survivors in range(min_clients, min_clients + 6):
        assert loss(epsilon, privacy.calibrated_for, survivors - colluding) <= epsilon * (1 + 1e-6)


def test_naive_noise_fails_at_once() -> None:
    """Noise is calibrated for all clients: one dropout, or one colluding client, breaks epsilon."""
    assert loss(1.0, shares=10, honest=9) == pytest.approx(1.099, abs=0.01)
    assert loss(1.0, shares=10, honest=5) == pytest.approx(1.675, abs=0.02)


def shares(clients: int, privacy: DistributedDP) -> list[Share]:
    metrics = [FederatedROC(quantiles=4, privacy=privacy) for _ in range(clients)]
    for metric in metrics:
        metric.update(torch.rand(20), torch.randint(0, 2, (20,)))
    return [metric.share() for metric in metrics]


def test_a_sum_of_too_few_is_not_opened() -> None:
    *first_three, fourth = shares(4, DistributedDP(1.0, min_clients=4, trusted_aggregator=True))
    too_small = Release.sum(first_three)
    ways: list[Callable[[Release], object]] = [
        lambda release: release.levels,
        lambda release: release.leaf,
        lambda release: FederatedROC.from_release(release).compute(),
    ]
    for read in ways:
        with pytest.raises(ReleaseError, match="min_clients=4 clients but the sum holds 3"):
            read(too_small)
    enough = Release.sum([too_small, fourth])
    assert FederatedROC.from_release(enough).compute().tpr.isfinite().all()


def test_one_process_is_not_a_federation() -> None:
    metric = FederatedROC(privacy=DistributedDP(1.0, min_clients=3))
    metric.update(torch.rand(20), torch.randint(0, 2, (20,)))
    with pytest.raises(ReleaseError, match=r"min_clients=3 ranks .* but got 1"):
        metric.compute()
    assert len(metric.ledger) == 0
    # Nothing was drawn: the data can still grow.
    metric.update(torch.rand(20), torch.randint(0, 2, (20,)))


def test_not_everyone_may_collude() -> None:
    with pytest.raises(InputError, match="LocalDP"):
        DistributedDP(1.0, min_clients=2, max_colluding=2)


def test_the_same_draw_goes_into_one_sum_only() -> None:
    """The same noise in two sums, over different clients, isolates a client that is in one sum."""
    metric = FederatedROC(
        quantiles=4, privacy=DistributedDP(1.0, min_clients=3, trusted_aggregator=True)
    )
    metric.update(torch.rand(20), torch.randint(0, 2, (20,)))
    share = metric.share(round="round-1")
    assert metric.share(round="round-1") is share
    for round_ in ("round-2", ""):
        with pytest.raises(ReleaseError, match="isolates"):
            metric.share(round=round_)
    with pytest.raises(ReleaseError, match="share was sent"):
        metric.compute()
    assert len(metric.ledger) == 1


def test_shares_of_two_rounds_do_not_add_up() -> None:
    trusted = DistributedDP(1.0, min_clients=2, trusted_aggregator=True)
    first = FederatedROC(quantiles=4, privacy=trusted).share(round="1")
    second = FederatedROC(quantiles=4, privacy=trusted).share(round="2")
    with pytest.raises(ReleaseError, match="round"):
        Release.sum([first, second])


def test_a_coordinator_opens_nothing_for_too_few() -> None:
    trusted = DistributedDP(1.0, min_clients=4, trusted_aggregator=True)
    coordinator = Coordinator(FederatedROC(quantiles=4, privacy=trusted), round="1", min_clients=2)
    query = coordinator.query
    assert query is not None
    for number in range(3):
        client = FederatedROC(quantiles=4, privacy=trusted)
        coordinator.receive(str(number), client.share(round="1", query=query))
        with pytest.raises(ReleaseError, match=f"min_clients=4 clients but got {number + 1}"):
            coordinator.advance()
    assert coordinator.query == query
    coordinator.receive(
        "3", FederatedROC(quantiles=4, privacy=trusted).share(round="1", query=query)
    )
    coordinator.advance()
    assert coordinator.release.shares == 4


def test_a_client_that_dropped_out_takes_no_part_in_the_second_query() -> None:
    """The second query goes to the clients of the first sum, and opens nothing for too few."""
    trusted = DistributedDP(1.0, min_clients=3, trusted_aggregator=True)
    clients = {
        name: FederatedROC(quantiles=64, privacy=trusted, plan="adaptive") for name in "abcd"
    }
    for metric in clients.values():
        metric.update(torch.rand(50), torch.randint(0, 2, (50,)))
    coordinator = Coordinator(clients["a"], round="1")
    first = coordinator.query
    assert first is not None
    for name in "abc":
        coordinator.receive(name, clients[name].share(round="1", query=first))
    coordinator.advance()
    second = coordinator.query
    assert second is not None
    assert coordinator.senders == frozenset("abc")
    with pytest.raises(ReleaseError, match="'d' is not among them"):
        coordinator.receive("d", clients["d"].share(round="1", query=second))
    for name in "ab":
        coordinator.receive(name, clients[name].share(round="1", query=second))
    with pytest.raises(ReleaseError, match="min_clients=3 clients but got 2"):
        coordinator.advance()
    coordinator.receive("c", clients["c"].share(round="1", query=second))
    coordinator.advance()
    assert coordinator.release.shares == 3
    assert len(coordinator.release.queries) == 2
    assert [len(metric.ledger) for metric in clients.values()] == [1, 1, 1, 1]
