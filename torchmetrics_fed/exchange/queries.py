"""Which queries a release takes. Decided here, without I/O, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, get_args

from torchmetrics_fed.counting.tree import Tree
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct.paired import even_tables, pilot_tables, placed_tables
from torchmetrics_fed.reconstruct.placement import (
    LEAST_BINS,
    pilot_query,
    placed_query,
    single_query,
)
from torchmetrics_fed.release import Query, Release, Spec, Sum

PlanName = Literal["adaptive", "single", "carry_over", "paper"]

Plan: TypeAlias = PlanName | Query | None
"""The strategy of a release. None: ``"adaptive"`` where the aggregator can ask twice, ``"single"`` where it cannot."""


def next_query(
    plan: Plan,
    sums: Sequence[Sum],
    *,
    spec: Spec,
    can_ask_again: bool = True,
    previous: Release | Sum | None = None,
) -> Query | None:
    """Return what to ask next, given what was asked and summed so far; None where the release is complete.

    A pure function, so that an exchange can be stored, resumed and tested without I/O. Queries that were sent are
    recorded in their sums and never computed again, because floats differ between machines.

    ============== =================================================================================================
    plan           queries
    ============== =================================================================================================
    exact counts   one, for all bins
    ``adaptive``   two: a pilot with a small fraction of epsilon places the leaves of the second
    ``single``     one: three levels of leaves, even in the grid's own coordinate, the top level with most of epsilon
    ``carry_over`` one, placed by the previous release; as ``adaptive`` the first time
    ``paper``      one: every level of the binary tree
    a Query        that one; if its fraction is below 1, a second one placed by it
    None           as ``adaptive``, or as ``single`` where nobody can ask again
    ============== =================================================================================================

    Where there are fewer bins than there is something to place, all of them are asked for at once. Where there are
    groups, a pilot counts them together, and every other query each by itself, on the same leaves. Of two models a
    pilot counts the scores of each, and every other query both together, in a table.

    Args:
        plan: the strategy.
        sums: the sums of the queries so far, in their order.
        spec: what all parties agree on.
        can_ask_again: whether a second query can be asked.
        previous: the release before this one, for ``carry_over``; of one that was never finished, its first sum.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> from torchmetrics_fed.exchange import next_query
        >>> spec = FederatedROC(privacy=CentralDP(epsilon=1.0)).spec
        >>> next_query("adaptive", (), spec=spec).fraction, next_query("single", (), spec=spec).fraction
        (0.046875, 1.0)
    """
    bins = spec.grid.bins
    if sums:
        left = 1 - sum(each.query.fraction for each in sums)
        return _placed(sums[-1], left) if left > 0 else None
    if not spec.privacy.charges:
        return spec.all_bins
    if isinstance(plan, Query):
        return plan
    if plan == "paper":
        return Query(Tree.binary(bins))
    if plan == "carry_over" and previous is not None:
        return _placed(previous, 1.0)
    if plan == "single" or bins < LEAST_BINS or not can_ask_again:
        return even_tables(spec) if spec.models else single_query(spec.grid, spec.privacy.epsilon)
    return (
        pilot_tables(spec.grid)
        if spec.models
        else pilot_query(spec.grid, pools_groups=bool(spec.groups))
    )


def _placed(before: Release | Sum, fraction: float) -> Query:
    seen = _last(before)
    return placed_tables(seen, fraction) if seen.spec.models else placed_query(seen, fraction)


def first_query(plan: Plan, spec: Spec) -> Query:
    """Return what a client answers that nobody has asked: by hand, a second query comes only if the plan says so."""
    query = next_query(plan, (), spec=spec, can_ask_again=plan is not None)
    assert query is not None
    return query


def make_release(
    plan: Plan,
    spec: Spec,
    answer: Callable[[Query], Sum],
    *,
    previous: Release | Sum | None = None,
    round: str = "",
) -> Release:
    """Return the release that ``answer``, which sums all answers to a query, gives for a plan."""
    sums: list[Sum] = []
    while (query := next_query(plan, sums, spec=spec, previous=previous)) is not None:
        sums.append(answer(query))
    return finished(plan, sums, previous, round)


def finished(
    plan: Plan, sums: Sequence[Sum], previous: Release | Sum | None, round: str
) -> Release:
    """Return the release of all its sums. One that was placed by a release of the same spec carries that as data."""
    prior = _last(previous) if plan == "carry_over" and previous is not None else None
    spec = sums[0].spec
    carries = prior is not None and spec.privacy.charges and prior.spec.digest == spec.digest
    return Release(tuple(sums), round, prior if carries else None)


def _last(previous: Release | Sum) -> Sum:
    return previous.last if isinstance(previous, Release) else previous


def check_plan(plan: Plan, spec: Spec) -> None:
    """Raise unless releases of this spec can be made by this plan, and their noise be calibrated."""
    if not spec.privacy.charges:
        if plan is not None:
            raise InputError(
                "Expected no argument `plan` without `privacy`: exact counts are sent as they are."
            )
        return
    if isinstance(plan, Query):
        spec.check_query(plan)
    elif plan is not None and plan not in get_args(PlanName):
        raise InputError(
            f"Expected argument `plan` to be a Query or one of {get_args(PlanName)} but got {plan!r}."
        )
    bins = spec.grid.bins
    if plan == "paper" and spec.models:
        raise InputError(
            'Expected another plan than "paper" to compare two models: its tree is of one. Leave it out.'
        )
    if plan == "paper" and spec.grid.kind == "two_sided":
        raise InputError(
            'Expected even bins with plan="paper", whose tree halves the score range, but got a two-sided grid. Pass '
            '`grid="even"`.'
        )
    if plan in ("adaptive", "carry_over") and bins < LEAST_BINS:
        raise InputError(
            f'Expected at least {LEAST_BINS} bins to place leaves on with plan="{plan}" but there are {bins}. Leave '
            "`plan` out: so few bins can all be sent."
        )
    spec.noise(first_query(plan, spec))


def check_one_query(plan: Plan) -> None:
    """Raise for a plan of several queries, where nobody can ask again."""
    if plan in ("adaptive", "carry_over") or (isinstance(plan, Query) and plan.fraction < 1):
        raise InputError(
            f"Expected a plan of one query but got plan={plan!r}, and here nobody can ask again. Leave `plan` out; in "
            "Flower, use a strategy with FederatedEvaluationMixin, in NVFlare a FederatedMetricFilter."
        )


def plan_label(plan: Plan) -> bytes:
    return bytes(plan) if isinstance(plan, Query) else str(plan).encode()
