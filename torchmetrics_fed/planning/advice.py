"""Advice: the cost of every plan and the error of its curves, before any data is touched.

Errors are those of simulated releases of reference scores, bytes are those of real messages. The
recommended plan is the one that asks least of a federation among the plans whose error is near the
smallest; if even the smallest error leaves little of a curve, no plan is recommended.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, cast

import torch

from torchmetrics_fed.aggregation.secure import SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.config import MOST_CLIENTS
from torchmetrics_fed.aggregation.secure.keys import KEY_BYTES
from torchmetrics_fed.aggregation.secure.roster import Advertisement, row_sizes
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.exchange.placement import LEAST_BINS
from torchmetrics_fed.planning import expected
from torchmetrics_fed.planning.expected import ExpectedError, PlannedTask, reference_grid
from torchmetrics_fed.privacy import Privacy
from torchmetrics_fed.release import Query, Share, Spec
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind

_ROUND = "round-1"
"""The name of a round, for the size of a message."""

_CLIENT_NAME = 20 * "x"
"""The name of a client, for the size of a message."""

_COUNT_BYTES = 8
"""Bytes of one raw count, an int64."""

_TEXT_WIDTH = 78
"""Characters in a line of text."""

_HOPELESS_ERROR = 0.05
"""A ROC Area Error above which a curve says little, as in the warning of noise."""

_NEAR_BEST = 1.15
"""A plan is nearly as good as the best one if its error is at most this many times the smallest.

Among such plans, the one that asks least of a federation is recommended.
"""

_PLANS: tuple[PlanName, ...] = ("single", "adaptive", "carry_over", "paper")
"""From the plan that asks least of a federation to the plan that asks most."""

_PLANS_OF_ANY_GRID = ("single", "paper")
"""Plans that place no leaves, and so need no minimum of bins."""

_TEXT_COLUMNS = 3
"""Columns of the table that are aligned to the left: the plan and both errors."""

_MIN_STANDARD_ERROR = 1e-8
"""Standard error at least, for the number of digits."""

_MIN_DIGITS = 2
_MAX_DIGITS = 6


class PlanAdvice(NamedTuple):
    """One plan: the error to expect, and the size of each client's messages."""

    name: PlanName
    error: ExpectedError
    cells: int
    """Integers that a client sends, for all queries of one evaluation."""
    bytes: int
    """Bytes that a client sends, framing and key agreement included."""

    @property
    def score(self) -> float:
        """The geometric mean of both curves' errors."""
        return math.sqrt(self.error.roc * self.error.precision_recall)


