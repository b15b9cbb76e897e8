"""Privacy settings: who adds noise, how much, what a release costs, and against whom it protects.

There are four settings. :class:`Exact` is what ``privacy=None`` means: nobody adds noise, and
nothing is charged. :class:`CentralDP`, :class:`LocalDP` and :class:`DistributedDP` are
differentially private. All code asks a setting what it does (``noise_drawn_by``, ``charges``,
``clients_needed``, ``hides_shares``); no code asks whether a setting is missing.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal, get_args

from torchmetrics_fed.errors import InputError, check_choice, check_int
from torchmetrics_fed.privacy.noise import (
    NO_NOISE,
    Mechanism,
    Noise,
    calibrated_noise,
    sampling_error,
)
from torchmetrics_fed.privacy.sensitivity import Neighbours, Sensitivity

NoiseDrawnBy = Literal["nobody", "clients", "sum"]
"""Who draws the noise of a release: nobody, each client for its share, one party for the sum."""

WARN_ABOVE_EPSILON = 20
"""An epsilon above this warns: e^20 is half a billion."""

# A caller who chooses a setting is warned. A caller who reads a setting from bytes is not: bytes
# that others wrote must raise nothing else.
_reading: ContextVar[bool] = ContextVar("reading", default=False)


class Privacy(ABC):
    """What every setting of privacy answers. ``privacy=None`` is :class:`Exact` inside.

    Example:
        >>> from torchmetrics_fed import FederatedROC, LocalDP, Privacy
        >>> isinstance(LocalDP(epsilon=1.0), Privacy), FederatedROC().spec.privacy
        (True, Exact())
    """

    epsilon: float
    """The privacy loss of one release, at most, whatever is computed from it."""
    delta: float
    """The probability with which the loss may be more."""
    mechanism: str
    """The law of the noise."""
    neighbours: Neighbours
    """Which two data sets nobody can tell apart."""
    examples_per_person: int
    """How many examples one person can have at most."""
    enforced: bool
    """Whether every ``update`` must name the persons, so that the bound on examples holds."""
    noise_drawn_by: ClassVar[NoiseDrawnBy]
    """Who draws the noise."""

    @property
    def charges(self) -> bool:
        """Whether a release costs something and is entered in a ledger."""
        return self.noise_drawn_by != "nobody"

    @property
    def calibrated_for(self) -> int:
        """Number of shares whose noise adds up to what epsilon asks for."""
        return 1

    @property
    def clients_needed(self) -> int:
        """Number of shares that must be in a sum before it may be opened."""
        return 1

    @property
    def hides_shares(self) -> bool:
        """Whether shares may only travel through secure aggregation."""
        return False

    @property
    def draws_floats(self) -> bool:
        """Whether the noise is continuous, for comparison with the paper, and not in integers."""
        return False

    @property
    @abstractmethod
    def holds_against(self) -> str:
        """Who learns no more than epsilon allows."""

    @property
    @abstractmethod
    def unit(self) -> str:
        """What is hidden: the difference between two data sets that nobody can tell apart."""

    @property
    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Everything two parties must agree on, in plain JSON values."""

    @abstractmethod
    def noise(self, sensitivity: Sensitivity, *, cells: int, fraction: float = 1.0) -> Noise:
        """Return the noise of one share of ``cells`` cells that spends a fraction of epsilon."""

    @abstractmethod
    def charged_delta(self, *, cells: int, queries: int) -> float:
        """Return the delta of a release of at most ``queries`` queries, imperfect samplers included."""

    def noise_times(self, shares: int) -> float:
        """Return how many times the noise that epsilon asks for is in a sum of ``shares`` shares."""
        return max(shares / self.calibrated_for, 1.0)

    def __bool__(self) -> bool:
        raise TypeError(
            "A privacy setting has no truth value, because `Exact()` is a setting like any other. "
            "Ask `privacy.charges`."
        )

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> Privacy:
        """Return the setting whose :attr:`fields` these are."""
        arguments = dict(fields)
        kind = arguments.pop("kind")
        if kind == "Exact" and not arguments:
            return Exact()
        kinds: dict[str, type[DifferentialPrivacy]] = {
            setting.__name__: setting for setting in (DistributedDP, LocalDP, CentralDP)
        }
        for name in ("epsilon", "delta"):
            arguments[name] = float.fromhex(arguments[name])
        token = _reading.set(True)
        try:
            return kinds[kind](**arguments)
        finally:
            _reading.reset(token)


