"""Rice codes of integers: short where they are small, never much shorter than memory, and with one encoding only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.errors import WireError

FIXED = 0
"""Eight bytes for each integer."""
UNSIGNED = 1
"""Rice codes of integers that are not negative."""
SIGNED = 2
"""Rice codes of the zigzagged integers."""

BLOCK = 64
"""Integers that have their number of low bits in common."""
PART = 1 << 16
"""Integers that are encoded, and decoded, by themselves: the memory that this takes does not grow with the message."""
LEAST_WIDTH = 3
"""The fewest low bits in lists of several parts: with the bit that ends a code, every integer takes half a byte."""

_MOST_ONES_BYTES = 3 * BLOCK // 8  # of a block: 64 ones, and fewer than 128 zeros before them
_POWERS = np.uint64(1) << np.arange(64, dtype=np.uint64)

_Unsigned: TypeAlias = NDArray[np.uint64]


def pack(integers: NDArray[np.int64], fixed: bool = False) -> tuple[int, bytes]:
    r"""Return how ``integers`` are encoded and the bytes; a function of the integers alone, whatever the platform.

    Integers of either sign are zigzagged (0, -1, 1, -2, ...). Parts of 65,536 are then encoded one after the other, in
    blocks of 64 with :math:`k = \lfloor \log_2 \text{mean} \rfloor` low bits, at least 0 in a list of one part, and at
    least 3 in a longer one: a byte of :math:`k` for each block; the low bits, lowest first, each bit of all blocks that
    have it side by side; the rest, :math:`v \gg k`, as that many zeros and a one. The last block is filled up with
    zeros. If that is not shorter, as for masked values, or where it is asked for with ``fixed``, every integer takes
    eight bytes, little-endian.

    At least three low bits, so that no long message takes more than 16 times its size in memory: zeros compress well,
    and a few of the sender's bytes must not fill the memory of the reader. One part is half a megabyte at most.

    No general compressor: its output changes from one version to the next, so that two honest parties would encode
    the same share differently, and it can be made to inflate.
    """
    if not fixed:
        how = SIGNED if int(integers.min()) < 0 else UNSIGNED
        least = _least_width(integers.size)
        packed = b"".join(_encoded(part, how, least) for part in _parts(integers))
        if len(packed) < 8 * integers.size:
            return how, packed
    return FIXED, integers.astype("<i8").tobytes()


def unpack(
    how: int, packed: bytes | memoryview, size: int, fixed: bool = False
) -> NDArray[np.int64]:
    """Return the ``size`` integers that :func:`pack` encodes like this, and refuse what it does not.

    Nothing is allocated before the bytes are known to be enough: beyond the first part, half a byte at least for each
    8 bytes of memory.
    """
    if how == FIXED:
        _expect(len(packed) == 8 * size, f"{8 * size} bytes of cells", len(packed))
        integers = np.frombuffer(packed, dtype="<i8").astype(np.int64)
        _expect_canonical(fixed or not _are_shorter_coded(integers))
        return integers
    if how not in (UNSIGNED, SIGNED):
        raise WireError(
            f"Expected cells in encoding {FIXED}, {UNSIGNED} or {SIGNED} but got {how}."
        )
    _expect_canonical(not fixed)
    width = _least_width(size)
    least = (1 + BLOCK * (width + 1) // 8) * -(-size // BLOCK)
    _expect(
        least <= len(packed) < 8 * size,
        f"{least} to {8 * size - 1} bytes of cells",
        len(packed),
    )
    integers = np.empty(size, dtype=np.int64)
    rest = memoryview(packed)
    for part in _parts(integers):
        rest = rest[_decode(rest, how, width, part) :]
    _expect_canonical(len(rest) == 0)
    _expect_canonical((how == SIGNED) == bool(integers.min() < 0))
    return integers


def _parts(integers: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the parts of a list that are encoded by themselves, as views."""
    for start in range(0, integers.size, PART):
        yield integers[start : start + PART]


def _least_width(size: int) -> int:
    return LEAST_WIDTH if size > PART else 0


