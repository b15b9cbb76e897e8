"""Pairs: a small set of cases in which every two values of the metrics' optional arguments meet,
and meet every caller.

A case is one value of each factor. Which arguments go together is not written down here: the
constructors are asked. Which of them a caller refuses is written down, so that it is known to be
refused, and hides no other pair of values.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedCalibration,
    FederatedDET,
    FederatedModelComparison,
    FederatedPrecisionRecallCurve,
    FederatedPrecisionRecallGain,
    FederatedROC,
    InputError,
    LocalDP,
    ReleaseError,
    ScoreGrid,
)
from torchmetrics_fed.metrics import CountsMetric
from torchmetrics_fed.privacy.settings import DifferentialPrivacy

__all__ = [
    "CLIENTS",
    "EPSILON",
    "FACTORS",
    "TRANSPORTS",
    "Case",
    "Refusal",
    "covering",
    "kind_of",
    "missing_pairs",
    "options_of",
    "parts_of",
    "reading_of",
    "refusal",
]

CLIENTS = 3
EXAMPLES = 60
"""Examples of each client."""
CLASSES = 3
PERSONS = 45
"""Persons of each client: a third of them has two examples, of which one is counted."""
EPSILON = 8.0

METRICS: dict[str, type[CountsMetric]] = {
    kind.definition.name: kind
    for kind in (
        FederatedROC,
        FederatedPrecisionRecallCurve,
        FederatedPrecisionRecallGain,
        FederatedDET,
        FederatedCalibration,
        FederatedAUROC,
        FederatedAveragePrecision,
        FederatedModelComparison,
    )
}
PRIVACY: dict[str, DifferentialPrivacy | None] = {
    "exact": None,
    "central": CentralDP(EPSILON),
    "local": LocalDP(EPSILON),
    "distributed": DistributedDP(EPSILON, min_clients=CLIENTS),
    "trusted": DistributedDP(EPSILON, min_clients=CLIENTS, trusted_aggregator=True),
}
TRANSPORTS = ("flower", "nvflare", "folder")
"""Integrations that carry each client's own share."""
INTEGRATIONS = ("callback", "log", "collection", "report", "simulate", *TRANSPORTS)

Case = Mapping[str, Any]
"""A value of each factor; the first of its values stands for an argument that is not passed."""

FACTORS: dict[str, tuple[Any, ...]] = {
    "integration": INTEGRATIONS,
    "metric": tuple(METRICS),
    "privacy": tuple(PRIVACY),
    "task": ("binary", "multiclass", "multilabel"),
    "average": ("default", None, "micro", "macro", "weighted"),
    "plan": (None, "adaptive", "single", "paper", "carry_over"),
    "normalization": (None, "sigmoid", "softmax"),
    "grid": ("two_sided", "even", ScoreGrid.from_edges([number / 256 for number in range(257)])),
    "multi_class": ("ovr", "ovo"),
    "confidence": (None, 0.9),
    "groups": (None, ("a", "b")),
    "persons": (False, True),
    "secure": (False, True),
    "ignore_index": (None, -1),
}
_ENABLERS = ("task", "metric", "privacy", "grid", "average")
"""Factors on whose values depends whether others can have theirs."""

_Pair = tuple[tuple[str, Any], tuple[str, Any]]


class Refusal(NamedTuple):
    """How an integration refuses a case that a constructor takes."""

    error: type[Exception]
    match: str


def refusal(case: Case) -> Refusal | None:
    """Return how the case's integration refuses it; None if it does not."""
    integration = case["integration"]
    if integration in TRANSPORTS and case["privacy"] == "central":
        return Refusal(InputError, "Expected clients that add noise")
    if case["metric"] == "comparison" and integration == "collection":
        return Refusal(InputError, "to be classes of curves and numbers")
    if case["metric"] == "comparison" and integration == "report":
        return Refusal(InputError, "Expected a release of one model's scores")
    if integration == "log" and not _is_number(case):
        if case["privacy"] == "exact":  # Lightning's own words
            return Refusal(ValueError, "must be a tensor|does not contain a single element")
        return Refusal(ReleaseError, "Expected one number in `self.log`")
    return None


def _is_number(case: Case) -> bool:
    """Whether the answer is one number, rather than a curve or one number for each class."""
    is_area = case["metric"] in ("auroc", "average_precision")
    return is_area and (case["task"] == "binary" or case["average"] is not None)


def kind_of(case: Case) -> type[CountsMetric]:
    """Return the class of the case's metric."""
    return METRICS[case["metric"]]


def options_of(case: Case) -> dict[str, Any]:
    """Return the arguments of the case's metric: those that differ from their defaults."""
    options: dict[str, Any] = {}
    if case["metric"] == "comparison":
        options["models"] = ("old", "new")
    else:
        options["quantiles"] = 64
    privacy = PRIVACY[case["privacy"]]
    if privacy is not None:
        options["privacy"] = replace(privacy, enforced=case["persons"])
    if case["task"] != "binary":
        options["task"] = case["task"]
        options["num_classes" if case["task"] == "multiclass" else "num_labels"] = CLASSES
    for name in (
        *("average", "plan", "normalization", "grid", "multi_class"),
        *("confidence", "groups", "secure", "ignore_index"),
    ):
        if case[name] != FACTORS[name][0]:
            options[name] = case[name]
    return options


