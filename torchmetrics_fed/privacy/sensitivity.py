"""Sensitivity: how far one person can change a release, derived from what is counted.

Invariants:

- A sensitivity is computed from the task, the levels and the neighbours. It is never typed by hand.
- It is a list of shifts, not a norm: the norms follow from it, and so does the privacy loss of any
  symmetric log-concave noise (:mod:`torchmetrics_fed.privacy.loss`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

from torchmetrics_fed.errors import InputError, check_choice, check_int
from torchmetrics_fed.typing import Task

Neighbours = Literal["add_remove", "replace_one"]


class LevelWeight(NamedTuple):
    """How many times one level counts an example."""

    negative: int
    """The largest weight of a negative."""
    positive: int
    """The largest weight of a positive."""
    negatives: int | None = None
    """The most that all negatives of a multi-class example weigh together; if not given, each of
    them can have the largest weight."""

    @classmethod
    def of(cls, weight: int) -> LevelWeight:
        """Return one weight for negatives and positives."""
        return cls(negative=weight, positive=weight)


Levels: TypeAlias = int | tuple[int, ...] | tuple[LevelWeight, ...]
"""The number of levels, or how often each level counts an example."""

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
        labels_per_example: int | None = None,
    ) -> Sensitivity:
        r"""Return the sensitivity of the levels of the counts of ``classes`` histograms.

        On one level an example moves one cell of each histogram. In a binary task there is one
        histogram. In a multi-class task an example is a positive of its own class and a negative of
        the K - 1 others. In a multi-label task it is a positive of at most L of the K labels, and a
        negative of the others. It moves a cell by the weight of the cell.

        The negatives of a multi-class example may weigh less together than K - 1 times the largest
        weight, because their scores add up to 1 (:func:`most_together`). Which cells they move, and
        how far each, is open then. They count as one cell that moves by all of it: for symmetric
        log-concave noise nothing is easier to detect (see :mod:`torchmetrics_fed.privacy.loss`).

        If the histograms of all classes are added before they are counted (``pools_classes``), the
        K - 1 negatives of a multi-class example may fall into one cell, which then moves by K - 1.
        So may all K labels of a multi-label example, and all K scores of an example whose true
        class has a row of its own (``one_vs_one``). The L1 norm is the same as before; the L2 norm
        is not.

        A person with m examples changes the counts most if all m fall into the same cells: every
        shift times m. Replacing a person removes the old shifts and adds the new ones. If the cells
        differ on all levels, nothing cancels and twice as many cells move, which no overlap can
        exceed in any norm.

        Args:
            task: the task of the metric.
            classes: the number of histograms.
            levels: the number of levels that are released, each counted once; or for each level how
                often it counts an example, as one number or as a :class:`LevelWeight`.
            pools_classes: whether the histograms of all classes are added before they are counted.
            one_vs_one: whether each true class has a row of its own.
            neighbours: whether neighbouring data differ by one more person or by another person.
            examples_per_person: the largest number of examples of one person.
            labels_per_example: the largest number of positive labels of a multi-label example, all
                of them if not given.
        """
        check_choice("task", task, get_args(Task))
        check_choice("neighbours", neighbours, get_args(Neighbours))
        weights = _weights_of_levels(levels)
        check_int("classes", classes, 1)
        check_int("levels", len(weights), 1)
        check_int("examples_per_person", examples_per_person, 1)
        _check_classes(task, classes)
        most_labels = classes
        if labels_per_example is not None:
            check_int("labels_per_example", labels_per_example, 1, classes)
            most_labels = labels_per_example
        sides = 2 if neighbours == "replace_one" else 1
        cells_moved: Counter[int] = Counter()
        for weight in weights:
            if task == "multilabel":
                moves = _multilabel_moves(weight, classes, most_labels)
            else:
                moves = _moves(weight, classes)
            if pools_classes:
                is_one_row = one_vs_one or task == "multilabel"
                moves = _pooled(moves, is_one_row)
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


def _weights_of_levels(levels: Levels) -> list[LevelWeight]:
    """Return for each level how often it counts a negative and a positive."""
    if not isinstance(levels, tuple):
        check_int("levels", levels, 1)
        return [LevelWeight.of(1)] * levels
    return [LevelWeight.of(level) if isinstance(level, int) else level for level in levels]


def _moves(weight: LevelWeight, classes: int) -> list[Move]:
    """Return the moves of a binary or multi-class example on one level: its positive move first."""
    if classes == 1:
        return [(max(weight.negative, weight.positive), 1)]
    of_positive = (weight.positive, 1)
    if weight.negatives is not None and weight.negatives < weight.negative * (classes - 1):
        return [of_positive, (weight.negatives, 1)]
    return [of_positive, (weight.negative, classes - 1)]


def _multilabel_moves(weight: LevelWeight, labels: int, most_positives: int) -> list[Move]:
    """Return the moves of a multi-label example on one level."""
    if weight.positive <= weight.negative:
        return [(weight.negative, labels)]
    of_positives = (weight.positive, most_positives)
    if most_positives == labels:
        return [of_positives]
    return [of_positives, (weight.negative, labels - most_positives)]


def _pooled(moves: list[Move], is_one_row: bool) -> list[Move]:
    """Return the moves after all classes were added up: negatives can fall into one cell.

    Args:
        moves: the moves of an example, its positive first.
        is_one_row: whether negatives and positives can fall into one cell, too.
    """
    totals = [shift * cells for shift, cells in moves]
    if is_one_row:
        return [(sum(totals), 1)]
    return [(total, 1) for total in totals]


def most_together(weights: Sequence[int], lowest: Sequence[float], count: int, total: float) -> int:
    r"""Return the most that ``count`` scores with a bounded sum can weigh together.

    A score in leaf j is at least :math:`e_j`, the lower edge of the leaf, and weighs :math:`w_j`.
    With :math:`x_j` the number of scores in leaf j, the most is

    .. math:: \max \sum_j w_j x_j \quad\text{where}\quad
        \sum_j x_j \le n, \quad \sum_j e_j x_j \le S, \quad x_j \ge 0.

    If parts of a score are allowed, this is :math:`n\, W(S / n)`, with :math:`W(t)` the largest
    mean weight at a mean score of at most t: the least concave function above all points
    :math:`(e_j, w_j)` and :math:`(0, 0)`, up to its maximum. Rounded down, it is a bound for whole
    scores. It is computed in exact fractions.

    Args:
        weights: the weight :math:`w_j` of each leaf.
        lowest: the lower edge :math:`e_j` of each leaf, not negative.
        count: the number n of scores.
        total: the largest sum S of the scores.

    Example:
        >>> from torchmetrics_fed.privacy.sensitivity import most_together
        >>> most_together([1, 5, 10], [0.0, 0.5, 0.95], count=9, total=1.0)
        18
        >>> most_together([1, 1, 1], [0.0, 0.5, 0.95], count=9, total=1.0)
        9
    """
    points = [(Fraction(0), Fraction(0))]
    for edge, weight in zip(lowest, weights, strict=True):
        points.append((Fraction(edge), Fraction(weight)))
    mean = Fraction(total) / count
    hull = _concave_hull(points)
    best = Fraction(0)
    for x, height in hull:
        if x <= mean:
            best = max(best, height)
    for (left, left_height), (right, right_height) in pairwise(hull):
        if left < mean < right:
            slope = (right_height - left_height) / (right - left)
            best = max(best, left_height + slope * (mean - left))
    return math.floor(count * best)


_Point: TypeAlias = tuple[Fraction, Fraction]


def _concave_hull(points: Sequence[_Point]) -> list[_Point]:
    """Return the corners of the least concave function above points, from left to right."""
    hull: list[_Point] = []
    for x, y in sorted(points):
        while hull and hull[-1][0] == x:  # the highest of points above each other comes last
            hull.pop()
        while len(hull) > 1 and _is_below(hull[-1], hull[-2], (x, y)):
            hull.pop()
        hull.append((x, y))
    return hull


def _is_below(middle: _Point, left: _Point, right: _Point) -> bool:
    """Return whether a point is on or below the line from ``left`` to ``right``."""
    rise = (middle[1] - left[1]) * (right[0] - left[0])
    return rise <= (right[1] - left[1]) * (middle[0] - left[0])
