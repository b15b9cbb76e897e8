"""Gaussian differential privacy: the conversion to epsilon and delta, both ways."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from torchmetrics_fed.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu

PAIRS = [(3.0, 1e-6), (1.0, 1e-6), (0.1, 1e-9), (10.0, 1e-5), (30.0, 1e-12)]


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.0), (0.6, 1.0), (1.0, 3.0), (4.0, 2.0)])
def test_delta_is_the_integral_of_its_definition(mu: float, epsilon: float) -> None:
    def excess(x: float) -> float:
        return max(norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x), 0.0)

    start = epsilon / mu + mu / 2
    integral, _ = quad(excess, start, start + 12, epsabs=1e-14)
    assert gaussian_delta(mu, epsilon) == pytest.approx(integral, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), PAIRS)
def test_mu_and_epsilon_are_inverse_and_never_promise_too_much(
    epsilon: float, delta: float
) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_delta(1.0001 * mu, epsilon) > delta
    assert gaussian_epsilon(mu, delta) <= epsilon
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-9)


def test_delta_falls_with_epsilon_and_rises_with_mu() -> None:
    deltas = [gaussian_delta(0.5, epsilon) for epsilon in np.linspace(0, 5, 50)]
    assert deltas == sorted(deltas, reverse=True)
    rising = [gaussian_delta(mu, 1.0) for mu in np.linspace(0.01, 5, 50)]
    assert rising == sorted(rising)


def test_the_ends() -> None:
    assert gaussian_delta(0.0, 1.0) == 0.0
    assert gaussian_epsilon(0.0, 0.0) == 0.0
    assert gaussian_epsilon(1.0, 0.0) == math.inf
    assert gaussian_epsilon(0.1, 0.9) == 0.0
    assert gaussian_delta(1.0, 1000.0) == 0.0
