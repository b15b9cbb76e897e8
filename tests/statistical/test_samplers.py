"""Each sampler against its exact law, and the same test against laws that are slightly wrong.

A sample is judged by two chi-squares, each at half of ALPHA: one over the integers as they are, one
over sign and bit length (0, 1, 2-3, 4-7, ...), which has the power. The sample is as large as that
second one needs to reject every wrong law listed, but for a chance of about ALPHA.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, special, stats

from torchmetrics_fed.privacy import samplers
from torchmetrics_fed.privacy.samplers import WIDEST, geometric, logarithmic, poisson

ALPHA = 1e-6
"""Probability that a sample of the right law is rejected, and that one of a wrong law is not."""

LEAST_EXPECTED = 10
"""Smallest expected count of a cell of a chi-square test."""

BATCH = 1 << 20
"""Number of values that are drawn at a time."""

Counts = NDArray[np.int64]
"""How often each of -reach .. reach was drawn."""

Law = NDArray[np.float64]
"""Probabilities of -reach .. reach."""


def reach(law: Law | Counts) -> int:
    return len(law) // 2


def mirrored(half: Law) -> Law:
    return np.concatenate([half[:0:-1], half])


def one_sided(half: Law) -> Law:
    return np.concatenate([np.zeros(len(half) - 1), half])


def two_sided_geometric_law(epsilon: float) -> Law:
    return mirrored(np.tanh(epsilon / 2) * np.exp(-epsilon * np.arange(int(45 / epsilon) + 2)))


def polya_law(epsilon: float, clients: float) -> Law:
    k = np.arange(int(45 / epsilon) + 2)
    r = 1 / clients
    log_binomial = special.gammaln(k + r) - special.gammaln(r) - special.gammaln(k + 1)
    half = np.exp(log_binomial - epsilon * k + r * np.log(-np.expm1(-epsilon)))
    return np.convolve(half, half[::-1])


def geometric_law(rate: float) -> Law:
    k = np.arange(int(45 / rate) + 2)
    return one_sided(-np.expm1(-rate) * np.exp(-rate * k))


def logarithmic_law(rate: float) -> Law:
    k = np.arange(int(45 / rate) + 2)
    return normal(one_sided(np.exp(-rate * k) / np.maximum(k, 1) * (k > 0)))


def poisson_law(mean: float) -> Law:
    return one_sided(stats.poisson.pmf(np.arange(100), mean))


def skellam_law(mean: float) -> Law:
    k = np.arange(int(10 * np.sqrt(2 * mean)) + 20)
    return mirrored(np.asarray(special.ive(k, 2 * mean)))


def normal(weights: Law) -> Law:
    return np.asarray(weights / weights.sum())


def gaussian_law(sigma2: float) -> Law:
    k = np.arange(int(10 * np.sqrt(sigma2)) + 3)
    return normal(mirrored(np.exp(-(k**2) / (2 * sigma2))))


def histogram(draw: Callable[[int], Counts], size: int, radius: int) -> Counts:
    """Return counts of -radius .. radius; values beyond are counted at the ends."""
    total = np.zeros(2 * radius + 1, dtype=np.int64)
    for start in range(0, size, BATCH):
        noise = np.clip(draw(min(BATCH, size - start)), -radius, radius)
        total += np.bincount(noise + radius, minlength=total.size)
    return total


def by_bit_length(values: NDArray[np.float64]) -> NDArray[np.float64]:
    k = np.arange(-reach(values), reach(values) + 1)
    group = np.sign(k) * np.frexp(np.abs(k))[1]
    return np.asarray(np.bincount(group - group.min(), weights=values), dtype=np.float64)


def pooled(values: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums of `values` over runs of cells that expect at least LEAST_EXPECTED together."""
    starts = [0]
    in_run = 0.0
    remaining = expected.sum()
    for cell, mass in enumerate(expected):
        if in_run >= LEAST_EXPECTED and remaining >= LEAST_EXPECTED:
            starts.append(cell)
            in_run = 0.0
        in_run += mass
        remaining -= mass
    return np.add.reduceat(values, starts)


