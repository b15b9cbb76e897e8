"""The prior of a release: it travels with it, is of the same spec, and does not grow."""

from __future__ import annotations

import hashlib
import pickle

import pytest
import torch

from tests.queries import weighted
from torchmetrics_fed import (
    Coordinator,
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    LocalDP,
    Query,
    Release,
    ReleaseError,
    ScoreGrid,
    Spec,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import SpecMismatchError, WireError
from torchmetrics_fed.release.release import contents
from torchmetrics_fed.release.sum import Sum

SPEC = Spec("binary", 1, ScoreGrid(bins=16), LocalDP(1.0))
QUERY = weighted(Tree((4, 4)), 3, 1)


def random_sum(spec: Spec = SPEC, query: Query = QUERY, shares: int = 1) -> Sum:
    return Sum(spec, query, torch.randint(-50, 50, spec.shape(query)), shares)


def test_a_prior_comes_back_with_the_release() -> None:
    release = Release((random_sum(),), "7", random_sum(query=Query(Tree((16,), tuple(range(17))))))
    assert release.prior is not None
    for loaded in (Release.from_bytes(bytes(release)), pickle.loads(pickle.dumps(release))):
        assert bytes(loaded) == bytes(release)
        assert loaded.prior is not None
        assert loaded.prior.query == release.prior.query
        assert torch.equal(loaded.prior.cells, release.prior.cells)
        assert loaded.queries == release.queries
        assert loaded.round == "7"
    without = Release.from_bytes(bytes(Release(release.sums, "7")))
    assert without.prior is None
    assert bytes(without) != bytes(release)


def test_a_prior_spends_nothing_of_this_release() -> None:
    """The prior may be the first sum of an unfinished release, whose query spent a fraction."""
    release = Release((random_sum(),), prior=random_sum(query=Query(Tree((16,)), 0.25)))
    assert release.queries == (QUERY,)
    assert sum(query.fraction for query in release.queries) == 1


@pytest.mark.parametrize(
    "spec",
    [
        Spec("binary", 1, ScoreGrid(bins=16), LocalDP(0.5)),
        Spec("binary", 1, ScoreGrid(bins=16)),
        Spec("binary", 1, ScoreGrid(bins=16, score_range=(-1.0, 1.0)), LocalDP(1.0)),
        Spec("multilabel", 2, ScoreGrid(bins=16), LocalDP(1.0)),
    ],
    ids=["epsilon", "exact", "grid", "task"],
)
def test_a_prior_of_another_spec_is_refused(spec: Spec) -> None:
    with pytest.raises(SpecMismatchError, match="Expected one spec"):
        Release((random_sum(),), prior=random_sum(spec))


def test_a_prior_that_may_not_travel_keeps_the_release_at_home() -> None:
    spec = Spec("binary", 1, ScoreGrid(bins=16), DistributedDP(1.0, min_clients=3))
    small = Release((random_sum(spec, shares=3),), prior=random_sum(spec, shares=2))
    for write in (bytes, pickle.dumps):
        with pytest.raises(ReleaseError, match="secure aggregation"):
            write(small)
    assert bytes(Release((random_sum(spec, shares=3),), prior=random_sum(spec, shares=3)))


def test_a_release_of_damaged_bytes_is_refused() -> None:
    """The bytes hold as many priors as they say, at most one, complete, and nothing behind it."""
    release = Release((random_sum(),), "7")
    prior = random_sum()
    body = bytes(Release(release.sums, "7", prior))[:-32]
    without_prior = bytes(release)[:-32]
    (flag,) = (place for place, byte in enumerate(without_prior) if body[place] != byte)
    assert body[flag] == 1
    assert without_prior[flag] == 0
    damaged = [body[:flag] + bytes([number]) + body[flag + 1 :] for number in (0, 2, 255)]
    damaged += [
        without_prior[:flag] + b"\1" + without_prior[flag + 1 :],
        body[:-1],
        body + b"\0",
        body + prior.pack(),
    ]
    damaged += [body[:end] for end in range(len(without_prior), len(body))]
    for data in damaged:
        with pytest.raises(WireError, match="damaged"):
            Release.from_bytes(data + bytes(32))
        with pytest.raises(WireError, match="Expected"):
            Release.from_bytes(data + hashlib.sha256(data).digest())


def test_exact_counts_have_no_prior() -> None:
    exact = Spec("binary", 1, ScoreGrid(bins=16))
    with pytest.raises(InputError, match="prior"):
        Release((random_sum(exact),), prior=random_sum(exact))


def test_the_epsilon_of_both_evaluations_is_shown() -> None:
    """The whole epsilon of the earlier release counts: its pilot placed the leaves of the prior."""
    placed = random_sum(query=Query(Tree((4,), (0, 1, 2, 9, 16)), 61 / 64))
    release = Release((random_sum(),), prior=placed)
    assert Release((random_sum(),)).prior_epsilon == 0.0
    assert release.prior_epsilon == SPEC.epsilon
    description = contents(bytes(release))
    for text in (repr(release), description):
        assert "up to epsilon 2 for a person in both" in text
    assert "prior: 4 leaves, levels of 4, 0.953125 of epsilon; shares: 1" in description
    assert "prior" not in contents(bytes(Release((random_sum(),))))


def updated(seed: int, metric: FederatedROC) -> FederatedROC:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (4_000,), generator=generator)
    logits = torch.randn(4_000, generator=generator) + 1.5 * target
    metric.reset()
    metric.update(logits.sigmoid(), target)
    return metric


