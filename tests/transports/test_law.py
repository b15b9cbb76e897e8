"""One law for all transports: the same plan asks the same queries, costs the same epsilon, and
leaks nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.grids import grid_for
from tests.ranks import RankPool
from tests.transports.carriers import (
    CLIENTS,
    EPSILON,
    MARK,
    SETTINGS,
    ByHand,
    Carrier,
    Declearn,
    Flower,
    Folder,
    OverRanks,
    Part,
    Pfl,
    Processes,
    Simulated,
)
from tests.transports.nvflare_carrier import NVFlare
from torchmetrics_fed import FederatedModelComparison, FederatedROC
from torchmetrics_fed.exchange import next_query, plan_from

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:No (positive|negative) examples"),
]

CARRIERS: dict[str, Any] = {
    "ranks": OverRanks,
    "simulate": Simulated,
    "by hand": ByHand,
    "processes": Processes,
    "folder": Folder,
    "flower": Flower,
    "nvflare": NVFlare,
    "declearn": Declearn,
    "pfl": Pfl,
}
NEEDS = {"flower": "flwr", "nvflare": "nvflare", "declearn": "declearn", "pfl": "pfl"}
PLANS: dict[str | None, list[int]] = {
    None: [2],
    "adaptive": [2],
    "single": [1],
    "paper": [1],
    "carry_over": [2, 1, 1],
}
"""The number of queries of each round, where clients can be asked twice; elsewhere there is one
query."""


def plans_of(carrier: type[Carrier], setting: str) -> Iterable[str | None]:
    """The plans of a setting. Exact counts have none to choose."""
    if "privacy" not in SETTINGS[setting]:
        return [None]
    return getattr(carrier, "plans", PLANS)


CASES = [
    (name, setting, plan)
    for name, carrier in CARRIERS.items()
    for setting in carrier.settings
    for plan in plans_of(carrier, setting)
]


@pytest.fixture
def carrier(request: pytest.FixtureRequest, ranks: RankPool) -> Carrier:
    name: str = request.param
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    if name == "ranks":
        return OverRanks(ranks)
    transport: Carrier = CARRIERS[name]()
    return transport


def data(examples: int = 400) -> list[Part]:
    """The clients' parts; the last client has no data."""
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(0, 2, (CLIENTS, examples), generator=generator)
    scores = (torch.randn(CLIENTS, examples, generator=generator) + target).sigmoid()
    return [(scores[0], target[0]), (scores[1], target[1]), (scores[2, :0], target[2, :0])]


def pooled(options: dict[str, Any]) -> Tensor:
    metric = FederatedROC(quantiles=64)
    for part in data():
        metric.update(*part)
    return metric.counts


@pytest.mark.parametrize(("carrier", "setting", "plan"), CASES, indirect=["carrier"])
def test_the_same_queries_the_same_charge(
    carrier: Carrier, setting: str, plan: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "quantiles": 64,
        "grid": grid_for(plan),
        "plan": plan,
        **SETTINGS[setting],
    }
    private = "privacy" in options
    asks_again = getattr(carrier, "asks_again", True)
    expected = [1]
    if private:
        expected = PLANS[plan]
    if not asks_again:
        expected = [1] * len(expected)
    rounds = carrier.carry(options, data(), len(expected), tmp_path, False, False)
    previous = None
    spec = FederatedROC(**options).spec
    for (release, entries, _), queries in zip(rounds, expected, strict=True):
        assert len(release.queries) == queries
        for number, query in enumerate(release.queries):  # the first of them is the same everywhere
            expected_query = next_query(
                plan_from(plan, spec),
                release.sums[:number],
                spec=spec,
                can_ask_again=asks_again,
                previous=previous,
            )
            assert query == expected_query
        assert release.spec == spec
        assert release.shares == CLIENTS
        for charged in entries:
            assert [entry.epsilon for entry in charged] == [EPSILON] * private
            assert [entry.spec for entry in charged] == [spec.digest.hex()] * private
        if not private:
            assert torch.equal(release.leaf, pooled(options))
        # what was released before is data of the next
        if plan == "carry_over" and previous is not None:
            assert release.prior is not None
            assert torch.equal(release.prior.cells, previous.last.cells)
            assert release.prior.query == previous.last.query
        else:
            assert release.prior is None
        previous = release


# the metrics of these two are given scores and labels only
GROUPED = [
    (name, setting)
    for name, setting, plan in CASES
    if plan is None and name not in ("declearn", "pfl")
]