@dataclass(frozen=True)
class Exact(Privacy):
    """Exact counts: no noise is added, nothing is charged, and nothing is protected.

    Example:
        >>> from torchmetrics_fed.privacy import Exact
        >>> Exact().charges, Exact().noise_drawn_by
        (False, 'nobody')
    """

    epsilon = math.inf
    delta = 0.0
    mechanism = "none"
    neighbours = "add_remove"
    examples_per_person = 1
    enforced = False
    noise_drawn_by: ClassVar[NoiseDrawnBy] = "nobody"
    holds_against = "nobody"
    unit = "nothing"

    @property
    def fields(self) -> dict[str, Any]:
        return {"kind": "Exact"}

    def noise(self, sensitivity: Sensitivity, *, cells: int, fraction: float = 1.0) -> Noise:
        return NO_NOISE

    def charged_delta(self, *, cells: int, queries: int) -> float:
        return 0.0

    def noise_times(self, shares: int) -> float:
        return 0.0

    def __str__(self) -> str:
        return "exact counts"


@dataclass(frozen=True)
class DifferentialPrivacy(Privacy):
    """What every differentially private setting has.

    Args:
        epsilon: the privacy loss of one release, at most, whatever is computed from it. Above 20 it warns.
        delta: the probability with which it may be more; only for ``"skellam"`` and ``"discrete_gaussian"``.
        mechanism: the law of the noise. ``"polya"``: two-sided geometric in sum, pure epsilon. ``"skellam"`` and
            ``"discrete_gaussian"`` need delta and win where an example is in many cells, that is with many classes.
            ``"gamma"``: Laplace in sum, in floats, for comparison with the paper only.
        neighbours: ``"add_remove"`` protects whether a person is in the data, ``"replace_one"`` also against someone
            who knows how many there are; it costs twice the noise.
        examples_per_person: how many examples one person can have at most. It is your word, unless ``update`` is given
            ``persons``.
        enforced: whether every client's ``update`` must be given ``persons``, so that no more examples of one are
            counted. All parties agree on it, and whoever reads a release can rely on it.

    Example:
        >>> from torchmetrics_fed import LocalDP
        >>> setting = LocalDP(epsilon=1.0, examples_per_person=3)
        >>> setting.neighbours, setting.charges
        ('add_remove', True)
    """

    epsilon: float
    mechanism: Mechanism = field(default="polya", kw_only=True)
    delta: float = field(default=0.0, kw_only=True)
    neighbours: Neighbours = field(default="add_remove", kw_only=True)
    examples_per_person: int = field(default=1, kw_only=True)
    enforced: bool = field(default=False, kw_only=True)

    noise_drawn_by: ClassVar[NoiseDrawnBy] = "clients"

    def __post_init__(self) -> None:
        if not (isinstance(self.epsilon, int | float) and 0 < self.epsilon < math.inf):
            raise InputError(
                f"Expected argument `epsilon` to be a positive finite number but got {self.epsilon!r}."
            )
        check_choice("mechanism", self.mechanism, get_args(Mechanism))
        check_choice("neighbours", self.neighbours, get_args(Neighbours))
        check_int("examples_per_person", self.examples_per_person, 1)
        if not isinstance(self.enforced, bool):
            raise InputError(
                f"Expected argument `enforced` to be a bool but got {self.enforced!r}."
            )
        needs_delta = self.mechanism in ("skellam", "discrete_gaussian")
        if needs_delta != (self.delta > 0) or not 0 <= self.delta < 1:
            raise InputError(
                f"Expected argument `delta` {'between 0 and 1' if needs_delta else 'of 0'} for "
                f'mechanism="{self.mechanism}" but got {self.delta!r}.'
            )
        if self.epsilon > WARN_ABOVE_EPSILON and not _reading.get():
            warnings.warn(
                f"epsilon={self.epsilon:g} protects next to nothing: what is released may be e^{self.epsilon:g} times "
                "as likely with a person's data as without. Common values are from 0.1 to 10; `privacy=None` says that "
                "nothing is protected.",
                stacklevel=3 + (type(self).__post_init__ is not DifferentialPrivacy.__post_init__),
            )
        if self.mechanism == "gamma":
            warnings.warn(
                'mechanism="gamma" adds float noise, whose last bits can be attacked: use it to compare with the '
                'paper, never to protect anybody. mechanism="polya" is the same law in integers.',
                stacklevel=3,
            )

    @property
    def draws_floats(self) -> bool:
        return self.mechanism == "gamma"

    @property
    def fields(self) -> dict[str, Any]:
        arguments = asdict(self)
        for name in ("epsilon", "delta"):
            arguments[name] = float(arguments[name]).hex()
        return {"kind": type(self).__name__, **arguments}

    def noise(self, sensitivity: Sensitivity, *, cells: int, fraction: float = 1.0) -> Noise:
        return calibrated_noise(
            self.mechanism,
            epsilon=Fraction(self.epsilon) * Fraction(fraction),
            delta=self.delta * fraction,
            sensitivity=sensitivity,
            shares=self.calibrated_for,
            cells=cells,
        )

    def charged_delta(self, *, cells: int, queries: int) -> float:
        missed = sampling_error(self.epsilon, self.calibrated_for, cells)
        return self.delta + queries * missed

    @property
    def unit(self) -> str:
        """What is hidden: the two data sets that nobody can tell apart differ in so much."""
        many = self.examples_per_person
        whose = "one example" if many == 1 else f"one person's examples, {many} at most"
        return f"{whose}, {'replaced' if self.neighbours == 'replace_one' else 'added or removed'}"

    def __str__(self) -> str:
        loss = f"epsilon={self.epsilon:g}" + (f", delta={self.delta:g}" if self.delta else "")
        return f"{type(self).__name__}({loss} for {self.unit}; holds against {self.holds_against})"


