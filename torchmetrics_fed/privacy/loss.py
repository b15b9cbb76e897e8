r"""The privacy loss of integer noise: the smallest delta for an epsilon, bounded from above on a grid.

Every cell of a release carries independent noise with one symmetric log-concave law p on the integers (two-sided
geometric, Skellam, discrete Gaussian, and their sums). Three facts make :func:`delta_bound` exact but for rounding up.

**Worst change.** Write :math:`f_s` for the trade-off function between p and p shifted by s. Both errors of the best
test are values of one distribution function F, :math:`1 - F(t)` and :math:`F(t - s)`, because log-concave p have
monotone likelihood ratios; so :math:`f_{a+b} = f_b \circ (1 - f_a)`. Two cells shifted by a and by b are reached
by way of the data where only the first is, so their trade-off is at least :math:`f_b \circ (1 - f_a)` (Dong, Roth and
Su 2022, group privacy): shifts of two cells put into one cell are never harder to tell. Of all ways in which the
examples of a person can fall, the one with all of them in the same cells is therefore the worst, and
:class:`~torchmetrics_fed.privacy.sensitivity.Sensitivity` lists its shifts. Reflection gives the same law for shifts
of either sign and for both orders of the neighbours.

**Rounding.** An output of mass p and loss :math:`\ell = \ln(p / q)` between two grid points is split over these so that
neither p nor q changes. Forgetting the split gives the output back, so the split pair is never harder to tell
(Doroshenko et al. 2022, "Connect the dots"). What lies beyond the tabulated range counts as lost: infinite loss.

**Composition.** Losses of cells add up. With masses tilted by :math:`e^{\theta \ell}` the sum's law near epsilon is of
order 1, so the rounding of the Fourier transform is small against delta itself. What wraps around is mass added to
the window, and what lies above the window is bounded by Chernoff's inequality: both can only raise the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import logsumexp

from torchmetrics_fed.privacy.sensitivity import Sensitivity
from torchmetrics_fed.typing import Floats

LogMass = Callable[[NDArray[np.int64]], Floats]
"""Logarithm of the probability of each integer: symmetric around 0 and concave."""

# Mass that is lost in the tail of one cell; the grid's width in standard deviations of one cell's loss.
TAIL, WIDTH = 1e-32, 0.03
# Window above which the rest is at most this part of the bound; margin for the rounding of logarithms and powers.
WINDOW, MARGIN = 1e-9, 1e-3
# Grid points on either side of 0 and epsilon: smaller losses are rounded up to the lowest, larger ones count as lost.
POINTS = 1 << 14
TILTS: Floats = np.geomspace(1e-3, 1e6, 128)


def delta_bound(
    epsilon: float, log_mass: LogMass, deviation: float, sensitivity: Sensitivity
) -> float:
    """Return a delta for which this noise on every cell is (epsilon, delta)-private.

    It is the least one, or a percent more (for epsilon far above 1 a few): what some 0.1% less noise would cost.
    ``deviation`` is roughly the standard deviation of the noise; it sets the grid and not the result.
    """
    width = WIDTH * (sensitivity.l2_squared / sensitivity.cells) ** 0.5 / deviation
    steps = max(1, round(epsilon / width))
    losses = [_Loss.of(log_mass, deviation, *shift, epsilon, steps) for shift in sensitivity.shifts]
    lost = min(1.0, sum(loss.cells * loss.lost for loss in losses))
    return min(1.0, (lost + _composed(losses, steps)) * (1 + MARGIN))


@dataclass(frozen=True)
class _Loss:
    """Loss of ``cells`` equal cells: of each, ``mass[i]`` is on the grid point ``first + i``, ``lost`` on infinity."""

    mass: Floats
    first: int
    width: float
    lost: float
    cells: int

    @classmethod
    def of(
        cls, log_mass: LogMass, deviation: float, shift: int, cells: int, epsilon: float, steps: int
    ) -> _Loss:
        """Tabulate the loss of a cell that moves by ``shift``, with epsilon at ``steps`` grid points."""
        width = epsilon / steps
        reach, tail = _reach(log_mass, deviation)
        law = log_mass(np.arange(-reach, reach + shift + 1))
        here, there = law[: 2 * reach + 1], law[shift:]
        kept = np.isfinite(here) & (there > here - (epsilon + POINTS * width))
        lost = 2 * tail + float(np.exp(here[~kept]).sum())
        mass, loss = np.exp(here[kept]), here[kept] - there[kept]
        point = np.maximum(np.floor(loss / width), -POINTS).astype(np.int64)
        upper = mass * np.clip(
            np.expm1(np.minimum(point * width - loss, 0.0)) / np.expm1(-width), 0.0, 1.0
        )
        first = int(point.min()) if point.size else 0
        split = np.bincount(point - first, mass - upper, minlength=2)
        split = np.append(split, 0.0) + np.append(
            0.0, np.bincount(point - first, upper, minlength=2)
        )
        return cls(split, first, width, lost, cells)

    def log_tilted(self, tilt: Floats) -> Floats:
        """Logarithm of the tilted masses, not normalised: one row per tilt."""
        value = (self.first + np.arange(self.mass.size)) * self.width
        with np.errstate(divide="ignore"):
            return np.asarray(np.multiply.outer(tilt, value) + np.log(self.mass), dtype=np.float64)


def _composed(losses: list[_Loss], steps: int) -> float:
    """Return the hockey-stick divergence of the sum of all losses at ``steps`` grid points."""
    width = losses[0].width
    lowest = sum(loss.cells * loss.first for loss in losses)
    highest = lowest + sum(loss.cells * (loss.mass.size - 1) for loss in losses)
    if highest <= steps or not all(loss.mass.any() for loss in losses):
        return 0.0
    # logarithm of the moment generating function of all losses together
    moments = np.sum(
        [loss.cells * logsumexp(loss.log_tilted(TILTS), axis=-1) for loss in losses], axis=0
    )
    chernoff = moments - TILTS * steps * width
    best = int(chernoff.argmin())
    tilt, bound = float(TILTS[best]), float(chernoff[best])
    tilted = [loss.log_tilted(TILTS[[best]])[0] for loss in losses]
    masses = [np.asarray(np.exp(law - logsumexp(law))) for law in tilted]
    bottom, top, rest = lowest, highest, 0.0
    if highest - lowest > 4 * POINTS:
        bottom = max(lowest, _bottom(losses, masses, steps))
        # The lowest point above which Chernoff's inequality leaves at most WINDOW of the bound.
        ceiling = float(np.min((moments - bound - np.log(WINDOW)) / TILTS))
        top = min(highest, max(steps + 1, int(np.ceil(ceiling / width))))
        rest = 0.0 if top == highest else np.exp(bound) * WINDOW
    points = int(next_fast_len(top - min(bottom, steps) + 1, real=True))
    spectrum = np.ones(points // 2 + 1, dtype=np.complex128)
    for loss, mass in zip(losses, masses, strict=True):
        place = (loss.first + np.arange(mass.size)) % points
        spectrum *= rfft(np.bincount(place, mass, minlength=points)) ** loss.cells
    slack = 4 * np.finfo(np.float64).eps * np.log2(points) * sum(loss.cells for loss in losses)
    index = np.arange(steps + 1, top + 1)
    law = np.maximum(irfft(spectrum, points)[index % points], 0.0) + slack
    excess = (index - steps) * width
    return float(np.sum(law * np.exp(bound - tilt * excess) * -np.expm1(-excess)) + rest)


def _bottom(losses: list[_Loss], masses: list[Floats], steps: int) -> int:
    """Return a grid point ten deviations below epsilon and the tilted mean: of many cells, hardly any mass is lower."""
    mean = variance = 0.0
    for loss, mass in zip(losses, masses, strict=True):
        point = loss.first + np.arange(mass.size)
        middle = float(mass @ point)
        mean += loss.cells * middle
        variance += loss.cells * float(mass @ (point - middle) ** 2)
    return int(min(steps, mean) - 10 * variance**0.5) - 1


def _reach(log_mass: LogMass, deviation: float) -> tuple[int, float]:
    """Return where to cut the noise and a bound on the mass above, which falls at least geometrically."""
    reach = int(8 * deviation) + 8
    while True:
        last, beyond = log_mass(np.array([reach, reach + 1]))
        tail = float(np.exp(beyond) / -np.expm1(beyond - last)) if np.isfinite(beyond) else 1e-300
        if tail <= TAIL:
            return reach, tail
        reach += reach // 4
