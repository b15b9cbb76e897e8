"""Threat 6: a sampler that is slightly wrong. The test that passes ours must refuse its near relatives."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.statistical.test_samplers import ALPHA, histogram, p_value, polya_law, reach
from torchmetrics_fed.privacy import samplers

SIZE = 1_500_000


def naive(size: int, epsilon: float, clients: float) -> NDArray[np.int64]:
    """Shares from numpy's generator: the right law for its arguments, whatever these are."""
    generator, success = np.random.default_rng(), -np.expm1(-epsilon)
    plus, minus = generator.negative_binomial(1 / clients, success, (2, size))
    return np.asarray(plus - minus)


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "epsilon"), [(1, 1.0), (3, 0.5), (10, 1.0)])
def test_only_the_right_scale_passes(clients: int, epsilon: float) -> None:
    law = polya_law(epsilon, clients)
    radius = reach(law)
    assert (
        p_value(histogram(lambda size: samplers.polya(size, epsilon, clients), SIZE, radius), law)
        > ALPHA
    )
    for wrong_epsilon, wrong_clients in ((epsilon * 1.05, clients), (epsilon, clients + 1)):
        counts = histogram(
            partial(naive, epsilon=wrong_epsilon, clients=wrong_clients), SIZE, radius
        )
        assert p_value(counts, law) < ALPHA


@pytest.mark.slow
def test_noise_that_all_clients_share_is_caught() -> None:
    """One seed for ten clients, as in the paper's published code: every total is a multiple of ten."""
    law = polya_law(1.0, 1)
    shared = histogram(lambda size: 10 * naive(size, 1.0, 10), 100_000, reach(law))
    assert p_value(shared, law) < ALPHA
    honest = histogram(lambda size: samplers.polya((10, size), 1.0, 10).sum(0), 100_000, reach(law))
    assert p_value(honest, law) > ALPHA