def _are_shorter_coded(integers: NDArray[np.int64]) -> bool:
    """Whether Rice codes take fewer bytes than eight for each integer."""
    how = SIGNED if int(integers.min()) < 0 else UNSIGNED
    least = _least_width(integers.size)
    codes = (_encoded(part, how, least) for part in _parts(integers))
    return sum(map(len, codes)) < 8 * integers.size


def _encoded(part: NDArray[np.int64], how: int, least_width: int) -> bytes:
    """Return the Rice codes of one part."""
    flat = np.zeros(-(-part.size // BLOCK) * BLOCK, dtype=np.int64)
    flat[: part.size] = part if how == UNSIGNED else (part << 1) ^ (part >> 63)
    blocks: _Unsigned = flat.view(np.uint64).reshape(-1, BLOCK)
    widths = _widths(blocks, least_width)
    zeros = (blocks >> widths[:, None]).astype(np.int64)
    ends = zeros.cumsum() + np.arange(1, flat.size + 1)
    ones = np.zeros(int(ends[-1]), dtype=np.uint8)
    ones[ends - 1] = 1
    pieces = [widths.astype(np.uint8)]
    for bit in range(int(widths.max())):
        plane = blocks[widths > bit] >> np.uint64(bit) & np.uint64(1)
        pieces.append(np.packbits(plane.astype(np.uint8)))
    pieces.append(np.packbits(ones))
    return b"".join(piece.tobytes() for piece in pieces)


def _decode(packed: memoryview, how: int, least_width: int, part: NDArray[np.int64]) -> int:
    """Fill one part from the beginning of ``packed``, and return how many bytes are its codes."""
    count = -(-part.size // BLOCK)
    _expect(len(packed) >= count, f"{count} bytes of widths", len(packed))
    widths = np.frombuffer(packed, dtype=np.uint8, count=count)
    _expect_canonical(int(widths.min()) >= least_width and int(widths.max()) < 64)
    start = count + BLOCK // 8 * int(widths.sum())
    _expect(len(packed) > start, f"more than {start} bytes of cells", len(packed))
    stop = start + _MOST_ONES_BYTES * count
    ones = np.unpackbits(np.frombuffer(packed[start:stop], dtype=np.uint8))
    ends = np.flatnonzero(ones)[: BLOCK * count]
    _expect(len(ends) == BLOCK * count, f"{BLOCK * count} codes", len(ends))
    zeros = np.diff(ends, prepend=-1).astype(np.uint64).reshape(-1, BLOCK) - np.uint64(1)
    values = zeros << widths.astype(np.uint64)[:, None]
    at = count
    for bit in range(int(widths.max())):
        rows = widths > bit
        plane = np.frombuffer(packed, dtype=np.uint8, count=BLOCK // 8 * int(rows.sum()), offset=at)
        bits = np.unpackbits(plane).astype(np.uint64).reshape(-1, BLOCK)
        values[rows] |= bits << np.uint64(bit)
        at += len(plane)
    signed = values.reshape(-1)[: part.size].view(np.int64)
    part[:] = signed if how == UNSIGNED else (signed >> 1 & np.int64(2**63 - 1)) ^ -(signed & 1)
    used = start + int(ends[-1]) // 8 + 1
    _expect_canonical(_encoded(part, how, least_width) == packed[:used])
    return used


def _widths(blocks: _Unsigned, least_width: int) -> _Unsigned:
    """Return the number of low bits of each block."""
    six = np.uint64(6)  # 64 integers of 64 bits: their mean is summed without overflow
    means = (blocks >> six).sum(1) + ((blocks & np.uint64(BLOCK - 1)).sum(1) >> six)
    widths = np.searchsorted(_POWERS, means, side="right") - 1
    bounded: _Unsigned = np.maximum(widths, least_width).astype(np.uint64)
    return bounded


def _expect(holds: bool, expected: str, got: int) -> None:
    if not holds:
        raise WireError(
            f"Expected {expected} but got {got}: these are cut off, padded or not of this spec."
        )


def _expect_canonical(holds: bool) -> None:
    if not holds:
        raise WireError(
            "Expected the canonical encoding of the cells but got another one. Send what `bytes(share)` returns."
        )
