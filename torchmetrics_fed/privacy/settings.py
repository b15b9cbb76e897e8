"""Privacy settings: who adds noise, how much, what a release costs, and against whom it protects.

There are four settings:

- :class:`Exact`: no party adds noise, and nothing is charged. ``privacy=None`` means this setting.
- :class:`CentralDP`: one trusted party adds the noise, once.
- :class:`LocalDP`: every client adds all of the noise.
- :class:`DistributedDP`: every client adds a share of the noise.

Invariants:

- A setting is a frozen value. It never draws and never charges.
- Code asks a setting what it does (``noise_drawn_by``, ``charges``, ``clients_needed``,
  ``hides_shares``). No code asks whether a setting is missing, or which class it has; therefore a
  setting has no truth value.
- All parties of a release agree on the :attr:`~Privacy.fields` of its setting.
- With ``evaluations``, epsilon and delta are those of a whole run of that many releases, and a
  release costs its part of the run: a part of the squared mu of
  :mod:`~torchmetrics_fed.privacy.gaussian`. Otherwise they are those of one release.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

from typing_extensions import Self

from torchmetrics_fed.errors import InputError, check_choice, check_int
from torchmetrics_fed.privacy.gaussian import gaussian_epsilon, gaussian_mu
from torchmetrics_fed.privacy.noise import (
    NO_NOISE,
    Mechanism,
    Noise,
    calibrated_noise,
    run_noise,
    sampling_error,
)
from torchmetrics_fed.privacy.sensitivity import Neighbours, Sensitivity

NoiseDrawnBy = Literal["nobody", "clients", "sum"]
"""Who draws the noise of a release: no party, each client for its share, one party for the sum."""

WARN_ABOVE_EPSILON = 20
"""An epsilon above this value warns: e^20 is half a billion."""

MECHANISMS_WITH_DELTA = ("skellam", "discrete_gaussian")
"""The laws of noise that need a delta above 0."""

RUN_DELTA = 1e-6
"""The delta of a run if none is given: that of a ledger's budget."""

NOISE_PART = 0.98
"""Part of a run's delta that its noise spends. The rest is for samplers, tails and rounding."""

RELEASE_PART = 0.01
"""Part of a run's delta that all its releases are charged beside their noise."""

PRICE_DIGITS = 9
"""Digits of the price of a release in a run: machines whose last digits differ agree on it."""

_is_reading: ContextVar[bool] = ContextVar("is_reading", default=False)
"""Whether a setting is being read from bytes. A caller who chooses a setting is warned; a caller
who reads one is not, because bytes from another party must not cause warnings."""


