"""The noise that a budget asks for is enough, and hardly more than enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import nbinom

from tests.privacy.masses import equal_shifts, exact_delta, gaussian, skellam
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
from torchmetrics_fed.typing import Floats


def test_known_variances_of_one_cell() -> None:
    assert 2 * skellam_mean(1, 1e-6, equal_shifts(1)) == pytest.approx(14.24, rel=0.003)
    assert discrete_gaussian_sigma2(1, 1e-6, equal_shifts(1)) == pytest.approx(17.90, rel=0.003)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (0.1, 1e-6),
        (1, 1e-6),
        (1, 1e-12),
        (4, 1e-9),
        (0.5, 0.05),
    ],
)
@pytest.mark.parametrize("shift", [1, 3])
def test_the_mean_is_private_and_one_percent_less_is_not(
    epsilon: float, delta: float, shift: int
) -> None:
    mean = float(skellam_mean(epsilon, delta, equal_shifts(1, shift)))
    reach = int(9 * math.sqrt(2 * mean)) + 20
    assert exact_delta(epsilon, skellam(mean), [shift], reach) <= delta
    assert exact_delta(epsilon, skellam(0.99 * mean), [shift], reach) > delta


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def analytic_gaussian(epsilon: float, ratio: float) -> float:
    """Return the delta of continuous Gaussian noise (Balle and Wang 2018).

    The ratio is that of the L2 sensitivity to the standard deviation.
    """
    p = normal_cdf(ratio / 2 - epsilon / ratio)
    q = normal_cdf(-ratio / 2 - epsilon / ratio)
    return p - math.exp(epsilon) * q


@pytest.mark.parametrize("cells", [1000, 100_000])
def test_many_cells_need_what_the_gaussian_needs(cells: int) -> None:
    variance = 2 * float(skellam_mean(1, 1e-6, equal_shifts(cells)))
    assert analytic_gaussian(1, math.sqrt(cells / (0.995 * variance))) > 1e-6
    assert analytic_gaussian(1, math.sqrt(cells / (1.001 * variance))) < 1e-6


@pytest.mark.parametrize("parameter", [skellam_mean, discrete_gaussian_sigma2])
def test_less_budget_or_more_change_asks_for_more_noise(
    parameter: Callable[[float, float, Sensitivity], Fraction],
) -> None:
    ladders = [
        [parameter(epsilon, 1e-6, equal_shifts(3)) for epsilon in (4, 2, 1, 0.5, 0.1)],
        [parameter(1, delta, equal_shifts(3)) for delta in (0.1, 1e-3, 1e-6, 1e-9, 1e-15)],
        [parameter(1, 1e-6, equal_shifts(cells)) for cells in (1, 2, 3, 10, 100, 1000)],
        [parameter(1, 1e-6, equal_shifts(3, shift)) for shift in (1, 2, 3, 10)],
    ]
    for ladder in ladders:
        assert all(less < more_noise for less, more_noise in pairwise(ladder))


def test_pure_noise_splits_epsilon_exactly() -> None:
    assert cell_epsilon(1, Sensitivity.of("multiclass", 10, 3)) == Fraction(1, 30)
    assert cell_epsilon(0.1, equal_shifts(7)) * 7 == Fraction(0.1)


# Dropouts


def polya_losses(epsilon: float, parts: Fraction) -> Floats:
    """Return the loss ln P(x) / P(x + 1), x = 0 to 40, of NB(r) - NB(r), r = `parts`.

    It is the loss of one unit of change, with the noise of honest clients only. P(x) is the sum
    over j of NB(j) NB(j + x), cut where the rest is below 1e-40 of it.
    """
    law = nbinom.pmf(np.arange(int(100 / epsilon) + 42), float(parts), -math.expm1(-epsilon))
    terms = law.size - 41
    mass = np.array([law[:terms] @ law[x : x + terms] for x in range(42)])
    return np.asarray(np.log(mass[:-1] / mass[1:]))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(
    ("min_clients", "max_colluding"),
    [
        (2, 0),
        (2, 1),
        (3, 1),
        (8, 1),
        (10, 0),
        (10, 3),
    ],
)
def test_from_min_clients_up_the_loss_is_at_most_epsilon(
    epsilon: float, min_clients: int, max_colluding: int
) -> None:
    """Colluders know their own noise, so only the shares of honest survivors count (threat 7).

    For r >= 1 the law is log-concave: the loss grows with x towards its limit epsilon, so no x
    beyond the table is worse. Below, the loss at 0 is already more than epsilon.
    """
    for survivors in range(max_colluding + 1, min_clients + 5):
        parts = Fraction(survivors - max_colluding, min_clients - max_colluding)
        loss = polya_losses(epsilon, parts)
        if survivors >= min_clients:
            assert loss.max() <= epsilon * (1 + 1e-9)
            assert np.diff(loss).min() >= -1e-9
        else:
            assert loss[0] > epsilon * 1.01


@pytest.mark.parametrize(
    ("survivors", "loss"),
    [
        (9, 1.099),
        (8, 1.212),
        (7, 1.342),
        (5, 1.675),
        (3, 2.189),
        (1, 3.296),
    ],
)
def test_known_losses_of_dropouts(survivors: int, loss: float) -> None:
    losses = polya_losses(1.0, Fraction(survivors, 10))
    assert losses.max() == pytest.approx(loss, abs=6e-4)


# Sums of discrete Gaussian shares


def summed_gaussians(sigma2: float, shares: int) -> LogMass:
    """Return the exact law of the sum of discrete Gaussians of parameter sigma2 / shares.

    It is computed by convolution.
    """
    reach = int(14 * math.sqrt(sigma2)) + 30
    share = np.exp(gaussian(sigma2 / shares)(np.arange(-reach, reach + 1)))
    total = share
    for _ in range(shares - 1):
        total = np.convolve(total, share)[reach:-reach]
    return lambda x: np.asarray(np.log(total[x + reach]))


@pytest.mark.parametrize(("cells", "shares"), [(1, 2), (1, 10), (4, 30)])
def test_the_sum_of_gaussian_shares_is_private_with_its_gap_charged(
    cells: int, shares: int
) -> None:
    sigma2 = float(discrete_gaussian_sigma2(1, 1e-6, equal_shifts(cells), shares))
    law = summed_gaussians(sigma2, shares)
    assert delta_bound(1, law, math.sqrt(sigma2), equal_shifts(cells)) <= 1e-6 * 1.001


@pytest.mark.parametrize(("sigma2_of_share", "shares"), [(0.3, 2), (0.5, 5), (1.0, 10)])
def test_the_gap_bounds_the_distance_of_the_sum(sigma2_of_share: float, shares: int) -> None:
    sigma2 = sigma2_of_share * shares
    reach = int(5 * math.sqrt(sigma2))
    x = np.arange(-reach, reach + 1)
    log_ratio = summed_gaussians(sigma2, shares)(x) - gaussian(sigma2)(x)
    assert 2 * np.abs(log_ratio).max() <= discrete_gaussian_gap(sigma2, shares, 1)


def test_one_share_has_no_gap() -> None:
    assert discrete_gaussian_gap(17.9, 1, 1) == 0


@pytest.mark.parametrize(("cells", "shares"), [(1, 30), (2, 100), (1, 1000)])
def test_shares_that_are_too_small_are_refused(cells: int, shares: int) -> None:
    assert discrete_gaussian_gap(17.9, 100, 1) == math.inf
    with pytest.raises(InputError, match='mechanism="skellam"'):
        discrete_gaussian_sigma2(1, 1e-6, equal_shifts(cells), shares)


@pytest.mark.parametrize(("levels", "shares", "gap"), [(1, 30, 5.1), (2, 100, 200.0)])
def test_the_known_gaps_of_all_cells(levels: int, shares: int, gap: float) -> None:
    """tau sqrt(d), the third term of Kairouz et al.'s concentrated bound, d = 16,380 cells."""
    sigma2 = discrete_gaussian_sigma2(1, 1e-6, equal_shifts(levels))
    tau = discrete_gaussian_gap(sigma2, shares, 1)
    assert tau * math.sqrt(16_380) == pytest.approx(gap, rel=0.1)


# Limits


def test_an_impossible_budget_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="`delta`"):
        skellam_mean(1, 0.0, equal_shifts(1))
    with pytest.raises(InputError, match="`epsilon`"):
        skellam_mean(math.nan, 1e-6, equal_shifts(1))
    with pytest.raises(InputError, match="`epsilon`"):
        cell_epsilon(0, equal_shifts(1))
    with pytest.raises(InputError, match="`shares`"):
        discrete_gaussian_sigma2(1, 1e-6, equal_shifts(1), 0)
    with pytest.raises(InputError, match="variance up to"):
        skellam_mean(1e-3, 1e-9, equal_shifts(10_000))


def test_next_to_no_noise_has_a_delta_of_nearly_1() -> None:
    assert discrete_gaussian_delta(1, 1e-4, equal_shifts(1)) > 0.99
    assert skellam_delta(1, 1e-9, equal_shifts(1, shift=50)) > 0.99
