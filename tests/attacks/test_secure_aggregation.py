"""Threat: a server that names other survivors, or other keys, to other clients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.aggregation.secure.federation import (
    Federation,
    known_to_all,
    masked_federation,
    request_of,
    survivors_of,
)
from torchmetrics_fed.aggregation.secure import (
    SecureAggregationClient,
    SecureAggregationConfig,
    new_signing_keys,
)
from torchmetrics_fed.aggregation.secure.keys import SIGNATURE_BYTES, signing_key_of
from torchmetrics_fed.aggregation.secure.roster import Advertisement, Roster
from torchmetrics_fed.aggregation.secure.states import ClientState
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.release.wire import Kind

EVERYONE = (0, 1, 2, 3)


def signature_of(federation: Federation, name: str, survivors: tuple[int, ...]) -> bytes:
    """Let a client sign survivors, and return its signature."""
    roster, cohort = known_to_all(federation)
    message = survivors_of(roster, cohort, survivors)
    return federation.clients[name].sign_survivors(message)[-SIGNATURE_BYTES:]


def test_two_lists_are_never_both_answered() -> None:
    federation = masked_federation()
    roster, cohort = known_to_all(federation)
    client = federation.clients["a"]
    first = request_of(roster, cohort, EVERYONE)
    answer = client.unmask(first)
    assert client.unmask(first) == answer
    with pytest.raises(
        SecureAggregationError,
        match="Expected the survivors that this client signed or answered for",
    ):
        client.unmask(request_of(roster, cohort, (0, 1, 2)))
    assert client.unmask(first) == answer


LISTS = {"a": EVERYONE, "b": EVERYONE, "c": (0, 1, 2), "d": (0, 1, 3)}
"""The survivors that a lying server names to each client."""


def test_unsigned_equivocation_is_answered() -> None:
    """The power of the next test: without signatures every client believes the server."""
    federation = masked_federation()
    roster, cohort = known_to_all(federation)
    for name, survivors in LISTS.items():
        assert federation.clients[name].unmask(request_of(roster, cohort, survivors))


def test_signed_equivocation_is_refused() -> None:
    federation = masked_federation(signed=True)
    roster, cohort = known_to_all(federation)
    signatures = {
        roster.indices[name]: signature_of(federation, name, survivors)
        for name, survivors in LISTS.items()
    }
    for survivors in set(LISTS.values()):
        of_survivors = {index: signatures[index] for index in survivors}
        request = request_of(roster, cohort, survivors, of_survivors)
        for client in federation.clients.values():
            with pytest.raises(
                SecureAggregationError,
                match=r"did not: the server may have|signed or answered for",
            ):
                client.unmask(request)
            assert client.state is ClientState.SIGNED


@pytest.mark.parametrize(("colluding", "answers"), [("a", 0), ("ab", 2)], ids=["agreed", "power"])
def test_two_signed_lists_take_more_colluding_clients_than_were_agreed_on(
    colluding: str, answers: int
) -> None:
    """A list takes 3 signatures of 4 clients, 1 of whom may collude.

    The server names one list to c and another to d, to open the vector of the one it leaves out.
    Two colluding clients are fewer than the threshold, but more than were agreed on.
    """
    federation = masked_federation(signed=True)
    roster, cohort = known_to_all(federation)
    answered = 0
    for name, survivors in (("c", (0, 1, 2)), ("d", (0, 1, 3))):
        signatures = {roster.indices[name]: signature_of(federation, name, survivors)}
        statement = roster.survivors_hash(EVERYONE, survivors)
        for liar in colluding:
            key = signing_key_of(federation.signers[liar].signing)
            signatures[roster.indices[liar]] = key.sign(statement)
        request = request_of(roster, cohort, survivors, signatures)
        with contextlib.suppress(SecureAggregationError):
            federation.clients[name].unmask(request)
            answered += 1
    assert answered == answers


def test_a_client_that_signed_a_list_does_not_answer_another_that_others_signed() -> None:
    federation = masked_federation(signed=True)
    roster, cohort = known_to_all(federation)
    signatures = {roster.indices[name]: signature_of(federation, name, EVERYONE) for name in "abd"}
    signature_of(federation, "c", (0, 1, 2))
    request = request_of(roster, cohort, EVERYONE, signatures)
    with pytest.raises(SecureAggregationError, match="signed or answered for"):
        federation.clients["c"].unmask(request)
    assert federation.clients["a"].unmask(request)


def test_unsigned_requests_do_not_open_a_signed_aggregation() -> None:
    federation = masked_federation(signed=True)
    roster, cohort = known_to_all(federation)
    for client in federation.clients.values():
        with pytest.raises(
            SecureAggregationError, match=r"SIGNED for `unmask` but this one is MASKED"
        ):
            client.unmask(request_of(roster, cohort, EVERYONE))


def test_missing_and_exchanged_signatures_open_nothing() -> None:
    federation = masked_federation(signed=True)
    roster, cohort = known_to_all(federation)
    request = federation.request()
    _, signatures = roster.read_tables(request, Kind.REQUEST, cohort)
    rotated = [signatures[(index + 1) % 4] for index in EVERYONE]
    client = federation.clients["a"]
    for wrong, message in (
        ({}, "but got 0"),
        ({0: signatures[0], 1: signatures[1]}, "but got 2"),
        (dict(enumerate(rotated)), "to have signed these survivors"),
    ):
        with pytest.raises(SecureAggregationError, match=message):
            client.unmask(request_of(roster, cohort, EVERYONE, wrong))
    assert client.unmask(request)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("survivors", [(), (0,), (0, 1), (1, 2, 3)], ids=str)
def test_lists_too_short_or_without_the_client_are_refused(
    survivors: tuple[int, ...], signed: bool
) -> None:
    federation = masked_federation(signed)
    roster, cohort = known_to_all(federation)
    client = federation.clients["a"]
    reply: Callable[[bytes], bytes] = client.unmask
    message = request_of(roster, cohort, survivors)
    if signed:
        reply = client.sign_survivors
        message = survivors_of(roster, cohort, survivors)
    with pytest.raises(
        SecureAggregationError, match=r"at least 3 of 4 clients to survive|this client included"
    ):
        reply(message)
    assert client.state is ClientState.MASKED


def test_a_client_that_shared_nothing_cannot_survive() -> None:
    federation = masked_federation(drops={"d": "share"})
    roster, cohort = known_to_all(federation)
    with pytest.raises(
        SecureAggregationError, match="Expected survivors among those who exchanged shares"
    ):
        federation.clients["a"].unmask(request_of(roster, cohort, EVERYONE))


def with_entry(keys: bytes, config: SecureAggregationConfig, entry: Advertisement) -> bytes:
    """Return the message with all keys, with those of one client replaced."""
    clients = list(Roster.from_bytes(keys, config).clients)
    names = [client.client_id for client in clients]
    clients[names.index(entry.client_id)] = entry
    return Roster(config, tuple(clients)).to_bytes()


@pytest.mark.parametrize("signed", [False, True])
def test_a_client_sees_when_its_own_keys_were_replaced(signed: bool) -> None:
    federation = Federation("abcd", signed=signed)
    keys = federation.advertise()
    signature = Roster.from_bytes(keys, federation.config).clients[0].signature
    entry = Advertisement("a", bytes(32), bytes([1] * 32), signature)
    client = federation.clients["a"]
    with pytest.raises(SecureAggregationError, match="missing or changed"):
        client.share_keys(with_entry(keys, federation.config, entry))
    assert client.state is ClientState.ADVERTISED
    assert client.share_keys(keys)


def forged_keys(federation: Federation) -> Advertisement:
    """Return keys of b with a signature that b made for other keys."""
    signed = Advertisement.from_bytes(federation.client("b").advertise(), federation.config)
    return replace(signed, sealing=bytes([2] * 32), masking=bytes([3] * 32))


def strangers_keys(federation: Federation) -> Advertisement:
    """Return keys that a stranger has signed in the name of b."""
    stranger = stranger_named("b", federation.config)
    return Advertisement.from_bytes(stranger.advertise(), federation.config)


def older_keys(federation: Federation) -> Advertisement:
    """Return keys that b has signed for another round."""
    config = SecureAggregationConfig("an older round", b"spec", 8, 3, signed=True)
    older = SecureAggregationClient(
        "b", config, federation.signing_key("b"), federation.verification
    )
    return Advertisement.from_bytes(older.advertise(), config)


def stranger_named(name: str, config: SecureAggregationConfig) -> SecureAggregationClient:
    keys = new_signing_keys()
    return SecureAggregationClient(name, config, keys.signing, {name: keys.verification})


@pytest.mark.parametrize("forge", [forged_keys, strangers_keys, older_keys])
def test_keys_that_their_owner_did_not_sign_for_this_round_are_refused(
    forge: Callable[[Federation], Advertisement],
) -> None:
    federation = Federation("abcd", signed=True)
    keys = with_entry(federation.advertise(), federation.config, forge(federation))
    with pytest.raises(
        SecureAggregationError, match="Expected keys signed by client 'b' for this round"
    ):
        federation.clients["a"].share_keys(keys)


def test_strangers_are_refused_in_a_signed_aggregation() -> None:
    federation = Federation("abcd", signed=True)
    stranger = stranger_named("e", federation.config)
    federation.send("e", stranger.advertise())
    with pytest.raises(SecureAggregationError, match="no verification key"):
        federation.clients["a"].share_keys(federation.advertise())


def test_a_server_that_knows_the_keys_refuses_forged_keys_itself() -> None:
    federation = Federation("abcd", signed=True)
    federation.server._verification_keys = federation.verification
    message = federation.clients["a"].advertise()
    with pytest.raises(SecureAggregationError, match="the signature is wrong"):
        federation.send("a", message[:-1] + bytes([message[-1] ^ 1]))
    federation.send("a", message)


def test_a_server_that_knows_the_keys_refuses_forged_signatures_itself() -> None:
    federation = masked_federation(signed=True)
    federation.server._verification_keys = federation.verification
    message = federation.clients["a"].sign_survivors(federation.server.survivors())
    with pytest.raises(SecureAggregationError, match="Expected the signature of client 'a'"):
        federation.send("a", message[:-1] + bytes([message[-1] ^ 1]))
    federation.send("a", message)


def test_keys_that_agree_with_every_key_are_refused() -> None:
    federation = Federation("abcd")
    keys = federation.advertise()
    points_of_small_order = Advertisement("b", bytes(32), bytes([1] + [0] * 31))
    with pytest.raises(SecureAggregationError, match="Expected a public key of X25519"):
        federation.clients["a"].share_keys(
            with_entry(keys, federation.config, points_of_small_order)
        )


def test_a_client_counts_the_clients_for_itself() -> None:
    federation = Federation("abcd", min_clients=4)
    keys = federation.advertise()
    roster = Roster.from_bytes(keys, federation.config)
    unchecked = Roster.__new__(Roster)  # the roster of a server that does not check
    object.__setattr__(unchecked, "config", federation.config)
    object.__setattr__(unchecked, "clients", roster.clients[:3])
    client = federation.clients["a"]
    with pytest.raises(SecureAggregationError, match="Wait for more clients"):
        client.share_keys(unchecked.to_bytes())
    messages = federation.share(keys)
    (boxes,) = roster.read_tables(messages["a"], Kind.CIPHERTEXTS, roster.hash)
    del boxes[min(boxes)]
    with pytest.raises(
        SecureAggregationError, match="at least 4 of 4 clients to exchange shares but got 3"
    ):
        client.mask(
            roster.pack_tables(Kind.CIPHERTEXTS, roster.hash, boxes),
            lambda: federation.factory("a"),
        )
