r"""The privacy loss of integer noise: the smallest delta for an epsilon, bounded from above.

Every cell of a release carries independent noise with one symmetric log-concave law p on the
integers (two-sided geometric, Skellam, discrete Gaussian, and their sums). Three facts make
:func:`delta_bound` exact but for rounding up.

**Worst change.** Write :math:`f_s` for the trade-off function between p and p shifted by s. Both
errors of the best test are values of one distribution function F, :math:`1 - F(t)` and
:math:`F(t - s)`, because log-concave p have monotone likelihood ratios; so :math:`f_{a+b} = f_b
\circ (1 - f_a)`. Data in which two cells are shifted, by a and by b, are reached from data in which
only the first cell is shifted. Their trade-off is therefore at least :math:`f_b \circ (1 - f_a)`
(Dong, Roth and Su 2022, group privacy): shifts of two cells are never easier to detect than the sum
of both shifts in one cell. Of all ways in which the examples of a person can fall, the worst is the
one with all of them in the same cells, and
:class:`~torchmetrics_fed.privacy.sensitivity.Sensitivity` lists its shifts. Reflection gives the
same law for shifts of either sign and for both orders of the neighbours.

**Rounding.** An output of mass p and loss :math:`\ell = \ln(p / q)` between two points of a grid of
losses is split over these points so that neither p nor q changes. Forgetting the split gives the
output back, so the split pair is never harder to detect (Doroshenko et al. 2022, "Connect the
dots"). Mass beyond the tabulated range counts as lost: its loss is infinite.

**Composition.** The losses of cells add up. With masses tilted by :math:`e^{\theta \ell}`, the law
of the sum near epsilon is of order 1, so the rounding of the Fourier transform is small against
delta itself. Mass that wraps around is added to the window, and the mass above the window is
bounded by Chernoff's inequality: both can only raise the result.
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

TAIL = 1e-32
"""The largest mass of noise beyond the tabulated range of one cell, on each side."""

WIDTH = 0.03
"""Distance of two grid points, in standard deviations of the loss of one cell."""

WINDOW = 1e-9
"""The mass above the window is at most this part of Chernoff's bound."""

MARGIN = 1e-3
"""Relative margin of the result, for the rounding of logarithms and powers."""

POINTS = 1 << 14
"""Number of grid points below 0 and above epsilon. Smaller losses are rounded up to the lowest
point; larger losses count as lost."""

TILTS: Floats = np.geomspace(1e-3, 1e6, 128)
"""The values of theta at which Chernoff's inequality is tried."""

DEVIATIONS_BELOW = 10
"""The window begins this many standard deviations of the tilted sum below its mean and epsilon."""

UNDERFLOW = 1e-300
"""The bound on a tail whose mass is zero in float64."""


def delta_bound(
    epsilon: float, log_mass: LogMass, deviation: float, sensitivity: Sensitivity
) -> float:
    """Return a delta for which this noise on every cell is (epsilon, delta)-private.

    It is the smallest one, or a percent more (a few percent for an epsilon far above 1): the price
    of some 0.1% less noise.

    Args:
        epsilon: the epsilon of the release.
        log_mass: the law of the noise.
        deviation: roughly the standard deviation of the noise. It sets the grid, not the result.
        sensitivity: the shifts of the worst change.
    """
    shift_per_cell = (sensitivity.l2_squared / sensitivity.cells) ** 0.5
    width = WIDTH * shift_per_cell / deviation
    steps = max(1, round(epsilon / width))
    losses = [
        _Loss.of(
            log_mass,
            deviation,
            shift=shift,
            cells=cells,
            epsilon=epsilon,
            steps=steps,
        )
        for shift, cells in sensitivity.shifts
    ]
    lost = min(1.0, sum(loss.cells * loss.lost for loss in losses))
    return min(1.0, (lost + _composed(losses, steps)) * (1 + MARGIN))


@dataclass(frozen=True)
class _Loss:
    """The loss of equal cells, on the grid: multiples of ``width``."""

    mass: Floats
    """Of one cell: ``mass[i]`` is on the grid point ``first + i``."""
    first: int
    """The number of the lowest grid point."""
    width: float
    """The distance of two grid points."""
    lost: float
    """Of one cell: the mass with infinite loss."""
    cells: int
    """The number of cells with this loss."""

    @classmethod
    def of(
        cls,
        log_mass: LogMass,
        deviation: float,
        *,
        shift: int,
        cells: int,
        epsilon: float,
        steps: int,
    ) -> _Loss:
        """Tabulate the loss of a cell that moves by ``shift``, with epsilon at point ``steps``."""
        width = epsilon / steps
        reach, tail = _reach(log_mass, deviation)
        law = log_mass(np.arange(-reach, reach + shift + 1))
        log_p = law[: 2 * reach + 1]
        log_q = law[shift:]
        is_finite = np.isfinite(log_p) & (log_q > log_p - (epsilon + POINTS * width))
        lost = 2 * tail + float(np.exp(log_p[~is_finite]).sum())
        p = np.exp(log_p[is_finite])
        loss = log_p[is_finite] - log_q[is_finite]

        # Split every mass over the grid points below and above its loss.
        lower_point = np.maximum(np.floor(loss / width), -POINTS).astype(np.int64)
        distance = np.minimum(lower_point * width - loss, 0.0)
        upper_part = np.clip(np.expm1(distance) / np.expm1(-width), 0.0, 1.0)
        upper_mass = p * upper_part
        first = 0
        if lower_point.size:
            first = int(lower_point.min())
        index = lower_point - first
        on_lower = np.bincount(index, p - upper_mass, minlength=2)
        on_upper = np.bincount(index, upper_mass, minlength=2)
        mass = np.append(on_lower, 0.0) + np.append(0.0, on_upper)
        return cls(mass=mass, first=first, width=width, lost=lost, cells=cells)

    @property
    def points(self) -> NDArray[np.int64]:
        """The numbers of the grid points."""
        return self.first + np.arange(self.mass.size)

    def log_tilted(self, tilts: Floats) -> Floats:
        """Return the logarithm of the tilted masses, not normalised: one row per tilt."""
        losses = self.points * self.width
        with np.errstate(divide="ignore"):
            log_mass = np.log(self.mass)
        return np.asarray(np.multiply.outer(tilts, losses) + log_mass, dtype=np.float64)

    def tilted(self, tilt: Floats) -> Floats:
        """Return the tilted masses of one cell, which sum to 1."""
        log_mass = self.log_tilted(tilt)[0]
        return np.asarray(np.exp(log_mass - logsumexp(log_mass)))


