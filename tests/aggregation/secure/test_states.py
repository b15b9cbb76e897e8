"""The tables of states are the protocol: a call works exactly where there is a row, and leads where the row says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from tests.aggregation.secure.federation import Federation, survivors_of
from torchmetrics_fed.aggregation.secure import SecureAggregationClient, SecureAggregationServer
from torchmetrics_fed.aggregation.secure.states import (
    CLIENT_MOVES,
    REPLIES,
    SERVER_MOVES,
    ClientState,
)
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import SecureAggregationError

STAGES = [stage for stage in Stage if stage is not Stage.SHARE]
SERVER_CALLS = ("keys", "ciphertexts", "survivors", "request")
BOTH = pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])


class Recorded(Federation):
    """A federation that has run to the end, client "a" as it was at every stage, and all that it was sent."""

    def __init__(self, signed: bool) -> None:
        super().__init__("abcd", signed=signed)
        self.notes = {ClientState.NEW: self.clients["a"].to_bytes()}
        self.got: dict[Stage, bytes] = {Stage.ADVERTISE: b"", Stage.SHARE_KEYS: self.advertise()}
        boxes = self.share(self.got[Stage.SHARE_KEYS])
        self.got[Stage.MASK] = boxes["a"]
        self.mask(boxes)
        roster = self.server._roster
        self.got[Stage.SIGN] = survivors_of(roster, roster.cohort_hash((0, 1, 2, 3)), (0, 1, 2, 3))
        self.got[Stage.UNMASK] = self.request()
        self.answer(self.got[Stage.UNMASK])
        self.clients["a"].purge()
        self.notes[ClientState.PURGED] = self.clients["a"].to_bytes()

    def send(self, name: str, message: bytes) -> None:
        super().send(name, message)
        if name == "a":
            self.notes[self.clients["a"].state] = self.clients["a"].to_bytes()

    def at(self, state: ClientState) -> SecureAggregationClient:
        """Client "a" as it was in a state."""
        signing = self.signers["a"].signing if self.signers else None
        return SecureAggregationClient.from_bytes(
            self.notes[state], self.config, signing, self.verification
        )

    def call(self, client: SecureAggregationClient, stage: Stage) -> bytes:
        """Go through a stage with the very message that belongs to it."""
        message = self.got[stage]
        calls: dict[Stage, Callable[[], bytes]] = {
            Stage.ADVERTISE: client.advertise,
            Stage.SHARE_KEYS: lambda: client.share_keys(message),
            Stage.MASK: lambda: client.mask(message, lambda: self.factory("a")),
            Stage.SIGN: lambda: client.sign_survivors(message),
            Stage.UNMASK: lambda: client.unmask(message),
        }
        return calls[stage]()


@cache
def recorded(signed: bool) -> Recorded:
    return Recorded(signed)


@BOTH
@pytest.mark.parametrize("stage", STAGES, ids=str)
@pytest.mark.parametrize("state", ClientState, ids=lambda state: state.name)
def test_a_client_moves_as_its_table_says(state: ClientState, stage: Stage, signed: bool) -> None:
    federation, moves = recorded(signed), CLIENT_MOVES[signed]
    if state not in federation.notes:
        assert (state, signed) == (ClientState.SIGNED, False)
        assert not any(state in (before, after) for (before, _), after in moves.items())
        return
    client, drawn = federation.at(state), federation.calls["a"]
    assert client.state is state
    if (state, stage) in moves:
        federation.call(client, stage)
        assert client.state is moves[state, stage]
        assert federation.calls["a"] - drawn == (stage is Stage.MASK)
    else:
        with pytest.raises(
            SecureAggregationError, match=f"for `{stage}` but this one is {state.name}"
        ):
            federation.call(client, stage)
        assert client.to_bytes() == federation.notes[state]
        assert federation.calls["a"] == drawn


@BOTH
def test_the_same_request_gets_the_same_answer(signed: bool) -> None:
    client = recorded(signed).at(ClientState.ANSWERED)
    assert recorded(signed).call(client, Stage.UNMASK) == recorded(signed).call(
        client, Stage.UNMASK
    )


@BOTH
def test_purging_ends_it_from_any_state(signed: bool) -> None:
    for state in recorded(signed).notes:
        client = recorded(signed).at(state)
        client.purge()
        assert client.to_bytes() == recorded(signed).notes[ClientState.PURGED]


def walk(moves: Mapping[tuple[Any, Any], Any], start: Any) -> list[Any]:
    """The states from a start on, as long as something moves."""
    path = [start]
    while following := [
        after for (known, _), after in moves.items() if known == path[-1] and after != known
    ]:
        assert len(following) == 1
        path += following
    return path


@BOTH
def test_there_is_one_way_forward_and_none_back(signed: bool) -> None:
    states = [
        state
        for state in ClientState
        if state is not ClientState.PURGED and (signed or state is not ClientState.SIGNED)
    ]
    assert walk(CLIENT_MOVES[signed], ClientState.NEW) == states
    stages = [stage for stage in STAGES if signed or stage is not Stage.SIGN]
    assert walk(SERVER_MOVES[signed], Stage.ADVERTISE) == stages
    for values in ([*map(int, states)], [stage.value for stage in stages]):
        assert all(earlier < later for earlier, later in pairwise(values))
    assert {stage for _, stage in CLIENT_MOVES[True]} == set(STAGES) == set(REPLIES)
    assert {call for _, call in SERVER_MOVES[True]} == set(SERVER_CALLS)


def serving(stage: Stage, signed: bool) -> tuple[SecureAggregationServer, dict[str, Any]]:
    """A server that has all the messages of a stage, and what it has returned up to there."""
    federation, sent = Federation("abcd", signed=signed), dict[str, Any]()
    server = federation.server
    for name in federation.names:
        federation.send(name, federation.clients[name].advertise())
    if stage is not Stage.ADVERTISE:
        sent["keys"] = server.keys()
        for name in federation.names:
            federation.send(name, federation.clients[name].share_keys(sent["keys"]))
    if stage.value > Stage.SHARE_KEYS.value:
        sent["ciphertexts"] = server.ciphertexts()
        federation.mask(sent["ciphertexts"])
    if stage.value > Stage.MASK.value and signed:
        sent["survivors"] = server.survivors()
        for name in federation.names:
            federation.send(name, federation.clients[name].sign_survivors(sent["survivors"]))
    if stage is Stage.UNMASK:
        sent["request"] = server.request()
        federation.answer(sent["request"])
    return server, sent


@BOTH
@pytest.mark.parametrize("call", SERVER_CALLS)
@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_server_moves_as_its_table_says(stage: Stage, call: str, signed: bool) -> None:
    if stage is Stage.SIGN and not signed:
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
@pytest.mark.parametrize("stage", STAGES[:3], ids=str)
def test_a_stage_with_too_few_messages_stays_open(stage: Stage, signed: bool) -> None:
    """A server that has heard of two clients of four closes nothing."""
    closing = dict(SERVER_MOVES[signed].keys())
    federation = Federation("abcd", signed=signed)
    drops = {Stage.ADVERTISE: "advertise", Stage.SHARE_KEYS: "share", Stage.MASK: "mask"}
    with pytest.raises(SecureAggregationError, match="Expected"):
        federation.run(dict.fromkeys("cd", drops[stage]))
    assert federation.server.waits_for is stage
    with pytest.raises(SecureAggregationError, match="Expected"):
        getattr(federation.server, closing[stage])()
    assert federation.server.waits_for is stage
