"""Rice codes of integers: short where they are small, and with one encoding only."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.errors import WireError

FIXED, UNSIGNED, SIGNED = range(3)
"""How integers are encoded: eight bytes each, Rice codes, Rice codes of the zigzagged integers."""

_BLOCK = 64
_POWERS = np.uint64(1) << np.arange(64, dtype=np.uint64)

_Unsigned: TypeAlias = NDArray[np.uint64]


def pack(integers: NDArray[np.int64], fixed: bool = False) -> tuple[int, bytes]:
    r"""Return how ``integers`` are encoded and the bytes; a function of the integers alone, whatever the platform.

    Integers of either sign are zigzagged (0, -1, 1, -2, ...). Blocks of 64 are then Rice coded with
    :math:`k = \lfloor \log_2 \text{mean} \rfloor`: a byte of :math:`k + 1` for each block, or 0 where all 64 are zero
    and nothing follows; the low :math:`k` bits, lowest first, each bit of all blocks that have it side by side; the
    rest, :math:`v \gg k`, as that many zeros and a one. The last block is filled up with zeros. If that is not shorter,
    as for masked values, or where it is asked for with ``fixed``, every integer takes eight bytes, little-endian.

    No general compressor: its output changes from one version to the next, so that two honest parties would encode
    the same share differently, and it can be made to inflate.
    """
    if fixed:
        return FIXED, integers.astype("<i8").tobytes()
    how = UNSIGNED if int(integers.min()) >= 0 else SIGNED
    flat = np.zeros(-(-integers.size // _BLOCK) * _BLOCK, dtype=np.int64)
    flat[: integers.size] = integers if how == UNSIGNED else (integers << 1) ^ (integers >> 63)
    blocks: _Unsigned = flat.view(np.uint64).reshape(-1, _BLOCK)
    widths = _widths(blocks)
    live = blocks[widths >= 0]
    low = widths[widths >= 0].astype(np.uint64)[:, None]
    ends = (live >> low).astype(np.int64).cumsum() + np.arange(1, live.size + 1)
    ones = np.zeros(int(ends[-1]) if live.size else 0, dtype=np.uint8)
    if len(widths) + 8 * int(low.sum()) + -(-ones.size // 8) >= 8 * integers.size:
        return FIXED, integers.astype("<i8").tobytes()
    ones[ends - 1] = 1
    bits = range(int(low.max(initial=0)))
    planes = [
        (live[low[:, 0] > bit] >> np.uint64(bit) & np.uint64(1)).astype(np.uint8) for bit in bits
    ]
    parts = [
        (widths + 1).astype(np.uint8),
        *(np.packbits(plane) for plane in planes),
        np.packbits(ones),
    ]
    return how, b"".join(part.tobytes() for part in parts)


def unpack(
    how: int, packed: bytes | memoryview, size: int, fixed: bool = False
) -> NDArray[np.int64]:
    """Return the ``size`` integers that :func:`pack` encodes like this, and refuse what it does not.

    Nothing is allocated before the bytes are known to be enough.
    """
    if how == FIXED:
        _expect(len(packed) == 8 * size, f"{8 * size} bytes of cells", len(packed))
        integers = np.frombuffer(packed, dtype="<i8").astype(np.int64)
    elif how in (UNSIGNED, SIGNED):
        values = _codes(packed, size)[:size].view(np.int64)
        integers = (
            values if how == UNSIGNED else (values >> 1 & np.int64(2**63 - 1)) ^ -(values & 1)
        )
    else:
        raise WireError(
            f"Expected cells in encoding {FIXED}, {UNSIGNED} or {SIGNED} but got {how}."
        )
    if pack(integers, fixed) != (how, packed):
        raise WireError(
            "Expected the canonical encoding of the cells but got another one. Send what `bytes(share)` returns."
        )
    return integers


def _widths(blocks: _Unsigned) -> NDArray[np.int64]:
    """The number of low bits of each block, -1 where all is zero."""
    six = np.uint64(6)  # 64 integers of 64 bits: their mean is summed without overflow
    means = (blocks >> six).sum(1) + ((blocks & np.uint64(_BLOCK - 1)).sum(1) >> six)
    widths = np.maximum(np.searchsorted(_POWERS, means, side="right") - 1, 0)
    return np.where(blocks.any(1), widths, -1)


def _codes(packed: bytes | memoryview, size: int) -> _Unsigned:
    count = -(-size // _BLOCK)
    _expect(
        count <= len(packed) < 8 * size, f"{count} to {8 * size - 1} bytes of cells", len(packed)
    )
    widths = np.frombuffer(packed, dtype=np.uint8, count=count).astype(np.int64) - 1
    _expect(int(widths.max()) < 64, "blocks of up to 63 low bits", int(widths.max()))
    live = widths >= 0
    low = widths[live].astype(np.uint64)[:, None]
    start, cells = count + 8 * int(low.sum()), _BLOCK * len(low)
    _expect(
        8 * (len(packed) - start) >= cells,
        f"{start + -(-cells // 8)} bytes of cells at least",
        len(packed),
    )
    ends = np.flatnonzero(np.unpackbits(np.frombuffer(packed, dtype=np.uint8, offset=start)))
    _expect(len(ends) == cells, f"{cells} codes", len(ends))
    values = np.diff(ends, prepend=-1).astype(np.uint64).reshape(-1, _BLOCK) - np.uint64(1) << low
    at = count
    for bit in range(int(low.max(initial=0))):
        rows = low[:, 0] > bit
        plane = np.frombuffer(packed, dtype=np.uint8, count=8 * int(rows.sum()), offset=at)
        values[rows] |= np.unpackbits(plane).astype(np.uint64).reshape(-1, _BLOCK) << np.uint64(bit)
        at += len(plane)
    blocks = np.zeros((count, _BLOCK), dtype=np.uint64)
    blocks[live] = values
    return blocks.reshape(-1)


def _expect(holds: bool, expected: str, got: int) -> None:
    if not holds:
        raise WireError(
            f"Expected {expected} but got {got}: these are cut off, padded or not of this spec."
        )
