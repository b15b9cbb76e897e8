"""The release before as data: it helps if it agrees, and is left out if the model has jumped."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed import CentralDP, FederatedROC, Query, Release, Spec
from torchmetrics_fed.exchange import plan_from
from torchmetrics_fed.exchange.client import noisy_cells
from torchmetrics_fed.exchange.plans import make_release
from torchmetrics_fed.functional import area_error_roc, roc
from torchmetrics_fed.reconstruct.smooth import estimate
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves
from torchmetrics_fed.reconstruct.smooth.estimate import bin_counts, leaves_of_prior
from torchmetrics_fed.reconstruct.smooth.mass import ScoreMass, noisy_leaves
from torchmetrics_fed.release import Sum

EXAMPLES = 6_000
DEVIATIONS = 4.9
"""Standard deviations of a normal variable that are exceeded with a probability of 1e-6."""

JUMPS = [(0.5, 0.0), (1.5, -3.0), (2.5, 2.0)]
"""Distance and shift of models that have nothing to do with that of distance 1.5 and shift 0."""


@cache
def spec_of(epsilon: float) -> Spec:
    return FederatedROC(privacy=CentralDP(epsilon)).spec


@cache
def scored(seed: int, distance: float = 1.5, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return scores of a classifier of two normal classes at a distance, and targets."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (EXAMPLES,), generator=generator)
    noise = torch.randn(EXAMPLES, generator=generator)
    return (distance * noise + distance**2 * target + shift).sigmoid(), target


@cache
def counted(seed: int, distance: float = 1.5, shift: float = 0.0) -> Tensor:
    """Return the counts of such scores."""
    metric = FederatedROC()
    metric.update(*scored(seed, distance, shift))
    return metric.counts


def released(counts: Tensor, epsilon: float, previous: Release | None = None) -> Release:
    """Return the release of counts that carries over a previous one."""
    spec = spec_of(epsilon)

    def reply(query: Query) -> Sum:
        return Sum(spec, query, noisy_cells(spec, query, counts))

    return make_release(plan_from("carry_over", spec), spec, reply, previous=previous)


def without_prior(release: Release) -> Release:
    return Release(release.sums)


def errors(runs: int, epsilon: float, before: tuple[float, float]) -> NDArray[np.float64]:
    """Return ROC Area Errors of releases with a prior and without it, ``(runs, 2)``.

    The prior is a release of other examples, by a model of another distance and shift.
    """
    result = []
    for run in range(runs):
        seed = run % 20
        exact = roc(*scored(seed))
        previous = released(counted(100 + seed, *before), epsilon)
        release = released(counted(seed), epsilon, previous)
        assert release.prior is previous.last
        with_prior = FederatedROC.from_release(release).compute()
        without_it = FederatedROC.from_release(without_prior(release)).compute()
        result.append([area_error_roc(with_prior, exact), area_error_roc(without_it, exact)])
    return np.array(result)


def gain(pairs: NDArray[np.float64]) -> float:
    """Return how much less the error is with the prior, in standard errors of the difference."""
    difference = pairs[:, 1] - pairs[:, 0]
    return float(difference.mean() / (difference.std() / len(difference) ** 0.5))


@pytest.mark.audit
def test_a_prior_that_agrees_lowers_the_error() -> None:
    """Other examples, the same model. 400 pairs of curves show it by some nine deviations."""
    assert gain(errors(400, 0.1, (1.5, 0.0))) > 4


@pytest.mark.slow
@pytest.mark.parametrize("before", JUMPS)
def test_a_prior_of_a_model_that_jumped_does_no_harm(before: tuple[float, float]) -> None:
    with_prior, without_it = errors(30, 0.3, before).mean(0)
    assert with_prior < 1.05 * without_it


@pytest.mark.slow
@pytest.mark.parametrize("before", JUMPS)
def test_a_prior_that_is_always_believed_would_do_harm(
    before: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power of the test above: new leaves that agree with every prior."""

    def believed(leaves: NoisyLeaves, mass: ScoreMass, number: int) -> NoisyLeaves | None:
        sizes = leaves.counts.sum(1, keepdims=True)
        predicted = np.diff(mass.rows_below()[:, leaves.edges], axis=1) * sizes
        return leaves_of_prior(leaves._replace(counts=predicted), mass, number)

    monkeypatch.setattr(estimate, "leaves_of_prior", believed)
    pairs = errors(30, 0.3, before)
    with_prior, without_it = pairs.mean(0)
    assert with_prior > 2 * without_it
    assert gain(pairs) < -DEVIATIONS


@pytest.mark.parametrize("before", JUMPS)
def test_a_prior_that_jumped_is_left_out_to_the_bit(before: tuple[float, float]) -> None:
    release = released(counted(0), 1.0, released(counted(1, *before), 1.0))
    assert release.prior is not None
    assert torch.equal(bin_counts(release), bin_counts(without_prior(release)))


def test_a_prior_is_worth_the_less_the_more_the_model_has_changed() -> None:
    """Its variance grows with the change. Without a change it is noise and sampling."""
    spec = spec_of(1.0)
    previous = released(counted(1), 1.0)
    mass = ScoreMass.of(previous.last)
    query = released(counted(0), 1.0, previous).last.query
    variances = []
    for shift in (0.0, 0.3, 0.6):
        last = Sum(spec, query, noisy_cells(spec, query, counted(0, 1.5, shift)))
        ((new_leaves,),) = noisy_leaves(last)
        prior = leaves_of_prior(new_leaves, mass, 0)
        assert prior is not None
        sizes = last.leaf[0].double().sum(1).numpy()
        assert prior.counts.sum(1) == pytest.approx(sizes, rel=0.05)
        variances.append(float(np.mean(prior.variance)))
    assert variances == sorted(variances)
    ((leaves,),) = noisy_leaves(previous.last)
    assert variances[0] < 4 * np.mean(leaves.variance + np.maximum(leaves.counts, 0))
    assert variances[2] > 3 * variances[0]


def test_a_prior_with_ties_is_left_out_to_the_bit() -> None:
    scores, target = scored(0)
    tied = FederatedROC()
    tied.update((scores * 5).floor() / 5 + 0.1, target)
    previous = released(tied.counts, 1.0)
    release = released(counted(0), 1.0, previous)
    assert release.prior is previous.last
    assert torch.equal(bin_counts(release), bin_counts(without_prior(release)))
