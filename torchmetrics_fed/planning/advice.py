"""Advice: what every plan would cost and how far off its curves would be, before any data is touched."""

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
from torchmetrics_fed.planning.expected import ExpectedError, reference_grid
from torchmetrics_fed.privacy import Privacy
from torchmetrics_fed.release import Query, Share, Spec
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind

_ROUND = "round-1"

_WIDTH = 78
"""Letters in a line of text."""

_HOPELESS = 0.05
"""A ROC Area Error above which a curve says little, as in the warning of noise."""

_AS_GOOD = 1.15
"""A plan with an error of this many times the smallest is as good, if it asks less of a federation."""

_PLANS: tuple[PlanName, ...] = ("single", "adaptive", "carry_over", "paper")
"""From the one that asks least of a federation to the one that asks most."""


class PlanAdvice(NamedTuple):
    """One plan: the error to expect, and what each client sends."""

    name: PlanName
    error: ExpectedError
    cells: int
    """Integers that a client sends, for all queries of one evaluation."""
    bytes: int
    """What a client sends, framing and key agreement included."""

    @property
    def score(self) -> float:
        """The geometric mean of both curves' errors."""
        return math.sqrt(self.error.roc * self.error.precision_recall)


@dataclass(frozen=True)
class Advice:
    """What to expect of each plan, one of them recommended: ``rows`` for programs, ``str`` for people.

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

    @property
    def recommended(self) -> PlanAdvice | None:
        """The best plan, or one that asks less and is nearly as good; None where noise leaves little of the curve."""
        best = self._best
        if best.error.roc > _HOPELESS:
            return None
        good = [plan for plan in self.plans if plan.score <= _AS_GOOD * best.score]
        return min(good, key=lambda plan: _PLANS.index(plan.name))

    @property
    def reason(self) -> str:
        """Why this plan is recommended, or none, in one sentence."""
        plan = self.recommended
        if plan is None:
            return (
                f"No plan is recommended: noise would move the ROC curve by {self._best.error.roc:.2g} at least, so "
                "count more examples or allow a larger epsilon."
            )
        if plan is self._best:
            return f"* {plan.name} is recommended: it has the smallest error."
        return (
            f"* {plan.name} is recommended: its error is within {_AS_GOOD - 1:.0%} of the smallest, and it asks for "
            "less."
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each plan, as plain values."""
        return [
            {
                "plan": plan.name,
                "recommended": plan is self.recommended,
                "epsilon": self.privacy.epsilon,
                "queries": len(plan.error.queries),
                "roc_error": plan.error.roc,
                "roc_standard_error": plan.error.roc_standard_error,
                "precision_recall_error": plan.error.precision_recall,
                "precision_recall_standard_error": plan.error.precision_recall_standard_error,
                "noise": self._noise(plan),
                "cells": plan.cells,
                "bytes": plan.bytes,
            }
            for plan in self.plans
        ]

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
        """Return the standard deviation of a cell of the last query, in the sum of all clients."""
        spec = Spec("binary", 1, reference_grid(plan.name, self.quantiles), self.privacy)
        noise = spec.noise(plan.error.queries[-1])
        assert noise is not None
        return math.sqrt(noise.variance * self.privacy.noise_times(self.clients))

    def __str__(self) -> str:
        examples = self.n_pos + self.n_neg
        clients = "1 client" if self.clients == 1 else f"{self.clients:,} clients"
        head = [
            f"{examples:,} examples ({self.n_pos:,} positive) of {clients}, AUROC {self.auroc:g}, "
            f"{self.quantiles:,} quantiles",
            *textwrap.wrap(str(self.privacy), _WIDTH, break_on_hyphens=False),
        ]
        reason = textwrap.wrap(self.reason, _WIDTH, break_on_hyphens=False)
        parts = [head, self._table(), reason, self.settings.splitlines()]
        return "\n\n".join("\n".join(part) for part in parts if part)

    def _table(self) -> list[str]:
        """Return the rows with aligned columns, and last the error of the test set itself."""
        errors = [*(plan.error for plan in self.plans), self.sampling]
        roc = _column([(error.roc, error.roc_standard_error) for error in errors])
        pr = _column(
            [(error.precision_recall, error.precision_recall_standard_error) for error in errors]
        )
        table = [["plan", "ROC Area Error", "PR Area Error", "noise", "queries", "bytes up"]]
        for row, *means in zip(self.rows, roc, pr, strict=False):
            mark = "*" if row["recommended"] else " "
            numbers = [f"{row['noise']:.3g}", f"{row['queries']}", f"{row['bytes']:,}"]
            table.append([f"{mark} {row['plan']}", *means, *numbers])
        table.append(["  (test set)", roc[-1], pr[-1], "", "", ""])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = []
        for cells in table:
            left = [f"{cell:<{width}}" for cell, width in zip(cells[:3], widths, strict=False)]
            right = [f"{cell:>{width}}" for cell, width in zip(cells[3:], widths[3:], strict=True)]
            lines.append("  ".join([*left, *right]).rstrip())
        return lines


