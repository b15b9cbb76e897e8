"""Gate: the goals, and the figures that miss them by so much that something is broken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.bench.binary import (
    AT_ONCE,
    EVEN_SECTION,
    IN_BATCHES,
    PEER_SECTION,
    READ_SECTION,
    SMALL_SECTION,
)
from benchmarks.bench.contention import CONTENTION_SECTION
from benchmarks.bench.figure import Figure, rounded
from benchmarks.bench.memory import MEMORY_SECTION
from benchmarks.bench.multiclass import CASES, CLASSES_SECTION, EPOCH_SECTION, EPOCHS, class_case
from benchmarks.bench.peers import OURS, SLOW
from benchmarks.bench.private import CLIENTS, ROUND_SECTION, noise_case

__all__ = ["GOALS", "Goal", "failures", "goals_table"]


class Goal(NamedTuple):
    """A figure and its bound: a lower one for a peer's ratio, an upper one for everything else."""

    meaning: str
    section: str
    case: str
    name: str
    least: float | None = None
    most: float | None = None
    """The lower and the upper bound; one of them is None."""
    margin: float = 2.0
    """The gate lets figures pass that miss the bound by this factor: machines are shared."""

    def measured(self, figures: list[Figure]) -> float | None:
        """Return the measured value, if there is one."""
        for figure in figures:
            if figure[:3] == (self.section, self.case, self.name):
                return figure.value
        return None

    def met(self, value: float, margin: float = 1.0) -> bool:
        """Return whether a value is within the bound, ``margin`` times over."""
        if self.least is not None and value * margin < self.least:
            return False
        return self.most is None or value <= self.most * margin

    @property
    def bound(self) -> str:
        """The bound in words."""
        if self.least is not None:
            return f">= {self.least:g}"
        return f"<= {self.most:g}"


_PEER_GOALS: dict[str, float] = {
    "torchmetrics exact": 20,
    "torchmetrics 200": 40,
    "torchmetrics 4096": 700,
    "torcheval exact": 18,
    "torcheval 4096": 10,
    "scikit-learn": 20,
    "declearn 11": 18,
    "declearn 1001": 500,
}
_KIND_GOALS = {
    "float32": 2.0,
    "even, ignore_index": 2.0,
}


def _goals() -> Iterator[Goal]:
    for peer, bound in _PEER_GOALS.items():
        for case in (AT_ONCE, IN_BATCHES):
            if case == AT_ONCE and peer in SLOW:
                continue
            yield Goal(f"{peer}, {case}, x ours", PEER_SECTION, case, peer, least=bound)
    yield Goal(
        "update of 1e6, even bins, x one read",
        READ_SECTION,
        "even",
        "1e6",
        most=10,
    )
    yield Goal(
        "update of 1e7, even bins, x one read",
        READ_SECTION,
        "even",
        "1e7",
        most=10,
    )
    for kind, bound in _KIND_GOALS.items():
        yield Goal(
            f"update of 1e6, {kind}, x even bins",
            EVEN_SECTION,
            kind,
            "x even bins",
            most=bound,
            margin=1.5,
        )
    yield Goal(
        "batch of 32, x torchmetrics exact",
        SMALL_SECTION,
        "batch of 32",
        "x torchmetrics exact",
        most=0.85,
        margin=1.25,
    )
    for (examples, classes), bound in zip(EPOCHS, (3, 8, 8), strict=True):
        case = class_case(examples, classes)
        yield Goal(
            f"epoch of {case}, torchmetrics exact x ours",
            EPOCH_SECTION,
            case,
            "torchmetrics exact",
            least=bound,
        )
    for examples, classes in CASES:
        case = class_case(examples, classes)
        yield Goal(
            f"update of {case}, x torchmetrics exact",
            CLASSES_SECTION,
            case,
            "x torchmetrics exact",
            most=1.0,
            margin=5.0,
        )
    yield Goal("compute, ms", ROUND_SECTION, "compute, exact", "ms", most=3)
    for plan in ("adaptive", "single"):
        case = f"compute, private, plan {plan}"
        yield Goal(f"{case}, ms", ROUND_SECTION, case, "ms", most=3)
    for clients in CLIENTS:
        case = noise_case(clients)
        yield Goal(f"{case}, ms", ROUND_SECTION, case, "ms", most=50)
    yield Goal(
        "compute of 1,000 classes, ms",
        CLASSES_SECTION,
        class_case(32, 1_000),
        "compute ms",
        most=150,
    )
    yield Goal("more memory at 1e7, MB", MEMORY_SECTION, OURS, "MB", most=10)
    yield Goal(
        "contention, CPU time, x alone",
        CONTENTION_SECTION,
        OURS,
        "CPU time",
        most=2,
        margin=1.5,
    )


GOALS = list(_goals())


def goals_table(figures: list[Figure]) -> str:
    """Return the goals beside the measured values."""
    lines = ["| goal | bound | measured | met |", "|---|---|---|---|"]
    for goal in GOALS:
        value = goal.measured(figures)
        if value is None:
            result = "not measured | "
        elif goal.met(value):
            result = f"{rounded(value)} | yes"
        else:
            result = f"{rounded(value)} | no"
        lines.append(f"| {goal.meaning} | {goal.bound} | {result} |")
    return "\n".join(lines)


def failures(figures: list[Figure]) -> Iterator[str]:
    """Yield a sentence for each figure that is off by more than its margin."""
    for goal in GOALS:
        value = goal.measured(figures)
        if value is not None and not goal.met(value, goal.margin):
            yield (
                f"Expected {goal.meaning} {goal.bound}, {goal.margin:g} times over, but measured "
                f"{value:.3g}."
            )
