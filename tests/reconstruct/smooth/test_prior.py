"""The release before as data: it helps where it agrees, and is not believed where the model has jumped."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed import CentralDP, FederatedROC, Release, Spec
from torchmetrics_fed.exchange.client import noisy_cells
from torchmetrics_fed.exchange.plans import make_release
from torchmetrics_fed.functional import area_error_roc, roc
from torchmetrics_fed.reconstruct.smooth import estimate
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves
from torchmetrics_fed.reconstruct.smooth.estimate import bin_counts, weighed
from torchmetrics_fed.reconstruct.smooth.mass import ScoreMass, noisy_leaves
from torchmetrics_fed.release import Sum

EXAMPLES = 6_000
DEVIATIONS = 4.9  # of a normal variable: a probability of 1e-6
JUMPS = [(0.5, 0.0), (1.5, -3.0), (2.5, 2.0)]


@cache
def spec_of(epsilon: float) -> Spec:
    return FederatedROC(privacy=CentralDP(epsilon), plan="carry_over").spec


@cache
def scored(seed: int, distance: float = 1.5, shift: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of a classifier of two normal classes at some distance, targets, and counts on the bins."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (EXAMPLES,), generator=generator)
    scores = (
        distance * torch.randn(EXAMPLES, generator=generator) + distance**2 * target + shift
    ).sigmoid()
    metric = FederatedROC()
    metric.update(scores, target)
    return scores, target, metric.counts


def released(counts: Tensor, epsilon: float, previous: Release | None = None) -> Release:
    spec = spec_of(epsilon)
    return make_release(
        "carry_over",
        spec,
        lambda query: Sum(spec, query, noisy_cells(spec, query, counts)),
        previous=previous,
    )


def errors(runs: int, epsilon: float, before: tuple[float, float]) -> NDArray[np.float64]:
    """ROC Area Errors of releases that carry one of other data, with it and without, ``(runs, 2)``."""
    found = []
    for run in range(runs):
        scores, target, counts = scored(run % 20)
        earlier = released(scored(100 + run % 20, *before)[2], epsilon)
        release, exact = released(counts, epsilon, earlier), roc(scores, target)
        assert release.prior is earlier.last
        curves = (
            FederatedROC.from_release(each).compute() for each in (release, Release(release.sums))
        )
        found.append([area_error_roc(curve, exact) for curve in curves])
    return np.array(found)


def gain(found: NDArray[np.float64]) -> float:
    """How much less the error is with the prior, in standard errors of that."""
    less = found[:, 1] - found[:, 0]
    return float(less.mean() / (less.std() / len(less) ** 0.5))


@pytest.mark.audit
def test_a_prior_that_agrees_lowers_the_error() -> None:
    """Other examples, the same model. 400 pairs of curves tell by some nine deviations, five more than asked for."""
    assert gain(errors(400, 0.1, (1.5, 0.0))) > 4


@pytest.mark.slow
@pytest.mark.parametrize("before", JUMPS)
def test_a_prior_of_a_model_that_jumped_does_no_harm(before: tuple[float, float]) -> None:
    found = errors(30, 0.3, before)
    assert found[:, 0].mean() < 1.05 * found[:, 1].mean()


@pytest.mark.slow
@pytest.mark.parametrize("before", JUMPS)
def test_a_prior_that_is_believed_whatever_it_says_would_be_seen(
    before: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power of the test above: what agrees with itself is believed."""

    def stubborn(leaves: NoisyLeaves, mass: ScoreMass, number: int) -> NoisyLeaves | None:
        sizes = leaves.counts.sum(1, keepdims=True)
        predicted = np.diff(mass.rows_below()[:, leaves.edges], axis=1) * sizes
        return weighed(leaves._replace(counts=predicted), mass, number)

    monkeypatch.setattr(estimate, "weighed", stubborn)
    found = errors(30, 0.3, before)
    assert found[:, 0].mean() > 2 * found[:, 1].mean()
    assert gain(found) < -DEVIATIONS


def test_what_jumped_is_left_out_to_the_bit() -> None:
    for before in JUMPS:
        release = released(scored(0)[2], 1.0, released(scored(1, *before)[2], 1.0))
        assert release.prior is not None
        assert torch.equal(bin_counts(release), bin_counts(Release(release.sums)))


def test_a_prior_is_worth_the_less_the_more_the_model_has_changed() -> None:
    """Its variance, relative to what it holds, grows with the change; and without one it is noise and sampling."""
    spec, epsilon = spec_of(1.0), 1.0
    earlier = released(scored(1)[2], epsilon)
    said, mass = noisy_leaves(earlier.last), ScoreMass.of(earlier.last)
    query = released(scored(0)[2], epsilon, earlier).last.query
    worth = []
    for shift in (0.0, 0.3, 0.6):
        last = Sum(spec, query, noisy_cells(spec, query, scored(0, 1.5, shift)[2]))
        answer = weighed(noisy_leaves(last)[0][0], mass, 0)
        assert answer is not None
        assert answer.counts.sum(1) == pytest.approx(last.leaf[0].double().sum(1).numpy(), rel=0.05)
        worth.append(float(np.mean(answer.variance)))
    assert worth == sorted(worth)
    own = said[0][0]
    assert worth[0] < 4 * np.mean(own.variance + np.maximum(own.counts, 0))
    assert worth[2] > 3 * worth[0]


def test_a_prior_with_ties_says_nothing_smooth() -> None:
    scores, target, counts = scored(0)
    tied = FederatedROC()
    tied.update((scores * 5).floor() / 5 + 0.1, target)
    earlier = released(tied.counts, 1.0)
    release = released(counts, 1.0, earlier)
    assert release.prior is earlier.last
    assert torch.equal(bin_counts(release), bin_counts(Release(release.sums)))
