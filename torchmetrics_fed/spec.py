"""Spec: everything two parties must agree on before they add up."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torchmetrics_fed.errors import InputError, SpecMismatchError
from torchmetrics_fed.grid import ScoreGrid
from torchmetrics_fed.tree import Tree

__all__ = ["SPEC_VERSION", "Spec", "Task"]

Task = Literal["binary"]

SPEC_VERSION = 1


@dataclass(frozen=True)
class Spec:
    """What is counted, on which grid, and what of it is sent.

    Args:
        task: the kind of targets.
        classes: length of the class axis; 1 for binary.
        grid: the bins of the scores.
        tree: the levels that a share holds.

    Example:
        >>> from torchmetrics_fed import ScoreGrid, Spec
        >>> Spec("binary", 1, ScoreGrid()).fingerprint == Spec("binary", 1, ScoreGrid(bins=64)).fingerprint
        False
    """

    task: Task
    classes: int
    grid: ScoreGrid
    tree: Tree

    def __init__(self, task: Task, classes: int, grid: ScoreGrid, tree: Tree | None = None) -> None:
        if task not in get_args(Task):
            raise InputError(f"Expected argument `task` to be one of {get_args(Task)} but got {task!r}.")
        tree = Tree.flat(grid.bins) if tree is None else tree
        for name, value in (("task", task), ("classes", classes), ("grid", grid), ("tree", tree)):
            object.__setattr__(self, name, value)

    @property
    def fields(self) -> dict[str, Any]:
        """The content in plain JSON values, floats in hexadecimal so that no digit is lost."""
        grid = self.grid
        return {
            "version": SPEC_VERSION,
            "task": self.task,
            "classes": self.classes,
            "bins": grid.bins,
            "score_range": [end.hex() for end in grid.score_range],
            "score_edges": grid.score_edges and [edge.hex() for edge in grid.score_edges],
            "tree": list(self.tree.branching),
        }

    @property
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


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
