"""Arguments and results of the samplers, and the distance of their tables from ideal laws."""

from __future__ import annotations

import decimal
import random
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from torchmetrics_fed.privacy import draws, samplers
from torchmetrics_fed.privacy.draws import TABLE_TOTAL_VARIATION, Table
from torchmetrics_fed.privacy.samplers import (
    WIDEST,
    Number,
    Shape,
    digit_tables,
    octave_table,
    poisson_table,
    stride_table,
)

Sampler = Callable[..., NDArray[np.int64]]

INTEGER: dict[str, tuple[Sampler, tuple[float, ...]]] = {
    "two_sided_geometric": (samplers.polya, (0.5, 1)),
    "polya": (samplers.polya, (0.5, 3)),
    "skellam": (samplers.skellam, (7.1,)),
    "discrete_gaussian": (samplers.discrete_gaussian, (17.8,)),
}
NUMPY_TWO: Any = np.int64(2)
every_integer_sampler = pytest.mark.parametrize("name", INTEGER)


@every_integer_sampler
@pytest.mark.parametrize("shape", [5, (), (0,), (2, 0, 3), (2, 3, 4), [2, 5], torch.Size([3, 2])])
def test_shape_and_dtype(name: str, shape: Shape) -> None:
    sampler, arguments = INTEGER[name]
    noise = sampler(shape, *arguments)
    assert noise.shape == np.empty(shape).shape
    assert noise.dtype == np.int64


def test_continuous_shape_and_dtype() -> None:
    noise = samplers.gamma_difference((2, 3), 1.5, 10)
    assert noise.shape == (2, 3)
    assert noise.dtype == np.float64


@every_integer_sampler
@pytest.mark.parametrize("wrong", [0, -1, -0.5, float("inf"), float("nan"), Fraction(-1, 3), 1e300])
def test_scale_must_be_positive_and_finite(name: str, wrong: Number) -> None:
    sampler, arguments = INTEGER[name]
    message = r"Expected `\w+` within \[.*\], but got " + re.escape(str(wrong))
    with pytest.raises(ValueError, match=message):
        sampler(3, wrong, *arguments[1:])


@pytest.mark.parametrize("sampler", [samplers.polya, samplers.gamma_difference])
@pytest.mark.parametrize("wrong", [0, -2, 2.5])
def test_clients_must_be_a_positive_integer(sampler: Sampler, wrong: Number) -> None:
    with pytest.raises(ValueError, match=f"integer of at least 1, but got {wrong}"):
        sampler(3, 1.0, wrong)


@every_integer_sampler
def test_sides_must_not_be_negative(name: str) -> None:
    sampler, arguments = INTEGER[name]
    with pytest.raises(ValueError, match=r"no negative side, but got \(3, -1\)"):
        sampler((3, -1), *arguments)


@every_integer_sampler
@pytest.mark.parametrize(
    "scale", [2, 0.5, Fraction(1, 3), np.float32(0.5), NUMPY_TWO, Fraction(NUMPY_TWO, 3)]
)
def test_any_exact_number_is_a_scale(name: str, scale: Number) -> None:
    sampler, arguments = INTEGER[name]
    assert sampler(100, scale, *arguments[1:]).any()


@pytest.mark.parametrize("clients", [1, 2, 1000])
@pytest.mark.parametrize("epsilon", [2.0**-40, 1e-4, 20, 1000])
def test_polya_at_the_ends_of_its_range(clients: int, epsilon: float) -> None:
    noise = samplers.polya(2000, epsilon, clients)
    assert np.abs(noise).max() < 200 / epsilon + 1  # beyond, with probability below exp(-180)
    assert epsilon > 1 or noise.any()


def test_a_callers_decimal_context_changes_nothing() -> None:
    octave_table.cache_clear()
    table = octave_table(Fraction(1, 7))
    octave_table.cache_clear()
    with decimal.localcontext(decimal.Context(prec=3, traps=[decimal.Inexact])):
        table_in_context = octave_table(Fraction(1, 7))
    np.testing.assert_array_equal(table_in_context.low, table.low)


