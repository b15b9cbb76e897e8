"""Sensitivity: how much of a release one person can change, from what is counted. Never typed by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from torchmetrics_fed.errors import InputError, check_choice, check_int
from torchmetrics_fed.typing import Task

Neighbours = Literal["add_remove", "replace_one"]
Levels: TypeAlias = int | tuple[int, ...] | tuple[tuple[int, int], ...]
"""How many levels there are, or how often each counts an example: one number, or (negatives, positives)."""


@dataclass(frozen=True)
class Sensitivity:
    r"""The worst change of a release between neighbouring data: pairs of a shift and of how many cells move by it.

    All norms follow from it: :math:`\Delta_1 = \sum_i s_i c_i`, :math:`\Delta_2^2 = \sum_i s_i^2 c_i`. It is the worst
    change not only in each norm: for symmetric log-concave noise no other possible change is easier to tell (see
    :mod:`torchmetrics_fed.privacy.loss`).

    Example:
        >>> from torchmetrics_fed.privacy.sensitivity import Sensitivity
        >>> worst = Sensitivity.of("multiclass", classes=10, levels=3, neighbours="replace_one")
        >>> worst.l1, worst.l2_squared
        (60, 60)
        >>> pooled = Sensitivity.of("multiclass", classes=10, levels=1, pools_classes=True)
        >>> pooled.l1, pooled.l2_squared
        (10, 82)
    """

    shifts: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.shifts or any(shift < 1 or cells < 1 for shift, cells in self.shifts):
            raise InputError(
                f"Expected `shifts`, pairs of positive ints, but got {self.shifts}. Use `Sensitivity.of`."
            )

    @classmethod
    def of(
        cls,
        task: Task,
        classes: int,
        levels: Levels,
        *,
        pools_classes: bool = False,
        one_vs_one: bool = False,
        neighbours: Neighbours = "add_remove",
        examples_per_person: int = 1,
    ) -> Sensitivity:
        r"""Return the sensitivity of the levels of the counts of ``classes`` histograms.

        On one level an example moves one cell of each histogram: of the only one of a binary task; of the K of a
        multi-class task, as a positive of its own class and a negative of the K - 1 others; of the K of a multi-label
        task, as a positive or a negative of each. It moves a cell by the cell's weight.

        Where the histograms of all classes are added up before they are counted (``pools_classes``), the K - 1
        negatives of a multi-class example may fall into one cell, which then moves by K - 1. All K labels of a
        multi-label example may, too, and all K scores of an example whose true class has a row of its own
        (``one_vs_one``). The L1 norm is K in all cases; the L2 norm is not :math:`\sqrt K`.

        A person with m examples moves most where all m fall into the same cells: every shift times m. Replacing a
        person takes the old shifts away and puts the new ones in; where the cells differ on all levels nothing
        cancels and twice as many cells move, which no overlap can exceed in any norm.

        Args:
            levels: how many levels are released, each counted once; or for each level how often an example is
                counted there, as one number or as a pair for negatives and for positives. Where nodes of a level have
                different weights, the largest.
        """
        check_choice("task", task, get_args(Task))
        check_choice("neighbours", neighbours, get_args(Neighbours))
        pairs = _pairs_of_weights(levels)
        for name, value in (
            ("classes", classes),
            ("levels", len(pairs)),
            ("examples_per_person", examples_per_person),
        ):
            check_int(name, value, 1)
        if (task == "binary") != (classes == 1) and task != "multilabel":
            expect = "1" if task == "binary" else "at least 2"
            raise InputError(
                f"Expected argument `classes` to be {expect} where `task` is {task!r} but got {classes}."
            )
        sides = 2 if neighbours == "replace_one" else 1
        cells_moved: Counter[int] = Counter()
        for negative, positive in pairs:
            if pools_classes and (one_vs_one or task == "multilabel"):
                moves = [(classes * max(negative, positive), 1)]
            else:
                moves = _moves(task, classes, negative, positive, pools_classes)
            for shift, cells in moves:
                cells_moved[examples_per_person * shift] += sides * cells
        return cls(tuple(sorted(cells_moved.items())))

    @property
    def l1(self) -> int:
        return sum(shift * cells for shift, cells in self.shifts)

    @property
    def l2_squared(self) -> int:
        return sum(shift**2 * cells for shift, cells in self.shifts)

    @property
    def cells(self) -> int:
        return sum(cells for _, cells in self.shifts)


def _pairs_of_weights(levels: Levels) -> list[tuple[int, int]]:
    """Return for each level how often it counts a negative and a positive."""
    if not isinstance(levels, tuple):
        check_int("levels", levels, 1)
        return [(1, 1)] * levels
    return [(weight, weight) if isinstance(weight, int) else weight for weight in levels]


def _moves(
    task: Task, classes: int, negative: int, positive: int, pools_classes: bool
) -> list[tuple[int, int]]:
    """Return what one example moves on one level: pairs of a shift and of how many cells move by it."""
    if task == "binary":
        return [(max(negative, positive), 1)]
    if task == "multilabel":
        return [(max(negative, positive), classes)]
    if pools_classes:
        return [(positive, 1), (negative * (classes - 1), 1)]
    return [(positive, 1), (negative, classes - 1)]
