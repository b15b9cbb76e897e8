"""Advice: what every plan would cost and how far off its curves would be, before any data is touched."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch

from torchmetrics_fed.aggregation.secure import SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.config import MOST_CLIENTS
from torchmetrics_fed.aggregation.secure.keys import KEY_BYTES
from torchmetrics_fed.aggregation.secure.roster import Advertisement, row_sizes
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.planning import expected
from torchmetrics_fed.planning.expected import ExpectedError, reference_grid
from torchmetrics_fed.privacy import CentralDP, DistributedDP, LocalDP, Privacy
from torchmetrics_fed.reconstruct.placement import LEAST_BINS
from torchmetrics_fed.release import Query, Share, Spec
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind

_ROUND = "round-1"
_WIDTH = 78
_HOPELESS = 0.05  # a ROC Area Error above which a curve says little, as in the warning of noise
_AS_GOOD = 1.15  # a plan this much above the best is as good, if it asks less of a federation
# from the least to the most
_ASKS: dict[PlanName, str] = {
    "single": "one query and nothing known before",
    "adaptive": "two queries in each evaluation, the first one to place the leaves",
    "carry_over": "one query, its leaves placed by the evaluation before; the first evaluation takes two",
    "paper": "one query, every level of the binary tree",
}


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
    """What to expect of each plan, and one recommended. Print it."""

    privacy: Privacy
    n_pos: int
    n_neg: int
    clients: int
    auroc: float
    quantiles: int
    runs: int
    plans: tuple[PlanAdvice, ...]
    sampling: ExpectedError
    """The error of a test set of this size against the distribution that it is drawn from."""

    @property
    def recommended(self) -> PlanAdvice | None:
        """The best plan, or one that asks less and is nearly as good; None where noise leaves little of the curve."""
        if self._best.error.roc > _HOPELESS:
            return None
        good = [plan for plan in self.plans if plan.score <= _AS_GOOD * self._best.score]
        return min(good, key=lambda plan: [*_ASKS].index(plan.name))

    @property
    def _best(self) -> PlanAdvice:
        return min(self.plans, key=lambda plan: plan.score)

    def __str__(self) -> str:
        parts = [self._head(), self._table(), self._recommendation(), self._privacy()]
        return "\n\n".join("\n".join(part) for part in parts)

    def _head(self) -> Iterator[str]:
        examples, bins = self.n_pos + self.n_neg, reference_grid("single", self.quantiles).bins
        who = "1 client" if self.clients == 1 else f"{self.clients:,} clients"
        yield f"{examples:,} examples ({self.n_pos:,} positive) of {who}, epsilon {self.privacy.epsilon:g}"
        yield from _wrapped(
            f"Reference scores: a calibrated model with AUROC {self.auroc:g}; {self.quantiles:,} quantiles, {bins:,} "
            f"bins; mean of {self.runs} simulated releases and its standard error."
        )

    def _table(self) -> Iterator[str]:
        errors = [*(plan.error for plan in self.plans), self.sampling]
        roc = _column([(error.roc, error.roc_standard_error) for error in errors])
        pr = _column(
            [(error.precision_recall, error.precision_recall_standard_error) for error in errors]
        )
        rows = [["plan", "ROC Area Error", "PR Area Error", "cells", "bytes up"]]
        for plan, *shown in zip(self.plans, roc, pr, strict=False):
            rows.append([plan.name, *shown, f"{plan.cells:,}", f"{plan.bytes:,}"])
        rows.append(["(the test set)", roc[-1], pr[-1], "", ""])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            left = [f"{cell:<{width}}" for cell, width in zip(row[:3], widths, strict=False)]
            right = [f"{cell:>{width}}" for cell, width in zip(row[3:], widths[3:], strict=True)]
            yield "  ".join([*left, *right]).rstrip()
        if len(self.plans) < len(_ASKS):
            yield from _wrapped(
                f"Plans that place leaves need {LEAST_BINS} bins to place them on: more than {LEAST_BINS // 8} "
                "quantiles."
            )
        yield from _wrapped(
            "(the test set): how far its exact curves are from those of the population. An error of noise well below "
            "it is lost in it. Bytes are those of one evaluation, sent by each client."
        )

    def _recommendation(self) -> Iterator[str]:
        plan = self.recommended
        if plan is None:
            yield from _wrapped(
                f"No plan is recommended: at this size and epsilon noise moves the ROC curve by "
                f"{self._best.error.roc:.2g} at the least, and a model that knows nothing is {self.auroc - 0.5:.2g} "
                "from the expected one. Such a curve says little. Count more examples or allow a larger epsilon; with "
                "LocalDP fewer clients help, too."
            )
            return
        why = "the smallest error"
        if plan is not self._best:
            why = f"an error within {_AS_GOOD - 1:.0%} of the smallest and takes less for granted"
        yield from _wrapped(
            f"Recommended: {plan.name}, because it has {why}. It takes {_ASKS[plan.name]}."
        )
        call = f"FederatedROC(quantiles={self.quantiles}, plan={plan.name!r}, privacy={_written(self.privacy)})"
        yield from textwrap.wrap(call, _WIDTH, initial_indent="  ", subsequent_indent=" " * 15)
        carried = next((other for other in self.plans if other.name == "carry_over"), None)
        if plan.name == "adaptive" and carried is not None:
            yield from _wrapped(
                "Where a model is evaluated again and again, carry_over saves the first query at "
                f"{carried.score / plan.score:.2f} times this error, as long as scores stay where they were."
            )
        below = (
            plan.error.roc / self.sampling.roc,
            plan.error.precision_recall / self.sampling.precision_recall,
        )
        verdict = (
            "both count" if max(below) <= 1 else "more examples, or a larger epsilon, would show"
        )
        yield from _wrapped(
            f"Noise costs {below[0]:.2g} (ROC) and {below[1]:.2g} (PR) times what the test set's size does: "
            f"{'a smaller epsilon would do, too' if max(below) < 0.5 else verdict}."
        )
        yield from _wrapped(
            "Scores with ties, or in a corner of the range, can have ten times these errors."
        )

    def _privacy(self) -> Iterator[str]:
        plan = self.recommended or self._best
        privacy = self.privacy
        yield from _wrapped(
            f"Privacy: epsilon {privacy.epsilon:g} holds against {privacy.holds_against}."
        )
        spec = Spec("binary", 1, reference_grid(plan.name, self.quantiles), privacy)
        noise = spec.noise(plan.error.queries[-1])
        assert noise is not None
        asked = math.sqrt(noise.variance)
        if isinstance(privacy, DistributedDP):
            times = self.clients / privacy.calibrated_for
            yield from _wrapped(
                f"min_clients={privacy.min_clients}: a sum of fewer is not opened. Noise is calibrated for "
                f"{privacy.calibrated_for} clients: {privacy.min_clients} clients, of whom {privacy.max_colluding} may "
                "subtract their own noise. A higher min_clients means less noise, and fewer dropouts that an "
                "evaluation survives."
            )
            yield from _wrapped(
                f"Noise of a cell: standard deviation {asked:.3g} asked for, {asked * math.sqrt(times):.3g} in the sum "
                f"of {self.clients} ({times - 1:.0%} more variance, the price of dropouts and collusion)."
            )
        elif isinstance(privacy, LocalDP):
            yield from _wrapped(
                f"Noise of a cell: standard deviation {asked:.3g} of each client, "
                f"{asked * math.sqrt(self.clients):.3g} in the sum of {self.clients}. DistributedDP asks for one such "
                "noise in all, and needs secure aggregation."
            )
        else:
            yield from _wrapped(
                f"Noise of a cell: standard deviation {asked:.3g}, added once by the party that holds all counts. What "
                "ranks send to it is raw."
            )


def advise(
    privacy: Privacy,
    n_pos: int,
    n_neg: int,
    *,
    clients: int = 1,
    auroc: float = 0.85,
    quantiles: int = 1024,
    runs: int = 20,
    progress: Callable[[Iterable[PlanName]], Iterable[PlanName]] = iter,
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
    for name in progress(tuple(_ASKS)):
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
        >>> from torchmetrics_fed.exchange import next_query
        >>> spec = FederatedROC(privacy=LocalDP(1.0)).spec
        >>> [bytes_per_client(spec, next_query(plan, (), spec=spec), clients=20) for plan in ("adaptive", "single")]
        [544, 17824]
    """
    if isinstance(spec.privacy, CentralDP):
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


def _written(privacy: Any) -> str:
    """The call that makes it, without what is the default."""
    shown = [f"epsilon={privacy.epsilon:g}"]
    for each in sorted(fields(privacy), key=lambda each: bool(each.kw_only)):
        value = getattr(privacy, each.name)
        shown += (
            [f"{each.name}={value!r}"] if each.name != "epsilon" and value != each.default else []
        )
    return f"{type(privacy).__name__}({', '.join(shown)})"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_on_hyphens=False)