@pytest.mark.parametrize(("carrier", "setting"), GROUPED, indirect=["carrier"])
def test_groups_travel_as_one_release(carrier: Carrier, setting: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"quantiles": 64, "groups": ("a", "b"), **SETTINGS[setting]}
    parts: list[Part] = [
        (scores, target, torch.arange(len(target)) % 2) for scores, target in data()
    ]
    ((release, entries, _),) = carrier.carry(options, parts, 1, tmp_path, False, False)
    private = "privacy" in options
    metric = FederatedROC(**options)
    spec = metric.spec
    pools_groups = [query.pools_groups for query in release.queries]
    assert pools_groups == [True] * private + [False]
    for number, query in enumerate(release.queries):
        assert query == next_query(metric.plan, release.sums[:number], spec=spec)
    assert release.spec == spec
    assert all([entry.epsilon for entry in charged] == [EPSILON] * private for charged in entries)
    if not private:
        for number, name in enumerate(("a", "b")):
            separate = FederatedROC(quantiles=64)
            for scores, target, group in parts:
                separate.update(scores[group == number], target[group == number])
            assert torch.equal(release.by_group[name].leaf, separate.counts)


PRIVATE = [case for case in GROUPED if "privacy" in SETTINGS[case[1]]]


@pytest.mark.filterwarnings("ignore:Epsilon")
@pytest.mark.parametrize(
    ("carrier", "setting"),
    [case for case in GROUPED if "privacy" in SETTINGS[case[1]]],
    indirect=["carrier"],
)
def test_no_person_is_counted_too_often_on_the_way(
    carrier: Carrier, setting: str, tmp_path: Path
) -> None:
    """Four examples of each of 100 persons at two clients, of which one may be counted; noise is
    next to none."""
    privacy = replace(SETTINGS[setting]["privacy"], epsilon=20.0, enforced=True)
    parts: list[Part] = [
        (scores, target, torch.arange(len(target)) % 100 + 100 * number)
        for number, (scores, target) in enumerate(data())
    ]
    ((release, _, _),) = carrier.carry(
        {"quantiles": 64, "privacy": privacy}, parts, 1, tmp_path, False, False
    )
    assert release.spec.privacy == privacy
    assert abs(float(release.leaf.sum()) - 200) < 50


@pytest.mark.filterwarnings("ignore:About", "ignore:Too few")
@pytest.mark.parametrize(("carrier", "setting"), GROUPED, indirect=["carrier"])
def test_two_models_travel_as_one_release(carrier: Carrier, setting: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "models": ("old", "new"),
        "thresholds": (0.5, 0.25),
        **SETTINGS[setting],
    }
    parts: list[Part] = [(scores, scores.flip(0), target) for scores, target in data()]
    ((release, entries, _),) = carrier.carry(options, parts, 1, tmp_path, False, False)
    private = "privacy" in options
    metric = FederatedModelComparison(**options)
    spec = metric.spec
    assert len(release.queries) == 1 + private
    for number, query in enumerate(release.queries):
        assert query == next_query(metric.plan, release.sums[:number], spec=spec)
    assert release.spec == spec
    assert all([entry.epsilon for entry in charged] == [EPSILON] * private for charged in entries)
    if not private:
        pooled = FederatedModelComparison(**options)
        for part in parts:
            pooled.update(*part)
        assert torch.equal(release.leaf, pooled.counts)


# Exact counts are for the aggregator to see, and central noise trusts this job's processes; a
# simulation sends nothing.
HIDDEN = [setting for setting in SETTINGS if setting not in ("exact", "central")]
SCANNED = [
    (name, setting) for name in CARRIERS if name not in ("simulate", "pfl") for setting in HIDDEN
]


@pytest.fixture
def marked() -> tuple[list[Part], bytes]:
    """Data of two examples a client, each counted as many times as a number that can be
    recognised."""
    two = torch.tensor([0.1, 0.9]), torch.tensor([0, 1])
    return [two] * CLIENTS, MARK.to_bytes(8, "little")


@pytest.mark.parametrize("leak", [False, True], ids=["as it is", "leaking"])
@pytest.mark.parametrize(("carrier", "setting"), SCANNED, indirect=["carrier"])
def test_nothing_raw_is_sent(
    carrier: Carrier, setting: str, leak: bool, marked: tuple[list[Part], bytes], tmp_path: Path
) -> None:
    parts, pattern = marked
    options = dict(SETTINGS[setting])
    plans: list[str | None] = [None]
    if "privacy" in options:  # so much noise that what is sent does not hold the number by chance
        options["privacy"] = replace(options["privacy"], epsilon=1e-4)
        plans = [None, "single"]
    for plan in plans:
        folder = tmp_path / str(plan)
        folder.mkdir()
        for carried in carrier.carry(
            {"quantiles": 64, "plan": plan, **options}, parts, 1, folder, True, leak
        ):
            assert carried.sent
            assert (pattern in carried.sent) == leak
