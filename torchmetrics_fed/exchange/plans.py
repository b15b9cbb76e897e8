"""Plans: which queries a release takes, in what order, and with what fraction of epsilon.

A plan is a frozen value. It decides the first query from what is public, and a second query from
the sum of the replies to the first. :func:`next_query` is the whole strategy of a release as a pure
function, without I/O, so that an exchange can be stored, resumed and tested. A query that was sent
is recorded in its sum and never computed again, because floats differ between machines.

================ =========================== =====================================================
argument         plan                        queries
================ =========================== =====================================================
(exact counts)   :class:`AllBins`            one, for all bins
``"adaptive"``   :class:`Adaptive`           two: a pilot with a small fraction of epsilon places
                                             the leaves of the second
``"single"``     :class:`Single`             one, on leaves that are even in the grid's coordinate
``"carry_over"`` :class:`CarryOver`          one, placed by the previous release; the first time
                                             as adaptive
``"paper"``      :class:`BinaryTree`         one, every level of the paper's binary tree
a Query          :class:`Given`              that query; if its fraction is below 1, a second one
                                             placed by it
None             :class:`AdaptiveIfPossible` as adaptive where the aggregator can ask twice, else
                                             as single
================ =========================== =====================================================

Where there are fewer bins than there is something to place, one query asks for all of them.

A plan for two models differs only in where its leaves lie. So a plan has a :class:`Placement`: for
one model the trees of :mod:`torchmetrics_fed.exchange.placement`, for two models the tables of
:mod:`torchmetrics_fed.comparison`.

To add a plan, write a subclass of :class:`Plan`, and a line in :func:`plan_from`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, TypeAlias, get_args

from torchmetrics_fed.counting.tree import Tree
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange.placement import (
    LEAST_BINS,
    pilot_query,
    placed_query,
    single_query,
)
from torchmetrics_fed.release import Query, Release, Spec, Sum

PlanName = Literal["adaptive", "single", "carry_over", "paper"]


class Placement(Protocol):
    """Where the leaves of queries lie."""

    def pilot(self, spec: Spec) -> Query:
        """Return a first query, with few leaves and a small fraction of epsilon."""

    def single(self, spec: Spec) -> Query:
        """Return the only query of a release, which has to do for any data."""

    def placed(self, earlier: Sum, fraction: float) -> Query:
        """Return a query with leaves where an earlier sum found the scores."""


@dataclass(frozen=True)
class TreePlacement:
    """Leaves of one model's scores.

    A pilot counts all groups and classes together; other queries count each by itself.
    """

    def pilot(self, spec: Spec) -> Query:
        """Return few leaves, even in the grid's own coordinate."""
        return pilot_query(spec)

    def single(self, spec: Spec) -> Query:
        """Return three levels of leaves, even in the grid's own coordinate."""
        return single_query(spec)

    def placed(self, earlier: Sum, fraction: float) -> Query:
        """Return leaves of equal mass."""
        return placed_query(earlier, fraction)


TREES = TreePlacement()


@dataclass(frozen=True)
class Plan(ABC):
    """The strategy of a release.

    Args:
        placement: where the leaves of its queries lie.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> FederatedROC(privacy=CentralDP(epsilon=1.0), plan="single").plan.name
        'single'
    """

    placement: Placement = field(default=TREES, kw_only=True)

    name: ClassVar[str]
    """The name by which ranks compare their plans."""
    carries_over: ClassVar[bool] = False
    """Whether the previous release places the leaves, and is read beside the new one."""

    @abstractmethod
    def first_query(self, spec: Spec, *, can_ask_again: bool, previous: Sum | None) -> Query:
        """Return the first query.

        Args:
            spec: what all parties agree on.
            can_ask_again: whether a second query can be asked.
            previous: the last sum of the previous release, if there is one.
        """

    @property
    def asks_twice(self) -> bool:
        """Whether the plan cannot do with one query, whatever the aggregator can do."""
        return False

    @property
    def label(self) -> bytes:
        """The plan in bytes, by which ranks compare their plans."""
        return self.name.encode()

    def check(self, spec: Spec) -> None:
        """Raise unless releases of this spec can be made by this plan, with calibrated noise."""
        if not spec.privacy.charges:
            raise InputError(
                "Expected no argument `plan` without `privacy`: exact counts are sent as they are."
            )
        self.check_spec(spec)
        spec.noise(self.unasked_query(spec))

    def check_spec(self, spec: Spec) -> None:
        """Raise unless the queries of this plan can be answered from counts of this spec."""
        spec.check_query(self.unasked_query(spec))

    def unasked_query(self, spec: Spec) -> Query:
        """Return the query that a client replies to when no coordinator has sent one."""
        return self.first_query(spec, can_ask_again=True, previous=None)