@dataclass(frozen=True)
class _Window:
    """The grid points of the sum of losses that are computed."""

    bottom: int
    top: int
    mass_above: float
    """A bound on the contribution of all points above the top."""


def _composed(losses: list[_Loss], steps: int) -> float:
    r"""Return the hockey-stick divergence of the sum L of all losses.

    Epsilon is the grid point ``steps``:

    .. math:: \sum_{\ell > \varepsilon} \Pr[L = \ell] (1 - e^{\varepsilon - \ell})

    The masses are computed under the tilt :math:`\theta` for which Chernoff's bound :math:`e^b =
    E[e^{\theta (L - \varepsilon)}]` on the probability of a loss above epsilon is smallest. A
    tilted mass times :math:`e^{b - \theta (\ell - \varepsilon)}` is the mass itself.
    """
    width = losses[0].width
    lowest = sum(loss.cells * loss.first for loss in losses)
    highest = lowest + sum(loss.cells * (loss.mass.size - 1) for loss in losses)
    if highest <= steps or not all(loss.mass.any() for loss in losses):
        return 0.0
    log_moments = _log_moments(losses)
    log_chernoff = log_moments - TILTS * steps * width
    best = int(log_chernoff.argmin())
    tilt = float(TILTS[best])
    log_bound = float(log_chernoff[best])
    masses = [loss.tilted(TILTS[[best]]) for loss in losses]

    window = _Window(bottom=lowest, top=highest, mass_above=0.0)
    if highest - lowest > 4 * POINTS:
        bottom = max(lowest, _bottom(losses, masses, steps))
        # The lowest point above which Chernoff's inequality leaves at most WINDOW of the bound.
        ceiling = float(np.min((log_moments - log_bound - np.log(WINDOW)) / TILTS))
        top = min(highest, max(steps + 1, int(np.ceil(ceiling / width))))
        mass_above = 0.0
        if top < highest:
            mass_above = np.exp(log_bound) * WINDOW
        window = _Window(bottom=bottom, top=top, mass_above=mass_above)

    index = np.arange(steps + 1, window.top + 1)
    law = _law_of_sum(losses, masses, lowest=min(window.bottom, steps), index=index)
    excess = (index - steps) * width
    divergence = np.sum(law * np.exp(log_bound - tilt * excess) * -np.expm1(-excess))
    return float(divergence + window.mass_above)


def _log_moments(losses: list[_Loss]) -> Floats:
    """Return the logarithm of the moment generating function of the summed losses at TILTS."""
    parts = [loss.cells * logsumexp(loss.log_tilted(TILTS), axis=-1) for loss in losses]
    return np.asarray(np.sum(parts, axis=0))


def _law_of_sum(
    losses: list[_Loss], masses: list[Floats], *, lowest: int, index: NDArray[np.int64]
) -> Floats:
    """Return the tilted law of the sum at the grid points ``index``, by Fourier transform.

    Args:
        losses: the losses of all cells.
        masses: their tilted masses.
        lowest: the lowest grid point that does not wrap around.
        index: the grid points, ascending.
    """
    points = int(next_fast_len(int(index[-1]) - lowest + 1, real=True))
    spectrum = np.ones(points // 2 + 1, dtype=np.complex128)
    for loss, mass in zip(losses, masses, strict=True):
        wrapped = np.bincount(loss.points % points, mass, minlength=points)
        spectrum *= rfft(wrapped) ** loss.cells
    cells = sum(loss.cells for loss in losses)
    rounding = 4 * np.finfo(np.float64).eps * np.log2(points) * cells
    law = irfft(spectrum, points)[index % points]
    return np.asarray(np.maximum(law, 0.0) + rounding)


def _bottom(losses: list[_Loss], masses: list[Floats], steps: int) -> int:
    """Return a grid point ten deviations below epsilon and the tilted mean.

    With many cells, hardly any mass of the sum is lower.
    """
    mean = 0.0
    variance = 0.0
    for loss, mass in zip(losses, masses, strict=True):
        cell_mean = float(mass @ loss.points)
        mean += loss.cells * cell_mean
        variance += loss.cells * float(mass @ (loss.points - cell_mean) ** 2)
    return int(min(steps, mean) - DEVIATIONS_BELOW * variance**0.5) - 1


def _reach(log_mass: LogMass, deviation: float) -> tuple[int, float]:
    """Return where to cut the noise, and a bound on the mass above.

    The masses fall at least geometrically, because the law is log-concave.
    """
    reach = int(8 * deviation) + 8
    while True:
        log_last, log_next = log_mass(np.array([reach, reach + 1]))
        tail = UNDERFLOW
        if np.isfinite(log_next):
            tail = float(np.exp(log_next) / -np.expm1(log_next - log_last))
        if tail <= TAIL:
            return reach, tail
        reach += reach // 4
