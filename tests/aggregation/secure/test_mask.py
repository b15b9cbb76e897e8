"""Masks cancel in the sum, exactly, and what is sent looks the same whatever the data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from tests.aggregation.secure.federation import Federation
from torchmetrics_fed.aggregation.secure.keys import KeyPair, box_key, pair_key, seed_key
from torchmetrics_fed.aggregation.secure.mask import MaskedVector

ALPHA = 1e-6
CELLS = 4096

Data = Callable[[int], NDArray[np.int64]]
DATA: dict[str, Data] = {
    "nothing": lambda cells: np.zeros(cells, dtype=np.int64),
    "small counts": lambda cells: np.random.default_rng(0).integers(0, 100, cells),
    "minus one": lambda cells: np.full(cells, -1, dtype=np.int64),
    "extremes": lambda cells: np.resize(np.array([2**63 - 1, -(2**63)], dtype=np.int64), cells),
}


def test_the_masks_of_a_pair_cancel() -> None:
    one, other = KeyPair(), KeyPair()
    first = pair_key(one.agree(other.public), b"context", 3, 5)
    assert first == pair_key(other.agree(one.public), b"context", 5, 3)
    total = MaskedVector(100)
    total.mask_pair(first, 3, 5)
    assert total.values.any()
    total.mask_pair(first, 5, 3)
    assert not total.values.any()
    total.mask_pair(first, 5, 3)
    total.mask_pair(first, 3, 5)
    assert not total.values.any()


def test_every_key_is_for_one_purpose() -> None:
    secret = bytes(32)
    keys = {
        *(
            box_key(secret, b"a", sender, recipient)
            for sender, recipient in ((1, 2), (2, 1), (1, 258))
        ),
        *(pair_key(secret, context, 1, 2) for context in (b"a", b"b")),
        seed_key(secret, b"a", 1),
        seed_key(secret, b"a", 2),
    }
    assert len(keys) == 7


def test_arithmetic_wraps_and_stays_integer() -> None:
    vector = MaskedVector(2)
    vector.add(np.array([2**63 - 1, -(2**63)]))
    vector.add(np.array([1, -1]))
    assert vector.values.dtype == np.int64
    assert vector.values.tolist() == [-(2**63), 2**63 - 1]
    vector.add(np.arange(4)[::2])  # a view with strides
    assert vector.values.tolist() == [-(2**63), -(2**63) + 1]


def p_value(message: bytes) -> float:
    """How well the bytes of a masked vector fit the uniform law; each of the eight places of a word by itself."""
    words = np.frombuffer(message[-8 * CELLS :], dtype=np.uint8).reshape(-1, 8)
    counts = np.stack([np.bincount(words[:, place], minlength=256) for place in range(8)])
    statistic = ((counts - CELLS / 256) ** 2 / (CELLS / 256)).sum()
    return float(stats.chi2.sf(statistic, 8 * 255))


@pytest.mark.parametrize("name", DATA)
def test_masked_vectors_are_uniform_whatever_the_data(name: str) -> None:
    data = DATA[name](CELLS)
    federation = Federation("abc", CELLS, vectors=dict.fromkeys("abc", data))
    boxes = federation.share(federation.advertise())
    for client in "abc":
        message = federation.clients[client].mask(boxes[client], lambda: data)
        assert p_value(message) > ALPHA
    assert p_value(data.tobytes()) < ALPHA  # the power: without a mask the test refuses


def test_one_vector_is_masked_differently_each_time() -> None:
    seen = set()
    for _ in range(3):
        federation = Federation("abc", 4, vectors=dict.fromkeys("abc", np.zeros(4, dtype=np.int64)))
        boxes = federation.share(federation.advertise())
        seen |= {
            federation.clients[name].mask(boxes[name], lambda: np.zeros(4, dtype=np.int64))
            for name in "abc"
        }
    assert len(seen) == 9
