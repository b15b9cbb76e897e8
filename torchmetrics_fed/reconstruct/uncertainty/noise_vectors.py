"""Noise vectors: what the noise of a sum does to its tails, drawn many times from its law. It needs no data."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from torchmetrics_fed.counting.tree import Tree
from torchmetrics_fed.privacy.noise import Mechanism
from torchmetrics_fed.reconstruct.consistency import least_squares
from torchmetrics_fed.release.sums import Sum
from torchmetrics_fed.typing import Floats, Singles

# How many vectors: as many as these cells make, within limits. A quantile of 1,000 is off by 0.7% of coverage.
_CELLS, _FEWEST, _MOST = 1 << 22, 1_000, 4_000
# This noise protects nobody, it only measures what noise does; the same seed makes the same band of the same release.
_SEED = 20_240_229


class Vectors(NamedTuple):
    """Noise in the tails of negatives and positives, at ascending edges."""

    tails: Singles
    """``(2, vectors, edges)``, in float32: a large tree's vectors take 33 MB."""
    spread: Floats
    """Variance at each edge, and covariance with the noise of the total, ``(2, edges)``."""


def above(leaf: Floats) -> Floats:
    """Return the counts at or above each edge of the leaves, ``(..., leaves + 1)``, edges ascending."""
    tail = np.zeros((*leaf.shape[:-1], leaf.shape[-1] + 1))
    tail[..., :-1] = leaf[..., ::-1].cumsum(-1)[..., ::-1]
    return tail


def noise_tails(total: Sum) -> Vectors:
    """Return what the noise adds to tails after least squares: the noise that is really there, of all shares."""
    tree, noise, privacy = total.query.tree, total.spec.noise(total.query), total.spec.privacy
    if noise is None or privacy is None:
        nothing = np.zeros((2, _count(tree.leaves), tree.leaves + 1), dtype=np.float32)
        return Vectors(nothing, np.zeros((2, tree.leaves + 1)))
    shape, times = Tree(tree.branching, weights=tree.weights), total.noise_variance / noise.variance
    return _noise_tails(shape, privacy.mechanism, noise.variance, times)


def sampling_tails(leaf: Floats, vectors: int) -> Singles:
    """Return how tails of samples differ from those of a population with ``leaf`` examples, ``(2, vectors, edges)``.

    Poisson counts: given its size, a sample is multinomial, and the sizes vary, too, as precision has to know.
    """
    generator = np.random.default_rng(_SEED + 1)
    drawn = generator.poisson(leaf[:, None], (2, vectors, leaf.shape[-1])) - leaf[:, None]
    return above(drawn).astype(np.float32)


def _count(cells: int) -> int:
    return int(np.clip(_CELLS // cells, _FEWEST, _MOST))


@lru_cache(maxsize=4)
def _noise_tails(tree: Tree, mechanism: Mechanism, variance: float, shares: float) -> Vectors:
    """Noise of ``variance`` in each cell, summed ``shares`` times; a part of a time is a part of the shares."""
    generator = np.random.default_rng(_SEED)
    vectors = _count(tree.cells)
    result = np.empty((2, vectors, tree.leaves + 1), dtype=np.float32)
    for row in result:
        cells = summed_noise(generator, mechanism, variance, shares, (vectors, tree.cells))
        row[:] = above(least_squares(tree.split(torch.from_numpy(cells)), tree.weights)[-1].numpy())
    result.setflags(write=False)
    flat = result.reshape(-1, tree.leaves + 1)
    others = flat, np.broadcast_to(flat[:, :1], flat.shape)
    moments = np.stack([np.einsum("ve,ve->e", flat, other) for other in others])
    return Vectors(result, moments.astype(np.float64) / len(flat))


def summed_noise(
    generator: np.random.Generator, mechanism: Mechanism, variance: float, shares: float, shape: tuple[int, ...]
) -> Floats:
    """Return cells with the law that sums of shares have, to measure what noise does; it protects nobody.

    Each kind of noise but the discrete Gaussian is the difference of two alike, and divides: a sum of n shares
    calibrated for k has n / k times the parameter. ``variance`` is that of all shares that it is calibrated for, and
    ``shares`` how many were summed, in units of those.
    """
    if mechanism == "discrete_gaussian":
        return np.rint(generator.normal(0.0, np.sqrt(max(variance * shares - 1 / 12, 0.0)), shape))  # 1/12 of rounding

    def half() -> Floats:
        if mechanism == "skellam":
            return generator.poisson(variance * shares / 2, shape).astype(np.float64)
        if mechanism == "gamma":
            return generator.gamma(shares, np.sqrt(variance / 2), shape)
        # two-sided geometric with ratio a: variance = 2a / (1 - a)^2 = 1 / (2 sinh^2(epsilon / 2)), a = e^-epsilon
        ratio = np.exp(-2 * np.arcsinh(np.sqrt(0.5 / variance)))
        return generator.negative_binomial(shares, 1 - ratio, shape).astype(np.float64)

    return half() - half()
