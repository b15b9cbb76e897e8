"""A run: many evaluations share one epsilon, each with the noise that composes to the whole."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.privacy.masses import equal_shifts, exact_delta, gaussian, skellam
from torchmetrics_fed import (
    BudgetExceededError,
    CentralDP,
    DistributedDP,
    FederatedROC,
    InputError,
    LocalDP,
    Privacy,
    PrivacyLedger,
)
from torchmetrics_fed.exchange.client import draw_noise
from torchmetrics_fed.metrics import terms_of
from torchmetrics_fed.privacy.budget import Amounts, Budget, add_up, compose_pld
from torchmetrics_fed.privacy.gaussian import gaussian_delta, gaussian_mu
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.loss import LogMass, delta_bound
from torchmetrics_fed.privacy.noise import (
    Mechanism,
    discrete_gaussian_delta,
    discrete_gaussian_mu,
    run_noise,
    skellam_delta,
    skellam_mu,
)
from torchmetrics_fed.privacy.sensitivity import Sensitivity

EPSILON = 3.0
DELTA = 1e-6
EVALUATIONS = 50
CELLS = 100

RUNS: list[Privacy] = [
    CentralDP.for_run(EPSILON, evaluations=EVALUATIONS),
    LocalDP.for_run(EPSILON, evaluations=EVALUATIONS, mechanism="discrete_gaussian"),
    DistributedDP.for_run(EPSILON, evaluations=EVALUATIONS, min_clients=5, max_colluding=2),
]


def law_of(privacy: Privacy, sensitivity: Sensitivity, fraction: float = 1.0) -> Law:
    law = privacy.noise(sensitivity, cells=CELLS, fraction=fraction).law
    assert law is not None
    return law


def delta_of(law: Law, epsilon: float, times: int = 1) -> float:
    """Return the delta of several releases with this law, by our own bound on the loss."""
    shifts = tuple((shift, times * cells) for shift, cells in law.shifts)
    bound = skellam_delta if law.mechanism == "skellam" else discrete_gaussian_delta
    return bound(epsilon, law.parameter, Sensitivity(shifts))


@pytest.mark.parametrize("privacy", RUNS, ids=str)
@pytest.mark.parametrize("shifts", [((1, 1),), ((1, 3),), ((1, 2), (4, 1))], ids=str)
def test_all_evaluations_together_spend_the_epsilon_and_hardly_less(
    privacy: Privacy, shifts: tuple[tuple[int, int], ...]
) -> None:
    """The composition is by the bound of `privacy.loss`, which knows nothing of Gaussians."""
    law = law_of(privacy, Sensitivity(shifts))
    composed = delta_of(law, EPSILON, times=EVALUATIONS)
    assert 0.8 * DELTA < composed <= DELTA


@pytest.mark.parametrize("privacy", RUNS, ids=str)
def test_a_pilot_and_its_second_query_spend_no_more_than_one_query(privacy: Privacy) -> None:
    """By dp-accounting, from the masses of both laws."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    composed = pld.identity(value_discretization_interval=2e-5)
    for fraction in (3 / 64, 61 / 64):
        law = law_of(privacy, equal_shifts(1), fraction)
        parameter = float(law.parameter)
        mass = skellam(parameter) if law.mechanism == "skellam" else gaussian(parameter)
        deviation = math.sqrt(2 * parameter)
        support = np.arange(-int(14 * deviation), int(14 * deviation))
        masses = mass(support)
        log_p = dict(zip(support.tolist(), masses.tolist(), strict=True))
        log_q = dict(zip((support + 1).tolist(), masses.tolist(), strict=True))
        loss = pld.from_two_probability_mass_functions(
            log_p, log_q, value_discretization_interval=2e-5
        )
        composed = composed.compose(loss.self_compose(EVALUATIONS))
    assert 0.75 * DELTA < composed.get_delta_for_epsilon(EPSILON) <= DELTA


LAWS: list[tuple[LogMass, float, float]] = [
    (skellam(60.0), skellam_mu(60.0), 120.0**0.5),
    (skellam(0.6), skellam_mu(0.6), 1.2**0.5),
    (gaussian(120.0), discrete_gaussian_mu(120.0), 120.0**0.5),
    (gaussian(0.5), discrete_gaussian_mu(0.5), 0.5**0.5),
]


@pytest.mark.parametrize(("log_mass", "mu", "deviation"), LAWS)
@pytest.mark.parametrize("shifts", [[1], [3], [1, 1], [2, 1]], ids=str)
def test_integer_noise_is_no_easier_to_detect_than_a_gaussian(
    log_mass: LogMass, mu: float, deviation: float, shifts: list[int]
) -> None:
    """For every epsilon, by the definition of delta; with 2% less mu it is easier somewhere."""
    whole_mu = mu * math.sqrt(sum(shift**2 for shift in shifts))
    reach = int(10 * deviation) + 10
    is_easier = []
    for epsilon in np.linspace(0, 5 * whole_mu, 25):
        delta = exact_delta(epsilon, log_mass, shifts, reach)
        assert delta <= gaussian_delta(whole_mu, epsilon) * (1 + 1e-9) + 1e-15
        is_easier.append(delta > gaussian_delta(0.98 * whole_mu, epsilon))
    assert any(is_easier) or deviation < 2  # little noise is dominated only coarsely


