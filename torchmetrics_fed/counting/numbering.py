"""Numberings of persons: a number for each id, which tells nothing of it without a key that stays in this process."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from torchmetrics_fed.counting.binning import scratch

Blocks: TypeAlias = NDArray[np.uint8]
"""Ids in 16 bytes each, ``(n, 16)``: equal ids have equal blocks, whatever dtype they came in."""
Hashes: TypeAlias = NDArray[np.complex128]
"""Blocks after a cipher, in the one dtype of this width that numpy moves as a whole."""
Numbers: TypeAlias = NDArray[np.int64]

BLOCK = 16  # bytes of a key and of a hash
CHUNK = 1 << 15  # ids that are looked up at a time, so that they stay in cache
_INTEGER, _STRING = 1, 3  # the last byte of a block; 2 for integers from 2 ** 63 on


class Hashed:
    """Numbers from 1 on, in the order in which persons come, by hashes of their ids.

    A hash is the id as one block of AES under a random key that stays in this process, so that nobody else can test an
    id. AES is a permutation: integers, and strings of up to 15 ASCII characters, never share a hash, hence never an
    allowance. Of other strings the block is a BLAKE2b digest of 128 bits: n persons share one with probability below
    n^2 / 2^129, which no delta notices. (It would notice 64 bits: among a million, 5e-14 for each person.)
    """

    def __init__(self) -> None:
        self._aes = Cipher(algorithms.AES(secrets.token_bytes(BLOCK)), modes.ECB())
        self._encryptor = self._aes.encryptor()
        self.room = 1
        # by number the hashes, by hash the numbers, or 0
        self._size, self._hashes, self._index = (
            0,
            np.zeros(1, np.complex128),
            np.zeros(1 << 10, np.int32),
        )

    def numbers(self, ids: NDArray[Any]) -> Numbers | None:
        """Return the number of each id, a new one for a new person; None if they may not have room."""
        if (size := self._size + len(ids)) >= self.room or 4 * size > len(self._index):
            return None
        hashes, index, end = (
            encrypted(self._encryptor, blocks(ids)),
            self._index,
            len(self._index) - 1,
        )
        slots = hashes.view(np.int64)[::2] & end
        numbers = index.take(slots)
        others = _different(self._hashes.take(numbers), hashes)
        slots, hashes = slots.take(others), hashes.take(others)
        while len(others):
            found = index.take(slots)
            free = (found == 0).nonzero()[0]
            if len(free):  # each takes its slot; of several the last one stays, and is numbered
                where, claim = slots.take(free), np.arange(len(free), dtype=np.int32)
                index[where] = claim
                new = (index.take(where) == claim).nonzero()[0]
                index[where.take(new)] = self._size + 1 + claim[: len(new)]
                self._hashes[self._size + 1 : self._size + 1 + len(new)] = hashes.take(
                    free.take(new)
                )
                self._size += len(new)
                found[free] = index.take(where)
            numbers[others] = found
            rest = _different(self._hashes.take(found), hashes)
            others, hashes, slots = others.take(rest), hashes.take(rest), slots.take(rest) + 1 & end
        return numbers.astype(np.int64)

    def grow(self, more: int) -> None:
        """Make room for more persons; all keep their numbers. The index is a quarter full at most."""
        size = self._size + more
        if size >= self.room:
            self.room = 1 + size + size // 4
            self._hashes.resize(self.room, refcheck=False)  # where they are, if there is room
        if 4 * size <= len(self._index):
            return
        self._index = np.zeros(1 << (4 * size).bit_length(), np.int32)
        for start in range(1, self._size + 1, CHUNK):
            numbers = np.arange(start, min(start + CHUNK, self._size + 1), dtype=np.int32)
            slots = self._hashes[numbers].view(np.int64)[::2] & len(self._index) - 1
            while len(numbers):  # of several at one slot the last one stays
                free = (self._index.take(slots) == 0).nonzero()[0]
                self._index[slots.take(free)] = numbers.take(free)
                rest = (self._index.take(slots) != numbers).nonzero()[0]
                numbers, slots = numbers.take(rest), slots.take(rest) + 1 & len(self._index) - 1

    def known(self) -> Iterator[tuple[Blocks, Numbers]]:
        """Yield the blocks and the numbers of all persons, some at a time."""
        decryptor = self._aes.decryptor()
        for start in range(1, self._size + 1, CHUNK):
            numbers = np.arange(start, min(start + CHUNK, self._size + 1))
            yield (
                encrypted(decryptor, self._hashes[numbers]).view(np.uint8).reshape(-1, BLOCK),
                numbers,
            )

    def ends(self) -> list[int] | None:
        """Return the smallest and the largest id, and others between; None if not all are integers."""
        found: list[int] = []
        for some, _ in self.known():
            if (values := integers(some)) is None:
                return None
            found += int(values.min()), int(values.max())
        return found


class Ranged:
    """Numbers of all integers in a range, of which a good part are persons: their places in a keyed permutation of it.

    Nothing has to be looked up. The key is two random odd numbers, which stay in this process: a place is multiplied by
    each, with its upper half added to the lower one between.

    Args:
        low: the smallest of these integers.
        high: the largest one. There is some room beyond both.
    """

    def __init__(self, low: int, high: int) -> None:
        bits = self.bits(low, high)
        self.room, self._half = 1 << bits, bits // 2
        self._first = max(low - (self.room - (high - low)) // 2, -(1 << 63))
        self._key = 2 * secrets.randbits(62) + 1, 2 * secrets.randbits(62) + 1

    @staticmethod
    def bits(low: int, high: int) -> int:
        """Return how many bits the numbers of a range have."""
        return max(2, ((high - low + 1) * 5 // 4).bit_length())

    def numbers(self, ids: NDArray[Any]) -> Numbers | None:
        """Return the number of each id, in memory that the next call uses again; None if some are not in the range."""
        values = integers(ids)
        if values is None:
            return None
        (_, places), (_, upper) = (
            scratch.room(name, np.int64, len(values)) for name in ("places", "upper")
        )
        np.subtract(
            values, self._first, out=places
        )  # what is below the range wraps around, to above it
        if places.view(np.uint64).max(initial=0) >= self.room:
            places[:] = 0  # this memory outlives the table: no id stays in it
            return None
        places *= self._key[0]
        places &= self.room - 1
        places ^= np.right_shift(places, self._half, out=upper)
        places *= self._key[1]
        places &= self.room - 1
        return places

    def known(self) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield all integers of the range, some at a time, and their numbers."""
        for start in range(0, self.room, CHUNK):
            ids = np.arange(start, min(start + CHUNK, self.room)) + self._first
            numbers = self.numbers(ids)
            assert numbers is not None
            yield ids, numbers

    def ends(self) -> list[int]:
        """Return the first and the last integer of the range."""
        return [self._first, self._first + self.room - 1]


