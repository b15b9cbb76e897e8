"""A client refuses the requests of a server that differ from the agreement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from tests.integrations.flower.federation import (
    NODES,
    Make,
    charged,
    clients,
    grid_of,
    ledgers,
    private,
    roc,
    secure,
    start,
    strategy_of,
    trusted,
)
from tests.integrations.flower_grid import ask
from torchmetrics_fed import Coordinator, DistributedDP, Query
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.integrations.flower import RECORD


@pytest.mark.parametrize("make", [private(), trusted()], ids=["hidden", "trusted"])
def test_a_server_cannot_make_queries_spend_more_than_epsilon(make: Make, folder: Path) -> None:
    parties = charged(make, folder)
    grid = grid_of(parties)
    strategy = strategy_of(make())
    start(strategy, grid)
    second = [
        passed.message for passed in grid.passed if passed.stage == "answer" and not passed.reply
    ]
    name = second[0].content.config_records[RECORD]["round"]
    for query in (Query(Tree((16,)), 0.5), Query(Tree((16,)), 1.0), *strategy.releases[1].queries):
        request = Request(Stage.SHARE, str(name), bytes(query))
        reply = ask(grid, NODES[0], request, evaluate=False)
        assert reply.has_error()
    assert [client.evaluations for client in parties.values()] == [1] * 5
    assert [(len(ledger), ledger.spent().epsilon) for ledger in ledgers(folder)] == [(1, 2.0)] * 5


def test_another_spec_is_refused(folder: Path) -> None:
    parties = charged(private(), folder)
    for metric in (
        secure(),
        roc(privacy=DistributedDP(2.0, 3)),
        roc(privacy=DistributedDP(20.0, 4)),
    ):
        grid = grid_of(parties)
        strategy = strategy_of(metric)
        start(strategy, grid)
        assert len(grid.refusals("advertise")) == 5
        assert "Build every metric with the same arguments" in grid.refusals("advertise")[0]
        assert not strategy.releases
    assert sum(client.evaluations for client in parties.values()) == 0
    assert not any(len(ledger) for ledger in ledgers(folder))


def test_fewer_clients_than_agreed_are_refused(folder: Path) -> None:
    grid = grid_of(charged(private(), folder))
    coordinator = Coordinator(private()(), round="r")
    honest = coordinator.config
    query = bytes(coordinator.query or b"")
    for config, refused in (
        (honest, False),
        (replace(honest, min_clients=3), True),
        (replace(honest, min_clients=5), False),
        (replace(honest, max_colluding=0), True),
        (replace(honest, cells=honest.cells - 1), True),
        (replace(honest, round_id="another"), True),
        (replace(honest, binding=secure().spec.digest), True),
        (replace(honest, signed=True), True),
    ):
        grid.passed.clear()
        node = NODES[0]
        if config.min_clients == 5:
            node = NODES[1]
        reply = ask(grid, node, Request(Stage.ADVERTISE, "r", query, start=config.to_bytes()))
        assert reply.has_error() == refused, config
        assert not refused or "both sides" in str(reply.error.reason)
    grid.passed.clear()
    ask(grid, NODES[0], Request(Stage.ADVERTISE, "r2", query, start=b""))
    assert grid.refusals("advertise")


FLAT = bytes(Query(Tree.flat(256)))


@pytest.mark.parametrize(
    "record",
    [
        ConfigRecord(),
        ConfigRecord({"stage": Stage.UNMASK.value}),
        ConfigRecord({**Request(Stage.UNMASK, "r", FLAT).fields, "stage": 7}),
        ConfigRecord({**Request(Stage.UNMASK, "r", FLAT).fields, "stage": "unmask"}),
        ConfigRecord({**Request(Stage.UNMASK, "r", FLAT).fields}),
        ConfigRecord({**Request(Stage.SHARE, "r", FLAT).fields}),
        ConfigRecord({"forget": 1}),
    ],
)
def test_messages_that_make_no_sense_are_refused(record: ConfigRecord, folder: Path) -> None:
    grid = grid_of(clients(secure, folder))
    (reply,) = grid.send_and_receive(
        [Message(RecordDict({RECORD: record}), NODES[0], MessageType.EVALUATE)]
    )
    assert reply.has_error()
    assert "torchmetrics_fed.errors" in str(reply.error.reason)


def test_a_server_cannot_ask_for_a_plain_share(folder: Path) -> None:
    grid = grid_of(clients(secure, folder))
    reply = ask(grid, NODES[0], Request(Stage.SHARE, "r", FLAT))
    assert "because shares travel through secure aggregation here" in str(reply.error.reason)
    (reply,) = grid.send_and_receive([Message(RecordDict(), NODES[0], MessageType.EVALUATE)])
    assert "Expected secure aggregation" in str(reply.error.reason)
