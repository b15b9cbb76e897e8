"""A release asked stage by stage: who answers is in the sum, who does not is named, and too few
open nothing."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from torchmetrics_fed import (
    Coordinator,
    DistributedDP,
    FederatedROC,
    LocalDP,
    Query,
    Release,
    SecureAggregationClient,
    SecureAggregationConfig,
)
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import FederatedMetricError, ReleaseError
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.exchange.stages import ask_release, release_stages

NAMES = ("ann", "ben", "cem", "dua")


class Clients:
    """Clients in this process; those that are silent or refuse do so in one stage of the first
    query."""

    def __init__(
        self,
        names: tuple[str, ...] = NAMES,
        silent: tuple[str, ...] = (),
        refusing: tuple[str, ...] = (),
        stage: str = "",
        **options: Any,
    ):
        self.metrics = {name: FederatedROC(quantiles=64, **options) for name in names}
        self.silent = silent
        self.refusing = refusing
        self.stage = stage
        self.sides: dict[str, SecureAggregationClient] = {}
        for number, metric in enumerate(self.metrics.values()):
            generator = torch.Generator().manual_seed(number)
            metric.update(
                torch.rand(200, generator=generator),
                torch.randint(0, 2, (200,), generator=generator),
            )
        self.counts = {name: metric.counts.clone() for name, metric in self.metrics.items()}

    def send(self, requests: Mapping[str, Request]) -> dict[str, bytes | FederatedMetricError]:
        answers: dict[str, bytes | FederatedMetricError] = {}
        for name, request in requests.items():
            if str(request.stage) == self.stage and name in self.refusing:
                answers[name] = ReleaseError("No budget.")
            elif str(request.stage) != self.stage or name not in self.silent:
                answers[name] = self.answer(name, request)
        return answers

    def answer(self, name: str, request: Request) -> bytes:
        metric = self.metrics[name]
        query = Query.from_bytes(request.query)
        if request.stage is Stage.JOIN:
            return request.digest
        if request.stage is Stage.SHARE:
            return bytes(metric.share(round=request.round, query=query))
        if request.stage is Stage.ADVERTISE:
            self.sides[name] = SecureAggregationClient(
                name, SecureAggregationConfig.from_bytes(request.start)
            )
            return self.sides[name].advertise()
        if request.stage is Stage.MASK:
            return metric.mask(self.sides[name], request.message, round=request.round, query=query)
        take = {
            Stage.SHARE_KEYS: self.sides[name].share_keys,
            Stage.UNMASK: self.sides[name].unmask,
        }
        return take[request.stage](request.message)


def released(clients: Clients, **options: Any) -> Release:
    coordinator = Coordinator(FederatedROC(quantiles=64, **options), round="3/x")
    stages = release_stages(coordinator, NAMES, place="round 3", log=logging.getLogger("here"))
    return ask_release(stages, clients.send)


@pytest.mark.parametrize("secure", [False, True], ids=["shown", "hidden"])
def test_the_release_is_that_of_the_pooled_data(secure: bool) -> None:
    clients = Clients(secure=secure)
    release = released(clients, secure=secure)
    assert torch.equal(release.leaf, torch.stack(list(clients.counts.values())).sum(0))


@pytest.mark.parametrize(
    "privacy", [LocalDP(1.0), DistributedDP(1.0, min_clients=3)], ids=["shown", "hidden"]
)
def test_a_private_release_takes_two_queries_and_one_charge(privacy: Any) -> None:
    clients = Clients(privacy=privacy)
    release = released(clients, privacy=privacy)
    assert len(release.queries) == 2
    assert [len(metric.ledger) for metric in clients.metrics.values()] == [1, 1, 1, 1]


@pytest.mark.parametrize("stage", ["advertise", "share_keys", "mask", "unmask"])
@pytest.mark.parametrize("how", ["silent", "refusing"])
def test_whoever_drops_out_is_named_with_stage_and_reason(
    how: str, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    clients = Clients(stage=stage, secure=True, **{how: ("ben",)})
    with caplog.at_level(logging.INFO):
        release = released(clients, secure=True)
    counts = [
        counts for name, counts in clients.counts.items() if name != "ben" or stage == "unmask"
    ]
    assert torch.equal(release.leaf, torch.stack(counts).sum(0))
    prefix = f"torchmetrics-fed: round 3, query 1, {stage}: "
    assert f"{prefix}3 of 4 answered in 0." in caplog.text
    if how == "silent":
        assert re.search(rf"{prefix}.* s: ann, cem, dua; silent for 0\.\d s: ben\.", caplog.text)
    else:
        assert f"{prefix}dropped out: ben. No budget." in caplog.text


def test_equal_reasons_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        FederatedMetricError, match="at least 3 clients but got 2, so the aggregation never began"
    ):
        released(Clients(stage="advertise", secure=True, refusing=("ann", "ben")), secure=True)
    assert caplog.text.count("No budget.") == 1
    assert "dropped out: ann, ben. No budget." in caplog.text


def test_too_few_open_nothing() -> None:
    clients = Clients(stage="mask", secure=True, silent=("ann", "ben"))
    with pytest.raises(FederatedMetricError, match="at least 3 of 4"):
        released(clients, secure=True)
    with pytest.raises(ReleaseError, match="min_clients=1 clients but got 0"):
        released(Clients(stage="share", silent=NAMES))


def test_with_a_threshold_a_round_survives_as_many_dropouts_as_it_says() -> None:
    """Of six clients, five must stay by default; four are the fewest that a threshold may be."""
    names = (*NAMES, "eli", "fay")
    for threshold, dropouts in ((None, 1), (4, 2)):
        for count in (dropouts, dropouts + 1):
            clients = Clients(names, stage="mask", secure=True, silent=names[:count])
            coordinator = Coordinator(
                FederatedROC(quantiles=64, secure=True), round="3/x", threshold=threshold
            )
            log = logging.getLogger("here")
            stages = release_stages(coordinator, names, place="round 3", log=log)
            if count == dropouts:
                assert ask_release(stages, clients.send).shares == len(names) - count
                continue
            with pytest.raises(FederatedMetricError, match="at least"):
                ask_release(stages, clients.send)
