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


def some(spec: Spec = SPEC, query: Query = QUERY, shares: int = 1) -> Sum:
    return Sum(spec, query, torch.randint(-50, 50, spec.shape(query)), shares)


def test_a_prior_comes_back_with_the_release() -> None:
    release = Release((some(),), "7", some(query=Query(Tree((16,), tuple(range(17))))))
    assert release.prior is not None
    for loaded in (Release.from_bytes(bytes(release)), pickle.loads(pickle.dumps(release))):
        assert bytes(loaded) == bytes(release)
        assert loaded.prior is not None
        assert loaded.prior.query == release.prior.query
        assert torch.equal(loaded.prior.cells, release.prior.cells)
        assert (loaded.queries, loaded.round) == (release.queries, "7")
    without = Release.from_bytes(bytes(Release(release.sums, "7")))
    assert without.prior is None
    assert bytes(without) != bytes(release)


def test_a_prior_spends_nothing_of_this_release() -> None:
    """Of a release that was never finished it may be the first sum, whose query spent a fraction."""
    release = Release((some(),), prior=some(query=Query(Tree((16,)), 0.25)))
    assert release.queries == (QUERY,)
    assert sum(query.fraction for query in release.queries) == 1


@pytest.mark.parametrize(
    "other",
    [
        Spec("binary", 1, ScoreGrid(bins=16), LocalDP(0.5)),
        Spec("binary", 1, ScoreGrid(bins=16)),
        Spec("binary", 1, ScoreGrid(bins=16, score_range=(-1.0, 1.0)), LocalDP(1.0)),
        Spec("multilabel", 2, ScoreGrid(bins=16), LocalDP(1.0)),
    ],
    ids=["epsilon", "exact", "grid", "task"],
)
def test_a_prior_of_another_spec_is_refused(other: Spec) -> None:
    with pytest.raises(SpecMismatchError, match="Expected one spec"):
        Release((some(),), prior=some(other))


def test_a_prior_that_may_not_travel_keeps_the_release_at_home() -> None:
    spec = Spec("binary", 1, ScoreGrid(bins=16), DistributedDP(1.0, min_clients=3))
    small = Release((some(spec, shares=3),), prior=some(spec, shares=2))
    for way in (bytes, pickle.dumps):
        with pytest.raises(ReleaseError, match="secure aggregation"):
            way(small)
    assert bytes(Release((some(spec, shares=3),), prior=some(spec, shares=3)))


def test_a_release_of_damaged_bytes_is_refused() -> None:
    """As many priors as the bytes say, at most one, all of it there, and nothing behind it."""
    release, prior = Release((some(),), "7"), some()
    whole, without = bytes(Release(release.sums, "7", prior))[:-32], bytes(release)[:-32]
    (flag,) = (at for at in range(len(without)) if whole[at] != without[at])
    assert (whole[flag], without[flag]) == (1, 0)
    damaged = [whole[:flag] + bytes([number]) + whole[flag + 1 :] for number in (0, 2, 255)]
    damaged += [
        without[:flag] + b"\1" + without[flag + 1 :],
        whole[:-1],
        whole + b"\0",
        whole + prior.pack(),
    ]
    damaged += [whole[:end] for end in range(len(without), len(whole))]
    for data in damaged:
        with pytest.raises(WireError, match="damaged"):
            Release.from_bytes(data + bytes(32))
        with pytest.raises(WireError, match="Expected"):
            Release.from_bytes(data + hashlib.sha256(data).digest())


def test_exact_counts_have_no_prior() -> None:
    exact = Spec("binary", 1, ScoreGrid(bins=16))
    with pytest.raises(InputError, match="prior"):
        Release((some(exact),), prior=some(exact))


def test_what_the_file_tells_of_both_evaluations_is_said() -> None:
    """The whole epsilon of the earlier release: its pilot has placed the leaves of the sum that is carried."""
    placed = some(query=Query(Tree((4,), (0, 1, 2, 9, 16)), 61 / 64))
    release = Release((some(),), prior=placed)
    assert Release((some(),)).prior_epsilon == 0.0
    assert release.prior_epsilon == SPEC.epsilon
    for said in (repr(release), contents(bytes(release))):
        assert "up to epsilon 2 for a person in both" in said
    assert "prior: 4 leaves, levels of 4, 0.953125 of epsilon; shares: 1" in contents(
        bytes(release)
    )
    assert "prior" not in contents(bytes(Release((some(),))))


def updated(seed: int, metric: FederatedROC) -> FederatedROC:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (4_000,), generator=generator)
    metric.reset()
    metric.update((torch.randn(4_000, generator=generator) + 1.5 * target).sigmoid(), target)
    return metric


def test_a_chain_of_releases_does_not_grow() -> None:
    """Each holds the sum of the one before, which holds nothing of the one before that."""
    metric = FederatedROC(privacy=LocalDP(1.0), plan="carry_over")
    sizes = []
    for seed in range(8):
        release = updated(seed, metric).release()
        sizes.append(len(bytes(release)))
    first, *others = sizes
    spec = len(metric.spec.canonical)
    assert max(others) < 2.5 * (min(others) - spec) + spec  # noise places more leaves or fewer
    assert max(others) < 4 * first


def test_a_coordinator_carries_what_metrics_carry_and_takes_it_up_again() -> None:
    """A later process of the aggregator, given the same previous release, finishes the same release."""
    client = FederatedROC(privacy=LocalDP(1.0), plan="carry_over")
    before = updated(0, client).release()
    coordinator = Coordinator(updated(1, client), round="2", previous=before)
    assert coordinator.query is not None
    share = client.share(round="2", query=coordinator.query)
    coordinator.receive("ann", bytes(share))
    again = Coordinator.from_bytes(coordinator.to_bytes(), client, previous=before)
    for each in (coordinator, again):
        each.advance()
        assert each.release.prior is not None
        assert torch.equal(each.release.prior.cells, before.last.cells)
    assert bytes(coordinator.release) == bytes(again.release)


def test_a_prior_of_another_spec_places_and_is_not_carried() -> None:
    """Whoever lowers epsilon between two releases has spent it by the time that the second is finished."""
    before = updated(0, FederatedROC(privacy=LocalDP(1.0))).release()
    client = updated(1, FederatedROC(privacy=LocalDP(0.5), plan="carry_over"))
    coordinator = Coordinator(client, round="2", previous=before)
    assert coordinator.query is not None
    coordinator.receive("ann", bytes(client.share(round="2", query=coordinator.query)))
    coordinator.advance()
    assert len(coordinator.release.queries) == 1
    assert coordinator.release.prior is None


def test_a_loaded_release_answers_as_it_did() -> None:
    metric = FederatedROC(privacy=LocalDP(1.0), plan="carry_over")
    updated(0, metric).release()
    release = updated(1, metric).release()
    assert release.prior is not None
    with_it, without = (
        float(FederatedAUROC.from_release(each).compute())
        for each in (Release.from_bytes(bytes(release)), Release(release.sums, release.round))
    )
    assert with_it == float(FederatedAUROC.from_release(release).compute()) != without


def test_sums_that_differ_in_one_cell_have_other_digests() -> None:
    one = some()
    other = Sum(SPEC, QUERY, one.cells.clone())
    assert other.digest == one.digest
    other.cells[0, 0, 0] += 1
    assert other.query == one.query
    assert other.digest != one.digest
