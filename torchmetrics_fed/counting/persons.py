"""Persons: the number of examples of each person in the counts, so that it keeps a bound.

A table is a dictionary from a person to the number of the person's examples in the counts. A person
is the text of an id: ids that print the same are the same person, whatever type they came in (7,
"7", a numpy integer). The table stays in the process that counts. Between ranks travel keyed
digests of the texts (:meth:`Persons.digests`), and nothing else.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.counting.validation import Rules, check_batch
from torchmetrics_fed.errors import InputError, ReleaseError

Ids: TypeAlias = Tensor | NDArray[Any] | Sequence[int] | Sequence[str]
"""The person of each example: integers, or strings."""

DIGEST_BYTES = 16
"""Bytes of a person's digest: among n persons, two share one with a probability below n^2 /
2^129."""


class Persons:
    """One metric's table of persons: how many examples of each were counted.

    Args:
        bound: how many examples of one person may be counted.

    Example:
        >>> from torchmetrics_fed.counting.persons import Persons
        >>> Persons(2).admit(["ann", "bob", "ann", "ann"])
        array([ True,  True,  True, False])
    """

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.batches = 0
        """Batches that came with ids."""
        self.left_out = 0
        """Examples that were not counted because their person had enough."""
        self._examples: dict[str, int] = {}

    def __reduce__(self) -> Any:
        raise ReleaseError(
            "Expected no table of persons in a pickle: it stays on the client, until `reset`."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Persons:
        """Return a table for a copy of the counts.

        Both tables keep the bound, and the client releases the counts of one of them.
        """
        twin = Persons(self.bound)
        memo[id(self)] = twin
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
        *values: Tensor | None,
    ) -> Iterator[tuple[Any, ...]]:
        """Give scores, targets and further values of the examples of a batch that may be counted.

        If they are not counted, because of an error inside, nothing has happened.

        Args:
            ids: the person of each of N, or of each position of each of N.
            rules: how to read scores and targets, which are as a metric takes them.
            columns: how many classes or labels there are.
            preds: the scores.
            target: the targets.
            values: further tensors, with one value for each example.
        """
        check_batch(preds, target, columns, rules.task)
        has_label_axis = rules.task == "multilabel"
        texts = _texts_of_positions(ids, target, has_label_axis)
        countable = _countable(target, rules)
        if countable is not None:  # an example that is not counted uses up nothing
            texts = [texts[place] for place in countable]
        may_count = self.admit(texts)
        try:
            if bool(may_count.all()):
                yield preds, target, *values
            else:
                admitted = np.flatnonzero(may_count)
                if countable is not None:
                    admitted = countable[admitted]
                places = torch.from_numpy(admitted)
                if rules.task == "binary":
                    target = rules.unless_one_hot(target)  # as long as it has its shape
                yield (
                    _examples(preds, places, has_columns=rules.task != "binary"),
                    _examples(target, places, has_columns=has_label_axis),
                    *(None if value is None else _examples(value, places) for value in values),
                )
        except Exception:
            self._take_back(texts, may_count)
            raise

    def admit(self, ids: Ids) -> NDArray[np.bool_]:
        """Return a mask of each person's first examples, and record them as counted."""
        texts = _texts(ids)
        examples = self._examples
        may_count = np.zeros(len(texts), dtype=np.bool_)
        for place, person in enumerate(texts):
            count = examples.get(person, 0)
            if count < self.bound:
                examples[person] = count + 1
                may_count[place] = True
        self.batches += 1
        self.left_out += len(texts) - int(np.count_nonzero(may_count))
        return may_count

    def _take_back(self, texts: Sequence[str], may_count: NDArray[np.bool_]) -> None:
        """Undo the last :meth:`admit`."""
        for place in np.flatnonzero(may_count).tolist():
            person = texts[place]
            self._examples[person] -= 1
            if not self._examples[person]:
                del self._examples[person]
        self.batches -= 1
        self.left_out -= len(texts) - int(np.count_nonzero(may_count))

    def merge(self, table: Persons) -> None:
        """Add another table.

        If a person has too many examples in both, it raises and changes nothing.
        """
        check_together([self._examples, table._examples], self.bound)
        for person, examples in table._examples.items():
            self._examples[person] = self._examples.get(person, 0) + examples
        self.batches += table.batches
        self.left_out += table.left_out

    def digests(self, key: bytes) -> dict[bytes, int]:
        """Return the number of examples of each person, by a keyed one-way digest of the person.

        Ranks compare them.
        """
        return {
            hashlib.blake2b(
                person.encode("utf-8", "surrogatepass"), key=key, digest_size=DIGEST_BYTES
            ).digest(): examples
            for person, examples in self._examples.items()
        }


