"""The audit leaves honest mechanisms alone and refutes known faults (threats 5 to 8)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.queries import weighted
from torchmetrics_fed import CentralDP, Query, ScoreGrid, Spec
from torchmetrics_fed.audit import AuditResult, Mechanism, audit, main
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange.client import draw_noise
from torchmetrics_fed.privacy.noise import skellam_mean
from torchmetrics_fed.privacy.sensitivity import Sensitivity

Integers = NDArray[np.int64]
Noise = Callable[[np.random.Generator, int], Integers]
"""From a generator and a number of trials to noise, one row for each trial."""


def two_sided(
    rng: np.random.Generator, shape: tuple[int, ...], epsilon: float, parts: float
) -> Integers:
    """Draw a share of two-sided geometric noise: the difference of two negative binomials."""
    success = -math.expm1(-epsilon)
    plus = rng.negative_binomial(parts, success, shape)
    minus = rng.negative_binomial(parts, success, shape)
    return plus - minus


def audited(noise: Noise, **options: float) -> AuditResult:
    """Audit a count of 3 against a count of 4, with noise that claims epsilon 1.

    The seed makes the test repeatable.
    """
    rng = np.random.default_rng(20240501)
    return audit(
        lambda trials: 3 + noise(rng, trials),
        lambda trials: 4 + noise(rng, trials),
        claimed=1.0,
        **options,  # type: ignore[arg-type]
    )


def geometric(levels: int, epsilon: float) -> Noise:
    return lambda rng, trials: two_sided(rng, (trials, levels), epsilon, 1)


def ten_shares(survivors: int) -> Noise:
    """Return the noise of the survivors of ten clients."""

    def noise(rng: np.random.Generator, trials: int) -> Integers:
        total = np.zeros((trials, 1), dtype=np.int64)
        for _ in range(survivors):
            total += two_sided(rng, (trials, 1), 1, 0.1)
        return total

    return noise


def skellam(levels: int) -> Noise:
    mean = float(skellam_mean(1, 1e-6, Sensitivity.of("binary", 1, levels)))

    def noise(rng: np.random.Generator, trials: int) -> Integers:
        shape = (trials, levels)
        return rng.poisson(mean, shape) - rng.poisson(mean, shape)

    return noise


def one_seed(rng: np.random.Generator, trials: int) -> Integers:
    """Draw the noise of ten clients that all have the same seed."""
    return 10 * two_sided(rng, (trials, 1), 1, 0.1)


def no_noise(rng: np.random.Generator, trials: int) -> Integers:
    return np.zeros((trials, 1), dtype=np.int64)


HONEST: dict[str, tuple[Noise, float]] = {
    "one level": (geometric(1, 1), 0.0),
    "four levels": (geometric(4, 0.25), 0.0),
    "ten shares": (ten_shares(10), 0.0),
    "skellam": (skellam(1), 1e-6),
    "skellam, twelve levels": (skellam(12), 1e-6),
}
"""Noise, and its delta."""

FAULTY: dict[str, tuple[Noise, float]] = {
    "nine of ten shares": (ten_shares(9), 1.04),
    "epsilon 5% off": (geometric(1, 1.05), 1.01),
    "no split over two levels": (geometric(2, 1), 1.85),
    "one seed for ten clients": (one_seed, 8.5),
    "no noise": (no_noise, 9.0),
}
"""Noise, and a bound on epsilon that the audit has to find at least."""


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_mechanism_is_not_refuted(name: str) -> None:
    noise, delta = HONEST[name]
    result = audited(noise, delta=delta, confidence=1 - 1e-6)
    assert not result.refuted
    assert result.epsilon_lower > 0.2
    assert "audited" in str(result)
    assert "verified" not in str(result)


def test_a_tight_mechanism_is_measured_tightly() -> None:
    assert 0.95 < audited(geometric(1, 1)).epsilon_lower < 1


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_refuted(name: str) -> None:
    noise, least = FAULTY[name]
    result = audited(noise)
    assert result.refuted
    assert result.epsilon_lower > least


def test_the_bound_is_wrong_no_more_often_than_its_confidence_allows() -> None:
    """400 audits of a tight mechanism at 90%: over 70 wrong ones have a probability below 1e-6."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(400):
        result = audit(
            lambda trials: two_sided(rng, (trials, 1), 1, 1),
            lambda trials: 1 + two_sided(rng, (trials, 1), 1, 1),
            claimed=1,
            trials=2000,
            confidence=0.9,
        )
        wrong += result.refuted
    assert wrong <= 70


