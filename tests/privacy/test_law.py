"""The law that a ledger records is the law of the draw: the loss follows from the record alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from torchmetrics_fed import DistributedDP, FederatedROC, PrivacyLedger
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange.client import charge_release
from torchmetrics_fed.exchange.placement import pilot_query, single_query
from torchmetrics_fed.exchange.plans import plan_from
from torchmetrics_fed.exchange.terms import Terms
from torchmetrics_fed.privacy.budget import Amounts, compose_pld
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.noise import Mechanism, discrete_gaussian_delta, skellam_delta
from torchmetrics_fed.privacy.sensitivity import Sensitivity

LAW = Law("polya", Fraction(1, 24), shifts=((1, 3),), shares=7)
CLIENT = "5e55"


def test_a_law_is_kept_exactly_in_plain_json() -> None:
    law = replace(LAW, parameter=Fraction(0.1) / 3, shifts=((1, 3), (4, 1)))
    fields = json.loads(json.dumps(law.fields))
    assert fields["parameter"] == "3602879701896397/108086391056891904"
    assert Law.from_fields(fields) == law


@pytest.mark.parametrize(
    "changes",
    [
        {"parameter": Fraction(0)},
        {"parameter": Fraction(-1, 2)},
        {"shifts": ((0, 3),)},
        {"shifts": ((1, 0),)},
        {"shares": 0},
    ],
    ids=str,
)
def test_an_impossible_law_is_refused(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(InputError, match=name):
        replace(LAW, **changes)


def delta_of(law: Law, epsilon: float) -> float:
    """Return the delta of a reply with this law, from its record alone."""
    worst = Sensitivity(law.shifts)
    if law.mechanism == "skellam":
        return skellam_delta(epsilon, law.parameter, worst)
    if law.mechanism == "discrete_gaussian":
        return discrete_gaussian_delta(epsilon, law.parameter, worst)
    loss = float(law.parameter * worst.l1)
    return max(0.0, loss - epsilon - 1e-12)


@pytest.mark.parametrize(
    ("mechanism", "delta"),
    [
        ("polya", 0.0),
        ("skellam", 1e-6),
        ("discrete_gaussian", 1e-6),
    ],
)
def test_a_release_records_the_law_of_its_draws(mechanism: Mechanism, delta: float) -> None:
    """From the law alone, without the metric, the loss of each reply is its part of the price."""
    privacy = DistributedDP(1.0, min_clients=4, mechanism=mechanism, delta=delta)
    spec = FederatedROC(quantiles=64, privacy=privacy).spec
    ledger = PrivacyLedger()
    terms = Terms(spec, plan_from(None, spec), ledger, "val")
    queries = [pilot_query(spec), replace(spec.all_bins, fraction=0.953125)]
    for query in queries:
        charge_release(terms, query, client=CLIENT, round="")
    (entry,) = ledger
    for query, law in zip(queries, entry.laws, strict=True):
        assert law == spec.noise(query).law
        assert law == Law.from_fields(json.loads(json.dumps(law.fields)))
        assert law.mechanism == mechanism
        assert law.shares == 3
        assert delta_of(law, query.fraction) <= delta * query.fraction
        assert delta_of(law, 0.97 * query.fraction) > delta * query.fraction  # and no more noise


def geometric_log_masses(rate: float, shift: int) -> dict[int, float]:
    """Return the logarithms of the masses of a two-sided geometric law, shifted."""
    scale = math.log(math.tanh(rate / 2))
    return {x: scale - rate * abs(x - shift) for x in range(-2000, 2001)}


def test_the_laws_of_a_ledger_are_enough_to_compose_its_releases() -> None:
    """From their masses alone, and for less than the same prices of unknown mechanisms cost."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    privacy = DistributedDP(0.5, min_clients=4)
    spec = FederatedROC(quantiles=64, privacy=privacy, plan="single").spec
    query = single_query(spec)
    ledger = PrivacyLedger()
    terms = Terms(spec, plan_from("single", spec), ledger, "val")
    releases = 20
    for round in range(releases):
        charge_release(terms, query, client=CLIENT, round=str(round))
    composed = pld.identity()
    for entry in ledger:
        for law in entry.laws:
            for shift, cells in law.shifts:
                rate = float(law.parameter)
                loss = pld.from_two_probability_mass_functions(
                    geometric_log_masses(rate, shift=0),
                    geometric_log_masses(rate, shift=shift),
                )
                composed = composed.compose(loss.self_compose(cells))
    epsilon = composed.get_epsilon_for_delta(1e-6)
    assert epsilon < 0.9 * compose_pld([Amounts(0.5)] * releases, 1e-6)
    assert epsilon < 0.9 * ledger.spent().epsilon
