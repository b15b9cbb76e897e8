"""Sensitivity: how much of a release one person can change, from what is counted. Never typed by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

from torchmetrics_fed.errors import InputError, check_choice, check_int
from torchmetrics_fed.typing import Task

Neighbours = Literal["add_remove", "replace_one"]


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
        levels: int | tuple[int, ...],
        *,
        neighbours: Neighbours = "add_remove",
        examples_per_person: int = 1,
    ) -> Sensitivity:
        r"""Return the sensitivity of ``levels`` levels of the counts of ``classes`` histograms.

        On one level an example moves one cell of each histogram by 1: of the only one of a binary task, of the K of a
        multi-class task (positives of its own class, negatives of the others), of the K of a multi-label task.

        A person with m examples moves most where all m fall into the same cells: every shift times m. Replacing a
        person takes the old shifts away and puts the new ones in; where the cells differ on all levels nothing
        cancels and twice as many cells move, which no overlap can exceed in any norm.

        ``levels`` is how many levels are released, or how many times each is counted: its cells move by as much.
        """
        check_choice("task", task, get_args(Task))
        check_choice("neighbours", neighbours, get_args(Neighbours))
        number = len(levels) if isinstance(levels, tuple) else levels
        for name, value in (
            ("classes", classes),
            ("levels", number),
            ("examples_per_person", examples_per_person),
        ):
            check_int(name, value, 1)
        if (task == "binary") != (classes == 1) and task != "multilabel":
            expect = "1" if task == "binary" else "at least 2"
            raise InputError(
                f"Expected argument `classes` to be {expect} where `task` is {task!r} but got {classes}."
            )
        weights = levels if isinstance(levels, tuple) else (1,) * levels
        sides = 2 if neighbours == "replace_one" else 1
        counted = sorted(Counter(weights).items())
        return cls(
            tuple(
                (examples_per_person * weight, classes * sides * times) for weight, times in counted
            )
        )

    @property
    def l1(self) -> int:
        return sum(shift * cells for shift, cells in self.shifts)

    @property
    def l2_squared(self) -> int:
        return sum(shift**2 * cells for shift, cells in self.shifts)

    @property
    def cells(self) -> int:
        return sum(cells for _, cells in self.shifts)
