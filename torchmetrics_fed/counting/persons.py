"""Persons: how many examples of each person were counted, so that none has more than the privacy claim rests on."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.counting.rules import Rules, check_batch
from torchmetrics_fed.errors import InputError, ReleaseError

Ids: TypeAlias = Tensor | NDArray[Any] | Sequence[int] | Sequence[str]
"""The person of each example: integers, or strings."""
Hashes: TypeAlias = NDArray[np.complex128]
"""Blocks of 16 bytes, in the one dtype of this width that numpy moves as a whole."""

BLOCK = 16  # bytes of a key and of a hash
_BITS = 15
_CHUNK = 1 << _BITS  # examples that are looked up at a time, so that they stay in cache
_INTEGER, _STRING = 1, 3  # the last byte of a block; 2 for integers from 2 ** 63 on


class Persons:
    """One metric's table of persons: by keyed hash, how many examples of each were counted.

    A hash is the id as one block of AES under a random key that stays in this process, so that nobody else can test an
    id. AES is a permutation: integers, and strings of up to 15 ASCII characters, never share a hash, hence never an
    allowance. Of other strings the block is a BLAKE2b digest of 128 bits: n persons share one with probability below
    n^2 / 2^129, which no delta notices. (It would notice 64 bits: among a million, 5e-14 for each person.)

    Args:
        most: how many examples of one person may be counted.
        key: of the hashes; a random one if not given.

    Example:
        >>> from torchmetrics_fed.counting.persons import Persons
        >>> Persons(2).admit(["ann", "bob", "ann", "ann"])
        array([ True,  True,  True, False])
    """

    def __init__(self, most: int, key: bytes = b"") -> None:
        self.most, self.batches, self.left_out = most, 0, 0
        self._key = key or secrets.token_bytes(BLOCK)
        self._aes = Cipher(algorithms.AES(self._key), modes.ECB())
        self._encryptor = self._aes.encryptor()
        # persons have numbers from 1 on; by number their hashes and examples, by hash their numbers, or 0
        self._size, self._index = 0, np.zeros(1 << 10, np.int32)
        self._hashes, self._counted = np.zeros(1, np.complex128), np.zeros(1, np.min_scalar_type(most + _CHUNK))

    def __reduce__(self) -> Any:
        raise ReleaseError("Expected no table of persons in a pickle: it stays on the client, until `reset`.")

    def __deepcopy__(self, memo: dict[int, Any]) -> Persons:
        """A table of its own, for counts of their own: each keeps the bound, and one session releases one of them."""
        twin: Persons = memo.setdefault(id(self), Persons(self.most))
        twin.merge(self)
        return twin

    @contextmanager
    def admitted(
        self, ids: Ids, rules: Rules, columns: int, preds: Tensor, target: Tensor, *others: Tensor | None
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
        countable, ignored = np.arange(math.prod(shape)), rules.ignored(target)
        if ignored is not None:  # what is not counted uses up nothing
            countable = np.flatnonzero(~(ignored.all(1) if several else ignored).reshape(-1).cpu().numpy())
        each = math.prod(shape[len(ids.shape) :])
        ids = ids.reshape(-1) if each == 1 and ignored is None else ids.reshape(-1)[countable // max(each, 1)]
        before, may = self.left_out, self.admit(ids)
        try:
            if self.left_out > before:
                kept = torch.from_numpy(countable[may])
                if rules.task == "binary":
                    target = rules.unless_one_hot(target)  # as long as it has its shape
                others = (*(other if other is None else _examples(other, kept) for other in others),)
                preds, target = _examples(preds, kept, rules.task != "binary"), _examples(target, kept, several)
            yield preds, target, *others
        except Exception:
            for start in range(0, len(taken := ids[may]), _CHUNK):
                hashes = _crypted(self._encryptor, _blocks(taken[start : start + _CHUNK]))
                np.subtract.at(self._counted, self._numbers(hashes), 1)
            self.left_out, self.batches = before, self.batches - 1
            raise

    def admit(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which examples may be counted, the first ones of each person, and take them for counted."""
        hashes = _crypted(self._encryptor, _blocks(_as_array(ids)))
        may = np.empty(len(hashes), np.bool_)
        for start in range(0, len(hashes), _CHUNK):
            part = slice(start, start + _CHUNK)
            may[part] = self._first_come(self._numbers(hashes[part]))
        self.left_out += len(may) - int(np.count_nonzero(may))
        self.batches += 1
        return may

    def merge(self, other: Persons) -> None:
        """Add another table, or raise and change nothing if somebody has too many examples in both."""
        self.add(*other.rehashed(self._key))
        self.batches, self.left_out = self.batches + other.batches, self.left_out + other.left_out

    def rehashed(self, key: bytes) -> tuple[Hashes, NDArray[Any]]:
        """Return all hashes under another key, and how many examples of each were counted."""
        blocks = _crypted(self._aes.decryptor(), self._hashes[1 : 1 + self._size])
        other = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        return _crypted(other, blocks), self._counted[1 : 1 + self._size]

    def add(self, hashes: Hashes, examples: NDArray[Any]) -> None:
        """Add examples of different persons, a number for each, or raise if somebody comes to have too many."""
        parts = [self._numbers(hashes[start : start + _CHUNK]) for start in range(0, len(hashes), _CHUNK)]
        numbers = np.concatenate([np.empty(0, np.int32), *parts])
        total = self._counted.take(numbers) + examples.astype(np.int64)
        if (total > self.most).any():
            raise ReleaseError(
                f"Expected at most {self.most} examples of one person, as `examples_per_person` says, but somebody has "
                "more in several parts of the data, each of which keeps to it; nothing was charged. Divide the data by "
                "person, so that all examples of one are counted in one place, then `reset` and count it again."
            )
        self._counted[numbers] = total

    def _first_come(self, numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which of up to a chunk of examples may be counted, and take them for counted."""
        np.add.at(self._counted, numbers.astype(np.intp), self._counted.dtype.type(1))
        after = self._counted.take(numbers)
        may = after <= self.most
        if not may.all():
            over = np.flatnonzero(~may)  # all examples in this chunk of those who have too many now
            # persons side by side, each one's examples as they came
            order = np.sort(numbers.take(over).astype(np.int64) << _BITS | over)
            person, place = order >> _BITS, order & (_CHUNK - 1)
            starts = np.flatnonzero(np.concatenate(([True], person[1:] != person[:-1])))
            runs = np.diff(np.concatenate((starts, [len(person)])))
            allowed = self.most + runs - after.take(place.take(starts)).astype(np.int64)
            may[place] = np.arange(len(person)) < (starts + allowed).repeat(runs)
            self._counted[person.take(starts)] = self.most
        return may

    def _numbers(self, hashes: Hashes) -> NDArray[np.int32]:
        """Return the number of each person, from 1 on, a new one for a new person."""
        self._reserve(self._size + len(hashes))
        index, end = self._index, len(self._index) - 1
        slots = hashes.view(np.int64)[::2] & end
        numbers = index.take(slots)
        others = np.flatnonzero(~_same(self._hashes.take(numbers), hashes))
        slots, hashes = slots.take(others), hashes.take(others)
        while len(others):
            free = np.flatnonzero(index.take(slots) == 0)
            if len(free):  # each takes its slot; of several the last one stays, and is numbered
                where, claim = slots.take(free), np.arange(len(free), dtype=np.int32)
                index[where] = claim
                new = np.flatnonzero(index.take(where) == claim)
                index[where.take(new)] = self._size + 1 + claim[: len(new)]
                self._hashes[self._size + 1 : self._size + 1 + len(new)] = hashes.take(free.take(new))
                self._size += len(new)
            found = index.take(slots)
            numbers[others] = found
            rest = np.flatnonzero(~_same(self._hashes.take(found), hashes))
            others, hashes, slots = others.take(rest), hashes.take(rest), slots.take(rest) + 1 & end
        return numbers

    def _reserve(self, size: int) -> None:
        """Make room for ``size`` persons. The index is a quarter full at most."""
        if size >= len(self._hashes):
            for table in (self._hashes, self._counted):
                table.resize(1 + size + size // 4, refcheck=False)  # where they are, if there is room
        if 4 * size > len(self._index):
            known, self._size = self._size, 0
            self._index = np.zeros(1 << (4 * size).bit_length(), np.int32)
            for start in range(1, known + 1, _CHUNK):  # the same persons have the same numbers, in another order
                part = slice(start, min(start + _CHUNK, known + 1))
                hashes, examples = self._hashes[part].copy(), self._counted[part].copy()
                self._counted[part] = 0
                self.add(hashes, examples)


def _examples(values: Tensor, kept: Tensor, wide: bool = False) -> Tensor:
    """The kept ones, in a row, of values that have one for each example, or a row for each if they are ``wide``."""
    return (values.movedim(1, -1).flatten(0, -2) if wide else values.reshape(-1))[kept.to(values.device)]


def _as_array(ids: Ids) -> NDArray[Any]:
    """Return integers or strings, and refuse everything else without showing any of it."""
    values: NDArray[Any] = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
    if values.dtype == object:  # as tables have them
        ids = values.tolist()
        values = np.asarray(ids)
    mixed = values.dtype.kind == "U" and not isinstance(ids, np.ndarray) and not set(map(type, ids)) <= {str, np.str_}
    if mixed or (values.dtype.kind not in "iuU" and values.size):
        got = "a mixture" if mixed else values.dtype
        raise InputError(f"Expected argument `persons` to hold integers or strings but got {got}. Pass ids.")
    return values


def _blocks(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return each id as one block, ``(n, 16)``; equal ids have equal blocks, whatever dtype they came in."""
    blocks = np.zeros((values.size, BLOCK), np.uint8)
    if values.dtype.kind != "U":
        words = blocks.view(np.int64)[:, 0]
        words[:] = values.reshape(-1).astype(np.int64, copy=False)
        blocks[:, -1] = _INTEGER + (words < 0) if values.dtype.kind == "u" else _INTEGER
        return blocks
    texts = np.ascontiguousarray(values, values.dtype.newbyteorder("=")).reshape(-1)
    letters = texts.view(np.uint32).reshape(len(texts), -1)
    short = letters[:, : BLOCK - 1]
    blocks[:, : short.shape[1]], blocks[:, -1] = short, _STRING
    if letters.shape[1] >= BLOCK or letters.max(initial=0) > 127:
        for place in np.flatnonzero((letters > 127).any(1) | letters[:, BLOCK - 1 :].any(1)):
            digest = hashlib.blake2b(str(texts[place]).encode("utf-8", "surrogatepass"), digest_size=BLOCK).digest()
            blocks[place] = np.frombuffer(digest, np.uint8)
    return blocks


def _crypted(cipher: Any, blocks: NDArray[Any]) -> Hashes:
    room = np.empty(blocks.nbytes + BLOCK - 1, np.uint8)
    cipher.update_into(blocks.reshape(-1).view(np.uint8), room)
    return room[: blocks.nbytes].view(np.complex128)


def _same(one: Hashes, other: Hashes) -> NDArray[np.bool_]:
    """Which hashes are equal, bit by bit: as numbers they may be NaN."""
    equal: NDArray[np.bool_] = (one.view(np.uint64) == other.view(np.uint64)).view(np.uint16) == 0x0101
    return equal