@dataclass(frozen=True)
class DistributedDP(DifferentialPrivacy):
    """Every client adds a share of the noise, calibrated for ``min_clients - max_colluding`` clients.

    A client knows its own noise and can subtract it from the sum, so the noise is calibrated for fewer clients than
    take part at least. A single share carries hardly any noise, so shares travel through secure aggregation, which
    shows nobody a single one.

    Args:
        min_clients: a sum of fewer shares is not opened.
        max_colluding: how many clients may collude and share what they know of their own noise.
        trusted_aggregator: True if the aggregator may see single shares; they are then sent as they are.

    Example:
        >>> from torchmetrics_fed import DistributedDP
        >>> DistributedDP(epsilon=1.0, min_clients=8).calibrated_for
        7
    """

    min_clients: int
    max_colluding: int = 1
    trusted_aggregator: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mechanism == "gamma" and not self.trusted_aggregator:
            raise InputError(
                'Expected `trusted_aggregator=True` with mechanism="gamma": floats cannot be masked.'
            )
        check_int("min_clients", self.min_clients, 1)
        check_int("max_colluding", self.max_colluding, 0)
        if not isinstance(self.trusted_aggregator, bool):
            raise InputError(
                f"Expected `trusted_aggregator` to be a bool but got {self.trusted_aggregator!r}."
            )
        if self.max_colluding >= self.min_clients:
            raise InputError(
                f"Expected `max_colluding` below `min_clients` but got {self.max_colluding} and {self.min_clients}: "
                "if all may collude, nobody's noise is left to protect anybody. Use LocalDP."
            )

    @property
    def calibrated_for(self) -> int:
        return self.min_clients - self.max_colluding

    @property
    def clients_needed(self) -> int:
        return self.min_clients

    @property
    def holds_against(self) -> str:
        others = f"up to {self.max_colluding} colluding client{'s' * (self.max_colluding != 1)}"
        if self.trusted_aggregator:
            return f"everyone who sees the release and {others}, but not the trusted aggregator"
        return f"the aggregator and {others}"

    @property
    def hides_shares(self) -> bool:
        return not self.trusted_aggregator


@dataclass(frozen=True)
class LocalDP(DifferentialPrivacy):
    """Every client adds all of the noise: nobody has to be trusted, and n clients have n times the variance.

    Example:
        >>> from torchmetrics_fed import LocalDP
        >>> print(LocalDP(epsilon=1.0))
        LocalDP(epsilon=1 for one example, added or removed; holds against everyone)
    """

    holds_against = "everyone"


@dataclass(frozen=True)
class CentralDP(DifferentialPrivacy):
    """One trusted party holds all counts and adds the noise once; across ranks it is drawn once and broadcast.

    Example:
        >>> from torchmetrics_fed import CentralDP
        >>> CentralDP(epsilon=0.5, examples_per_person=4).unit
        "one person's examples, 4 at most, added or removed"
    """

    noise_drawn_by: ClassVar[NoiseDrawnBy] = "sum"
    holds_against = "everyone who sees the result, but not this job's processes"

    def noise_times(self, shares: int) -> float:
        return 1.0  # it is drawn once