def test_a_chain_of_releases_does_not_grow() -> None:
    """A release holds the sum of the previous release, and nothing of the releases before that."""
    metric = FederatedROC(privacy=LocalDP(1.0), plan="carry_over")
    sizes = []
    for seed in range(8):
        release = updated(seed, metric).release()
        sizes.append(len(bytes(release)))
    first, *later = sizes
    spec = len(metric.spec.canonical)
    assert max(later) < 2.5 * (min(later) - spec) + spec  # noise places more leaves or fewer
    assert max(later) < 4 * first


def test_a_resumed_coordinator_carries_the_same_prior() -> None:
    """A later process of the aggregator, with the same previous release, ends with the same."""
    client = FederatedROC(privacy=LocalDP(1.0), plan="carry_over")
    before = updated(0, client).release()
    coordinator = Coordinator(updated(1, client), round="2", previous=before)
    assert coordinator.query is not None
    share = client.share(round="2", query=coordinator.query)
    coordinator.receive("ann", bytes(share))
    resumed = Coordinator.from_bytes(coordinator.to_bytes(), client, previous=before)
    for process in (coordinator, resumed):
        process.advance()
        assert process.release.prior is not None
        assert torch.equal(process.release.prior.cells, before.last.cells)
    assert bytes(coordinator.release) == bytes(resumed.release)


def test_a_prior_of_another_spec_places_and_is_not_carried() -> None:
    """A lower epsilon for the second release is what the second release spends."""
    before = updated(0, FederatedROC(privacy=LocalDP(1.0))).release()
    client = updated(1, FederatedROC(privacy=LocalDP(0.5), plan="carry_over"))
    coordinator = Coordinator(client, round="2", previous=before)
    assert coordinator.query is not None
    coordinator.receive("ann", bytes(client.share(round="2", query=coordinator.query)))
    coordinator.advance()
    assert len(coordinator.release.queries) == 1
    assert coordinator.release.prior is None


def test_a_loaded_release_is_read_as_it_was() -> None:
    metric = FederatedROC(privacy=LocalDP(1.0), plan="carry_over")
    updated(0, metric).release()
    release = updated(1, metric).release()
    assert release.prior is not None
    loaded = Release.from_bytes(bytes(release))
    without_prior = Release(release.sums, release.round)
    assert area(loaded) == area(release)
    assert area(without_prior) != area(release)


def area(release: Release) -> float:
    return float(FederatedAUROC.from_release(release).compute())
