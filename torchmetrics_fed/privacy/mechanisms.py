"""Who adds noise, and how much: distributed over clients, at each client, or by one trusted party."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.kernel import Task
from torchmetrics_fed.privacy import samplers
from torchmetrics_fed.privacy.accounting import cell_epsilon, discrete_gaussian_sigma2, skellam_mean
from torchmetrics_fed.privacy.sensitivity import Neighbours, Sensitivity

__all__ = ["CentralDP", "DistributedDP", "LocalDP", "Mechanism", "Noise", "Privacy"]

# The samplers' distance from their laws counts e^epsilon-fold; beyond this, booking it would say nothing.
_MOST_ASTRAY = 2.0**-20

Mechanism = Literal["polya", "skellam", "discrete_gaussian", "gamma"]


@dataclass(frozen=True)
class Noise:
    """The noise of one share, and what a release with it costs.

    Args:
        draw: returns fresh noise of a shape, from the operating system's randomness.
        variance: variance of a cell of the sum of all shares that the noise is cut for.
        delta: what the release spends of delta, the samplers' distance from their laws included.

    Example:
        >>> from torchmetrics_fed import LocalDP
        >>> noise = LocalDP(epsilon=1.0).noise("binary", classes=1, levels=1, cells=8)
        >>> noise.draw((8,)).dtype, round(noise.variance, 3)
        (dtype('int64'), 1.841)
    """

    draw: Callable[[tuple[int, ...]], NDArray[np.int64] | NDArray[np.float64]]
    variance: float
    delta: float


@dataclass(frozen=True)
class Privacy(ABC):
    """What every setting of privacy has.

    Args:
        epsilon: the privacy loss of one release, at most, whatever is computed from it.
        delta: the probability with which it may be more; only for ``"skellam"`` and ``"discrete_gaussian"``.
        mechanism: the law of the noise. ``"polya"``: two-sided geometric in sum, pure epsilon. ``"skellam"`` and
            ``"discrete_gaussian"`` need delta and win where an example is in many cells, that is with many classes.
            ``"gamma"``: Laplace in sum, in floats, for comparison with the paper only.
        neighbours: ``"add_remove"`` protects whether a person is in the data, ``"replace_one"`` also towards someone
            who knows how many there are; it costs twice the noise.
        examples_per_person: how many examples one person can have at most.

    Example:
        >>> from torchmetrics_fed import LocalDP, Privacy
        >>> setting = LocalDP(epsilon=1.0, examples_per_person=3)
        >>> isinstance(setting, Privacy), setting.neighbours
        (True, 'add_remove')
    """

    epsilon: float
    mechanism: Mechanism = field(default="polya", kw_only=True)
    delta: float = field(default=0.0, kw_only=True)
    neighbours: Neighbours = field(default="add_remove", kw_only=True)
    examples_per_person: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if not (isinstance(self.epsilon, int | float) and 0 < self.epsilon < math.inf):
            raise InputError(f"Expected argument `epsilon` to be a positive finite number but got {self.epsilon!r}.")
        if self.mechanism not in get_args(Mechanism):
            raise InputError(f"Expected `mechanism` to be one of {get_args(Mechanism)} but got {self.mechanism!r}.")
        needs_delta = self.mechanism in ("skellam", "discrete_gaussian")
        if needs_delta != (self.delta > 0) or not 0 <= self.delta < 1:
            raise InputError(
                f"Expected argument `delta` {'between 0 and 1' if needs_delta else 'of 0'} for "
                f'mechanism="{self.mechanism}" but got {self.delta!r}.'
            )
        if self.mechanism == "gamma":
            warnings.warn(
                'mechanism="gamma" adds float noise, whose last bits can be attacked: use it to compare with the '
                'paper, never to protect anybody. mechanism="polya" is the same law in integers.',
                UserWarning,
                stacklevel=3,
            )

    @property
    @abstractmethod
    def shares(self) -> int:
        """Number of shares that the noise of a release is cut into."""

    @property
    def shares_needed(self) -> int:
        """Number of shares that must be in a sum before it may be opened."""
        return 1

    @property
    def hides_shares(self) -> bool:
        """Whether shares may only travel through a sum that hides them."""
        return False

    @property
    @abstractmethod
    def holds_towards(self) -> str:
        """Who learns no more than epsilon allows."""

    @property
    def fields(self) -> dict[str, Any]:
        """Everything two parties must agree on, in plain JSON values."""
        losses = {name: float(getattr(self, name)).hex() for name in ("epsilon", "delta")}
        return {"kind": type(self).__name__, **asdict(self), **losses}

    def noise(self, task: Task, classes: int, levels: int, cells: int, portion: float = 1.0) -> Noise:
        """Return the noise of one share for ``levels`` levels over ``classes`` classes, ``cells`` cells in all.

        ``portion`` is the part of epsilon and delta that it may spend, where a release takes several messages.
        """
        sensitivity = Sensitivity.of(
            task, classes, levels, neighbours=self.neighbours, examples_per_person=self.examples_per_person
        )
        epsilon = Fraction(self.epsilon) * Fraction(portion)
        return _noise(self.mechanism, epsilon, self.delta * portion, sensitivity, self.shares, cells)

    def __str__(self) -> str:
        loss = f"epsilon={self.epsilon:g}" + (f", delta={self.delta:g}" if self.delta else "")
        return f"{type(self).__name__}({loss} towards {self.holds_towards})"


@dataclass(frozen=True)
class DistributedDP(Privacy):
    """Every client adds a share of the noise; the sum of ``min_clients - max_colluding`` of them is enough.

    Everyone knows his own noise and can take it off the sum, so the shares are cut for fewer clients than take part at
    least. A single share carries hardly any noise, so shares travel through the secure sum, which shows nobody a single
    one.

    Args:
        epsilon: the privacy loss of one release.
        min_clients: a sum of fewer shares is not opened.
        max_colluding: how many clients may put together what they know of their own noise.
        trusted_aggregator: True if whoever sums may see single shares; they are then sent as they are.

    Example:
        >>> from torchmetrics_fed import DistributedDP
        >>> DistributedDP(epsilon=1.0, min_clients=8).shares
        7
    """

    min_clients: int
    max_colluding: int = 1
    trusted_aggregator: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mechanism == "gamma" and not self.trusted_aggregator:
            raise InputError(
                'Expected `trusted_aggregator=True` with mechanism="gamma": float noise cannot be masked modulo 2^64.'
            )
        for name, value, least in (("min_clients", self.min_clients, 1), ("max_colluding", self.max_colluding, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"Expected argument `{name}` to be an int of at least {least} but got {value!r}.")
        if self.max_colluding >= self.min_clients:
            raise InputError(
                f"Expected `max_colluding` below `min_clients` but got {self.max_colluding} and {self.min_clients}: "
                "if all may collude, nobody's noise is left to protect anybody. Use LocalDP."
            )

    @property
    def shares(self) -> int:
        """Number of shares that the noise of a release is cut into."""
        return self.min_clients - self.max_colluding

    @property
    def shares_needed(self) -> int:
        """Number of shares that must be in a sum before it may be opened."""
        return self.min_clients

    @property
    def holds_towards(self) -> str:
        """Who learns no more than epsilon allows."""
        whom = f"all who see the release, {self.max_colluding} colluding clients included"
        return f"{whom}, but not the trusted aggregator" if self.trusted_aggregator else f"{whom}, and who sums"

    @property
    def hides_shares(self) -> bool:
        """Whether shares may only travel through a sum that hides them."""
        return not self.trusted_aggregator


@dataclass(frozen=True)
class LocalDP(Privacy):
    """Every client adds all of the noise: nobody has to be trusted, and n clients have n times the variance.

    Example:
        >>> from torchmetrics_fed import LocalDP
        >>> print(LocalDP(epsilon=1.0))
        LocalDP(epsilon=1 towards everyone)
    """

    @property
    def shares(self) -> int:
        """Number of shares that the noise of a release is cut into."""
        return 1

    @property
    def holds_towards(self) -> str:
        """Who learns no more than epsilon allows."""
        return "everyone"


@dataclass(frozen=True)
class CentralDP(Privacy):
    """One trusted party holds all counts and adds the noise once; across ranks it is drawn once and broadcast.

    Example:
        >>> from torchmetrics_fed import CentralDP
        >>> print(CentralDP(epsilon=0.5))
        CentralDP(epsilon=0.5 towards all who see the result, but not this job's processes)
    """

    @property
    def shares(self) -> int:
        """Number of shares that the noise of a release is cut into."""
        return 1

    @property
    def holds_towards(self) -> str:
        """Who learns no more than epsilon allows."""
        return "all who see the result, but not this job's processes"


@lru_cache(maxsize=64)
def _noise(
    mechanism: Mechanism, epsilon: Fraction, delta: float, sensitivity: Sensitivity, shares: int, cells: int
) -> Noise:
    """Cached, for calibrating delta takes a while and every metric of a collection asks for the same."""
    astray = (1 + math.exp(min(float(epsilon), 700.0))) * shares * cells * samplers.CELL_TOTAL_VARIATION
    if astray > _MOST_ASTRAY:
        raise InputError(
            f"Expected an `epsilon` at which noise protects anybody, up to about 40, but got {float(epsilon):g}. Use "
            "`privacy=None` where none is needed."
        )
    if mechanism == "skellam":
        mean = skellam_mean(epsilon, delta, sensitivity)
        return Noise(lambda shape: samplers.skellam(shape, mean / shares), float(2 * mean), delta + astray)
    if mechanism == "discrete_gaussian":
        sigma2 = discrete_gaussian_sigma2(epsilon, delta, sensitivity, shares)
        return Noise(lambda shape: samplers.discrete_gaussian(shape, sigma2 / shares), float(sigma2), delta + astray)
    rate = cell_epsilon(epsilon, sensitivity)
    if mechanism == "gamma":
        return Noise(lambda shape: samplers.gamma_difference(shape, 1 / rate, shares), 2 / float(rate) ** 2, astray)
    ratio = math.exp(-rate)
    return Noise(lambda shape: samplers.polya(shape, rate, shares), 2 * ratio / (1 - ratio) ** 2, astray)