def integers(ids: NDArray[Any]) -> Numbers | None:
    """Return ids, or blocks of ids, as signed integers; None if some are not."""
    if ids.dtype.kind == "U":
        return None
    if ids.ndim == 2:
        words = np.ascontiguousarray(ids).view(np.int64)
        return words[:, 0] if (words[:, 1] == _INTEGER << 56).all() else None
    values = ids.astype(np.int64, copy=False)
    return None if ids.dtype.kind == "u" and (values < 0).any() else values


def blocks(ids: NDArray[Any]) -> Blocks:
    """Return each id as one block; blocks as they are."""
    if ids.ndim == 2:
        return ids
    result = np.zeros((len(ids), BLOCK), np.uint8)
    if ids.dtype.kind != "U":
        words = result.view(np.int64)[:, 0]
        words[:] = ids.astype(np.int64, copy=False)
        result[:, -1] = _INTEGER + (words < 0) if ids.dtype.kind == "u" else _INTEGER
        return result
    texts = np.ascontiguousarray(ids, ids.dtype.newbyteorder("="))
    letters = texts.view(np.uint32).reshape(len(texts), -1)
    short = letters[:, : BLOCK - 1]
    result[:, : short.shape[1]], result[:, -1] = short, _STRING
    if letters.max(initial=0) > 127 or letters[:, BLOCK - 1 :].any():
        for place in np.flatnonzero((letters > 127).any(1) | letters[:, BLOCK - 1 :].any(1)):
            digest = hashlib.blake2b(
                str(texts[place]).encode("utf-8", "surrogatepass"), digest_size=BLOCK
            ).digest()
            result[place] = np.frombuffer(digest, np.uint8)
    return result


def encryptor(key: bytes) -> Any:
    """Return what encrypts blocks."""
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()


def encrypted(cipher: Any, values: NDArray[Any]) -> Hashes:
    """Return blocks after a cipher, or what they were before."""
    room = np.empty(values.nbytes + BLOCK - 1, np.uint8)
    cipher.update_into(values.reshape(-1).view(np.uint8), room)
    return room[: values.nbytes].view(np.complex128)


def _different(one: Hashes, other: Hashes) -> Numbers:
    """Return where hashes differ, bit by bit: as numbers they may be NaN."""
    alike = (one.view(np.uint64) == other.view(np.uint64)).view(np.uint16)
    places: Numbers = (alike != 0x0101).nonzero()[0]
    return places