@pytest.mark.parametrize("name", [*INTEGER, "gamma_difference"])
def test_seeding_changes_nothing(name: str) -> None:
    sampler, arguments = INTEGER.get(name, (samplers.gamma_difference, (1.0, 3)))
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        drawn.append(sampler(256, *arguments).tobytes())
    assert drawn[0] != drawn[1]


def thresholds(table: Table) -> list[int]:
    pairs = zip(table.high.tolist(), table.low.tolist(), strict=True)
    return [(high << 64) + low for high, low in pairs] + [1 << 128]


def total_variation(table: Table, weights: list[Decimal]) -> Decimal:
    """Distance between a table and the law proportional to `weights` on 0, 1, 2, ..."""
    law = [Decimal(0)] * len(weights)
    for value, (start, stop) in enumerate(pairwise(thresholds(table)), table.first):
        law[value] = Decimal(stop - start) / (1 << 128)
    total = sum(weights)
    distance = Decimal(0)
    for probability, weight in zip(law, weights, strict=True):
        distance += abs(probability - weight / total) / 2
    return distance


def exp_minus(rate: Fraction) -> Decimal:
    return (Decimal(-rate.numerator) / rate.denominator).exp()


@pytest.fixture
def _seventy_digits() -> Iterator[None]:
    with decimal.localcontext() as context:
        context.prec = 70
        yield


@pytest.mark.usefixtures("_seventy_digits")
class TestTablesAreWithinTheirBound:
    @pytest.mark.parametrize(
        "rate", [Fraction(1, 2**51), Fraction(1, 120), Fraction(1), Fraction(80)]
    )
    def test_digits(self, rate: Fraction) -> None:
        for place, table in enumerate(digit_tables(rate)):
            weights = [exp_minus(rate * digit * 256**place) for digit in range(256)]
            assert total_variation(table, weights) < TABLE_TOTAL_VARIATION

    @pytest.mark.parametrize("mean", [Fraction(1, 1000), Fraction(71, 10), Fraction(1000.1)])
    def test_poisson(self, mean: Fraction) -> None:
        weights = [Decimal(1)]
        for value in range(1, 3000):
            weights.append(weights[-1] * mean.numerator / (mean.denominator * value))
        assert total_variation(poisson_table(mean), weights) < TABLE_TOTAL_VARIATION

    @pytest.mark.parametrize("epsilon", [Fraction(1, 2**40), Fraction(1, 120), Fraction(1)])
    def test_octaves(self, epsilon: Fraction) -> None:
        weights = [exp_minus(epsilon * 2**octave) for octave in range(60)]
        assert total_variation(octave_table(epsilon), weights) < TABLE_TOTAL_VARIATION

    @pytest.mark.parametrize("sigma2", [Fraction(1, 100), Fraction(178, 10), Fraction(10**10)])
    def test_strides(self, sigma2: Fraction) -> None:
        stride, table = stride_table(sigma2)
        weights = [exp_minus((stride * step) ** 2 / (2 * sigma2)) for step in range(200)]
        assert total_variation(table, weights) < TABLE_TOTAL_VARIATION


def test_the_widest_table_is_as_small_as_the_bound_of_tables_assumes() -> None:
    assert len(poisson_table(Fraction(WIDEST)).high) < 2**16


@pytest.mark.parametrize(("low", "value"), [(0, 0), (-7, 0), (-6, 1), (-4, 1), (-3, 2), (-1, 2)])
def test_tied_high_words_are_decided_by_the_low_word(
    monkeypatch: pytest.MonkeyPatch, low: int, value: int
) -> None:
    table = Table([2**128 - 6, 3, 3])  # the thresholds 2^128 - 6 and 2^128 - 3 share a high word
    top = 2**64
    drawn = iter([[top - 1, 7], [low % top]])
    monkeypatch.setattr(draws, "random_words", lambda _: np.array(next(drawn), np.uint64))
    assert table.draw(2).tolist() == [value, 0]
