"""Threat 6: a sampler that is slightly wrong. The test that passes ours must refuse it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.statistical.test_samplers import ALPHA, histogram, p_value, polya_law, reach
from torchmetrics_fed.privacy import samplers

SIZE = 1_500_000
"""Draws that tell a scale that is 5% off."""


def naive(size: int, epsilon: float, clients: float) -> NDArray[np.int64]:
    """Draw shares from numpy's generator, with the law of these arguments."""
    generator = np.random.default_rng()
    success = -np.expm1(-epsilon)
    plus, minus = generator.negative_binomial(1 / clients, success, (2, size))
    return np.asarray(plus - minus)


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "epsilon"), [(1, 1.0), (3, 0.5), (10, 1.0)])
def test_only_the_right_scale_passes(clients: int, epsilon: float) -> None:
    law = polya_law(epsilon, clients)
    radius = reach(law)
    right = histogram(lambda size: samplers.polya(size, epsilon, clients), SIZE, radius)
    assert p_value(right, law) > ALPHA
    wrong_epsilon = partial(naive, epsilon=epsilon * 1.05, clients=clients)
    assert p_value(histogram(wrong_epsilon, SIZE, radius), law) < ALPHA
    wrong_clients = partial(naive, epsilon=epsilon, clients=clients + 1)
    assert p_value(histogram(wrong_clients, SIZE, radius), law) < ALPHA


@pytest.mark.slow
def test_noise_that_all_clients_share_is_caught() -> None:
    """One seed for ten clients, as in the paper's published code: totals are multiples of ten."""
    law = polya_law(1.0, 1)
    radius = reach(law)
    shared = histogram(lambda size: 10 * naive(size, 1.0, 10), 100_000, radius)
    assert p_value(shared, law) < ALPHA
    honest = histogram(lambda size: samplers.polya((10, size), 1.0, 10).sum(0), 100_000, radius)
    assert p_value(honest, law) > ALPHA
