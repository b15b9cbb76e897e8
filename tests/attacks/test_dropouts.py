"""Threat 7: dropouts and colluding clients lower the noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import special

from torchmetrics_fed import DistributedDP, FederatedROC, InputError, Release, ReleaseError, Share


def polya_pmf(epsilon: float, shares: int, honest: int) -> NDArray[np.float64]:
    """Law of the noise of ``honest`` clients, each with a share cut for ``shares`` of them."""
    k, r = np.arange(int(60 / epsilon)), honest / shares
    log_binomial = special.gammaln(k + r) - special.gammaln(r) - special.gammaln(k + 1)
    half = np.exp(log_binomial - epsilon * k + r * np.log(-np.expm1(-epsilon)))
    return np.convolve(half, half[::-1])


def loss(epsilon: float, shares: int, honest: int) -> float:
    """The exact privacy loss of a count that moves by 1, from the pmf."""
    pmf = polya_pmf(epsilon, shares, honest)
    middle = len(pmf) // 2
    core = pmf[middle - int(25 / epsilon) : middle + int(25 / epsilon) + 1]  # beyond, float64 has no digits left
    return float(np.abs(np.diff(np.log(core))).max())


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("colluding", [0, 1, 2])
@pytest.mark.parametrize("min_clients", [3, 5, 10])
def test_from_min_clients_up_the_loss_is_within_epsilon(epsilon: float, colluding: int, min_clients: int) -> None:
    privacy = DistributedDP(epsilon, min_clients, colluding)
    for survivors in range(min_clients, min_clients + 6):
        assert loss(epsilon, privacy.shares, survivors - colluding) <= epsilon * (1 + 1e-6)


def test_the_naive_cut_fails_at_once() -> None:
    """Shares cut for all clients: one dropout, or one client that knows its own noise, breaks the promise."""
    assert loss(1.0, shares=10, honest=9) == pytest.approx(1.099, abs=0.01)
    assert loss(1.0, shares=10, honest=5) == pytest.approx(1.675, abs=0.02)


def shares(clients: int, privacy: DistributedDP) -> list[Share]:
    metrics = [FederatedROC(quantiles=4, privacy=privacy) for _ in range(clients)]
    for metric in metrics:
        metric.update(torch.rand(20), torch.randint(0, 2, (20,)))
    return [metric.share() for metric in metrics]


def test_a_sum_of_too_few_is_not_opened() -> None:
    sent = shares(4, DistributedDP(1.0, min_clients=4))
    few = Release.sum(sent[:3])
    for opened in (lambda: few.levels, lambda: few.leaf, lambda: FederatedROC.from_release(few).compute()):
        with pytest.raises(ReleaseError, match="min_clients=4 clients but the sum holds 3"):
            opened()
    assert FederatedROC.from_release(Release.sum([few, sent[3]])).compute().tpr.isfinite().all()


def test_one_process_is_not_a_federation() -> None:
    metric = FederatedROC(privacy=DistributedDP(1.0, min_clients=3))
    metric.update(torch.rand(20), torch.randint(0, 2, (20,)))
    with pytest.raises(ReleaseError, match=r"min_clients=3 ranks .* but got 1"):
        metric.compute()
    assert len(metric.ledger) == 0
    metric.share()  # nothing was drawn: the share can still be sent


def test_not_everyone_may_collude() -> None:
    with pytest.raises(InputError, match="LocalDP"):
        DistributedDP(1.0, min_clients=2, max_colluding=2)


def test_the_same_share_goes_to_one_cohort_only() -> None:
    metric = FederatedROC(quantiles=4, privacy=DistributedDP(1.0, min_clients=3))
    metric.update(torch.rand(20), torch.randint(0, 2, (20,)))
    share = metric.release("round-1", cohort=["a", "b", "c"])
    assert metric.release("round-1", cohort=["c", "b", "a"]) is share
    for round_, cohort in (("round-1", ["a", "b"]), ("round-2", ["a", "b", "c"]), ("round-1", None)):
        with pytest.raises(ReleaseError, match="isolates"):
            metric.release(round_, cohort)
    with pytest.raises(ReleaseError, match="share was sent"):
        metric.compute()
    assert len(metric.ledger) == 1


def test_shares_of_two_rounds_do_not_add_up() -> None:
    one, other = (FederatedROC(quantiles=4, privacy=DistributedDP(1.0, min_clients=2)) for _ in range(2))
    with pytest.raises(ReleaseError, match="round"):
        Release.sum([one.share(round="1"), other.share(round="2")])
