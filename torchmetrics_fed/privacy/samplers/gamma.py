"""The paper's continuous noise, for comparison only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.privacy.entropy import random_words
from torchmetrics_fed.privacy.samplers.parameters import Number, Shape, checked_clients, checked_number, checked_shape

SCALE_LEAST, SCALE_MOST = 2.0**-40, 2.0**40


def gamma_difference(shape: Shape, scale: Number, clients: int) -> NDArray[np.float64]:
    """Gamma(1/n, scale) - Gamma(1/n, scale), n = clients; n of them sum to Laplace(scale).

    Never release it, and never send it through a masked sum: which float64 values can occur
    depends on the true count, so outputs can be attacked (from a count of 0, 18.6% of Laplace
    outputs were provably not from a count of 1). It is here to reproduce the paper's figures;
    `polya` is what protects.

    >>> gamma_difference((2, 4096), scale=1.0, clients=10).dtype
    dtype('float64')
    """
    width = float(checked_number("scale", scale, SCALE_LEAST, SCALE_MOST))
    sides = checked_shape(shape)
    alpha = 1 / checked_clients(clients)
    # All 256 bits count: the default pool of 4 words would cut the seed to 128.
    seed = np.random.SeedSequence(random_words(4).tolist(), pool_size=8)
    plus, minus = np.random.default_rng(seed).gamma(alpha, width, size=(2, *sides))
    return np.asarray(plus - minus)