def check_together(tables: Iterable[dict[Any, int]], bound: int) -> None:
    """Raise if a person has more than ``bound`` examples in several tables together."""
    total: dict[Any, int] = {}
    for table in tables:
        for person, examples in table.items():
            total[person] = total.get(person, 0) + examples
            if total[person] > bound:
                raise ReleaseError(
                    f"Expected at most {bound} examples of one person, as `examples_per_person` "
                    "says, but a person has more in several parts of the data, each of which keeps "
                    "to it; nothing was charged. Divide the data by person, so that all examples "
                    "of one are counted in one place, then `reset` and count it again."
                )


def _texts_of_positions(ids: Ids, target: Tensor, has_label_axis: bool) -> list[str]:
    """Return the person of each position.

    An id for each example counts for all positions of the example.
    """
    shape = target.shape[:1] + target.shape[1 + has_label_axis :]
    values = _array(ids)
    if values.shape not in (shape, shape[:1]):
        positions = f", or for each position, {tuple(shape)}," if len(shape) > 1 else ""
        raise InputError(
            f"Expected argument `persons` to hold an id for each of {tuple(shape[:1])} "
            f"examples{positions} but got the shape {values.shape}."
        )
    repeats = math.prod(shape[values.ndim :])
    texts = _texts(values)
    if repeats == 1:
        return texts
    return [text for text in texts for _ in range(repeats)]


def _countable(target: Tensor, rules: Rules) -> NDArray[np.int64] | None:
    """Return the places of the examples that are not ignored; None if none can be."""
    ignored = rules.ignored(target)
    if ignored is None:
        return None
    if rules.task == "multilabel":
        ignored = ignored.all(1)
    places: NDArray[np.int64] = np.flatnonzero(~ignored.reshape(-1).cpu().numpy())
    return places


def _examples(values: Tensor, places: Tensor, *, has_columns: bool = False) -> Tensor:
    """Return the examples at some places, in a row.

    Values have one number for each example, or one for each of its columns.
    """
    rows = values.reshape(-1)
    if has_columns:
        rows = values.movedim(1, -1).flatten(0, -2)
    return rows.index_select(0, places.to(values.device))


def _array(ids: Ids) -> NDArray[Any]:
    """Return ids as an array of integers, of texts, or of objects."""
    if isinstance(ids, Tensor):
        return ids.detach().cpu().numpy()
    if isinstance(ids, np.ndarray):
        return ids
    return np.asarray(ids, dtype=object)


def _texts(ids: Ids) -> list[str]:
    """Return the text of each id, and refuse everything else without showing any of it."""
    values = _array(ids)
    if values.dtype.kind in "iuU":
        return [str(value) for value in values.reshape(-1).tolist()]
    if values.dtype != object and values.size:
        raise _no_ids(str(values.dtype))
    texts = []
    for value in values.reshape(-1).tolist():
        if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
            raise _no_ids(type(value).__name__)
        texts.append(str(value))
    return texts


def _no_ids(kind: str) -> InputError:
    return InputError(
        f"Expected argument `persons` to hold integers or strings but got {kind}. Pass ids."
    )
