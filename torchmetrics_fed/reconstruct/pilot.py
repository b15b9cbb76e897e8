"""Pilot: what the first message says of where the scores are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from scipy.interpolate import PchipInterpolator

from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative
from torchmetrics_fed.reconstruct.density import Noisy, fit
from torchmetrics_fed.reconstruct.warp import Floats, warped_grid
from torchmetrics_fed.release import Release

__all__ = ["MOST_MISFIT", "Pilot", "messages"]

MOST_MISFIT = 6.0
"""Standard deviations from the smooth model, beyond which scores have ties or spikes that it does not know."""

_SLOPE = 3.0
# Even mass mixed into what the pilot saw, so that no stretch of the range is left without edges; without a model, what
# stands out of the pilot is sharp and deserves more of them.
_FLOOR, _FLOOR_ROUGH = 0.3, 0.15
# Above this many classes each gets no model of its own.
_MOST_CLASSES = 32


@dataclass(frozen=True)
class Pilot:
    """The scores of an earlier release, one histogram pair per class.

    Args:
        shares: how each class's negatives and positives are spread over the leaves, ``(classes, 2, leaves)``.
        sizes: estimated examples, ``(classes, 2)``.
        smooth: whether the smooth model fits, for each class.
        places: edges of the leaves on the grid.
        bins: number of bins of the grid.
    """

    shares: Floats
    sizes: Floats
    smooth: tuple[bool, ...]
    places: Floats
    bins: int

    @classmethod
    def of(cls, release: Release) -> Pilot:
        """Return what a release says. It is reckoned once and kept with the release."""
        if release not in _known:
            _known[release] = cls._reckoned(release)
        return _known[release]

    @classmethod
    def _reckoned(cls, release: Release) -> Pilot:
        bins = release.spec.grid.bins
        places = release.spec.tree.places(bins).numpy()
        u = warped_grid(bins)[places]
        leaves = non_negative(least_squares(release.levels))[-1].numpy().copy()
        smooth = []
        flat = len(release.spec.tree.branching) == 1 and release.spec.rows == 2 and len(leaves) <= _MOST_CLASSES
        for leaf, message in zip(leaves, messages(release), strict=True):
            model = fit([message], places, u, u, _SLOPE) if flat else None
            smooth.append(model is not None and model.misfit < MOST_MISFIT)
            if model is not None and smooth[-1]:
                leaf[:] = model.cells
        sizes = np.maximum(leaves.sum(-1), 1.0)
        shares = leaves + 1e-12 * sizes[..., None]  # an empty class is spread evenly
        return cls(shares / shares.sum(-1, keepdims=True), sizes, tuple(smooth), places, bins)

    @cached_property
    def mass(self) -> Floats:
        """The mass of both classes, and of all of several, below every edge of the grid, from 0 to 1."""
        u, smooth = warped_grid(self.bins), all(self.smooth)
        below = np.append(0.0, self.shares.mean((0, 1)).cumsum())
        at = u[self.places]
        mass = PchipInterpolator(at, below)(u) if smooth else np.interp(u, at, below)
        floor = _FLOOR if smooth else _FLOOR_ROUGH
        result: Floats = (mass / mass[-1] + floor * u) / (1 + floor)
        return result


_known: WeakKeyDictionary[Release, Pilot] = WeakKeyDictionary()


def messages(release: Release) -> list[Noisy]:
    """Return the leaves of a release as noisy bins, one message for each class."""
    places = release.spec.tree.places(release.spec.grid.bins).numpy()
    return [Noisy(places, leaf.double().numpy(), release.noise_variance) for leaf in release.leaf]
