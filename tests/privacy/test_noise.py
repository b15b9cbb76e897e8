"""What the accounting promises, against sums over all outputs, other people's accountants and known numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ive
from scipy.stats import nbinom

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.privacy.loss import LogMass, delta_bound
from torchmetrics_fed.privacy.noise import (
    cell_epsilon,
    discrete_gaussian_delta,
    discrete_gaussian_gap,
    discrete_gaussian_sigma2,
    skellam_delta,
    skellam_mean,
)
from torchmetrics_fed.privacy.sensitivity import Sensitivity

Floats = NDArray[np.float64]


def cells(count: int, shift: int = 1) -> Sensitivity:
    return Sensitivity(((shift, count),))


def moved(shifts: Sequence[int]) -> Sensitivity:
    return Sensitivity(tuple(Counter(abs(s) for s in shifts if s).items()))


def skellam(mean: float) -> LogMass:
    return lambda x: np.asarray(np.log(ive(np.abs(x), 2 * mean)))


def geometric(epsilon: float) -> LogMass:
    return lambda x: math.log(math.tanh(epsilon / 2)) - epsilon * np.abs(x)


def gaussian(sigma2: float) -> LogMass:
    norm = math.log(np.exp(-(np.arange(-500, 501) ** 2) / (2 * sigma2)).sum())
    return lambda x: -(x**2) / (2 * sigma2) - norm


def every_output(epsilon: float, law: LogMass, shifts: Sequence[int], reach: int) -> float:
    """Delta by its definition: the sum over all outputs of the excess of one probability over e^epsilon the other."""
    x = np.arange(-reach, reach + 1)
    here = there = np.ones(1)
    for shift in shifts:
        here = np.multiply.outer(here, np.exp(law(x))).ravel()
        there = np.multiply.outer(there, np.exp(law(x + shift))).ravel()
    return float(np.maximum(here - math.exp(epsilon) * there, 0).sum())


@pytest.mark.parametrize(
    ("epsilon", "mean", "shifts"),
    [
        (1, 7.1, [1]),
        (2, 7.1, [3]),
        (1, 7.1, [1, 1]),
        (1.5, 7.1, [1, 2]),
        (3, 0.5, [1, -1]),
        (1, 20, [1, -1, 1]),
        (2, 30, [4, 1, 1]),
    ],
)
def test_delta_is_at_least_the_exact_one_and_hardly_more(
    epsilon: float, mean: float, shifts: list[int]
) -> None:
    exact = every_output(epsilon, skellam(mean), shifts, 90 if len(shifts) < 3 else 60)
    assert exact <= skellam_delta(epsilon, mean, moved(shifts)) <= 1.015 * exact


def test_known_variances_of_one_cell() -> None:
    assert 2 * skellam_mean(1, 1e-6, cells(1)) == pytest.approx(14.24, rel=0.003)
    assert discrete_gaussian_sigma2(1, 1e-6, cells(1)) == pytest.approx(17.90, rel=0.003)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.1, 1e-6), (1, 1e-6), (1, 1e-12), (4, 1e-9), (0.5, 0.05)]
)
@pytest.mark.parametrize("shift", [1, 3])
def test_the_mean_is_private_and_one_percent_less_is_not(
    epsilon: float, delta: float, shift: int
) -> None:
    mean = float(skellam_mean(epsilon, delta, cells(1, shift)))
    reach = int(9 * math.sqrt(2 * mean)) + 20
    assert every_output(epsilon, skellam(mean), [shift], reach) <= delta
    assert every_output(epsilon, skellam(0.99 * mean), [shift], reach) > delta


def analytic_gaussian(epsilon: float, ratio: float) -> float:
    """Delta of continuous Gaussian noise, L2 sensitivity over deviation = ratio (Balle and Wang 2018)."""

    def below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return below(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * below(
        -ratio / 2 - epsilon / ratio
    )


@pytest.mark.parametrize("count", [1000, 100_000])
def test_many_cells_need_what_the_gaussian_needs(count: int) -> None:
    variance = 2 * float(skellam_mean(1, 1e-6, cells(count)))
    assert analytic_gaussian(1, math.sqrt(count / (0.995 * variance))) > 1e-6
    assert analytic_gaussian(1, math.sqrt(count / (1.001 * variance))) < 1e-6


LAWS = [(skellam(6.0), 12.0**0.5), (gaussian(9.0), 3.0), (geometric(0.4), 3.5)]


@pytest.mark.parametrize(("law", "deviation"), LAWS, ids=["skellam", "gaussian", "geometric"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_all_in_one_cell_is_the_worst_way_to_fall(
    law: LogMass, deviation: float, epsilon: float
) -> None:
    """Up to 4 units that fall on 3 cells, either sign: none is easier to tell than 4 in one cell."""
    worst = every_output(epsilon, law, [4], 60)
    assert delta_bound(epsilon, law, deviation, cells(1, 4)) >= worst
    for shifts in product(range(-4, 5), range(3), range(2)):
        if 0 < sum(map(abs, shifts)) <= 4:
            assert every_output(epsilon, law, shifts, 40) <= worst * (1 + 1e-9) + 1e-9


def test_no_change_of_two_examples_is_worse_than_the_declared_one() -> None:
    """Three classes in one histogram, two examples: positives and negatives each on up to two cells."""
    declared = skellam_delta(1, 40, Sensitivity(((2, 1), (4, 1))))
    for positives, negatives in product([(2, 0), (1, 1)], [(4, 0), (3, 1), (2, 2)]):
        assert skellam_delta(1, 40, moved(positives + negatives)) <= declared


@pytest.mark.parametrize(
    "settings", [(1.0, 1e-6, 1), (1.0, 1e-6, 12), (0.5, 1e-8, 50), (3.0, 1e-6, 12)]
)
def test_skellam_agrees_with_dp_accounting(settings: tuple[float, float, int]) -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    epsilon, delta, count = settings
    mean = float(skellam_mean(epsilon, delta, cells(count)))
    reach = int(12 * math.sqrt(2 * mean)) + 20
    here = dict(
        zip(
            range(-reach, reach + 1),
            skellam(mean)(np.arange(-reach, reach + 1)).tolist(),
            strict=True,
        )
    )
    there = {x + 1: log_mass for x, log_mass in here.items()}
    theirs = [
        pld.from_two_probability_mass_functions(
            here,
            there,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=1e-5,
            log_mass_truncation_bound=-60,
        )
        .self_compose(count)
        .get_delta_for_epsilon(epsilon)
        for pessimistic in (False, True)
    ]
    ours = skellam_delta(epsilon, mean, cells(count))
    assert theirs[0] <= ours <= 1.02 * theirs[1]


def renyi(mean: float, sensitivity: Sensitivity, epsilon: float) -> float:
    """Delta by the Renyi bound of Agarwal, Kairouz and Liu 2021 and the conversion of Canonne et al. 2020."""
    a, variance, one, two = np.arange(2, 400), 2 * mean, sensitivity.l1, sensitivity.l2_squared
    bound = a * two / (2 * variance)
    bound = bound + np.minimum(
        ((2 * a - 1) * two + 6 * one) / (4 * variance**2), 3 * one / (2 * variance)
    )
    return math.exp(min((a - 1) * (bound - epsilon) - np.log(a - 1) + a * np.log1p(-1 / a)))


@pytest.mark.parametrize(
    "sensitivity", [cells(1), cells(12), cells(4, 3), Sensitivity(((1, 6), (9, 6)))]
)
def test_the_published_renyi_bound_is_looser(sensitivity: Sensitivity) -> None:
    mean = float(skellam_mean(1, 1e-6, sensitivity))
    assert skellam_delta(1, mean, sensitivity) <= renyi(mean, sensitivity, 1)
    assert renyi(1.6 * mean, sensitivity, 1) <= 1e-6


def test_more_budget_asks_for_less_noise_and_more_change_for_more() -> None:
    for needs in (skellam_mean, discrete_gaussian_sigma2):
        for ladder in (
            [needs(epsilon, 1e-6, cells(3)) for epsilon in (4, 2, 1, 0.5, 0.1)],
            [needs(1, delta, cells(3)) for delta in (0.1, 1e-3, 1e-6, 1e-9, 1e-15)],
            [needs(1, 1e-6, cells(count)) for count in (1, 2, 3, 10, 100, 1000)],
            [needs(1, 1e-6, cells(3, shift)) for shift in (1, 2, 3, 10)],
        ):
            assert all(a < b for a, b in pairwise(ladder))


def test_pure_noise_splits_epsilon_exactly() -> None:
    assert cell_epsilon(1, Sensitivity.of("multiclass", 10, 3)) == Fraction(1, 30)
    assert cell_epsilon(0.1, cells(7)) * 7 == Fraction(0.1)


@pytest.mark.parametrize("shifts", [[1], [1, 1, -1], [2, 2], [1, 3]])
def test_pure_noise_loses_epsilon_and_not_less(shifts: list[int]) -> None:
    law = geometric(float(cell_epsilon(1, moved(shifts))))
    assert every_output(1, law, shifts, 100) < 1e-9
    assert every_output(0.98, law, shifts, 100) > 1e-4


def polya_losses(epsilon: float, parts: Fraction) -> Floats:
    """Loss ln P(x) / P(x + 1), x = 0 to 40, of NB(r) - NB(r), r = `parts`: one unit of change, honest noise only.

    P(x) is the sum over j of NB(j) NB(j + x), cut where the rest is below 1e-40 of it.
    """
    law = nbinom.pmf(np.arange(int(100 / epsilon) + 42), float(parts), -math.expm1(-epsilon))
    kept = law.size - 41
    mass = np.array([law[:kept] @ law[x : x + kept] for x in range(42)])
    return np.asarray(np.log(mass[:-1] / mass[1:]))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(
    ("min_clients", "max_colluding"), [(2, 0), (2, 1), (3, 1), (8, 1), (10, 0), (10, 3)]
)
def test_from_min_clients_up_the_loss_is_at_most_epsilon(
    epsilon: float, min_clients: int, max_colluding: int
) -> None:
    """Colluders know their own noise, so only the honest survivors' shares count (threat 7).

    For r >= 1 the law is log-concave: the loss grows with x towards its limit epsilon, so no x beyond the table is
    worse. Below, the loss at 0 is already more than epsilon.
    """
    for survivors in range(max_colluding + 1, min_clients + 5):
        parts = Fraction(survivors - max_colluding, min_clients - max_colluding)
        loss = polya_losses(epsilon, parts)
        if survivors >= min_clients:
            assert loss.max() <= epsilon * (1 + 1e-9)
            assert np.diff(loss).min() >= -1e-9
        else:
            assert loss[0] > epsilon * 1.01


def test_known_losses_of_dropouts() -> None:
    known = {9: 1.099, 8: 1.212, 7: 1.342, 5: 1.675, 3: 2.189, 1: 3.296}
    found = {survivors: polya_losses(1.0, Fraction(survivors, 10)).max() for survivors in known}
    assert found == pytest.approx(known, abs=6e-4)


def summed_gaussians(sigma2: float, shares: int) -> LogMass:
    """Exact law of the sum of `shares` discrete Gaussians of parameter sigma2 / shares, by convolution."""
    reach = int(14 * math.sqrt(sigma2)) + 30
    one = np.exp(gaussian(sigma2 / shares)(np.arange(-reach, reach + 1)))
    total = one
    for _ in range(shares - 1):
        total = np.convolve(total, one)[reach:-reach]
    return lambda x: np.asarray(np.log(total[x + reach]))


@pytest.mark.parametrize(("levels", "shares"), [(1, 2), (1, 10), (4, 30)])
def test_the_sum_of_gaussian_shares_is_private_with_the_gap_booked(
    levels: int, shares: int
) -> None:
    sigma2 = float(discrete_gaussian_sigma2(1, 1e-6, cells(levels), shares))
    law = summed_gaussians(sigma2, shares)
    assert delta_bound(1, law, math.sqrt(sigma2), cells(levels)) <= 1e-6 * 1.001


@pytest.mark.parametrize(("share", "shares"), [(0.3, 2), (0.5, 5), (1.0, 10)])
def test_the_gap_bounds_the_distance_of_the_sum(share: float, shares: int) -> None:
    sigma2 = share * shares
    x = np.arange(-int(5 * math.sqrt(sigma2)), int(5 * math.sqrt(sigma2)) + 1)
    distance = np.abs(summed_gaussians(sigma2, shares)(x) - gaussian(sigma2)(x)).max()
    assert 2 * distance <= discrete_gaussian_gap(sigma2, shares, 1)


def test_one_share_has_no_gap_and_small_shares_too_much() -> None:
    assert discrete_gaussian_gap(17.9, 1, 1) == 0
    assert discrete_gaussian_gap(17.9, 100, 1) == math.inf
    for levels, shares in ((1, 30), (2, 100), (1, 1000)):
        with pytest.raises(InputError, match='mechanism="skellam"'):
            discrete_gaussian_sigma2(1, 1e-6, cells(levels), shares)


def test_the_known_gaps_of_all_cells() -> None:
    """tau sqrt(d), the third term of Kairouz et al.'s concentrated bound, for 16,380 cells at (1, 1e-6)."""
    for levels, shares, known in ((1, 30, 5.1), (2, 100, 200.0)):
        sigma2 = discrete_gaussian_sigma2(1, 1e-6, cells(levels))
        assert discrete_gaussian_gap(sigma2, shares, 1) * math.sqrt(16_380) == pytest.approx(
            known, rel=0.1
        )


def test_what_cannot_be_spent_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="`delta`"):
        skellam_mean(1, 0.0, cells(1))
    with pytest.raises(InputError, match="`epsilon`"):
        skellam_mean(math.nan, 1e-6, cells(1))
    with pytest.raises(InputError, match="`epsilon`"):
        cell_epsilon(0, cells(1))
    with pytest.raises(InputError, match="`shares`"):
        discrete_gaussian_sigma2(1, 1e-6, cells(1), 0)
    with pytest.raises(InputError, match="variance up to"):
        skellam_mean(1e-3, 1e-9, cells(10_000))
    assert discrete_gaussian_delta(1, 1e-4, cells(1)) > 0.99
    assert skellam_delta(1, 1e-9, cells(1, 50)) > 0.99
