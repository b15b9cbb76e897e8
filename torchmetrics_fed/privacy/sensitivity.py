"""Sensitivity: how far one person can change a release, derived from what is counted.

Invariants:

- A sensitivity is computed from the task, the levels and the neighbours. It is never typed by hand.
- It is a list of shifts, not a norm: the norms follow from it, and so does the privacy loss of any
  symmetric log-concave noise (:mod:`torchmetrics_fed.privacy.loss`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from torchmetrics_fed.errors import InputError, check_choice, check_int
from torchmetrics_fed.typing import Task

Neighbours = Literal["add_remove", "replace_one"]

Levels: TypeAlias = int | tuple[int, ...] | tuple[tuple[int, int], ...]
"""The number of levels, or how often each level counts an example: one number for all examples, or
a pair (negatives, positives)."""

Move: TypeAlias = tuple[int, int]
"""A shift, and the number of cells that move by it."""


@dataclass(frozen=True)
class Sensitivity:
    r"""The worst change of a release between neighbouring data.

    It is a list of pairs: a shift, and the number of cells that move by it. All norms follow from
    it: :math:`\Delta_1 = \sum_i s_i c_i` and :math:`\Delta_2^2 = \sum_i s_i^2 c_i`. The change is
    the worst not only in each norm: for symmetric log-concave noise no other possible change is
    easier to detect (see :mod:`torchmetrics_fed.privacy.loss`).

    Example:
        >>> from torchmetrics_fed.privacy.sensitivity import Sensitivity
        >>> worst = Sensitivity.of("multiclass", classes=10, levels=3, neighbours="replace_one")
        >>> worst.l1, worst.l2_squared
        (60, 60)
        >>> pooled = Sensitivity.of("multiclass", classes=10, levels=1, pools_classes=True)
        >>> pooled.l1, pooled.l2_squared
        (10, 82)
    """

    shifts: tuple[Move, ...]

    def __post_init__(self) -> None:
        if not self.shifts or any(shift < 1 or cells < 1 for shift, cells in self.shifts):
            raise InputError(
                f"Expected `shifts`, pairs of positive ints, but got {self.shifts}. "
                "Use `Sensitivity.of`."
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

        On one level an example moves one cell of each histogram. In a binary task there is one
        histogram. In a multi-class task an example is a positive of its own class and a negative of
        the K - 1 others. In a multi-label task it is a positive or a negative of each of the K
        labels. It moves a cell by the weight of the cell.

        If the histograms of all classes are added before they are counted (``pools_classes``), the
        K - 1 negatives of a multi-class example may fall into one cell, which then moves by K - 1.
        So may all K labels of a multi-label example, and all K scores of an example whose true
        class has a row of its own (``one_vs_one``). The L1 norm is K in all cases; the L2 norm is
        not :math:`\sqrt K`.

        A person with m examples changes the counts most if all m fall into the same cells: every
        shift times m. Replacing a person removes the old shifts and adds the new ones. If the cells
        differ on all levels, nothing cancels and twice as many cells move, which no overlap can
        exceed in any norm.

        Args:
            task: the task of the metric.
            classes: the number of histograms.
            levels: the number of levels that are released, each counted once; or for each level how
                often it counts an example, as one number or as a pair for negatives and positives.
                If the nodes of a level have different weights, give the largest.
            pools_classes: whether the histograms of all classes are added before they are counted.
            one_vs_one: whether each true class has a row of its own.
            neighbours: whether neighbouring data differ by one more person or by another person.
            examples_per_person: the largest number of examples of one person.
        """
        check_choice("task", task, get_args(Task))
        check_choice("neighbours", neighbours, get_args(Neighbours))
        weights = _weights_of_levels(levels)
        check_int("classes", classes, 1)
        check_int("levels", len(weights), 1)
        check_int("examples_per_person", examples_per_person, 1)
        _check_classes(task, classes)
        sides = 2 if neighbours == "replace_one" else 1
        cells_moved: Counter[int] = Counter()
        for negative, positive in weights:
            if pools_classes and (one_vs_one or task == "multilabel"):
                moves = [(classes * max(negative, positive), 1)]
            else:
                moves = _moves(task, classes, negative, positive, pools_classes)
            for shift, cells in moves:
                cells_moved[examples_per_person * shift] += sides * cells
        return cls(tuple(sorted(cells_moved.items())))

    @property
    def l1(self) -> int:
        r"""The largest change in the 1-norm, :math:`\Delta_1`."""
        return sum(shift * cells for shift, cells in self.shifts)

    @property
    def l2_squared(self) -> int:
        r"""The square of the largest change in the 2-norm, :math:`\Delta_2^2`."""
        return sum(shift**2 * cells for shift, cells in self.shifts)

    @property
    def cells(self) -> int:
        """The number of cells that move."""
        return sum(cells for _, cells in self.shifts)


def _check_classes(task: Task, classes: int) -> None:
    if task == "binary" and classes != 1:
        expected = "1"
    elif task == "multiclass" and classes == 1:
        expected = "at least 2"
    else:
        return
    raise InputError(
        f"Expected argument `classes` to be {expected} where `task` is {task!r} but got {classes}."
    )


def _weights_of_levels(levels: Levels) -> list[tuple[int, int]]:
    """Return for each level how often it counts a negative and a positive."""
    if not isinstance(levels, tuple):
        check_int("levels", levels, 1)
        return [(1, 1)] * levels
    return [(weight, weight) if isinstance(weight, int) else weight for weight in levels]


def _moves(
    task: Task, classes: int, negative: int, positive: int, pools_classes: bool
) -> list[Move]:
    """Return the moves of one example on one level.

    Args:
        task: the task of the metric.
        classes: the number of histograms.
        negative: the weight of a negative.
        positive: the weight of a positive.
        pools_classes: whether the histograms of all classes are added before they are counted.
    """
    if task == "binary":
        return [(max(negative, positive), 1)]
    if task == "multilabel":
        return [(max(negative, positive), classes)]
    if pools_classes:
        return [(positive, 1), (negative * (classes - 1), 1)]
    return [(positive, 1), (negative, classes - 1)]