def advise(
    privacy: Privacy,
    n_pos: int,
    n_neg: int,
    *,
    clients: int = 1,
    auroc: float = 0.85,
    quantiles: int = 1024,
    runs: int = 20,
    progress: Callable[[Sequence[PlanName]], Iterable[PlanName]] = iter,
) -> Advice:
    """Return the error to expect of every plan, by simulation, and what each client has to send.

    Arguments are those of :func:`expected_area_error`, and ``progress``, which the plans are taken through one by one.

    Example:
        >>> from torchmetrics_fed import DistributedDP
        >>> advice = advise(DistributedDP(epsilon=1.0, min_clients=16), 6_000, 24_000, clients=20, runs=5)
        >>> advice.plans[-1].name, advice.plans[-1].score > 1.5 * advice.plans[0].score
        ('paper', True)
    """
    bins, plans = reference_grid("single", quantiles).bins, []
    for name in progress(_PLANS):
        if bins >= LEAST_BINS or name in ("single", "paper"):
            error = expected.expected_area_error(
                name,
                privacy,
                n_pos,
                n_neg,
                clients=clients,
                auroc=auroc,
                quantiles=quantiles,
                runs=runs,
            )
            spec = Spec("binary", 1, reference_grid(name, quantiles), privacy)
            cells = sum(math.prod(spec.shape(query)) for query in error.queries)
            sent = sum(bytes_per_client(spec, query, clients) for query in error.queries)
            plans.append(PlanAdvice(name, error, cells, sent))
    sampling = expected.expected_sampling_error(n_pos, n_neg, auroc=auroc, runs=runs)
    return Advice(privacy, n_pos, n_neg, clients, auroc, quantiles, runs, tuple(plans), sampling)


def bytes_per_client(spec: Spec, query: Query, clients: int) -> int:
    """Return how many bytes one client sends to answer one query, with names of 20 letters.

    That is the share's size; where shares are hidden all that a client sends in secure aggregation, unsigned and
    without dropouts; with ``CentralDP`` a rank's raw counts.

    Example:
        >>> from torchmetrics_fed import FederatedROC, LocalDP
        >>> from torchmetrics_fed.exchange import plan_from
        >>> spec = FederatedROC(privacy=LocalDP(1.0)).spec
        >>> queries = [plan_from(plan, spec).unasked_query(spec) for plan in ("adaptive", "single")]
        >>> [bytes_per_client(spec, query, clients=20) for query in queries]
        [577, 17857]
    """
    if spec.privacy.noise_drawn_by == "sum":
        return 8 * math.prod(spec.counts_shape)
    if not spec.hides_shares:
        return len(
            bytes(Share(spec, query, torch.zeros(spec.shape(query), dtype=spec.dtype), _ROUND))
        )
    if not 3 <= clients <= MOST_CLIENTS:
        raise InputError(
            f"Expected 3 to {MOST_CLIENTS} clients of one secure aggregation but got {clients}. Use LocalDP, or "
            "`trusted_aggregator=True` where the aggregator may see single shares."
        )
    config = SecureAggregationConfig(_ROUND, b"spec", math.prod(spec.shape(query)), min_clients=3)
    sent = len(Advertisement(20 * "x", bytes(KEY_BYTES), bytes(KEY_BYTES)).to_bytes(config))
    for kind in (Kind.KEY_SHARES, Kind.MASKED, Kind.ANSWER):
        head = config.frame(kind, bytes(DIGEST_BYTES), bytes(2))
        sent += len(head) + sum(row_sizes(kind, config, clients, clients))
    return sent


def _column(pairs: Sequence[tuple[float, float]]) -> list[str]:
    """Return means and standard errors, with as many digits as the best known one deserves, and no exponents."""
    least = max(min(spread for _, spread in pairs), 1e-8)
    digits = min(max(-math.floor(math.log10(least)), 2), 6)
    return [f"{mean:.{digits}f} ± {spread:.{digits}f}" for mean, spread in pairs]