@pytest.mark.parametrize("times", [1, EVALUATIONS])
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 3.0])
def test_the_bound_of_the_loss_agrees_with_the_price(epsilon: float, times: int) -> None:
    law = law_of(RUNS[0], equal_shifts(1))
    mu = math.sqrt(times * RUNS[0].mu_squared)
    by_loss = delta_bound(
        epsilon,
        skellam(float(law.parameter)),
        math.sqrt(2 * law.parameter),
        equal_shifts(times),
    )
    assert by_loss <= 1.02 * gaussian_delta(mu, epsilon) + 1e-25


def simulated_delta(law: Law, epsilon: float, trials: int) -> tuple[float, float]:
    """Return the delta of a run by the losses of drawn noise, and its standard error."""
    noise = np.zeros((trials, EVALUATIONS), dtype=np.int64)
    for _ in range(law.shares):
        noise += draw_noise(law, (trials, EVALUATIONS)).numpy()
    log_mass = skellam(float(law.parameter))
    support = np.arange(noise.min() - 1, noise.max() + 2)
    table = log_mass(support)
    index = noise - support[0]
    losses = (table[index] - table[index + 1]).sum(1)
    excess = np.maximum(-np.expm1(epsilon - losses), 0.0)
    return float(excess.mean()), float(excess.std() / math.sqrt(trials))


def test_drawn_noise_loses_what_the_run_says() -> None:
    """Alpha 1e-6: 4.9 standard errors. At epsilon 1, because delta at 3 is too rare to count."""
    privacy = DistributedDP.for_run(EPSILON, evaluations=EVALUATIONS, min_clients=4)
    law = law_of(privacy, equal_shifts(1))
    expected = delta_of(law, 1.0, times=EVALUATIONS)
    delta, error = simulated_delta(law, 1.0, trials=40_000)
    assert abs(delta - expected) < 4.9 * error
    assert expected <= gaussian_delta(gaussian_mu(EPSILON, DELTA), 1.0)
    # power: a run with 5% less deviation shows
    less = Law(law.mechanism, law.parameter * Fraction(9, 10), law.shifts, law.shares)
    delta, error = simulated_delta(less, 1.0, trials=40_000)
    assert delta - 4.9 * error > expected


@pytest.mark.parametrize("privacy", RUNS, ids=str)
@pytest.mark.parametrize("plan", ["adaptive", "single", "carry_over"])
def test_a_budget_takes_the_whole_run_and_no_more(
    tmp_path: Path, privacy: Privacy, plan: Any
) -> None:
    ledger = PrivacyLedger(EPSILON, tmp_path / "ledger", DELTA)
    spec = FederatedROC(privacy=privacy, plan=plan).spec
    assert ledger.evaluations_left(privacy) == EVALUATIONS
    for round in range(EVALUATIONS):
        spent = Amounts(spec.epsilon, spec.delta, privacy.mu_squared)
        ledger.spend("val", round, spent.epsilon, spent.delta, mu_squared=spent.mu_squared)
    assert ledger.evaluations_left(privacy) == 0
    assert 0.99 * EPSILON < ledger.spent().epsilon <= EPSILON
    assert ledger.spent().delta == DELTA
    assert "0 releases like the last" in ledger.report()
    with pytest.raises(BudgetExceededError, match=r"of 3\.0 in all"):
        ledger.spend("val", "one more", spec.epsilon, spec.delta, mu_squared=privacy.mu_squared)
    assert PrivacyLedger(path=tmp_path / "ledger").spent() == ledger.spent()


@pytest.mark.parametrize("plan", ["adaptive", "carry_over"])
def test_releases_are_charged_their_part_of_the_run(plan: Any) -> None:
    privacy = CentralDP.for_run(EPSILON, evaluations=3)
    metric = FederatedROC(privacy=privacy, plan=plan, ledger=PrivacyLedger(EPSILON))
    for epoch in range(3):
        assert metric.ledger.evaluations_left(privacy) == 3 - epoch
        metric.update(torch.rand(500), torch.randint(0, 2, (500,)))
        metric.compute()
        metric.reset()
    assert [entry.mu_squared for entry in metric.ledger] == [privacy.mu_squared] * 3
    metric.update(torch.rand(500), torch.randint(0, 2, (500,)))
    with pytest.raises(BudgetExceededError):
        metric.compute()


