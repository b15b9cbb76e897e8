"""The audit leaves honest mechanisms alone and refutes those with a known fault (threats 5 to 8)."""

from __future__ import annotations

import math
from collections.abc import Callable

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

Noise = Callable[[np.random.Generator, int], NDArray[np.int64]]


def negative_binomials(
    rng: np.random.Generator, shape: tuple[int, ...], epsilon: float, parts: float
) -> NDArray[np.int64]:
    success = -math.expm1(-epsilon)
    return rng.negative_binomial(parts, success, shape) - rng.negative_binomial(
        parts, success, shape
    )


def audited(noise: Noise, **options: float) -> AuditResult:
    """Audit of a count of 3 against 4 with this noise, claimed to be epsilon 1; the seed makes the test repeatable."""
    rng = np.random.default_rng(20240501)

    def outputs(count: int) -> Mechanism:
        return lambda trials: count + noise(rng, trials)

    return audit(outputs(3), outputs(4), claimed=1.0, **options)  # type: ignore[arg-type]


def geometric(levels: int, epsilon: float) -> Noise:
    return lambda rng, trials: negative_binomials(rng, (trials, levels), epsilon, 1)


def ten_shares(survivors: int) -> Noise:
    return lambda rng, trials: sum(
        (negative_binomials(rng, (trials, 1), 1, 0.1) for _ in range(survivors)),
        np.zeros((trials, 1), dtype=np.int64),
    )


def skellam(levels: int) -> Noise:
    mean = float(skellam_mean(1, 1e-6, Sensitivity.of("binary", 1, levels)))
    return lambda rng, trials: (
        rng.poisson(mean, (trials, levels)) - rng.poisson(mean, (trials, levels))
    )


HONEST: dict[str, tuple[Noise, float]] = {
    "one level": (geometric(1, 1), 0.0),
    "four levels": (geometric(4, 0.25), 0.0),
    "ten shares": (ten_shares(10), 0.0),
    "skellam": (skellam(1), 1e-6),
    "skellam, twelve levels": (skellam(12), 1e-6),
}

FAULTY: dict[str, tuple[Noise, float]] = {
    "nine of ten shares": (ten_shares(9), 1.04),
    "epsilon 5% off": (geometric(1, 1.05), 1.01),
    "no split over two levels": (geometric(2, 1), 1.85),
    "one seed for ten clients": (
        lambda rng, trials: 10 * negative_binomials(rng, (trials, 1), 1, 0.1),
        8.5,
    ),
    "no noise": (lambda rng, trials: np.zeros((trials, 1), dtype=np.int64), 9.0),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_mechanism_is_not_refuted(name: str) -> None:
    noise, delta = HONEST[name]
    found = audited(noise, delta=delta, confidence=1 - 1e-6)
    assert not found.refuted
    assert found.epsilon_lower > 0.2
    assert "audited" in str(found)
    assert "verified" not in str(found)


def test_a_tight_mechanism_is_measured_tightly() -> None:
    assert 0.95 < audited(geometric(1, 1)).epsilon_lower < 1


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_refuted(name: str) -> None:
    noise, least = FAULTY[name]
    found = audited(noise)
    assert found.refuted
    assert found.epsilon_lower > least


def test_the_bound_is_wrong_no_more_often_than_it_says() -> None:
    """Of 400 audits of a tight mechanism at 90%, more than 70 wrong ones would have a probability below 1e-6."""
    rng = np.random.default_rng(1)

    def outputs(count: int) -> Mechanism:
        return lambda trials: count + negative_binomials(rng, (trials, 1), 1, 1)

    wrong = sum(
        audit(outputs(0), outputs(1), claimed=1, trials=2000, confidence=0.9).refuted
        for _ in range(400)
    )
    assert wrong <= 70


def test_delta_is_taken_off() -> None:
    """A mechanism that gives itself away with probability 0.01 is (0, 0.01)-private, and 0-private it is not."""

    def noise(rng: np.random.Generator, trials: int) -> NDArray[np.int64]:
        hidden = rng.random((trials, 1)) > 0.01
        return np.where(hidden, rng.integers(10**6, 10**6 + 2, (trials, 1)), 0)

    rng = np.random.default_rng(2)
    revealed = [lambda n, c=c: np.where((drawn := noise(rng, n)) == 0, c, drawn) for c in (0, 1)]
    assert audit(revealed[0], revealed[1], claimed=0.5).epsilon_lower > 3
    assert audit(revealed[0], revealed[1], claimed=0.5, delta=0.011).epsilon_lower < 0.1


def release_of(query: Query, calibrated_for: Query, counts: Tensor) -> Mechanism:
    """Releases of these counts by the package's own samplers, with the noise that another query may have asked for."""
    spec = Spec("binary", 1, ScoreGrid(bins=4), CentralDP(1.0))
    law = spec.noise(calibrated_for).law
    assert law is not None
    cells = spec.cells(query, counts)
    return lambda trials: (cells + draw_noise(law, (trials, *cells.shape))).numpy()


@pytest.mark.parametrize(("weights", "naive"), [((4, 1), 2.2), ((1, 3), 1.8)])
def test_a_weighted_tree_keeps_its_claim_and_one_whose_weights_are_forgotten_does_not(
    weights: tuple[int, int], naive: float
) -> None:
    """An example more in one cell of each level, which moves by its weight: epsilon 1, or (w + v) / 2 of it."""
    query, plain = weighted(Tree((2, 2)), *weights), Query(Tree((2, 2)))
    less = torch.tensor([[[3, 0, 1, 2], [0, 1, 0, 4]]])
    more = less.clone()
    more[0, 1, 2] += 1
    honest, forgotten = (
        audit(
            release_of(query, law, less),
            release_of(query, law, more),
            claimed=1.0,
            confidence=1 - 1e-6,
        )
        for law in (query, plain)
    )
    assert not honest.refuted
    assert honest.epsilon_lower > 0.8
    assert forgotten.refuted
    assert forgotten.epsilon_lower > naive


def test_a_score_of_ones_own_replaces_the_default() -> None:
    rng = np.random.default_rng(3)
    draw = geometric(1, 1)
    found = audit(
        lambda n: draw(rng, n),
        lambda n: 1 + draw(rng, n),
        claimed=1,
        score=lambda rows: rows[:, 0].astype(np.float64),
    )
    assert 0.9 < found.epsilon_lower < 1


@pytest.mark.parametrize("weights", ["1 1", "4 1 1"])
@pytest.mark.parametrize("mechanism", ["polya", "skellam", "discrete_gaussian"])
def test_the_command_audits_each_mechanism(
    mechanism: str, weights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        f"--mechanism {mechanism} --epsilon 1 --clients 4 --trials 20000 --confidence 0.999999"
    )
    assert main([*arguments.split(), "--weights", *weights.split()]) == 0
    assert "audited with 20000 trials" in capsys.readouterr().out


def test_the_command_fails_where_shares_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--mechanism polya --epsilon 1 --clients 10 --survivors 5 --trials 20000 --confidence 0.999999"
    assert main(arguments.split()) == 1
    assert "the claim is refuted" in capsys.readouterr().out


def test_what_cannot_be_audited_is_refused() -> None:
    draw: Mechanism = lambda trials: np.zeros((trials, 1), dtype=np.int64)  # noqa: E731
    with pytest.raises(InputError, match="`trials`"):
        audit(draw, draw, claimed=1, trials=10)
    with pytest.raises(InputError, match="`confidence`"):
        audit(draw, draw, claimed=1, confidence=1.0)
    with pytest.raises(InputError, match="one per row"):
        audit(draw, lambda trials: draw(7), claimed=1)
