"""Persons: how many examples of each person were counted, so that none has more than the privacy claim rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.counting.numbering import (
    BLOCK,
    CHUNK,
    Blocks,
    Hashed,
    Numbers,
    Ranged,
    blocks,
    integers,
)
from torchmetrics_fed.counting.validation import Rules, check_batch
from torchmetrics_fed.errors import InputError, ReleaseError

Ids: TypeAlias = Tensor | NDArray[Any] | Sequence[int] | Sequence[str]
"""The person of each example: integers, or strings."""

_BITS = CHUNK.bit_length() - 1
# Numbers that a range may have for each person in it, and for each that a batch is expected to add: 24 and 48 bytes.
_ROOM, _ROOM_TO_COME = 12, 24


class Persons:
    """One metric's table of persons: how many examples of each were counted. Ids are kept as numbers under a key.

    Args:
        most: how many examples of one person may be counted.

    Example:
        >>> from torchmetrics_fed.counting.persons import Persons
        >>> Persons(2).admit(["ann", "bob", "ann", "ann"])
        array([ True,  True,  True, False])
    """

    def __init__(self, most: int) -> None:
        self.most, self.batches, self.left_out, self._at_hand = most, 0, 0, 0
        self._numbering: Hashed | Ranged = Hashed()
        self._counted = np.zeros(1, np.min_scalar_type(most + CHUNK))  # by number
        self._one = self._counted.dtype.type(1)

    def __reduce__(self) -> Any:
        raise ReleaseError(
            "Expected no table of persons in a pickle: it stays on the client, until `reset`."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Persons:
        """A table of its own, for counts of their own: each keeps the bound, and one client releases one of them."""
        twin: Persons = memo.setdefault(id(self), Persons(self.most))
        twin.merge(self)
        return twin

    @contextmanager
    def admitted(
        self,
        ids: Ids,
        rules: Rules,
        columns: int,
        preds: Tensor,
        target: Tensor,
        *others: Tensor | None,
    ) -> Iterator[tuple[Any, ...]]:
        """Give scores, targets and what else there is for each example, of those examples that may be counted.

        If they are not counted, because of an error inside, nothing has happened.

        Args:
            ids: the person of each of N, or of each position of each of N.
            rules: how to read scores and targets, which are as a metric takes them.
            columns: how many classes or labels there are.
        """
        check_batch(preds, target, columns, rules.task)
        several = rules.task == "multilabel"
        ids, shape = _as_array(ids), (*target.shape[:1], *target.shape[1 + several :])
        if ids.shape not in (shape, shape[:1]):
            positions = f", or for each position, {shape}," if len(shape) > 1 else ""
            raise InputError(
                f"Expected argument `persons` to hold an id for each of {shape[:1]} examples{positions} but got the "
                f"shape {ids.shape}."
            )
        countable: Numbers | None = None  # what is not counted uses up nothing
        if (ignored := rules.ignored(target)) is not None:
            countable = np.flatnonzero(
                ~(ignored.all(1) if several else ignored).reshape(-1).cpu().numpy()
            )
        each, ids = math.prod(shape[len(ids.shape) :]), ids.reshape(-1)
        ids = ids.repeat(each) if each != 1 else ids
        ids = ids if countable is None else ids[countable]
        before, may = self.left_out, self.admit(ids)
        try:
            if self.left_out > before:
                kept = torch.from_numpy(
                    np.flatnonzero(may) if countable is None else countable[may]
                )
                if rules.task == "binary":
                    target = rules.unless_one_hot(target)  # as long as it has its shape
                others = (
                    *(other if other is None else _examples(other, kept) for other in others),
                )
                preds, target = (
                    _examples(preds, kept, rules.task != "binary"),
                    _examples(target, kept, several),
                )
            yield preds, target, *others
        except Exception:
            for part in _chunks(ids[may]):
                numbers = self._numbers(part)  # which may move the counts
                np.subtract.at(self._counted, numbers, self._one)
            self.left_out, self.batches = before, self.batches - 1
            raise

    def admit(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which examples may be counted, the first ones of each person, and take them for counted."""
        values = _as_array(ids)
        self._at_hand = len(values)
        parts = [self._first_come(self._numbers(part)) for part in _chunks(values)]
        may = np.concatenate(parts) if parts else np.empty(0, np.bool_)
        self.batches += 1
        return may

    def merge(self, other: Persons) -> None:
        """Add another table, or raise and change nothing if somebody has too many examples in both."""
        self.add(*other.known())
        self.batches, self.left_out = self.batches + other.batches, self.left_out + other.left_out

    def known(self) -> tuple[Blocks, NDArray[Any]]:
        """Return everybody's id as a block, and how many examples of each were counted."""
        parts = [
            (blocks(ids), numbers)
            for ids, numbers in _with_examples(self._numbering, self._counted)
        ]
        every, numbers = zip(
            (np.empty((0, BLOCK), np.uint8), np.empty(0, np.int64)), *parts, strict=True
        )
        return np.concatenate(every), self._counted[np.concatenate(numbers)]

    def add(self, persons: Blocks, examples: NDArray[Any]) -> None:
        """Add examples of different persons, a number for each, or raise if somebody comes to have too many."""
        parts = [slice(start, start + CHUNK) for start in range(0, len(persons), CHUNK)]
        for part in parts:
            numbers = self._numbers(persons[part])
            if (self._counted[numbers] + examples[part].astype(np.int64) > self.most).any():
                raise ReleaseError(
                    f"Expected at most {self.most} examples of one person, as `examples_per_person` says, but somebody "
                    "has more in several parts of the data, each of which keeps to it; nothing was charged. Divide the "
                    "data by person, so that all examples of one are counted in one place, then `reset` and count it "
                    "again."
                )
        for part in parts:
            numbers = self._numbers(persons[part])
            self._counted[numbers] += examples[part].astype(self._counted.dtype)

    def _first_come(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Return which of up to a chunk of examples may be counted, and take them for counted."""
        size, wanted = len(numbers), None
        if self.left_out and not (wanted := self._counted.take(numbers) < self.most).all():
            numbers = numbers[wanted]  # the others have enough already
        np.add.at(self._counted, numbers, self._one)
        after = self._counted.take(numbers)
        may: NDArray[np.bool_] = after <= self.most
        if not may.all():
            over = np.flatnonzero(~may)  # all examples in this chunk of those who have too many now
            # persons side by side, each one's examples as they came
            order = np.sort(numbers.take(over) << _BITS | over)
            person, place = order >> _BITS, order & CHUNK - 1
            starts = np.flatnonzero(np.concatenate(([True], person[1:] != person[:-1])))
            runs = np.diff(np.concatenate((starts, [len(person)])))
            allowed = self.most + runs - after.take(place.take(starts)).astype(np.int64)
            may[place] = np.arange(len(person)) < (starts + allowed).repeat(runs)
            self._counted[person.take(starts)] = self.most
        self.left_out += size - int(np.count_nonzero(may))
        if wanted is None or len(numbers) == size:
            return may
        wanted[wanted] = may
        return wanted

    def _numbers(self, ids: NDArray[Any]) -> Numbers:
        """Return the number of each person, of up to a chunk of ids or of their blocks."""
        numbers = self._numbering.numbers(ids)
        if numbers is None:
            self._make_room(ids)
            numbers = self._numbering.numbers(ids)
            assert numbers is not None
        return numbers

    def _make_room(self, ids: NDArray[Any]) -> None:
        """Number persons so that there is room for these, too: as a range if all are integers and close together."""
        before, counted = self._numbering, self._counted
        numbering: Hashed | Ranged | None = self._range(ids)
        if numbering is None and isinstance(before, Hashed):
            before.grow(len(ids))
            counted.resize(before.room, refcheck=False)
            return
        if numbering is None:
            numbering = Hashed()
            numbering.grow(len(ids) + int(np.count_nonzero(counted)))
        self._numbering, self._counted = numbering, np.zeros(numbering.room, counted.dtype)
        for known, numbers in _with_examples(before, counted):
            self._counted[self._numbers(known)] = counted[numbers]

    def _range(self, ids: NDArray[Any]) -> Ranged | None:
        """Return a range that holds these and all who were counted, if it is not much larger than that."""
        values = integers(ids)
        if values is None or not len(values):
            return None
        ends = [int(values.min()), int(values.max())]
        different = (1 + np.count_nonzero(np.diff(np.sort(values)))) / len(values)
        most = _ROOM * np.count_nonzero(self._counted) + _ROOM_TO_COME * different * max(
            self._at_hand, len(values)
        )
        if ends[1] - ends[0] >= most or (known := self._numbering.ends()) is None:
            return None
        low, high = min(*ends, *known), max(*ends, *known)
        return Ranged(low, high) if 1 << Ranged.bits(low, high) <= most else None


def _with_examples(
    numbering: Hashed | Ranged, counted: NDArray[Any]
) -> Iterator[tuple[NDArray[Any], Numbers]]:
    """Yield ids and numbers of those of whom there are examples, some at a time."""
    for ids, numbers in numbering.known():
        taken = np.flatnonzero(counted.take(numbers))
        yield ids[taken], numbers[taken]


def _chunks(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))


def _examples(values: Tensor, kept: Tensor, wide: bool = False) -> Tensor:
    """The kept ones, in a row, of values that have one for each example, or a row for each if they are ``wide``."""
    rows = values.movedim(1, -1).flatten(0, -2) if wide else values.reshape(-1)
    return rows.index_select(0, kept.to(values.device))


def _as_array(ids: Ids) -> NDArray[Any]:
    """Return integers or strings, and refuse everything else without showing any of it."""
    values: NDArray[Any] = (
        ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
    )
    if values.dtype == object:  # as tables have them
        ids = values.tolist()
        values = np.asarray(ids)
    mixed = (
        values.dtype.kind == "U"
        and not isinstance(ids, np.ndarray)
        and not set(map(type, ids)) <= {str, np.str_}
    )
    if mixed or (values.dtype.kind not in "iuU" and values.size):
        got = "a mixture" if mixed else values.dtype
        raise InputError(
            f"Expected argument `persons` to hold integers or strings but got {got}. Pass ids."
        )
    return values