class Privacy(ABC):
    """The base class of all privacy settings. ``privacy=None`` becomes :class:`Exact`.

    Example:
        >>> from torchmetrics_fed import FederatedROC, LocalDP, Privacy
        >>> isinstance(LocalDP(epsilon=1.0), Privacy), FederatedROC().spec.privacy
        (True, Exact())
    """

    epsilon: float
    """The privacy loss of one release, at most, whatever is computed from it; with ``evaluations``
    that of all of them together."""
    delta: float
    """The probability with which the loss may be more."""
    evaluations: int | None = None
    """The number of releases that epsilon and delta are for; None for one release each."""
    mechanism: str
    """The law of the noise."""
    neighbours: Neighbours
    """How the two data sets differ that a release does not tell apart."""
    examples_per_person: int
    """The largest number of examples of one person."""
    enforced: bool
    """Whether every ``update`` must name the persons, so that the bound on examples holds."""
    noise_drawn_by: ClassVar[NoiseDrawnBy]
    """Who draws the noise."""
    charges: ClassVar[bool] = True
    """Whether a release costs something and is entered in a ledger."""

    @property
    def calibrated_for(self) -> int:
        """Number of shares whose noise adds up to the noise that epsilon asks for."""
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
        """The parties that learn no more than epsilon allows."""

    @property
    @abstractmethod
    def unit(self) -> str:
        """The difference between two data sets that a release does not tell apart."""

    @property
    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Everything two parties must agree on, in plain JSON values."""

    @abstractmethod
    def noise(self, sensitivity: Sensitivity, *, cells: int, fraction: float = 1.0) -> Noise:
        """Return the noise of one share of ``cells`` cells that spends a fraction of epsilon."""

    @abstractmethod
    def charged_delta(self, *, cells: int, queries: int) -> float:
        """Return the delta of a release, with the error of the samplers.

        Args:
            cells: the number of cells of a share.
            queries: the largest number of queries of the release.
        """

    @property
    def release_epsilon(self) -> float:
        """The epsilon that one release costs by itself."""
        return self.epsilon

    @property
    def mu_squared(self) -> float:
        """The square of mu that one release of a run costs; 0 where epsilons are added."""
        return 0.0

    def precision_of(self, fraction: float) -> float:
        """Return one over the noise's standard deviation, relative to that of a whole release.

        Args:
            fraction: the fraction of the release that a query spends.
        """
        return fraction

    def noise_times(self, shares: int) -> float:
        """Return the variance of a sum of shares, in units of what epsilon asks for."""
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
        for name in ("epsilon", "delta"):
            arguments[name] = float.fromhex(arguments[name])
        token = _is_reading.set(True)
        try:
            return _SETTINGS[kind](**arguments)
        finally:
            _is_reading.reset(token)


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
    charges: ClassVar[bool] = False
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
    """The arguments that all differentially private settings have.

    Args:
        epsilon: the privacy loss of one release, at most, whatever is computed from it. Above 20 it
            warns.
        delta: the probability with which the loss may be more; only for ``"skellam"`` and
            ``"discrete_gaussian"``.
        mechanism: the law of the noise. ``"polya"``: two-sided geometric in sum, pure epsilon.
            ``"skellam"`` and ``"discrete_gaussian"`` need delta. They need less noise if an example
            is in many cells, that is, with many classes. ``"gamma"``: Laplace in sum, in floats,
            for comparison with the paper only.
        neighbours: ``"add_remove"`` hides whether a person is in the data. ``"replace_one"`` hides
            it also from a reader who knows how many persons there are; it costs twice the noise.
        examples_per_person: the largest number of examples of one person. The caller vouches for
            it, unless ``update`` is given ``persons``.
        enforced: whether the ``update`` of every client must be given ``persons``, so that no more
            examples of one person are counted. All parties agree on it, and readers of a release
            can rely on it.
        evaluations: the number of releases that epsilon and delta are for, all together. See
            :meth:`for_run`.

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
    evaluations: int | None = field(default=None, kw_only=True)

    noise_drawn_by: ClassVar[NoiseDrawnBy] = "clients"

    @classmethod
    def for_run(
        cls,
        epsilon: float,
        *,
        evaluations: int,
        delta: float = RUN_DELTA,
        mechanism: Mechanism = "skellam",
        **options: Any,
    ) -> Self:
        """Return the setting of a run: all its evaluations together are (epsilon, delta)-private.

        Each release has the noise that composes to the whole run. From about 12 evaluations on that
        is less than the noise of epsilon / evaluations each, and less than half of it for 50. For
        fewer evaluations, keep a setting for one release, whose epsilons are added.

        Args:
            epsilon: the privacy loss of all evaluations together, at most.
            evaluations: the largest number of evaluations. A ledger with the budget epsilon, at
                this delta, allows that many.
            delta: the probability with which the loss may be more.
            mechanism: ``"skellam"``, or ``"discrete_gaussian"`` where one party draws.
            options: the other arguments of the setting.

        Example:
            >>> from torchmetrics_fed import CentralDP, PrivacyLedger
            >>> privacy = CentralDP.for_run(epsilon=3.0, evaluations=50)
            >>> PrivacyLedger(budget=3.0).evaluations_left(privacy)
            50
        """
        return cls(epsilon, evaluations=evaluations, delta=delta, mechanism=mechanism, **options)

    def __post_init__(self) -> None:
        self._check_arguments()
        self._check_evaluations()
        self._warn()

    def _check_evaluations(self) -> None:
        if self.evaluations is None:
            return
        check_int("evaluations", self.evaluations, 1)
        if self.mechanism not in MECHANISMS_WITH_DELTA:
            raise InputError(
                f"Expected argument `mechanism` to be one of {MECHANISMS_WITH_DELTA} for a run but "
                f"got {self.mechanism!r}. Use `for_run`."
            )

    def _check_arguments(self) -> None:
        if not (isinstance(self.epsilon, int | float) and 0 < self.epsilon < math.inf):
            raise InputError(
                "Expected argument `epsilon` to be a positive finite number but got "
                f"{self.epsilon!r}."
            )
        check_choice("mechanism", self.mechanism, get_args(Mechanism))
        check_choice("neighbours", self.neighbours, get_args(Neighbours))
        check_int("examples_per_person", self.examples_per_person, 1)
        _check_bool("enforced", self.enforced)
        if self.mechanism in MECHANISMS_WITH_DELTA:
            expected = "between 0 and 1"
            fits = 0 < self.delta < 1
        else:
            expected = "of 0"
            fits = self.delta == 0
        if not fits:
            raise InputError(
                f'Expected argument `delta` {expected} for mechanism="{self.mechanism}" but got '
                f"{self.delta!r}."
            )

    def _warn(self) -> None:
        # The caller's frame: above this method, `__post_init__` (two if a class extends it), and
        # the generated `__init__`.
        extends = type(self).__post_init__ is not DifferentialPrivacy.__post_init__
        stacklevel = 5 if extends else 4
        if self.epsilon > WARN_ABOVE_EPSILON and not _is_reading.get():
            warnings.warn(
                f"epsilon={self.epsilon:g} protects next to nothing: a release may be "
                f"e^{self.epsilon:g} times as likely with a person's data as without. Common "
                "values are from 0.1 to 10; `privacy=None` says that nothing is protected.",
                stacklevel=stacklevel,
            )
        if self.mechanism == "gamma":
            warnings.warn(
                'mechanism="gamma" adds float noise, whose last bits can be attacked: use it to '
                'compare with the paper, never to protect anybody. mechanism="polya" is the same '
                "law in integers.",
                stacklevel=stacklevel,
            )

    @property
    def draws_floats(self) -> bool:
        return self.mechanism == "gamma"

    @property
    def fields(self) -> dict[str, Any]:
        arguments = asdict(self)
        if self.evaluations is None:
            del arguments["evaluations"]
        for name in ("epsilon", "delta"):
            arguments[name] = float(arguments[name]).hex()
        return {"kind": type(self).__name__, **arguments}

    @cached_property
    def mu_squared(self) -> float:
        if self.evaluations is None:
            return 0.0
        mu = gaussian_mu(self.epsilon, NOISE_PART * self.delta)
        return _rounded(mu**2 / self.evaluations, up=False)

    @cached_property
    def release_epsilon(self) -> float:
        if self.evaluations is None:
            return self.epsilon
        # half of the release's delta is for the noise, half for what the noise leaves out
        noise_delta = self._release_delta / 2
        return _rounded(gaussian_epsilon(math.sqrt(self.mu_squared), noise_delta), up=True)

    @property
    def _release_delta(self) -> float:
        """The delta that a release is charged, without that of the samplers."""
        if self.evaluations is None:
            return self.delta
        return RELEASE_PART * self.delta / self.evaluations

    def precision_of(self, fraction: float) -> float:
        if self.evaluations is None:
            return fraction
        return math.sqrt(fraction)  # squares of mu are added

    def noise(self, sensitivity: Sensitivity, *, cells: int, fraction: float = 1.0) -> Noise:
        if self.evaluations is not None:
            return run_noise(
                self.mechanism,
                mu_squared=self.mu_squared * fraction,
                sensitivity=sensitivity,
                shares=self.calibrated_for,
                cells=cells,
            )
        return calibrated_noise(
            self.mechanism,
            epsilon=Fraction(self.epsilon) * Fraction(fraction),
            delta=self.delta * fraction,
            sensitivity=sensitivity,
            shares=self.calibrated_for,
            cells=cells,
        )

    def charged_delta(self, *, cells: int, queries: int) -> float:
        error_of_query = sampling_error(self.epsilon, self.calibrated_for, cells)
        return self._release_delta + queries * error_of_query

    @property
    def unit(self) -> str:
        examples = "one example"
        if self.examples_per_person > 1:
            examples = f"one person's examples, {self.examples_per_person} at most"
        if self.neighbours == "replace_one":
            return f"{examples}, replaced"
        return f"{examples}, added or removed"

    def __str__(self) -> str:
        loss = f"epsilon={self.epsilon:g}"
        if self.delta:
            loss += f", delta={self.delta:g}"
        if self.evaluations is not None:
            loss += f" in {self.evaluations} evaluations"
        return f"{type(self).__name__}({loss} for {self.unit}; holds against {self.holds_against})"


