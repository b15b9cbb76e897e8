"""The tables of states are the protocol: a call works exactly where there is a row, and leads where the row says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from tests.aggregation.secure.federation import Federation, survivors_of
from torchmetrics_fed.aggregation.secure import SecureAggregationClient, SecureAggregationServer
from torchmetrics_fed.aggregation.secure.states import CLIENT_MOVES, SERVER_MOVES, Stage
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.release.wire import Kind

CLIENT_CALLS = ("advertise", "share_keys", "mask", "sign_survivors", "unmask")
SERVER_CALLS = ("keys", "ciphertexts", "survivors", "request")
SERVER_STAGES = (Kind.ADVERTISE, Kind.KEY_SHARES, Kind.MASKED, Kind.SIGNATURE, Kind.ANSWER)
BOTH = pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])


class Recorded(Federation):
    """A federation that has run to the end, client "a" as it was at every stage, and all that it was sent."""

    def __init__(self, signed: bool) -> None:
        super().__init__("abcd", signed=signed)
        self.notes = {Stage.NEW: self.clients["a"].to_bytes()}
        self.got: dict[str, bytes] = {"advertise": b"", "share_keys": self.advertise()}
        boxes = self.share(self.got["share_keys"])
        self.got["mask"] = boxes["a"]
        self.mask(boxes)
        roster = self.server._roster
        self.got["sign_survivors"] = survivors_of(
            roster, roster.cohort_hash((0, 1, 2, 3)), (0, 1, 2, 3)
        )
        self.got["unmask"] = self.request()
        self.answer(self.got["unmask"])
        self.clients["a"].purge()
        self.notes[Stage.PURGED] = self.clients["a"].to_bytes()

    def send(self, name: str, message: bytes) -> None:
        super().send(name, message)
        if name == "a":
            self.notes[self.clients["a"].stage] = self.clients["a"].to_bytes()

    def at(self, stage: Stage) -> SecureAggregationClient:
        """Client "a" as it was at a stage."""
        signing = self.signers["a"].signing if self.signers else None
        return SecureAggregationClient.from_bytes(
            self.notes[stage], self.config, signing, self.verification
        )

    def call(self, client: SecureAggregationClient, call: str) -> bytes:
        """Make a call with the very message that belongs to it."""
        calls: dict[str, Callable[[], bytes]] = {
            "advertise": client.advertise,
            "share_keys": lambda: client.share_keys(self.got["share_keys"]),
            "mask": lambda: client.mask(self.got["mask"], lambda: self.factory("a")),
            "sign_survivors": lambda: client.sign_survivors(self.got["sign_survivors"]),
            "unmask": lambda: client.unmask(self.got["unmask"]),
        }
        return calls[call]()


@cache
def recorded(signed: bool) -> Recorded:
    return Recorded(signed)


@BOTH
@pytest.mark.parametrize("call", CLIENT_CALLS)
@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.name)
def test_a_client_moves_as_its_table_says(stage: Stage, call: str, signed: bool) -> None:
    federation, moves = recorded(signed), CLIENT_MOVES[signed]
    if stage not in federation.notes:
        assert (stage, signed) == (Stage.SIGNED, False)
        assert not any(stage in (known, after) for (known, _), after in moves.items())
        return
    client, drawn = federation.at(stage), federation.calls["a"]
    assert client.stage is stage
    if (stage, call) in moves:
        federation.call(client, call)
        assert client.stage is moves[stage, call]
        assert federation.calls["a"] - drawn == (call == "mask")
    else:
        with pytest.raises(
            SecureAggregationError, match=f"for `{call}` but this one is {stage.name}"
        ):
            federation.call(client, call)
        assert client.to_bytes() == federation.notes[stage]
        assert federation.calls["a"] == drawn


@BOTH
def test_the_same_request_gets_the_same_answer(signed: bool) -> None:
    client = recorded(signed).at(Stage.ANSWERED)
    assert recorded(signed).call(client, "unmask") == recorded(signed).call(client, "unmask")


@BOTH
def test_purging_ends_it_from_any_stage(signed: bool) -> None:
    for stage in recorded(signed).notes:
        client = recorded(signed).at(stage)
        client.purge()
        assert client.to_bytes() == recorded(signed).notes[Stage.PURGED]


def walk(moves: Mapping[tuple[Any, str], Any], start: Any) -> list[Any]:
    """The stages from a start on, as long as something moves."""
    path = [start]
    while following := [
        after for (known, _), after in moves.items() if known == path[-1] and after != known
    ]:
        assert len(following) == 1
        path += following
    return path


@BOTH
def test_there_is_one_way_forward_and_none_back(signed: bool) -> None:
    stages = [
        stage
        for stage in Stage
        if stage is not Stage.PURGED and (signed or stage is not Stage.SIGNED)
    ]
    assert walk(CLIENT_MOVES[signed], Stage.NEW) == stages
    kinds = [kind for kind in SERVER_STAGES if signed or kind is not Kind.SIGNATURE]
    assert walk(SERVER_MOVES[signed], Kind.ADVERTISE) == kinds
    for path in (stages, kinds):
        assert all(one < other for one, other in pairwise(path))
    assert {call for _, call in CLIENT_MOVES[True]} == set(CLIENT_CALLS)
    assert {call for _, call in SERVER_MOVES[True]} == set(SERVER_CALLS)


def serving(stage: Kind, signed: bool) -> tuple[SecureAggregationServer, dict[str, Any]]:
    """A server that has all the messages of a stage, and what it has returned up to there."""
    federation, sent = Federation("abcd", signed=signed), dict[str, Any]()
    server = federation.server
    for name in federation.names:
        federation.send(name, federation.clients[name].advertise())
    if stage is not Kind.ADVERTISE:
        sent["keys"] = server.keys()
        for name in federation.names:
            federation.send(name, federation.clients[name].share_keys(sent["keys"]))
    if stage > Kind.KEY_SHARES:
        sent["ciphertexts"] = server.ciphertexts()
        federation.mask(sent["ciphertexts"])
    if stage > Kind.MASKED and signed:
        sent["survivors"] = server.survivors()
        for name in federation.names:
            federation.send(name, federation.clients[name].sign_survivors(sent["survivors"]))
    if stage is Kind.ANSWER:
        sent["request"] = server.request()
        federation.answer(sent["request"])
    return server, sent


@BOTH
@pytest.mark.parametrize("call", SERVER_CALLS)
@pytest.mark.parametrize("stage", SERVER_STAGES, ids=lambda stage: stage.name)
def test_a_server_moves_as_its_table_says(stage: Kind, call: str, signed: bool) -> None:
    if stage is Kind.SIGNATURE and not signed:
        assert not any(
            stage in (known, after) for (known, _), after in SERVER_MOVES[signed].items()
        )
        return
    server, sent = serving(stage, signed)
    assert server.waits_for is stage
    if (stage, call) in SERVER_MOVES[signed]:
        getattr(server, call)()
        assert server.waits_for is SERVER_MOVES[signed][stage, call]
    elif call in sent:  # closed before: the same again
        assert getattr(server, call)() == sent[call]
        assert server.waits_for is stage
    else:
        with pytest.raises(SecureAggregationError, match="Expected"):
            getattr(server, call)()
        assert server.waits_for is stage


@BOTH
@pytest.mark.parametrize("stage", SERVER_STAGES[:3], ids=lambda stage: stage.name)
def test_a_stage_with_too_few_messages_stays_open(stage: Kind, signed: bool) -> None:
    """A server that has heard of two clients of four closes nothing."""
    closing = dict(SERVER_MOVES[signed].keys())
    federation = Federation("abcd", signed=signed)
    drops = {Kind.ADVERTISE: "advertise", Kind.KEY_SHARES: "share", Kind.MASKED: "mask"}
    with pytest.raises(SecureAggregationError, match="Expected"):
        federation.run(dict.fromkeys("cd", drops[stage]))
    assert federation.server.waits_for is stage
    with pytest.raises(SecureAggregationError, match="Expected"):
        getattr(federation.server, closing[stage])()
    assert federation.server.waits_for is stage