def test_delta_is_subtracted() -> None:
    """A mechanism that reveals its input with probability 0.01 is private with delta 0.01 only."""
    rng = np.random.default_rng(2)

    def revealing(value: int, trials: int) -> Integers:
        is_hidden = rng.random((trials, 1)) > 0.01
        hidden = rng.integers(10**6, 10**6 + 2, (trials, 1))
        return np.where(is_hidden, hidden, value)

    mechanism = partial(revealing, 0)
    neighbour = partial(revealing, 1)
    assert audit(mechanism, neighbour, claimed=0.5).epsilon_lower > 3
    assert audit(mechanism, neighbour, claimed=0.5, delta=0.011).epsilon_lower < 0.1


def release_of(query: Query, calibrated_for: Query, counts: Tensor) -> Mechanism:
    """Return the release of these counts, with the noise that another query would be given."""
    spec = Spec("binary", 1, ScoreGrid(bins=4), CentralDP(1.0))
    law = spec.noise(calibrated_for).law
    assert law is not None
    cells = spec.cells(query, counts)
    return lambda trials: (cells + draw_noise(law, (trials, *cells.shape))).numpy()


@pytest.mark.parametrize(("weights", "naive"), [((4, 1), 2.2), ((1, 3), 1.8)])
def test_a_weighted_tree_keeps_its_claim_and_a_tree_with_forgotten_weights_does_not(
    weights: tuple[int, int], naive: float
) -> None:
    """An example moves one cell of each level by its weight: epsilon is 1, or (w + v) / 2."""
    query = weighted(Tree((2, 2)), *weights)
    unweighted = Query(Tree((2, 2)))
    counts = torch.tensor([[[3, 0, 1, 2], [0, 1, 0, 4]]])
    neighbour = counts.clone()
    neighbour[0, 1, 2] += 1
    honest = audit(
        release_of(query, query, counts),
        release_of(query, query, neighbour),
        claimed=1.0,
        confidence=1 - 1e-6,
    )
    forgotten = audit(
        release_of(query, unweighted, counts),
        release_of(query, unweighted, neighbour),
        claimed=1.0,
        confidence=1 - 1e-6,
    )
    assert not honest.refuted
    assert honest.epsilon_lower > 0.8
    assert forgotten.refuted
    assert forgotten.epsilon_lower > naive


def test_a_score_of_the_caller_replaces_the_default() -> None:
    rng = np.random.default_rng(3)
    draw = geometric(1, 1)
    result = audit(
        lambda trials: draw(rng, trials),
        lambda trials: 1 + draw(rng, trials),
        claimed=1,
        score=lambda outputs: outputs[:, 0].astype(np.float64),
    )
    assert 0.9 < result.epsilon_lower < 1


@pytest.mark.parametrize("weights", ["1 1", "4 1 1"])
@pytest.mark.parametrize("mechanism", ["polya", "skellam", "discrete_gaussian"])
def test_the_command_audits_each_mechanism(
    mechanism: str, weights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = f"--mechanism {mechanism} --weights {weights}"
    options += " --epsilon 1 --clients 4 --trials 20000 --confidence 0.999999"
    assert main(options.split()) == 0
    assert "audited with 20000 trials" in capsys.readouterr().out


def test_the_command_fails_where_shares_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--mechanism polya --epsilon 1 --clients 10 --survivors 5"
    options += " --trials 20000 --confidence 0.999999"
    assert main(options.split()) == 1
    assert "the claim is refuted" in capsys.readouterr().out


def test_arguments_that_cannot_be_audited_are_refused() -> None:
    rng = np.random.default_rng(4)
    draw = partial(no_noise, rng)
    with pytest.raises(InputError, match="`trials`"):
        audit(draw, draw, claimed=1, trials=10)
    with pytest.raises(InputError, match="`confidence`"):
        audit(draw, draw, claimed=1, confidence=1.0)
    with pytest.raises(InputError, match="one per row"):
        audit(draw, lambda trials: draw(7), claimed=1)