def reading_of(case: Case) -> dict[str, Any]:
    """Return the arguments that shape the answer of a metric that is made from the case's
    release."""
    options = options_of(case)
    return {name: options[name] for name in ("average", "confidence") if name in options}


def parts_of(case: Case) -> list[tuple[Any, ...]]:
    """Return the clients' data: two tensors, and a mapping of the other arguments of ``update``."""
    return [_part(case, number) for number in range(CLIENTS)]


def _part(case: Case, number: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(number)
    target = torch.randint(0, 2, (EXAMPLES,), generator=generator)
    shift = target.float()
    if case["task"] == "multiclass":
        target = torch.randint(0, CLASSES, (EXAMPLES,), generator=generator)
        shift = torch.nn.functional.one_hot(target, CLASSES).float()
    elif case["task"] == "multilabel":
        target = torch.randint(0, 2, (EXAMPLES, CLASSES), generator=generator)
        shift = target.float()
    logits = torch.randn(2, *shift.shape, generator=generator) + shift
    if case["normalization"] is None and case["task"] == "multiclass":
        logits = logits.softmax(-1)
    elif case["normalization"] is None:
        logits = logits.sigmoid()
    if case["ignore_index"] is not None:
        target[::7] = case["ignore_index"]
    columns: dict[str, Tensor] = {}
    if case["groups"] is not None:
        columns["groups"] = torch.arange(EXAMPLES) % len(case["groups"])
    if case["persons"]:
        columns["persons"] = torch.arange(EXAMPLES) % PERSONS + number * PERSONS
    if case["metric"] == "comparison":
        return logits[0], logits[1], {"target": target, **columns}
    return logits[0], target, columns


def covering(seed: int = 0) -> list[Case]:
    """Return cases in which each pair of values that a constructor takes occurs.

    A pair occurs in a case that is not refused, if there is one: a refusal would hide the pair's
    own faults.
    """
    generator = random.Random(seed)
    constructed = _Constructed()
    missing = dict.fromkeys(_pairs())
    cases: list[Case] = []
    for allowed in (lambda case: refusal(case) is None and constructed(case), constructed):
        for pair in list(missing):
            if pair not in missing:
                continue
            case = _start(dict(pair), allowed)
            if case is None:
                continue
            _fill(case, dict(pair), missing, allowed, generator)
            for covered in combinations(case.items(), 2):
                missing.pop(covered, None)
            cases.append(case)
    return cases


def missing_pairs(cases: list[Case]) -> list[_Pair]:
    """Return the pairs that occur in none of the cases: those that no constructor takes."""
    covered = {pair for case in cases for pair in combinations(case.items(), 2)}
    return [pair for pair in _pairs() if pair not in covered]


def _pairs() -> Iterator[_Pair]:
    for first, second in combinations(FACTORS, 2):
        for values in product(FACTORS[first], FACTORS[second]):
            yield (first, values[0]), (second, values[1])


def _start(fixed: dict[str, Any], allowed: Callable[[Case], bool]) -> dict[str, Any] | None:
    """Return a case with these values, and first values elsewhere as far as a constructor takes
    them."""
    defaults = {name: values[0] for name, values in FACTORS.items()}
    free = [name for name in _ENABLERS if name not in fixed]
    for values in product(*(FACTORS[name] for name in free)):
        case = {**defaults, **dict(zip(free, values, strict=True)), **fixed}
        if allowed(case):
            return case
    return None


def _fill(
    case: dict[str, Any],
    fixed: dict[str, Any],
    missing: Mapping[_Pair, None],
    allowed: Callable[[Case], bool],
    generator: random.Random,
) -> None:
    """Change other values, one after the other, to those that cover the most missing pairs."""
    names = [name for name in FACTORS if name not in fixed]
    generator.shuffle(names)
    for name in names:
        changed = [{**case, name: value} for value in FACTORS[name]]
        changed.sort(key=lambda candidate: -_gain(candidate, name, missing))
        best = next(candidate for candidate in changed if candidate == case or allowed(candidate))
        case.update(best)


def _gain(case: Case, name: str, missing: Mapping[_Pair, None]) -> int:
    """The number of missing pairs of this factor's value that the case would cover."""
    return sum(
        pair in missing
        for pair in combinations(case.items(), 2)
        if name in (pair[0][0], pair[1][0])
    )


class _Constructed:
    """Whether a constructor takes a case's arguments, asked once for each set of them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], bool] = {}

    def __call__(self, case: Case) -> bool:
        # no constructor knows the integration, or ids, which need a bound to enforce
        key = tuple(value for name, value in case.items() if name != "integration")
        if key not in self._known:
            self._known[key] = self._asked(case)
        return self._known[key]

    @staticmethod
    def _asked(case: Case) -> bool:
        if case["persons"] and case["privacy"] == "exact":
            return False
        try:
            kind_of(case)(**options_of(case))
        except ValueError:  # also of torchmetrics, for arguments that a metric does not have
            return False
        return True