def chi_square(observed: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    counts = pooled(observed, expected)
    ideal = pooled(expected, expected)
    statistic = ((counts - ideal) ** 2 / ideal).sum()
    return float(stats.chi2.sf(statistic, len(counts) - 1))


def p_value(counts: Counts, law: Law) -> float:
    padded = np.pad(law, max(0, reach(counts) - reach(law)))
    margin = reach(padded) - reach(counts)
    observed = np.pad(counts, margin).astype(np.float64)
    expected = padded / padded.sum() * counts.sum()
    fine = chi_square(observed, expected)
    coarse = chi_square(by_bit_length(observed), by_bit_length(expected))
    return min(1.0, 2 * min(fine, coarse))


def noncentrality(freedom: int) -> float:
    """Return the noncentrality at which a chi-square test misses a wrong law with ALPHA."""
    critical = stats.chi2.isf(ALPHA / 2, freedom)

    def excess(value: float) -> float:
        return float(stats.ncx2.cdf(critical, freedom, value)) - ALPHA

    return float(optimize.brentq(excess, 1, 1e4))


def sample_size(law: Law, wrong_laws: list[Law]) -> int:
    """Return enough draws that each wrong law is rejected, but for a chance of about ALPHA."""
    sizes = []
    for wrong_law in wrong_laws:
        radius = max(reach(law), reach(wrong_law))
        p = by_bit_length(np.pad(law, radius - reach(law)))
        q = by_bit_length(np.pad(wrong_law, radius - reach(wrong_law)))
        is_likely = q > 1e-6
        distance = ((p - q)[is_likely] ** 2 / q[is_likely]).sum()
        sizes.append(noncentrality(int(is_likely.sum())) / distance)
    return max(200_000, int(1.2 * max(sizes)))


def check(draw: Callable[[int], Counts], law: Law, wrong: list[Law]) -> None:
    """The sample has the law, and would not pass for one of the wrong laws."""
    counts = histogram(draw, sample_size(law, wrong), reach(law))
    assert p_value(counts, law) > ALPHA
    for wrong_law in wrong:
        assert p_value(counts, wrong_law) < ALPHA


@pytest.mark.parametrize(
    ("clients", "epsilon"),
    [(1, 1), (10, 1), (10, 0.1), (3, 0.5), (100, 0.05), (2, 3), (10, 0.1 / 12), (1, 0.1 / 12)],
)
def test_a_polya_share(clients: int, epsilon: float) -> None:
    check(
        lambda size: samplers.polya(size, epsilon, clients),
        polya_law(epsilon, clients),
        wrong=[polya_law(epsilon * 1.05, clients), polya_law(epsilon, clients + 1)],
    )


@pytest.mark.parametrize(("clients", "epsilon"), [(2, 0.02), (3, 0.5), (10, 1)])
def test_polya_shares_sum_to_the_two_sided_geometric(clients: int, epsilon: float) -> None:
    one_share_missing = polya_law(epsilon, clients / (clients - 1))
    check(
        lambda size: samplers.polya((clients, size), epsilon, clients).sum(axis=0),
        two_sided_geometric_law(epsilon),
        wrong=[two_sided_geometric_law(epsilon * 1.05), one_share_missing],
    )


@pytest.mark.parametrize("epsilon", [Fraction(1, 1000), Fraction(1, 10), Fraction(2)])
def test_the_parts_of_a_share(epsilon: Fraction) -> None:
    rate = float(epsilon)
    check(
        lambda size: geometric(size, epsilon),
        geometric_law(rate),
        wrong=[geometric_law(rate * 1.05)],
    )
    check(
        lambda size: logarithmic(size, epsilon),
        logarithmic_law(rate),
        wrong=[logarithmic_law(rate * 1.05)],
    )


@pytest.mark.parametrize("clients", [10, 100])
def test_neighbouring_cells_are_independent(clients: int) -> None:
    """Of 10 clients, a number of terms is drawn for each cell; of 100, a cell for each term."""
    hit = samplers.polya((500_000, 2), 0.1, clients) != 0
    table = np.bincount(hit @ np.array([2, 1]), minlength=4).reshape(2, 2)
    assert stats.chi2_contingency(table).pvalue > ALPHA


@pytest.mark.parametrize("mean", [0.05, 7.1, 10_000, WIDEST * 1.2])
def test_skellam(mean: float) -> None:
    check(
        lambda size: samplers.skellam(size, mean),
        skellam_law(mean),
        wrong=[skellam_law(mean * 1.05)],
    )


def test_skellam_shares_sum_to_skellam() -> None:
    share = Fraction(71, 70)
    check(
        lambda size: samplers.skellam((7, size), share).sum(axis=0),
        skellam_law(7.1),
        wrong=[skellam_law(7.1 * 1.05), skellam_law(7.1 * 6 / 7)],
    )


def test_poisson() -> None:
    check(
        lambda size: poisson(size, Fraction(9, 2)),
        poisson_law(4.5),
        wrong=[poisson_law(4.5 * 1.05)],
    )


@pytest.mark.parametrize("sigma2", [0.3, 17.8, 1000, 1e6])
def test_discrete_gaussian(sigma2: float) -> None:
    check(
        lambda size: samplers.discrete_gaussian(size, sigma2),
        gaussian_law(sigma2),
        wrong=[gaussian_law(sigma2 * 1.05)],
    )


def test_gamma_differences_sum_to_laplace() -> None:
    total = samplers.gamma_difference((4, 400_000), 2.0, 4).sum(axis=0)
    assert stats.kstest(total, stats.laplace(scale=2.0).cdf).pvalue > ALPHA
    assert stats.kstest(total, stats.laplace(scale=2.1).cdf).pvalue < ALPHA
