"""States: a call works exactly where the table has a row, and leads where the row says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
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

STAGES = [stage for stage in Stage if stage.is_secure]
SERVER_CALLS = ("keys", "ciphertexts", "survivors", "request")
BOTH = pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])


class Recorded(Federation):
    """A federation that has run to the end, with all states and messages of client "a"."""

    def __init__(self, signed: bool) -> None:
        super().__init__("abcd", signed=signed)
        self.notes = {ClientState.NEW: self.clients["a"].to_bytes()}
        self.messages: dict[Stage, bytes] = {
            Stage.ADVERTISE: b"",
            Stage.SHARE_KEYS: self.advertise(),
        }
        boxes = self.share(self.messages[Stage.SHARE_KEYS])
        self.messages[Stage.MASK] = boxes["a"]
        self.mask(boxes)
        roster = self.server._roster
        self.messages[Stage.SIGN] = survivors_of(
            roster, roster.cohort_hash((0, 1, 2, 3)), (0, 1, 2, 3)
        )
        self.messages[Stage.UNMASK] = self.request()
        self.answer(self.messages[Stage.UNMASK])
        self.clients["a"].purge()
        self.notes[ClientState.PURGED] = self.clients["a"].to_bytes()

    def send(self, name: str, message: bytes) -> None:
        super().send(name, message)
        if name == "a":
            self.notes[self.clients["a"].state] = self.clients["a"].to_bytes()

    def at(self, state: ClientState) -> SecureAggregationClient:
        """Return client "a" as it was in a state."""
        return SecureAggregationClient.from_bytes(
            self.notes[state], self.config, self.signing_key("a"), self.verification
        )

    def call(self, client: SecureAggregationClient, stage: Stage) -> bytes:
        """Go through a stage with the message that belongs to it."""
        message = self.messages[stage]
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
    federation = recorded(signed)
    moves = CLIENT_MOVES[signed]
    if state not in federation.notes:
        assert state is ClientState.SIGNED
        assert not signed
        assert all(state not in (before, after) for (before, _), after in moves.items())
        return
    client = federation.at(state)
    assert client.state is state
    draws = federation.calls["a"]
    if (state, stage) in moves:
        federation.call(client, stage)
        assert client.state is moves[state, stage]
        assert federation.calls["a"] - draws == (stage is Stage.MASK)
    else:
        with pytest.raises(
            SecureAggregationError, match=f"for `{stage}` but this one is {state.name}"
        ):
            federation.call(client, stage)
        assert client.to_bytes() == federation.notes[state]
        assert federation.calls["a"] == draws


@BOTH
def test_the_same_request_gets_the_same_answer(signed: bool) -> None:
    federation = recorded(signed)
    client = federation.at(ClientState.ANSWERED)
    answer = federation.call(client, Stage.UNMASK)
    assert federation.call(client, Stage.UNMASK) == answer


@BOTH
def test_purging_ends_it_from_any_state(signed: bool) -> None:
    for state in recorded(signed).notes:
        client = recorded(signed).at(state)
        client.purge()
        assert client.to_bytes() == recorded(signed).notes[ClientState.PURGED]


def walk(moves: Mapping[tuple[Any, Any], Any], start: Any) -> list[Any]:
    """Return the states from a start on, as long as a move leads to another state."""
    path = [start]
    while True:
        state = path[-1]
        following = [
            after for (before, _), after in moves.items() if before == state and after != state
        ]
        if not following:
            return path
        assert len(following) == 1
        path += following


@BOTH
def test_there_is_one_way_forward_and_none_back(signed: bool) -> None:
    states = list(ClientState)
    states.remove(ClientState.PURGED)
    stages = list(STAGES)
    if not signed:
        states.remove(ClientState.SIGNED)
        stages.remove(Stage.SIGN)
    assert walk(CLIENT_MOVES[signed], ClientState.NEW) == states
    assert walk(SERVER_MOVES[signed], Stage.ADVERTISE) == stages
    for values in ([state.value for state in states], [stage.value for stage in stages]):
        assert values == sorted(set(values))


def test_every_stage_and_every_call_is_in_the_tables() -> None:
    assert {stage for _, stage in CLIENT_MOVES[True]} == set(STAGES) == set(REPLIES)
    assert {call for _, call in SERVER_MOVES[True]} == set(SERVER_CALLS)


def serving(stage: Stage, signed: bool) -> tuple[SecureAggregationServer, dict[str, Any]]:
    """Return a server that has all replies of a stage, and the messages that it has sent."""
    federation = Federation("abcd", signed=signed)
    server = federation.server
    messages: dict[str, Any] = {}
    for name, client in federation.clients.items():
        federation.send(name, client.advertise())
    if stage.value > Stage.ADVERTISE.value:
        messages["keys"] = server.keys()
        for name, client in federation.clients.items():
            federation.send(name, client.share_keys(messages["keys"]))
    if stage.value > Stage.SHARE_KEYS.value:
        messages["ciphertexts"] = server.ciphertexts()
        federation.mask(messages["ciphertexts"])
    if stage.value > Stage.MASK.value and signed:
        messages["survivors"] = server.survivors()
        for name, client in federation.clients.items():
            federation.send(name, client.sign_survivors(messages["survivors"]))
    if stage is Stage.UNMASK:
        messages["request"] = server.request()
        federation.answer(messages["request"])
    return server, messages


@BOTH
@pytest.mark.parametrize("call", SERVER_CALLS)
@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_server_moves_as_its_table_says(stage: Stage, call: str, signed: bool) -> None:
    moves = SERVER_MOVES[signed]
    if stage is Stage.SIGN and not signed:
        assert all(stage not in (before, after) for (before, _), after in moves.items())
        return
    server, messages = serving(stage, signed)
    assert server.waits_for is stage
    if (stage, call) in moves:
        getattr(server, call)()
        assert server.waits_for is moves[stage, call]
    elif call in messages:  # it has closed its stage before, and returns the same
        assert getattr(server, call)() == messages[call]
        assert server.waits_for is stage
    else:
        with pytest.raises(SecureAggregationError, match="Expected"):
            getattr(server, call)()
        assert server.waits_for is stage


@BOTH
@pytest.mark.parametrize("stage", STAGES[:3], ids=str)
def test_a_stage_with_too_few_messages_stays_open(stage: Stage, signed: bool) -> None:
    """A server with replies of two clients of four closes nothing."""
    closing = dict(SERVER_MOVES[signed].keys())
    federation = Federation("abcd", signed=signed)
    drops = {Stage.ADVERTISE: "advertise", Stage.SHARE_KEYS: "share", Stage.MASK: "mask"}
    with pytest.raises(SecureAggregationError, match="Expected"):
        federation.run(dict.fromkeys("cd", drops[stage]))
    assert federation.server.waits_for is stage
    with pytest.raises(SecureAggregationError, match="Expected"):
        getattr(federation.server, closing[stage])()
    assert federation.server.waits_for is stage
