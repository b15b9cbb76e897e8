"""A release asked stage by stage: who answers is in the sum, who does not is named, and too few open nothing."""

from __future__ import annotations

import logging
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
    SecureAggregationClient,
    SecureAggregationConfig,
)
from torchmetrics_fed.errors import FederatedMetricError, ReleaseError
from torchmetrics_fed.exchange.stages import Asked, ask_release

NAMES = ("ann", "ben", "cem", "dua")


class Clients:
    """Clients in this process; those that are silent or refuse do so in one stage of the first query."""

    def __init__(self, silent: tuple[str, ...] = (), refusing: tuple[str, ...] = (), stage: str = "", **options: Any):
        self.metrics = {name: FederatedROC(quantiles=64, **options) for name in NAMES}
        self.silent, self.refusing, self.stage = silent, refusing, stage
        self.sides: dict[str, SecureAggregationClient] = {}
        for number, metric in enumerate(self.metrics.values()):
            generator = torch.Generator().manual_seed(number)
            metric.update(torch.rand(200, generator=generator), torch.randint(0, 2, (200,), generator=generator))
        self.counts = {name: metric.counts.clone() for name, metric in self.metrics.items()}

    def send(self, asked: Mapping[str, Asked]) -> dict[str, bytes | FederatedMetricError]:
        answers: dict[str, bytes | FederatedMetricError] = {}
        for name, one in asked.items():
            if one.stage == self.stage and name in self.refusing:
                answers[name] = ReleaseError("No budget.")
            elif one.stage != self.stage or name not in self.silent:
                answers[name] = self.answer(name, one)
        return answers

    def answer(self, name: str, asked: Asked) -> bytes:
        metric, query = self.metrics[name], Query.from_bytes(asked.query)
        if asked.stage == "share":
            return bytes(metric.share(round=asked.round, query=query))
        if asked.stage == "advertise":
            self.sides[name] = SecureAggregationClient(name, SecureAggregationConfig.from_bytes(asked.start))
            return self.sides[name].advertise()
        if asked.stage == "mask":
            return metric.mask(self.sides[name], asked.message, round=asked.round, query=query)
        take = {"share_keys": self.sides[name].share_keys, "unmask": self.sides[name].unmask}
        return take[asked.stage](asked.message)


def coordinator(**options: Any) -> Coordinator:
    return Coordinator(FederatedROC(quantiles=64, **options), round="3")


@pytest.mark.parametrize("secure", [False, True], ids=["shown", "hidden"])
def test_the_release_is_that_of_the_pooled_data(secure: bool) -> None:
    clients = Clients(secure=secure)
    release = ask_release(coordinator(secure=secure), NAMES, clients.send)
    assert torch.equal(release.leaf, torch.stack(list(clients.counts.values())).sum(0))


@pytest.mark.parametrize("privacy", [LocalDP(1.0), DistributedDP(1.0, min_clients=3)], ids=["shown", "hidden"])
def test_a_private_release_takes_two_queries_and_one_charge(privacy: Any) -> None:
    clients = Clients(privacy=privacy)
    release = ask_release(coordinator(privacy=privacy), NAMES, clients.send)
    assert len(release.queries) == 2
    assert [len(metric.ledger) for metric in clients.metrics.values()] == [1, 1, 1, 1]


@pytest.mark.parametrize("stage", ["advertise", "share_keys", "mask", "unmask"])
@pytest.mark.parametrize("how", ["silent", "refusing"])
def test_whoever_drops_out_is_named_with_stage_and_reason(
    how: str, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    clients = Clients(stage=stage, secure=True, **{how: ("ben",)})
    with caplog.at_level(logging.INFO):
        release = ask_release(coordinator(secure=True), NAMES, clients.send)
    there = [counts for name, counts in clients.counts.items() if name != "ben" or stage == "unmask"]
    assert torch.equal(release.leaf, torch.stack(there).sum(0))
    reason = "No budget." if how == "refusing" else "It was silent for 0 s."
    assert f"3: ben has dropped out in stage {stage} of query 1. {reason}" in caplog.text
    assert f"3: 3 of 4 answered in stage {stage} of query 1" in caplog.text


def test_too_few_open_nothing() -> None:
    clients = Clients(stage="mask", secure=True, silent=("ann", "ben"))
    with pytest.raises(FederatedMetricError, match="at least 3 of 4"):
        ask_release(coordinator(secure=True), NAMES, clients.send)
    with pytest.raises(ReleaseError, match="Expected answers in stage share of query 1 but nobody gave one"):
        ask_release(coordinator(), NAMES, Clients(stage="share", silent=NAMES).send)
