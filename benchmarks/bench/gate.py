"""Gate: the goals, what was measured, and which ratio is so far off that something broke."""

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
from benchmarks.bench.multiclass import CASES, CLASSES_SECTION, class_case
from benchmarks.bench.peers import OURS, SLOW
from benchmarks.bench.private import CLIENTS, ROUND_SECTION, noise_case

__all__ = ["GOALS", "Goal", "failures", "goals_table"]


class Goal(NamedTuple):
    """A figure and its bound: a least one for how many times slower a peer is, a greatest one for everything else."""

    meaning: str
    section: str
    case: str
    name: str
    least: float | None = None
    most: float | None = None
    margin: float = 2.0
    """How many times off the bound the gate still lets pass: others work on the machine, too."""

    def found(self, figures: list[Figure]) -> float | None:
        """Return what was measured, if it was."""
        return next(
            (
                figure.value
                for figure in figures
                if figure[:3] == (self.section, self.case, self.name)
            ),
            None,
        )

    def met(self, value: float, margin: float = 1.0) -> bool:
        """Whether a value is within the bound, ``margin`` times over."""
        return (self.least is None or value * margin >= self.least) and (
            self.most is None or value <= self.most * margin
        )

    @property
    def bound(self) -> str:
        """The bound in words."""
        return f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"


_PEER_GOALS = {
    "torchmetrics exact": 20,
    "torchmetrics 200": 50,
    "torchmetrics 4096": 1_000,
    "torcheval exact": 18,
    "torcheval 4096": 10,
    "scikit-learn": 20,
    "declearn 11": 20,
    "declearn 1001": 1_000,
}
_KIND_GOALS = {
    "float32": 2.0,
    "even, ignore_index": 1.6,
    "score_range": 3.0,
    "256 custom edges": 5.0,
}
GOALS = [
    *(
        Goal(f"{name}, {case}, x ours", PEER_SECTION, case, name, least=least)
        for name, least in _PEER_GOALS.items()
        for case in (AT_ONCE, IN_BATCHES)
        if (case, name) not in {(AT_ONCE, slow) for slow in SLOW}
    ),
    Goal("update of 1e6, even bins, x one read", READ_SECTION, "even", "1e6", most=6, margin=1.75),
    Goal("update of 1e7, even bins, x one read", READ_SECTION, "even", "1e7", most=4),
    *(
        Goal(
            f"update of 1e6, {name}, x even bins",
            EVEN_SECTION,
            name,
            "x even bins",
            most=most,
            margin=1.5,
        )
        for name, most in _KIND_GOALS.items()
    ),
    Goal(
        "batch of 32, x torchmetrics exact",
        SMALL_SECTION,
        "batch of 32",
        "x torchmetrics exact",
        None,
        0.9,
        1.25,
    ),
    *(
        Goal(
            f"update of {case}, x torchmetrics exact",
            CLASSES_SECTION,
            case,
            "x torchmetrics exact",
            None,
            0.95,
            5.0,
        )
        for case in (class_case(*each) for each in CASES)
    ),
    Goal("compute, ms", ROUND_SECTION, "compute, exact", "ms", most=3),
    *(
        Goal(
            f"compute, private, plan {plan}, ms",
            ROUND_SECTION,
            f"compute, private, plan {plan}",
            "ms",
            most=3,
        )
        for plan in ("adaptive", "single")
    ),
    *(
        Goal(f"{noise_case(clients)}, ms", ROUND_SECTION, noise_case(clients), "ms", most=50)
        for clients in CLIENTS
    ),
    Goal(
        "compute of 1,000 classes, ms",
        CLASSES_SECTION,
        class_case(32, 1_000),
        "compute ms",
        most=1_000,
    ),
    Goal("more memory at 1e7, MB", MEMORY_SECTION, OURS, "MB", most=10),
    Goal("contention, CPU time, x alone", CONTENTION_SECTION, OURS, "CPU time", most=2, margin=1.5),
]


def goals_table(figures: list[Figure]) -> str:
    """Return the goals beside what was measured."""
    lines = ["| goal | bound | measured | met |", "|---|---|---|---|"]
    for goal in GOALS:
        value = goal.found(figures)
        measured = (
            "not measured | "
            if value is None
            else f"{rounded(value)} | {'yes' if goal.met(value) else 'no'}"
        )
        lines.append(f"| {goal.meaning} | {goal.bound} | {measured} |")
    return "\n".join(lines)


def failures(figures: list[Figure]) -> Iterator[str]:
    """Yield a sentence for each figure that is off by more than its margin."""
    for goal in GOALS:
        value = goal.found(figures)
        if value is not None and not goal.met(value, goal.margin):
            yield f"Expected {goal.meaning} {goal.bound}, {goal.margin:g} times over, but measured {value:.3g}."
