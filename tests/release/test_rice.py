"""Rice codes: integers come back, every list has one encoding, and codes are not much shorter than
memory."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from torchmetrics_fed.errors import WireError
from torchmetrics_fed.release import rice

EXTREMES = [-(2**63), 2**63 - 1, -1, 0, 1]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("scale", [0, 1, 2, 100, 2**31, 2**40, 2**63 - 1])
@pytest.mark.parametrize("negative", [False, True])
def test_integers_come_back(size: int, scale: int, negative: bool) -> None:
    generator = np.random.default_rng(size)
    lowest = -scale if negative else 0
    values = generator.integers(lowest, scale, size, endpoint=True)
    sparse = np.where(generator.random(size) < 0.02, values, 0)
    for integers in (values, sparse, np.resize(EXTREMES, size)):
        encoding, packed = rice.pack(integers)
        assert len(packed) <= 8 * size
        assert (rice.unpack(encoding, packed, size) == integers).all()


def test_masked_values_take_eight_bytes_each() -> None:
    masked = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, 8192, endpoint=True)
    encoding, packed = rice.pack(masked)
    assert encoding == rice.FIXED
    assert len(packed) == 8 * 8192


def codes_of_width(integers: NDArray[np.int64], width: int) -> bytes:
    """Return Rice codes of one block of 64 integers, with any width."""
    planes = [np.packbits((integers >> bit & 1).astype(np.uint8)) for bit in range(width)]
    low_bits = b"".join(plane.tobytes() for plane in planes)
    codes = "".join("0" * (int(value) >> width) + "1" for value in integers)
    codes += "0" * (-len(codes) % 8)
    return bytes([width]) + low_bits + int(codes, 2).to_bytes(len(codes) // 8, "big")


BLOCK = np.arange(64) % 48
"""Integers whose codes have the width 4."""
CODE = codes_of_width(BLOCK, 4)


def test_the_width_is_that_of_the_mean() -> None:
    assert rice.pack(BLOCK) == (rice.UNSIGNED, CODE)
    assert (rice.unpack(rice.UNSIGNED, CODE, 64) == BLOCK).all()


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        *((rice.UNSIGNED, codes_of_width(BLOCK, width)) for width in (0, 1, 2, 3, 5, 6)),
        (rice.SIGNED, codes_of_width(2 * BLOCK, 5)),
        (rice.FIXED, BLOCK.astype("<i8").tobytes()),
        (rice.UNSIGNED, CODE + b"\0"),
        (rice.UNSIGNED, CODE[:-1] + bytes([CODE[-1] ^ 1])),
        (rice.UNSIGNED, CODE[:-1]),
        (rice.UNSIGNED, bytes([64]) + CODE[1:]),
        (3, CODE),
        (rice.UNSIGNED + 0x80, CODE),
    ],
)
def test_every_other_encoding_is_refused(encoding: int, packed: bytes) -> None:
    with pytest.raises(WireError):
        rice.unpack(encoding, packed, 64)


def test_the_last_block_is_filled_up_with_zeros_only() -> None:
    with pytest.raises(WireError, match="canonical"):
        rice.unpack(rice.UNSIGNED, CODE, 63)


def test_codes_do_not_wrap_around() -> None:
    low_bits = bytes(63 * 8)
    quotients = b"\x3f" + b"\xff" * 15 + b"\xc0"
    with pytest.raises(WireError, match="canonical"):
        rice.unpack(rice.UNSIGNED, bytes([63, 0]) + low_bits + quotients, 128)


def test_parts_are_encoded_by_themselves() -> None:
    """Memory for one part is enough to write and to read all parts."""
    generator = np.random.default_rng(3)
    parts = [generator.integers(0, 2**scale, rice.PART) for scale in (6, 9, 30)]
    codes = [rice.pack(part)[1] for part in parts]
    encoding, packed = rice.pack(np.concatenate(parts))
    assert packed == b"".join(codes)
    assert (rice.unpack(encoding, packed, 3 * rice.PART) == np.concatenate(parts)).all()
    swapped = codes[0] + codes[2] + codes[1]
    assert (rice.unpack(encoding, swapped, 3 * rice.PART)[-rice.PART :] == parts[1]).all()


@pytest.mark.parametrize("density", [0.0, 0.001, 0.1])
def test_no_code_is_16_times_shorter_than_memory(density: float) -> None:
    """Sparse counts of 1,000 classes take about a fifteenth of their memory, and not less."""
    generator = np.random.default_rng(4)
    counts = np.where(generator.random(1_000 * 2 * 4_096) < density, 3, 0)
    encoding, packed = rice.pack(counts)
    assert encoding == rice.UNSIGNED
    assert counts.nbytes / 16 < len(packed) < counts.nbytes / 15
