"""Spec: everything two parties must agree on before they add up."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError, ReleaseError, SpecMismatchError
from torchmetrics_fed.grid import ScoreGrid
from torchmetrics_fed.kernel import Task
from torchmetrics_fed.privacy.mechanisms import Noise, Privacy
from torchmetrics_fed.tree import Tree

__all__ = ["SPEC_VERSION", "MultiClass", "Spec", "Task"]

MultiClass = Literal["ovr", "ovo"]

SPEC_VERSION = 1

LEAST_PORTION = 2.0**-10
"""What is less tells nothing, and would take noise that no integer holds."""


@dataclass(frozen=True)
class Spec:
    """What is counted, on which grid, what of it is sent, and with which noise.

    Args:
        task: the kind of targets.
        classes: length of the class axis: 1 for binary, the number of classes or labels for others.
        grid: the bins of the scores.
        tree: the levels that a share holds; if not given the bins themselves, or under privacy a balanced tree.
        privacy: who adds which noise; None for exact counts.
        secure: whether exact counts, too, may only travel through a sum that hides each client's (the paper's SA).
        portion: the part of the privacy's epsilon (and delta) that this spends, for one of several messages.
        multi_class: whether the scores of a class are counted for it against the rest (``"ovr"``), or for every true
            class by itself (``"ovo"``), which answers both questions and takes ``classes / 2`` times the room.

    Example:
        >>> from torchmetrics_fed import ScoreGrid, Spec
        >>> Spec("binary", 1, ScoreGrid()).fingerprint == Spec("binary", 1, ScoreGrid(bins=64)).fingerprint
        False
    """

    task: Task
    classes: int
    grid: ScoreGrid
    tree: Tree
    privacy: Privacy | None
    multi_class: MultiClass
    secure: bool
    portion: float
    noise: Noise | None = field(compare=False, repr=False)
    """The noise of one share, for the sensitivity of what this spec counts."""

    def __init__(
        self,
        task: Task,
        classes: int,
        grid: ScoreGrid,
        tree: Tree | None = None,
        privacy: Privacy | None = None,
        multi_class: MultiClass = "ovr",
        secure: bool = False,
        portion: float = 1.0,
    ) -> None:
        _check_task(task, classes, multi_class)
        if tree is None:
            tree = Tree.flat(grid.bins) if privacy is None else Tree.balanced(grid.bins)
        if not tree.fits(grid.bins):
            raise InputError(
                f"Expected argument `tree` to have leaves of whole bins, of which there are {grid.bins}, but "
                f"{tree.branching} has {tree.leaves} leaves" + (f" up to {tree.edges[-1]}." if tree.edges else ".")
            )
        if not LEAST_PORTION <= portion <= 1 or (portion < 1 and privacy is None):
            raise InputError(
                f"Expected argument `portion` to be a part of epsilon, {LEAST_PORTION} to 1, but got {portion!r}."
            )
        settings: dict[str, object] = {"task": task, "classes": classes, "grid": grid, "tree": tree}
        settings |= {"privacy": privacy, "multi_class": multi_class, "secure": secure, "portion": portion}
        for name, value in settings.items():
            object.__setattr__(self, name, value)
        noise = privacy and privacy.noise(task, classes, len(tree.branching), math.prod(self.shape), portion)
        object.__setattr__(self, "noise", noise)

    def __reduce__(self) -> tuple[Any, ...]:
        first = self.task, self.classes, self.grid, self.tree, self.privacy
        return type(self), (*first, self.multi_class, self.secure, self.portion)

    def planned(self, tree: Tree, portion: float = 1.0) -> Spec:
        """Return the spec of another message about the same counts: on this tree, for this portion of epsilon."""
        return Spec(self.task, self.classes, self.grid, tree, self.privacy, self.multi_class, self.secure, portion)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the cells of a share."""
        return self.classes, self.rows, self.tree.cells

    @property
    def rows(self) -> int:
        """Histograms per class: negatives and positives, or one per true class."""
        return self.classes if self.multi_class == "ovo" else 2

    @property
    def edges(self) -> Tensor:
        """Edges of the tree's leaves, ascending, float64."""
        return self.grid.edges[self.tree.places(self.grid.bins)]

    @property
    def epsilon(self) -> float:
        """What a release of this spec costs; 0 without privacy."""
        return self.privacy.epsilon * self.portion if self.privacy else 0.0

    @property
    def hides_shares(self) -> bool:
        """Whether shares may only travel through a sum that hides them."""
        return self.secure or (self.privacy is not None and self.privacy.hides_shares)

    def check_may_travel(self, shares: int = 1) -> None:
        """Raise for what only a secure sum may carry: a single share, or a sum that its noise does not cover."""
        needed = max(self.privacy.shares_needed if self.privacy else 1, 2)
        if self.hides_shares and shares < needed:
            raise ReleaseError(
                "Expected this to travel through the secure sum, for by itself it hides next to nothing. Send "
                "`metric.vector(round)` with a SecureSumClient, or say `trusted_aggregator=True` (with privacy=None "
                "leave out `secure=True`) if whoever sums may see it."
            )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of cells: integers, but for the paper's continuous noise."""
        return torch.float64 if self.privacy is not None and self.privacy.mechanism == "gamma" else torch.int64

    def cells(self, counts: Tensor) -> Tensor:
        """Return every level of the tree of ``counts``, ``(classes, rows, bins)``, side by side: without noise."""
        return torch.cat(self.tree.levels(self.tree.leaf(counts)), -1)

    def noisy_cells(self, counts: Tensor) -> Tensor:
        """Return the cells of ``counts`` with one fresh draw of a share's noise. Only for what has been booked."""
        if self.noise is None:
            raise InputError("Expected a spec with privacy, for without it no noise is added.")
        return self.cells(counts.cpu()) + torch.from_numpy(self.noise.draw(self.shape))

    @property
    def fields(self) -> dict[str, Any]:
        """The content in plain JSON values, floats in hexadecimal so that no digit is lost."""
        grid = self.grid
        return {
            "version": SPEC_VERSION,
            "task": self.task,
            "classes": self.classes,
            "multi_class": self.multi_class,
            "secure": self.secure,
            "bins": grid.bins,
            "score_range": [float(end).hex() for end in grid.score_range],
            "score_edges": grid.score_edges and [float(edge).hex() for edge in grid.score_edges],
            "tree": self.tree.fields if self.portion == 1 else [self.tree.fields, float(self.portion).hex()],
            "privacy": self.privacy and self.privacy.fields,
        }

    @cached_property
    def digests(self) -> dict[str, bytes]:
        """SHA-256 of each field, so that a party can name what differs without seeing the other's spec."""
        return {name: hashlib.sha256(_canonical(value)).digest() for name, value in self.fields.items()}

    @property
    def fingerprint(self) -> bytes:
        """Eight bytes that differ whenever a field does."""
        return hashlib.sha256(_canonical(self.fields)).digest()[:8]

    def check(self, other: Spec) -> None:
        """Raise and name every field in which ``other`` differs."""
        mine, theirs = self.fields, other.fields
        differing = [name for name in mine if mine[name] != theirs[name]]
        if differing:
            told = "; ".join(f"{name}: expected {_short(mine[name])}, got {_short(theirs[name])}" for name in differing)
            raise SpecMismatchError(
                f"Expected one spec for all but {told}. Build every metric with the same arguments."
            )


def _check_task(task: Task, classes: int, multi_class: MultiClass) -> None:
    if task not in get_args(Task):
        raise InputError(f"Expected argument `task` to be one of {get_args(Task)} but got {task!r}.")
    least = {"binary": 1, "multiclass": 2, "multilabel": 1}[task]
    if not isinstance(classes, int) or classes < least or (task == "binary" and classes != 1):
        name = {"binary": "classes", "multiclass": "num_classes", "multilabel": "num_labels"}[task]
        expected = "1" if task == "binary" else f"an int of at least {least}"
        raise InputError(f'Expected argument `{name}` to be {expected} for task="{task}" but got {classes!r}.')
    if multi_class not in get_args(MultiClass) or (multi_class == "ovo" and (task != "multiclass" or classes < 3)):
        raise InputError(
            f"Expected argument `multi_class` to be one of {get_args(MultiClass)}, the latter for three classes or "
            f"more, but got {multi_class!r} for {classes} of task {task!r}."
        )


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
