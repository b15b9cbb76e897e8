"""Masks cancel in the sum, exactly, and a masked vector looks the same whatever the data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from tests.aggregation.secure.federation import Federation
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
    key = bytes(range(32))
    total = MaskedVector(100)
    for index, partner in ((3, 5), (5, 3)):
        total.mask_pair(key, index, partner)
        assert total.values.any()
        total.mask_pair(key, partner, index)
        assert not total.values.any()


def test_arithmetic_wraps_and_stays_integer() -> None:
    vector = MaskedVector(2)
    vector.add(np.array([2**63 - 1, -(2**63)]))
    vector.add(np.array([1, -1]))
    assert vector.values.dtype == np.int64
    assert vector.values.tolist() == [-(2**63), 2**63 - 1]
    vector.add(np.arange(4)[::2])  # a view with strides
    assert vector.values.tolist() == [-(2**63), -(2**63) + 1]


def p_value(message: bytes) -> float:
    """Return the p-value of the bytes under the uniform law, each place of a word by itself."""
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
    zeros = np.zeros(4, dtype=np.int64)
    messages = set()
    for _ in range(3):
        federation = Federation("abc", 4)
        boxes = federation.share(federation.advertise())
        for name, client in federation.clients.items():
            messages.add(client.mask(boxes[name], lambda: zeros))
    assert len(messages) == 9
