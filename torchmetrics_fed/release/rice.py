r"""Rice codes of integers: short for small integers, with one encoding for each list.

A Rice code of width :math:`k` writes an integer :math:`v \ge 0` as its :math:`k` low bits and its
quotient :math:`q = \lfloor v / 2^k \rfloor`, the quotient as :math:`q` zeros and a one (Rice and
Plaunt 1971). These rules hold for every encoded list:

- The bytes are a function of the integers alone, on every platform. A general compressor would not
  do: its output changes between versions, so that two honest parties would encode one share
  differently, and its input can be made to inflate.
- A reader accepts only the bytes that :func:`pack` writes.
- Beyond the first part, no message takes more than 16 times its size in memory. Zeros compress
  well, and a sender's few bytes must not fill a reader's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.errors import WireError

FIXED = 0
"""The encoding of eight bytes for each integer."""

UNSIGNED = 1
"""The encoding of Rice codes of integers that are not negative."""

SIGNED = 2
"""The encoding of Rice codes of zigzagged integers."""

BLOCK = 64
"""Integers that share one width."""

PART = 1 << 16
"""Integers that are encoded, and decoded, independently of all others: the working memory does not
grow with the message. One part takes half a megabyte of memory at most."""

LEAST_WIDTH = 3
"""The smallest width, in bits, in lists of several parts: with the bit that ends a code, every
integer takes at least half a byte."""

_MOST_QUOTIENT_BYTES = 3 * BLOCK // 8
"""The most bytes that the quotients of a block take: 64 ones, and fewer than 128 zeros."""

_POWERS_OF_TWO = np.uint64(1) << np.arange(64, dtype=np.uint64)

_Signed: TypeAlias = NDArray[np.int64]
_Unsigned: TypeAlias = NDArray[np.uint64]


def pack(integers: NDArray[np.int64], fixed: bool = False) -> tuple[int, bytes]:
    r"""Return the encoding of ``integers``, and the bytes.

    Integers of both signs are zigzagged first (0, -1, 1, -2, ...). Parts of 65,536 integers are
    encoded one after the other, in blocks of 64 integers. A block has the width
    :math:`k = \lfloor \log_2 \text{mean} \rfloor`, at least 0 in a list of one part and at least 3
    in a longer list. The code of a part is

    1. the width of each block, a byte each;
    2. the low bits, lowest first: bit 0 of all blocks that have it, then bit 1, and so on;
    3. the quotients :math:`v \gg k`, each as that many zeros and a one.

    The last block is filled up with zeros. Where this is not shorter than eight bytes for each
    integer, as for masked values, or where the caller asks for it with ``fixed``, every integer
    takes eight bytes, little-endian.
    """
    if not fixed:
        encoding = _rice_encoding(integers)
        packed = b"".join(_encoded_parts(integers, encoding))
        if len(packed) < 8 * integers.size:
            return encoding, packed
    return FIXED, integers.astype("<i8").tobytes()


def unpack(
    encoding: int, packed: bytes | memoryview, size: int, fixed: bool = False
) -> NDArray[np.int64]:
    """Return the ``size`` integers for which :func:`pack` returns this encoding and these bytes.

    Raises for all other bytes. Nothing is allocated before the bytes are known to be enough: beyond
    the first part, there must be at least half a byte for each 8 bytes of memory.
    """
    if encoding == FIXED:
        return _unpack_fixed(packed, size, fixed)
    if encoding not in (UNSIGNED, SIGNED):
        raise WireError(
            f"Expected cells in encoding {FIXED}, {UNSIGNED} or {SIGNED} but got {encoding}."
        )
    _expect_canonical(not fixed)
    least_width = _least_width(size)
    least_block_bytes = 1 + BLOCK * (least_width + 1) // 8
    least_bytes = least_block_bytes * _blocks(size)
    _expect(
        least_bytes <= len(packed) < 8 * size,
        f"{least_bytes} to {8 * size - 1} bytes of cells",
        len(packed),
    )
    integers = np.empty(size, dtype=np.int64)
    rest = memoryview(packed)
    for part in _parts(integers):
        used = _decode(rest, encoding, least_width, part)
        rest = rest[used:]
    _expect_canonical(len(rest) == 0)
    _expect_canonical(encoding == _rice_encoding(integers))
    return integers


def _unpack_fixed(packed: bytes | memoryview, size: int, fixed: bool) -> _Signed:
    _expect(len(packed) == 8 * size, f"{8 * size} bytes of cells", len(packed))
    integers = np.frombuffer(packed, dtype="<i8").astype(np.int64)
    if not fixed:
        rice_bytes = sum(map(len, _encoded_parts(integers, _rice_encoding(integers))))
        _expect_canonical(rice_bytes >= 8 * integers.size)
    return integers


def _rice_encoding(integers: _Signed) -> int:
    if int(integers.min()) < 0:
        return SIGNED
    return UNSIGNED


def _least_width(size: int) -> int:
    """Return the smallest width of a block in a list of ``size`` integers."""
    if size > PART:
        return LEAST_WIDTH
    return 0


def _blocks(size: int) -> int:
    """Return the number of blocks that ``size`` integers take."""
    return -(-size // BLOCK)


def _parts(integers: _Signed) -> Iterator[_Signed]:
    """Yield the parts of a list, as views."""
    for start in range(0, integers.size, PART):
        yield integers[start : start + PART]


def _encoded_parts(integers: _Signed, encoding: int) -> Iterator[bytes]:
    """Yield the Rice codes of each part."""
    least_width = _least_width(integers.size)
    for part in _parts(integers):
        yield _encoded(part, encoding, least_width)


def _encoded(part: _Signed, encoding: int, least_width: int) -> bytes:
    """Return the Rice codes of one part."""
    padded = np.zeros(_blocks(part.size) * BLOCK, dtype=np.int64)
    padded[: part.size] = part
    if encoding == SIGNED:
        padded = _zigzag(padded)
    blocks: _Unsigned = padded.view(np.uint64).reshape(-1, BLOCK)
    widths = _widths(blocks, least_width)
    pieces = [widths.astype(np.uint8)]
    for bit in range(int(widths.max())):
        low_bits = blocks[widths > bit] >> np.uint64(bit) & np.uint64(1)
        pieces.append(np.packbits(low_bits.astype(np.uint8)))
    quotients = (blocks >> widths[:, None]).astype(np.int64)
    pieces.append(_unary(quotients))
    return b"".join(piece.tobytes() for piece in pieces)


def _unary(quotients: _Signed) -> NDArray[np.uint8]:
    """Return each quotient as that many zeros and a one, as packed bits."""
    ends = quotients.cumsum() + np.arange(1, quotients.size + 1)
    bits = np.zeros(int(ends[-1]), dtype=np.uint8)
    bits[ends - 1] = 1
    return np.packbits(bits)


def _decode(packed: memoryview, encoding: int, least_width: int, part: _Signed) -> int:
    """Fill one part from the beginning of ``packed``, and return how many bytes its codes take."""
    count = _blocks(part.size)
    _expect(len(packed) >= count, f"{count} bytes of widths", len(packed))
    widths = np.frombuffer(packed, dtype=np.uint8, count=count)
    _expect_canonical(int(widths.min()) >= least_width and int(widths.max()) < 64)
    start = count + BLOCK // 8 * int(widths.sum())
    _expect(len(packed) > start, f"more than {start} bytes of cells", len(packed))
    ends = _ends_of_quotients(packed[start:], count)
    quotients = np.diff(ends, prepend=-1).astype(np.uint64).reshape(-1, BLOCK) - np.uint64(1)
    blocks = quotients << widths.astype(np.uint64)[:, None]
    _add_low_bits(blocks, widths, packed[count:start])
    integers = blocks.reshape(-1)[: part.size].view(np.int64)
    if encoding == SIGNED:
        integers = _unzigzag(integers)
    part[:] = integers
    used = start + int(ends[-1]) // 8 + 1
    _expect_canonical(_encoded(part, encoding, least_width) == packed[:used])
    return used


def _ends_of_quotients(packed: memoryview, blocks: int) -> NDArray[np.intp]:
    """Return the places of the ones that end the quotients of this many blocks, among all bits."""
    most_bytes = _MOST_QUOTIENT_BYTES * blocks
    bits = np.unpackbits(np.frombuffer(packed[:most_bytes], dtype=np.uint8))
    ends = np.flatnonzero(bits)[: BLOCK * blocks]
    _expect(len(ends) == BLOCK * blocks, f"{BLOCK * blocks} codes", len(ends))
    return ends


def _add_low_bits(blocks: _Unsigned, widths: NDArray[np.uint8], packed: memoryview) -> None:
    """Put the low bits into blocks that hold the quotients, in place."""
    position = 0
    for bit in range(int(widths.max())):
        has_bit = widths > bit
        size = BLOCK // 8 * int(has_bit.sum())
        plane = np.frombuffer(packed, dtype=np.uint8, count=size, offset=position)
        bits = np.unpackbits(plane).astype(np.uint64).reshape(-1, BLOCK)
        blocks[has_bit] |= bits << np.uint64(bit)
        position += size


def _zigzag(integers: _Signed) -> _Signed:
    """Map 0, -1, 1, -2, ... to 0, 1, 2, 3, ..."""
    return (integers << 1) ^ (integers >> 63)


def _unzigzag(integers: _Signed) -> _Signed:
    """Invert :func:`_zigzag`. The mask makes the shift to the right an unsigned one."""
    halves: _Signed = integers >> 1 & np.int64(2**63 - 1)
    return halves ^ -(integers & 1)


def _widths(blocks: _Unsigned, least_width: int) -> _Unsigned:
    r"""Return the width :math:`\lfloor \log_2 \text{mean} \rfloor` of each block.

    The mean of 64 integers of 64 bits is summed without overflow: quotients and remainders of a
    division by 64 are added up apart.
    """
    six = np.uint64(6)
    quotients = (blocks >> six).sum(1)
    remainders = (blocks & np.uint64(BLOCK - 1)).sum(1)
    means = quotients + (remainders >> six)
    widths = np.searchsorted(_POWERS_OF_TWO, means, side="right") - 1
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
            "Expected the canonical encoding of the cells but got another one. Send what "
            "`bytes(share)` returns."
        )