@dataclass(frozen=True)
class Advice:
    """The error to expect of each plan: ``rows`` for programs, ``str`` for people.

    Example:
        >>> from torchmetrics_fed import CentralDP
        >>> advice = advise(CentralDP(1.0), 600, 2_400, runs=2)
        >>> [row["plan"] for row in advice.rows if row["recommended"]] == [advice.recommended.name]
        True
    """

    privacy: Privacy
    n_pos: int
    n_neg: int
    clients: int
    auroc: float
    quantiles: int
    runs: int
    plans: tuple[PlanAdvice, ...]
    """The plans that this grid allows: those that place leaves need at least 256 bins."""
    sampling: ExpectedError
    """The error of a test set of this size against the distribution that it is drawn from."""
    planned: PlannedTask
    """The task: one curve, or those of classes or labels."""

    @property
    def recommended(self) -> PlanAdvice | None:
        """The best plan, or a plan that asks less and is nearly as good.

        None where noise leaves little of the curve.
        """
        best = self._best
        if best.error.roc > _HOPELESS_ERROR:
            return None
        good = [plan for plan in self.plans if plan.score <= _NEAR_BEST * best.score]
        return min(good, key=lambda plan: _PLANS.index(plan.name))

    @property
    def reason(self) -> str:
        """Why this plan is recommended, or none, in one sentence."""
        plan = self.recommended
        if plan is None:
            return (
                "No plan is recommended: noise would move the ROC curve by "
                f"{self._best.error.roc:.2g} at least, so count more examples or allow a larger "
                "epsilon."
            )
        if plan is self._best:
            return f"* {plan.name} is recommended: it has the smallest error."
        return (
            f"* {plan.name} is recommended: its error is within {_NEAR_BEST - 1:.0%} of the "
            "smallest, and it asks for less."
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each plan, as plain values."""
        return [self._row(plan) for plan in self.plans]

    def _row(self, plan: PlanAdvice) -> dict[str, Any]:
        error = plan.error
        return {
            "plan": plan.name,
            "recommended": plan is self.recommended,
            "epsilon": self.privacy.epsilon,
            "queries": len(error.queries),
            "roc_error": error.roc,
            "roc_standard_error": error.roc_standard_error,
            "precision_recall_error": error.precision_recall,
            "precision_recall_standard_error": error.precision_recall_standard_error,
            "noise": self._noise(plan),
            "cells": plan.cells,
            "bytes": plan.bytes,
        }

    @property
    def settings(self) -> str:
        """The table [privacy] of a study with the recommended plan; without one, an empty text."""
        if self.recommended is None:
            return ""
        lines = ["[privacy]", f'kind = "{type(self.privacy).__name__}"']
        for field in fields(cast(Any, self.privacy)):
            value = getattr(self.privacy, field.name)
            if value != field.default:
                lines.append(f"{field.name} = {json.dumps(value)}")
        return "\n".join([*lines, f'plan = "{self.recommended.name}"'])

    @property
    def _best(self) -> PlanAdvice:
        return min(self.plans, key=lambda plan: plan.score)

    def _noise(self, plan: PlanAdvice) -> float:
        """Return the standard deviation of a leaf's positives, in the sum of all clients."""
        grid = reference_grid(plan.name, self.quantiles)
        query = plan.error.queries[-1]
        variance = self.planned.spec(grid, self.privacy).noise(query).variance
        weight_of_positive = max(query.weights[-1].positives)
        drawn = self.privacy.noise_times(self.clients)
        return math.sqrt(variance * drawn) / weight_of_positive

    def __str__(self) -> str:
        parts = [
            self._head(),
            "\n".join(self._table()),
            _wrapped(self.reason),
            self.settings,
        ]
        return "\n\n".join(part for part in parts if part)

    def _head(self) -> str:
        """Return the data, the model and the privacy setting, in words."""
        examples = self.n_pos + self.n_neg
        clients = "1 client" if self.clients == 1 else f"{self.clients:,} clients"
        of_each = ""
        if self.planned.classes > 1:
            kind = "classes" if self.planned.task == "multiclass" else "labels"
            of_each = f", each of {self.planned.classes} {kind}"
        data = (
            f"{examples:,} examples ({self.n_pos:,} positive{of_each}) of {clients}, "
            f"AUROC {self.auroc:g}, {self.quantiles:,} quantiles"
        )
        return f"{data}\n{_wrapped(str(self.privacy))}"

    def _table(self) -> list[str]:
        """Return the rows with aligned columns, and last the error of the test set itself."""
        errors = [*(plan.error for plan in self.plans), self.sampling]
        roc = _error_texts([(error.roc, error.roc_standard_error) for error in errors])
        precision_recall = _error_texts(
            [(error.precision_recall, error.precision_recall_standard_error) for error in errors]
        )
        table = [["plan", "ROC Area Error", "PR Area Error", "noise", "queries", "bytes up"]]
        for number, row in enumerate(self.rows):
            mark = "*" if row["recommended"] else " "
            table.append(
                [
                    f"{mark} {row['plan']}",
                    roc[number],
                    precision_recall[number],
                    f"{row['noise']:.3g}",
                    f"{row['queries']}",
                    f"{row['bytes']:,}",
                ]
            )
        table.append(["  (test set)", roc[-1], precision_recall[-1], "", "", ""])
        return _aligned(table)


def _aligned(table: list[list[str]]) -> list[str]:
    """Return lines with columns of one width: texts to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = []
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            side = "<" if number < _TEXT_COLUMNS else ">"
            cells.append(f"{cell:{side}{width}}")
        lines.append("  ".join(cells).rstrip())
    return lines


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, _TEXT_WIDTH, break_on_hyphens=False))


def _error_texts(errors: Sequence[tuple[float, float]]) -> list[str]:
    """Return means and standard errors, without exponents.

    All have the digits that the smallest standard error deserves.
    """
    smallest = min(standard_error for _, standard_error in errors)
    exponent = math.floor(math.log10(max(smallest, _MIN_STANDARD_ERROR)))
    digits = min(max(-exponent, _MIN_DIGITS), _MAX_DIGITS)
    return [f"{mean:.{digits}f} ± {error:.{digits}f}" for mean, error in errors]


def advise(
    privacy: Privacy,
    n_pos: int,
    n_neg: int,
    *,
    clients: int = 1,
    auroc: float = 0.85,
    quantiles: int = 1024,
    runs: int = 20,
    num_classes: int | None = None,
    num_labels: int | None = None,
    labels_per_example: int | None = None,
    progress: Callable[[Sequence[PlanName]], Iterable[PlanName]] = iter,
) -> Advice:
    """Return the error to expect of every plan, by simulation, and the bytes that a client sends.

    Arguments are those of :func:`expected_area_error`, and ``progress``, which the plans are taken
    through one by one.

    Example:
        >>> from torchmetrics_fed import DistributedDP
        >>> privacy = DistributedDP(epsilon=1.0, min_clients=16)
        >>> advice = advise(privacy, 6_000, 24_000, clients=20, runs=5)
        >>> advice.plans[-1].name, advice.plans[-1].score > 1.5 * advice.plans[0].score
        ('paper', True)
    """
    planned = PlannedTask.of(num_classes, num_labels, labels_per_example)
    bins = reference_grid("single", quantiles).bins
    plans = []
    for name in progress(_PLANS):
        if bins < LEAST_BINS and name not in _PLANS_OF_ANY_GRID:
            continue
        error = expected.expected_area_error(
            name,
            privacy,
            n_pos,
            n_neg,
            clients=clients,
            auroc=auroc,
            quantiles=quantiles,
            runs=runs,
            num_classes=num_classes,
            num_labels=num_labels,
            labels_per_example=labels_per_example,
        )
        spec = planned.spec(reference_grid(name, quantiles), privacy)
        plan = PlanAdvice(
            name,
            error,
            cells=sum(math.prod(spec.shape(query)) for query in error.queries),
            bytes=sum(bytes_per_client(spec, query, clients) for query in error.queries),
        )
        plans.append(plan)
    return Advice(
        privacy=privacy,
        n_pos=n_pos,
        n_neg=n_neg,
        clients=clients,
        auroc=auroc,
        quantiles=quantiles,
        runs=runs,
        plans=tuple(plans),
        sampling=expected.expected_sampling_error(n_pos, n_neg, auroc=auroc, runs=runs),
        planned=planned,
    )


def bytes_per_client(spec: Spec, query: Query, clients: int) -> int:
    """Return how many bytes one client sends to answer one query, with names of 20 letters.

    They are those of the share; where shares are hidden those of all messages of a client in secure
    aggregation, unsigned and without dropouts; with ``CentralDP`` those of a rank's raw counts.

    Example:
        >>> from torchmetrics_fed import FederatedROC, LocalDP
        >>> from torchmetrics_fed.exchange import plan_from
        >>> spec = FederatedROC(privacy=LocalDP(1.0)).spec
        >>> queries = [plan_from(plan, spec).unasked_query(spec) for plan in ("adaptive", "single")]
        >>> [bytes_per_client(spec, query, clients=20) for query in queries]
        [585, 17865]
    """
    if spec.privacy.noise_drawn_by == "sum":
        return _COUNT_BYTES * math.prod(spec.counts_shape)
    shape = spec.shape(query)
    if not spec.hides_shares:
        cells = torch.zeros(shape, dtype=spec.dtype)
        share = Share(spec, query, cells, round=_ROUND)
        return len(bytes(share))
    if not 3 <= clients <= MOST_CLIENTS:
        raise InputError(
            f"Expected 3 to {MOST_CLIENTS} clients of one secure aggregation but got {clients}. "
            "Use LocalDP, or `trusted_aggregator=True` where the aggregator may see single shares."
        )
    config = SecureAggregationConfig(_ROUND, b"spec", math.prod(shape), min_clients=3)
    advertisement = Advertisement(_CLIENT_NAME, bytes(KEY_BYTES), bytes(KEY_BYTES))
    size = len(advertisement.to_bytes(config))
    for kind in (Kind.KEY_SHARES, Kind.MASKED, Kind.ANSWER):
        head = config.frame(kind, bytes(DIGEST_BYTES), bytes(2))
        size += len(head) + sum(row_sizes(kind, config, clients=clients, cohort=clients))
    return size
