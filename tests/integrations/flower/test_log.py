"""The log of a Flower server names, once each, the nodes that answered, and those that did not."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from tests.integrations.flower_grid import Client, Cut, LocalGrid
from torchmetrics_fed import DistributedDP, FederatedROC, PrivacyLedger
from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin, aggregate_fn

NODES = [2**63 + 7 * index for index in range(1, 6)]
HIDDEN = DistributedDP(2.0, min_clients=4)
VISIBLE = DistributedDP(2.0, min_clients=4, trusted_aggregator=True)


class Curves(FederatedEvaluationMixin, FedAvg):
    pass


def roc(**options: Any) -> FederatedROC:
    return FederatedROC(**{"quantiles": 64, "secure": "privacy" not in options, **options})


def private(privacy: DistributedDP = HIDDEN, **options: Any) -> FederatedROC:
    return roc(privacy=privacy, ledger=PrivacyLedger(budget=9.0), **options)


def parties(make: Callable[[], FederatedROC], folder: Path) -> dict[int, Client]:
    clients = {}
    for node in NODES:
        generator = torch.Generator().manual_seed(node % 97)
        preds = torch.rand(90, generator=generator)
        target = torch.randint(0, 2, (90,), generator=generator)
        clients[node] = Client(make, preds, target, folder=folder)
    return clients


def grid_of(clients: dict[int, Client]) -> LocalGrid:
    return LocalGrid({node: client.app for node, client in clients.items()})


def started(grid: LocalGrid, metric: FederatedROC, rounds: int = 1) -> Curves:
    strategy = Curves(metric=metric, min_available_nodes=5)
    strategy.start(
        grid, ArrayRecord({"w": Array(torch.ones(1).numpy())}), num_rounds=rounds, timeout=1.0
    )
    return strategy


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[..., list[str]]]:
    """The messages of this package from a level on, except those about values kept back."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)

    def lines(level: int = logging.WARNING) -> list[str]:
        # Flower's logger hands records on, or not: each counts once
        records = {id(record): record for record in caplog.records}.values()
        texts = [record.getMessage() for record in records if record.levelno >= level]
        prefix = "torchmetrics-fed: "
        return [
            text.removeprefix(prefix)
            for text in texts
            if text.startswith(prefix) and "kept back" not in text
        ]

    with caplog.at_level(logging.INFO, "flwr"):
        yield lines
    logger.removeHandler(caplog.handler)


Messages = Callable[..., list[str]]
STAGES = ["advertise", "share_keys", "mask", "unmask"]
SENT = {"mask": "evaluate"}
"""What Flower's messages call a stage: there, shares are masked in an evaluation."""
ALL = ", ".join(map(str, NODES))


def test_every_stage_says_who_answered_and_how_long_it_took(
    folder: Path, messages: Messages
) -> None:
    assert started(grid_of(parties(private, folder)), private()).releases
    stages = [f"query 1, {stage}" for stage in STAGES] + [f"query 2, {stage}" for stage in STAGES]
    expected = [f"round 1, {stage}: 5 of 5 answered in S s: {ALL}." for stage in stages]
    lines = [re.sub(r"\d+\.\d s", "S s", line) for line in messages(logging.INFO)]
    assert lines == expected
    assert not messages()


@pytest.mark.parametrize("stage", STAGES)
def test_who_is_silent_is_named_with_how_long(stage: str, folder: Path, messages: Messages) -> None:
    grid = grid_of(parties(roc, folder))
    grid.cuts = {Cut(NODES[1], SENT.get(stage, stage))}
    assert started(grid, roc()).releases
    (line,) = messages()
    assert line.startswith(f"round 1, query 1, {stage}: 4 of 5 answered in ")
    assert re.search(rf"; silent for \d+\.\d s: {NODES[1]}\.$", line)


def test_a_node_without_a_heartbeat_is_called_by_its_own_id(
    folder: Path, messages: Messages
) -> None:
    """Its error reply comes from the SuperLink, and bears the SuperLink's id, 1."""
    grid = grid_of(parties(roc, folder))
    grid.gone = {NODES[2]}
    assert started(grid, roc()).releases[1].shares == 4
    assert [
        line for line in messages() if f"dropped out: {NODES[2]}. Error: Node Unavailable" in line
    ]
    assert not re.search(r": 1\b", "\n".join(messages()))