PlanArgument: TypeAlias = PlanName | Query | Plan | None
"""The argument ``plan`` of every metric: a name, a query, a plan, or None for the default plan."""


@dataclass(frozen=True)
class AllBins(Plan):
    """One query for all bins: the plan of exact counts."""

    name = "exact"

    def first_query(self, spec: Spec, *, can_ask_again: bool, previous: Sum | None) -> Query:
        """Return the query for all bins."""
        return spec.all_bins

    def check(self, spec: Spec) -> None:
        """Raise if counts are noisy: there would be nothing left of them."""
        if spec.privacy.charges:
            raise InputError(
                "Expected a plan of private releases but got AllBins, which is for exact counts. "
                "Leave `plan` out."
            )


@dataclass(frozen=True)
class Single(Plan):
    """One query, for any data."""

    name = "single"

    def first_query(self, spec: Spec, *, can_ask_again: bool, previous: Sum | None) -> Query:
        """Return leaves that need no data to be placed."""
        return self.placement.single(spec)


@dataclass(frozen=True)
class Adaptive(Plan):
    """Two queries: a pilot places the leaves of the second."""

    name = "adaptive"

    @property
    def asks_twice(self) -> bool:
        """It needs the second query."""
        return True

    def first_query(self, spec: Spec, *, can_ask_again: bool, previous: Sum | None) -> Query:
        """Return the pilot, or the only query where a pilot has nothing to place."""
        if can_ask_again and spec.grid.bins >= LEAST_BINS:
            return self.placement.pilot(spec)
        return self.placement.single(spec)

    def check_spec(self, spec: Spec) -> None:
        """Raise if there are so few bins that nothing can be placed."""
        if spec.grid.bins < LEAST_BINS:
            raise InputError(
                f'Expected at least {LEAST_BINS} bins to place leaves on with plan="{self.name}" '
                f"but there are {spec.grid.bins}. Leave `plan` out: so few bins can all be sent."
            )


@dataclass(frozen=True)
class CarryOver(Adaptive):
    """One query, placed by the previous release; the first time as :class:`Adaptive`."""

    name = "carry_over"
    carries_over = True

    def first_query(self, spec: Spec, *, can_ask_again: bool, previous: Sum | None) -> Query:
        """Return leaves where the previous release found the scores."""
        if previous is not None:
            return self.placement.placed(previous, 1.0)
        return super().first_query(spec, can_ask_again=can_ask_again, previous=None)


@dataclass(frozen=True)
class AdaptiveIfPossible(Plan):
    """The default of private releases: adaptive where the aggregator can ask twice, else single."""

    name = "default"

    def first_query(self, spec: Spec, *, can_ask_again: bool, previous: Sum | None) -> Query:
        """Return the first query of the plan that is possible."""
        plan = Adaptive(placement=self.placement)
        return plan.first_query(spec, can_ask_again=can_ask_again, previous=previous)

    def unasked_query(self, spec: Spec) -> Query:
        """Return the only query: where no coordinator asks, a second query is not expected."""
        return self.first_query(spec, can_ask_again=False, previous=None)


@dataclass(frozen=True)
class BinaryTree(Plan):
    """The paper's hierarchical histogram: all levels of the binary tree, in one query."""

    name = "paper"

    def first_query(self, spec: Spec, *, can_ask_again: bool, previous: Sum | None) -> Query:
        """Return all levels of the binary tree."""
        return Query(Tree.binary(spec.grid.bins))

    def check_spec(self, spec: Spec) -> None:
        """Raise unless one model's scores are counted on bins that halve the range."""
        if spec.models:
            raise InputError(
                'Expected another plan than "paper" to compare two models: its tree is of one. '
                "Leave it out."
            )
        if spec.grid.kind == "two_sided":
            raise InputError(
                'Expected even bins with plan="paper", whose tree halves the score range, but got '
                'a two-sided grid. Pass `grid="even"`.'
            )


@dataclass(frozen=True)
class Given(Plan):
    """A query of the caller's own; if its fraction is below 1, a second one placed by it.

    Args:
        query: the first query.
    """

    query: Query

    name = "given"

    @property
    def asks_twice(self) -> bool:
        """Whether epsilon is left for a second query."""
        return self.query.fraction < 1

    @property
    def label(self) -> bytes:
        """The query itself."""
        return bytes(self.query)

    def first_query(self, spec: Spec, *, can_ask_again: bool, previous: Sum | None) -> Query:
        """Return the query."""
        return self.query

    def check_spec(self, spec: Spec) -> None:
        """Raise unless the query can be answered from counts of this spec."""
        spec.check_query(self.query)


