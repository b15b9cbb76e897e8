"""The law that a ledger records is the law that was drawn from: the loss follows from the record alone."""

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
from torchmetrics_fed.privacy.budget import compose_pld
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.noise import Mechanism, discrete_gaussian_delta, skellam_delta
from torchmetrics_fed.privacy.sensitivity import Sensitivity

LAW = Law("polya", Fraction(1, 24), shifts=((1, 3),), shares=7)


def test_a_law_is_kept_exactly_in_plain_json() -> None:
    law = replace(LAW, parameter=Fraction(0.1) / 3, shifts=((1, 3), (4, 1)))
    fields = json.loads(json.dumps(law.fields))
    assert fields["parameter"] == "3602879701896397/108086391056891904"
    assert Law.from_fields(fields) == law


@pytest.mark.parametrize("mechanism", ["polya", "skellam", "discrete_gaussian"])
def test_a_release_records_the_law_that_it_was_drawn_from(mechanism: Mechanism) -> None:
    """From the law alone, without the metric, the loss of each answer is its part of the price."""
    delta = 0.0 if mechanism == "polya" else 1e-6
    privacy = DistributedDP(1.0, min_clients=4, mechanism=mechanism, delta=delta)
    spec = FederatedROC(quantiles=64, privacy=privacy).spec
    ledger = PrivacyLedger()
    queries = [pilot_query(spec.grid), replace(spec.all_bins, fraction=0.953125)]
    for query in queries:
        charge_release(
            Terms(spec, plan_from(None, spec), ledger, "val"), query, client="5e55", round=""
        )
    (entry,) = ledger
    assert len(entry.laws) == 2
    for query, law in zip(queries, entry.laws, strict=True):
        noise = spec.noise(query)
        assert noise is not None
        assert law == noise.law == Law.from_fields(json.loads(json.dumps(law.fields)))
        assert (law.mechanism, law.shares) == (mechanism, 3)
        assert loss(law, query.fraction) <= delta * query.fraction
        assert loss(law, 0.97 * query.fraction) > delta * query.fraction  # and no more noise


def loss(law: Law, epsilon: float) -> float:
    """The delta of an answer with this law, from what is recorded of it."""
    worst = Sensitivity(law.shifts)
    if law.mechanism == "skellam":
        return skellam_delta(epsilon, law.parameter, worst)
    if law.mechanism == "discrete_gaussian":
        return discrete_gaussian_delta(epsilon, law.parameter, worst)
    return max(0.0, float(law.parameter * worst.l1) - epsilon - 1e-12)


@pytest.mark.parametrize(
    "changed",
    [
        {"parameter": Fraction(0)},
        {"parameter": Fraction(-1, 2)},
        {"shifts": ((0, 3),)},
        {"shifts": ((1, 0),)},
        {"shares": 0},
    ],
    ids=str,
)
def test_a_law_that_is_none_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(changed))):
        replace(LAW, **changed)


def test_the_laws_of_a_ledger_are_enough_to_compose_its_releases() -> None:
    """From their masses alone, and for less than the same prices of unknown mechanisms cost."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    metric = FederatedROC(quantiles=64, privacy=DistributedDP(0.5, min_clients=4), plan="single")
    spec = metric.spec
    query = single_query(spec.grid, spec.epsilon)
    ledger = PrivacyLedger()
    releases = 20
    for round in range(releases):
        charge_release(
            Terms(spec, plan_from("single", spec), ledger, "val"),
            query,
            client="5e55",
            round=str(round),
        )
    composed = None
    for entry in ledger:
        for law in entry.laws:
            for shift, cells in law.shifts:
                reach = range(-2000, 2001)
                rate = float(law.parameter)
                scale = math.log(math.tanh(rate / 2))
                here = {x: scale - rate * abs(x) for x in reach}
                there = {x: scale - rate * abs(x - shift) for x in reach}
                loss = pld.from_two_probability_mass_functions(here, there).self_compose(cells)
                composed = loss if composed is None else composed.compose(loss)
    assert composed is not None
    epsilon = composed.get_epsilon_for_delta(1e-6)
    assert epsilon < 0.9 * compose_pld([(0.5, 0.0)] * releases, 1e-6)
    assert epsilon < 0.9 * ledger.spent().epsilon