@pytest.mark.parametrize("how", ["silent", "gone", "of another spec"])
def test_who_did_not_advertise_is_not_asked_again(how: str, folder: Path) -> None:
    clients = parties(roc, folder)
    if how == "of another spec":
        clients[NODES[1]].metric = lambda: roc(quantiles=32)
    grid = grid_of(clients)
    if how == "silent":
        grid.cuts = {Cut(NODES[1], "advertise")}
    if how == "gone":
        grid.gone = {NODES[1]}
    assert started(grid, roc()).releases[1].shares == 4
    names = [SENT.get(stage, stage) for stage in STAGES]
    assert [grid.asked.count((NODES[1], name)) for name in names] == [1, 0, 0, 0]
    assert [grid.asked.count((NODES[0], name)) for name in names] == [1, 1, 1, 1]


def without_mod() -> ClientApp:
    """An app as Flower's template has it: its evaluation begins with the arrays."""
    app = ClientApp()

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        message.content.array_records["arrays"]
        raise AssertionError("this message had no arrays")

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Client(roc, torch.ones(1), torch.ones(1)).app()(message, context)

    return app


def test_a_forgotten_mod_is_one_message(folder: Path, messages: Messages) -> None:
    grid = LocalGrid(dict.fromkeys(NODES, without_mod))
    assert not started(grid, roc()).releases
    answered, why, no_curve = messages()
    assert answered.startswith("round 1, query 1, advertise: 0 of 5 answered")
    assert why == (
        f"round 1, query 1, advertise: dropped out: {ALL}. `evaluation_mod` is not installed "
        "there: use `@app.evaluate(mods=[evaluation_mod(metric)])`. Got KeyError: 'arrays'"
    )
    assert no_curve.startswith("no curve of round 1. ")


OTHER_SPECS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "bins": ({}, {"quantiles": 32}, "bins: expected 256, got 128."),
    "privacy": (
        {"privacy": HIDDEN},
        {"secure": True},
        "secure: expected False, got True; privacy: expected DistributedDP, got Exact",
    ),
    "epsilon": (
        {"privacy": HIDDEN},
        {"privacy": DistributedDP(0.1, min_clients=5)},
        "epsilon: expected 2.0, got 0.1; min_clients: expected 4, got 5.",
    ),
    "visible": (
        {"privacy": VISIBLE},
        {"privacy": DistributedDP(0.1, min_clients=4, trusted_aggregator=True)},
        "epsilon: expected 2.0, got 0.1.",
    ),
}


@pytest.mark.parametrize("case", OTHER_SPECS)
def test_another_spec_is_one_message_with_every_field_and_both_values(
    case: str, folder: Path, messages: Messages
) -> None:
    server, node, expected = OTHER_SPECS[case]
    clients = parties(lambda: roc(**node, ledger=PrivacyLedger(budget=9.0)), folder)
    assert not started(grid_of(clients), roc(**server)).releases
    whys = [line for line in messages() if "dropped out" in line]
    assert len(whys) == 1
    assert (
        f"dropped out: {ALL}. SpecMismatchError: Expected one spec for all but {expected}"
        in whys[0]
    )
    assert sum(client.evaluations for client in clients.values()) == 0


def test_another_spec_is_named_on_the_plain_path_too(folder: Path, messages: Messages) -> None:
    clients = parties(lambda: FederatedROC(quantiles=32), folder)
    curves = aggregate_fn(FederatedROC(quantiles=64))
    arrays = ArrayRecord({"w": Array(torch.ones(1).numpy())})
    FedAvg(evaluate_metrics_aggr_fn=curves).start(
        grid_of(clients), arrays, num_rounds=1, timeout=1.0
    )
    assert (
        "left out a share (reply 0). Expected one spec for all but bins: expected 256, got 128."
        in messages()[0]
    )


def test_an_aggregation_that_never_began_is_one_message(folder: Path, messages: Messages) -> None:
    clients = parties(roc, folder)
    grid = grid_of(clients)
    grid.cuts = {Cut(node, "advertise") for node in NODES}
    assert not started(grid, roc()).releases
    silence, why = messages()
    assert re.fullmatch(
        rf"round 1, query 1, advertise: 0 of 5 answered in \d+\.\d s; silent for \d+\.\d s: {ALL}\.",
        silence,
    )
    assert why == (
        "no curve of round 1. Expected at least 3 clients but got 0, so the aggregation never "
        "began. Wait for more clients, or start a new round."
    )
    assert sum(client.evaluations for client in clients.values()) == 0