_NAMED: dict[PlanName, type[Plan]] = {
    "adaptive": Adaptive,
    "single": Single,
    "carry_over": CarryOver,
    "paper": BinaryTree,
}
"""The plans that users can name."""


def plan_from(argument: PlanArgument, spec: Spec, placement: Placement = TREES) -> Plan:
    """Return the plan that an argument asks for, or raise unless it fits the spec.

    Args:
        argument: a plan's name, a query, a plan, or None for the default one.
        spec: what all parties agree on.
        placement: where the leaves of queries lie.

    Example:
        >>> from torchmetrics_fed import CentralDP, Spec
        >>> from torchmetrics_fed.exchange import next_query, plan_from
        >>> spec = Spec.build("binary", privacy=CentralDP(epsilon=1.0))
        >>> next_query(plan_from("adaptive", spec), (), spec=spec).fraction
        0.046875
    """
    plan: Plan
    if isinstance(argument, Plan):
        plan = argument
    elif isinstance(argument, Query):
        plan = Given(argument, placement=placement)
    elif argument is None:
        default = AdaptiveIfPossible if spec.privacy.charges else AllBins
        plan = default(placement=placement)
    elif argument in get_args(PlanName):
        plan = _NAMED[argument](placement=placement)
    else:
        raise InputError(
            f"Expected argument `plan` to be a Query or one of {get_args(PlanName)} but got "
            f"{argument!r}."
        )
    plan.check(spec)
    return plan


def next_query(
    plan: Plan,
    sums: Sequence[Sum],
    *,
    spec: Spec,
    can_ask_again: bool = True,
    previous: Release | Sum | None = None,
) -> Query | None:
    """Return the next query, given the sums of the queries so far.

    None where the release is complete.

    Args:
        plan: the strategy.
        sums: the sums of the queries so far, in their order.
        spec: what all parties agree on.
        can_ask_again: whether a second query can be asked.
        previous: the release before this one, for a plan that carries over; or its first sum, if
            that release was never finished.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> from torchmetrics_fed.exchange import next_query
        >>> metric = FederatedROC(privacy=CentralDP(epsilon=1.0))
        >>> next_query(metric.plan, (), spec=metric.spec).fraction
        0.046875
    """
    if not sums:
        last = _last_sum(previous)
        return plan.first_query(spec, can_ask_again=can_ask_again, previous=last)
    fraction_left = 1 - sum(part.query.fraction for part in sums)
    if fraction_left <= 0:
        return None
    return plan.placement.placed(sums[-1], fraction_left)


def make_release(
    plan: Plan,
    spec: Spec,
    reply: Callable[[Query], Sum],
    *,
    previous: Release | Sum | None = None,
    round: str = "",
) -> Release:
    """Return the release that a plan makes.

    Args:
        plan: the strategy.
        spec: what all parties agree on.
        reply: returns the sum of all replies to a query.
        previous: the release before this one, for a plan that carries over.
        round: the name of the round.
    """
    sums: list[Sum] = []
    query = next_query(plan, sums, spec=spec, previous=previous)
    while query is not None:
        sums.append(reply(query))
        query = next_query(plan, sums, spec=spec, previous=previous)
    return finished_release(plan, sums, previous, round)


def finished_release(
    plan: Plan, sums: Sequence[Sum], previous: Release | Sum | None, round: str
) -> Release:
    """Return the release of all its sums.

    A release that was placed by another of the same spec carries it as data.
    """
    prior = _last_sum(previous)
    spec = sums[0].spec
    if prior is not None and plan.carries_over and prior.spec.digest == spec.digest:
        return Release(tuple(sums), round, prior)
    return Release(tuple(sums), round, None)


def _last_sum(previous: Release | Sum | None) -> Sum | None:
    if isinstance(previous, Release):
        return previous.last
    return previous


def check_one_query(plan: Plan) -> None:
    """Raise for a plan of several queries, where the aggregator cannot ask again."""
    if plan.asks_twice:
        raise InputError(
            f"Expected a plan of one query but got plan={plan.name!r}, and here nobody can ask "
            "again. Leave `plan` out; in Flower, use a strategy with FederatedEvaluationMixin, in "
            "NVFlare a FederatedMetricFilter."
        )
