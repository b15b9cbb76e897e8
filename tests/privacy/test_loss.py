"""The bound on delta, against sums over all outputs, other accountants and published bounds."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from tests.privacy.masses import (
    equal_shifts,
    exact_delta,
    gaussian,
    geometric,
    sensitivity_of,
    skellam,
)
from torchmetrics_fed.privacy.loss import LogMass, delta_bound
from torchmetrics_fed.privacy.noise import cell_epsilon, skellam_delta, skellam_mean
from torchmetrics_fed.privacy.sensitivity import Sensitivity


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
    reach = 90 if len(shifts) < 3 else 60
    exact = exact_delta(epsilon, skellam(mean), shifts, reach)
    assert exact <= skellam_delta(epsilon, mean, sensitivity_of(shifts)) <= 1.015 * exact


LAWS = [(skellam(6.0), 12.0**0.5), (gaussian(9.0), 3.0), (geometric(0.4), 3.5)]


@pytest.mark.parametrize(("law", "deviation"), LAWS, ids=["skellam", "gaussian", "geometric"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_all_in_one_cell_is_the_worst_way_to_fall(
    law: LogMass, deviation: float, epsilon: float
) -> None:
    """Up to 4 units on 3 cells, of either sign, are no easier to detect than 4 in one cell."""
    worst = exact_delta(epsilon, law, [4], 60)
    assert delta_bound(epsilon, law, deviation, equal_shifts(1, shift=4)) >= worst
    for shifts in product(range(-4, 5), range(3), range(2)):
        if 0 < sum(map(abs, shifts)) <= 4:
            assert exact_delta(epsilon, law, shifts, 40) <= worst * (1 + 1e-9) + 1e-9


def test_no_change_of_two_examples_is_worse_than_the_declared_one() -> None:
    """Three classes in one histogram, two examples: each kind of label on up to two cells."""
    declared = skellam_delta(1, 40, Sensitivity(((2, 1), (4, 1))))
    for positives, negatives in product([(2, 0), (1, 1)], [(4, 0), (3, 1), (2, 2)]):
        change = sensitivity_of(positives + negatives)
        assert skellam_delta(1, 40, change) <= declared


@pytest.mark.parametrize(
    ("epsilon", "delta", "cells"),
    [
        (1.0, 1e-6, 1),
        (1.0, 1e-6, 12),
        (0.5, 1e-8, 50),
        (3.0, 1e-6, 12),
    ],
)
def test_skellam_agrees_with_dp_accounting(epsilon: float, delta: float, cells: int) -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    mean = float(skellam_mean(epsilon, delta, equal_shifts(cells)))
    reach = int(12 * math.sqrt(2 * mean)) + 20
    support = np.arange(-reach, reach + 1)
    log_masses = skellam(mean)(support)
    log_p = dict(zip(support.tolist(), log_masses.tolist(), strict=True))
    log_q = {x + 1: log_mass for x, log_mass in log_p.items()}
    bounds = []
    for is_upper in (False, True):
        loss = pld.from_two_probability_mass_functions(
            log_p,
            log_q,
            pessimistic_estimate=is_upper,
            value_discretization_interval=1e-5,
            log_mass_truncation_bound=-60,
        )
        bounds.append(loss.self_compose(cells).get_delta_for_epsilon(epsilon))
    lower, upper = bounds
    assert lower <= skellam_delta(epsilon, mean, equal_shifts(cells)) <= 1.02 * upper


def renyi_delta(mean: float, sensitivity: Sensitivity, epsilon: float) -> float:
    """Return delta by a published bound on the Renyi divergence.

    The bound is that of Agarwal, Kairouz and Liu 2021, the conversion that of Canonne et al. 2020.
    """
    order = np.arange(2, 400)
    variance = 2 * mean
    l1 = sensitivity.l1
    l2_squared = sensitivity.l2_squared
    of_gaussian = order * l2_squared / (2 * variance)
    by_second_moment = ((2 * order - 1) * l2_squared + 6 * l1) / (4 * variance**2)
    by_first_moment = 3 * l1 / (2 * variance)
    divergence = of_gaussian + np.minimum(by_second_moment, by_first_moment)
    log_delta = (order - 1) * (divergence - epsilon)
    log_delta += order * np.log1p(-1 / order) - np.log(order - 1)
    return math.exp(log_delta.min())


@pytest.mark.parametrize(
    "sensitivity",
    [
        equal_shifts(1),
        equal_shifts(12),
        equal_shifts(4, shift=3),
        Sensitivity(((1, 6), (9, 6))),
    ],
)
def test_the_published_renyi_bound_is_looser(sensitivity: Sensitivity) -> None:
    mean = float(skellam_mean(1, 1e-6, sensitivity))
    assert skellam_delta(1, mean, sensitivity) <= renyi_delta(mean, sensitivity, 1)
    assert renyi_delta(1.6 * mean, sensitivity, 1) <= 1e-6


@pytest.mark.parametrize("shifts", [[1], [1, 1, -1], [2, 2], [1, 3]])
def test_pure_noise_loses_epsilon_and_not_less(shifts: list[int]) -> None:
    rate = cell_epsilon(1, sensitivity_of(shifts))
    law = geometric(float(rate))
    assert exact_delta(1, law, shifts, 100) < 1e-9
    assert exact_delta(0.98, law, shifts, 100) > 1e-4