@dataclass(frozen=True)
class DistributedDP(DifferentialPrivacy):
    """Every client adds a share of the noise.

    The noise is calibrated for ``min_clients - max_colluding`` shares: a client knows its own noise
    and can subtract it from the sum. A single share carries hardly any noise, so shares travel
    through secure aggregation, which shows no single share to any party.

    Args:
        min_clients: the number of shares below which a sum is not opened.
        max_colluding: the number of clients that may collude and tell each other their noise.
        trusted_aggregator: whether the aggregator may see single shares. If True, they are sent as
            they are.

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
                'Expected `trusted_aggregator=True` with mechanism="gamma": floats cannot be '
                "masked."
            )
        check_int("min_clients", self.min_clients, 1)
        check_int("max_colluding", self.max_colluding, 0)
        _check_bool("trusted_aggregator", self.trusted_aggregator)
        if self.max_colluding >= self.min_clients:
            raise InputError(
                f"Expected `max_colluding` below `min_clients` but got {self.max_colluding} and "
                f"{self.min_clients}: if all clients may collude, no noise is left that protects. "
                "Use LocalDP."
            )

    @property
    def calibrated_for(self) -> int:
        return self.min_clients - self.max_colluding

    @property
    def clients_needed(self) -> int:
        return self.min_clients

    @property
    def holds_against(self) -> str:
        colluders = f"up to {self.max_colluding} colluding clients"
        if self.max_colluding == 1:
            colluders = "up to 1 colluding client"
        if self.trusted_aggregator:
            return f"everyone who sees the release and {colluders}, but not the trusted aggregator"
        return f"the aggregator and {colluders}"

    @property
    def hides_shares(self) -> bool:
        return not self.trusted_aggregator


@dataclass(frozen=True)
class LocalDP(DifferentialPrivacy):
    """Every client adds all of the noise. No party has to be trusted.

    The sum of n clients has n times the variance that epsilon asks for.

    Example:
        >>> from torchmetrics_fed import LocalDP
        >>> print(LocalDP(epsilon=1.0))
        LocalDP(epsilon=1 for one example, added or removed; holds against everyone)
    """

    holds_against = "everyone"


@dataclass(frozen=True)
class CentralDP(DifferentialPrivacy):
    """One trusted party holds all counts and adds the noise once.

    Across ranks, the noise is drawn once and broadcast.

    Example:
        >>> from torchmetrics_fed import CentralDP
        >>> CentralDP(epsilon=0.5, examples_per_person=4).unit
        "one person's examples, 4 at most, added or removed"
    """

    noise_drawn_by: ClassVar[NoiseDrawnBy] = "sum"
    holds_against = "everyone who sees the result, but not this job's processes"

    def noise_times(self, shares: int) -> float:
        return 1.0  # it is drawn once


_SETTINGS: dict[str, type[DifferentialPrivacy]] = {
    "DistributedDP": DistributedDP,
    "LocalDP": LocalDP,
    "CentralDP": CentralDP,
}


def _rounded(value: float, *, up: bool) -> float:
    """Return a positive number with PRICE_DIGITS digits, no lower if ``up``, else no higher."""
    step = 10.0 ** (math.floor(math.log10(value)) + 1 - PRICE_DIGITS)
    steps = value / step
    whole = math.ceil(steps) if up else math.floor(steps)
    return float(f"{whole * step:.{PRICE_DIGITS}g}")


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(f"Expected argument `{name}` to be a bool but got {value!r}.")