def test_releases_of_a_run_and_others_share_a_budget() -> None:
    run = Amounts(0.5, 1e-10, CentralDP.for_run(2.0, evaluations=10).mu_squared)
    budget = Budget(3.0, DELTA)
    mixed = [*[run] * 10, Amounts(0.5), Amounts(0.5)]
    assert budget.fits(mixed)
    assert not budget.fits([*mixed, Amounts(0.1)])
    assert budget.spent(mixed).epsilon == pytest.approx(3.0, abs=0.01)
    assert add_up(mixed).epsilon == 1


def test_pld_composes_a_run_with_other_releases() -> None:
    pytest.importorskip("dp_accounting")
    run = Amounts(0.5, 1e-10, CentralDP.for_run(2.0, evaluations=10).mu_squared)
    of_run = compose_pld([run] * 10, DELTA)
    assert of_run == pytest.approx(2.0, abs=0.01)
    others = [Amounts(0.1)] * 20
    together = compose_pld([*[run] * 10, *others], DELTA)
    assert of_run < together < of_run + compose_pld(others, DELTA)


def test_many_evaluations_need_less_noise_than_added_epsilons() -> None:
    one_cell = equal_shifts(1)
    added = CentralDP(EPSILON / EVALUATIONS).noise(one_cell, cells=CELLS).variance
    composed = RUNS[0].noise(one_cell, cells=CELLS).variance
    assert math.sqrt(added) == pytest.approx(23.6, abs=0.1)
    assert math.sqrt(composed) == pytest.approx(10.94, abs=0.03)


@pytest.mark.parametrize(("epsilon", "fewest"), [(1.0, 10), (3.0, 12), (8.0, 15)])
def test_few_evaluations_are_better_added(epsilon: float, fewest: int) -> None:
    one_cell = equal_shifts(1)
    for evaluations in (fewest - 2, fewest):
        added = CentralDP(epsilon / evaluations).noise(one_cell, cells=CELLS).variance
        run = CentralDP.for_run(epsilon, evaluations=evaluations)
        composed = run.noise(one_cell, cells=CELLS).variance
        assert (composed < added) == (evaluations >= fewest)


def test_only_the_l2_norm_counts() -> None:
    flat = run_noise("skellam", 0.01, equal_shifts(9), shares=1, cells=CELLS)
    tall = run_noise("skellam", 0.01, equal_shifts(1, shift=3), shares=1, cells=CELLS)
    assert flat.variance == tall.variance


@pytest.mark.parametrize("privacy", RUNS, ids=str)
def test_a_run_is_its_fields_and_says_so(privacy: Privacy) -> None:
    assert Privacy.from_fields(privacy.fields) == privacy
    assert privacy.fields["evaluations"] == EVALUATIONS
    assert "epsilon=3, delta=1e-06 in 50 evaluations" in str(privacy)
    assert "evaluations" not in CentralDP(1.0).fields


@pytest.mark.parametrize("privacy", RUNS, ids=str)
def test_one_release_costs_its_epsilon_at_its_delta(privacy: Privacy) -> None:
    delta = privacy.charged_delta(cells=0, queries=0)
    law = law_of(privacy, equal_shifts(1))
    assert delta_of(law, privacy.release_epsilon) <= delta
    assert privacy.release_epsilon < EPSILON


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"evaluations": 0}, "evaluations"),
        ({"evaluations": 2.5}, "evaluations"),
        ({"mechanism": "polya"}, "delta"),
        ({"delta": 0.0}, "delta"),
    ],
)
def test_bad_arguments_of_a_run_are_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InputError, match=f"`{name}`"):
        CentralDP.for_run(**{"epsilon": 3.0, "evaluations": 50, **options})


def test_pure_noise_has_no_run() -> None:
    with pytest.raises(InputError, match="`mechanism`"):
        CentralDP(3.0, evaluations=50)


def test_shares_of_discrete_gaussians_have_no_run() -> None:
    mechanism: Mechanism = "discrete_gaussian"
    privacy = DistributedDP.for_run(3.0, evaluations=50, min_clients=5, mechanism=mechanism)
    with pytest.raises(InputError, match="skellam"):
        FederatedROC(privacy=privacy)


def test_a_run_that_is_too_long_is_refused() -> None:
    with pytest.raises(InputError, match="fewer `evaluations`"):
        FederatedROC(privacy=CentralDP.for_run(1e-3, evaluations=100_000))


def test_a_release_of_a_run_that_is_broken_off_stays_charged_whole() -> None:
    privacy = CentralDP.for_run(EPSILON, evaluations=EVALUATIONS)
    ledger = PrivacyLedger(EPSILON)
    entry = terms_of(FederatedROC(privacy=privacy, data="val")).entry("1", "client")
    ledger.charge(entry, b"pilot", fraction=0.25)
    ledger.settle(entry)
    assert ledger.evaluations_left(privacy) == EVALUATIONS - 1
