"""Threat: a server that lies, a client that cheats, or a network that changes, repeats and delays messages."""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.aggregation.secure.federation import Federation, request_of, survivors_of
from torchmetrics_fed import (
    BudgetExceededError,
    DistributedDP,
    FederatedROC,
    InputError,
    Query,
    ScoreGrid,
    SecureAggregationServer,
    Spec,
)
from torchmetrics_fed.aggregation.secure import (
    SecureAggregationClient,
    SecureAggregationConfig,
    new_signing_keys,
)
from torchmetrics_fed.aggregation.secure.keys import signing_key_of
from torchmetrics_fed.aggregation.secure.roster import Advertisement, Roster
from torchmetrics_fed.aggregation.secure.states import ClientState
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.release.wire import Kind

ZEROS = np.zeros(8, dtype=np.int64)
Feed = Callable[[bytes], object]


def masked(
    signed: bool = False, names: str = "abcd", drops: dict[str, str] | None = None
) -> Federation:
    """A federation whose clients have sent their masked vectors."""
    federation = Federation(names, signed=signed)
    federation.drops = drops or {}
    federation.mask(federation.share(federation.advertise()))
    return federation


def known(federation: Federation) -> tuple[Roster, bytes]:
    """The roster, and the hash of the cohort, as every party knows them."""
    roster = federation.server._roster
    return roster, roster.cohort_hash(federation.server._cohort)


# --- a server that names other survivors to other clients


def test_two_lists_are_never_both_answered() -> None:
    federation = masked()
    roster, cohort = known(federation)
    client = federation.clients["a"]
    first = request_of(roster, cohort, (0, 1, 2, 3))
    answer = client.unmask(first)
    assert client.unmask(first) == answer
    with pytest.raises(
        SecureAggregationError,
        match="Expected the survivors that this client signed or answered for",
    ):
        client.unmask(request_of(roster, cohort, (0, 1, 2)))
    assert client.unmask(first) == answer


def test_equivocation_is_answered_unsigned_and_refused_signed() -> None:
    lists = {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3), "c": (0, 1, 2), "d": (0, 1, 3)}
    federation = masked()  # the power: without signatures every client believes the server
    roster, cohort = known(federation)
    for name, survivors in lists.items():
        assert federation.clients[name].unmask(request_of(roster, cohort, survivors))

    federation = masked(signed=True)
    roster, cohort = known(federation)
    signatures = {
        index: federation.clients[name].sign_survivors(survivors_of(roster, cohort, lists[name]))[
            -64:
        ]
        for index, name in enumerate("abcd")
    }
    for survivors in set(lists.values()):
        among = {index: signatures[index] for index in survivors}
        for name in "abcd":
            with pytest.raises(
                SecureAggregationError, match=r"did not: the server may have|signed or answered for"
            ):
                federation.clients[name].unmask(request_of(roster, cohort, survivors, among))
            assert federation.clients[name].state is ClientState.SIGNED


def test_two_signed_lists_take_more_colluding_clients_than_were_agreed_on() -> None:
    """Of 4 clients, 1 of whom may collude, it takes 3 signatures. Two lists of survivors, to open c's vector or d's."""
    for colluding in (
        "a",
        "ab",
    ):  # the second is the power: fewer than the threshold, and more than max_colluding
        federation, answers = masked(signed=True), 0
        roster, cohort = known(federation)
        for name, survivors in (("c", (0, 1, 2)), ("d", (0, 1, 3))):
            own = federation.clients[name].sign_survivors(survivors_of(roster, cohort, survivors))[
                -64:
            ]
            statement = roster.survivors_hash((0, 1, 2, 3), survivors)
            signatures = {
                roster.indices[liar]: signing_key_of(federation.signers[liar].signing).sign(
                    statement
                )
                for liar in colluding
            }
            request = request_of(
                roster, cohort, survivors, signatures | {roster.indices[name]: own}
            )
            with contextlib.suppress(SecureAggregationError):
                answers += bool(federation.clients[name].unmask(request))
        assert answers == (2 if colluding == "ab" else 0)


def test_who_signed_one_list_does_not_answer_another_that_others_signed() -> None:
    federation = masked(signed=True)
    roster, cohort = known(federation)
    named = {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3), "c": (0, 1, 2), "d": (0, 1, 2, 3)}
    signatures = {
        index: federation.clients[name].sign_survivors(survivors_of(roster, cohort, named[name]))[
            -64:
        ]
        for index, name in enumerate("abcd")
        if name != "c"
    }
    federation.clients["c"].sign_survivors(survivors_of(roster, cohort, named["c"]))
    request = request_of(roster, cohort, (0, 1, 2, 3), signatures)
    with pytest.raises(SecureAggregationError, match="signed or answered for"):
        federation.clients["c"].unmask(request)
    assert federation.clients["a"].unmask(request)


def test_unsigned_requests_do_not_open_a_signed_aggregation() -> None:
    federation = masked(signed=True)
    roster, cohort = known(federation)
    everyone = (0, 1, 2, 3)
    for client in federation.clients.values():
        with pytest.raises(
            SecureAggregationError, match=r"SIGNED for `unmask` but this one is MASKED"
        ):
            client.unmask(request_of(roster, cohort, everyone))
    request = federation.request()
    signatures = roster.read_tables(request, Kind.REQUEST, cohort)[1]
    shuffled = dict(zip(signatures, [*list(signatures.values())[1:], signatures[0]], strict=True))
    few = dict(list(signatures.items())[:2])
    for wrong, said in (
        ({}, "but got 0"),
        (few, "but got 2"),
        (shuffled, "to have signed these survivors"),
    ):
        with pytest.raises(SecureAggregationError, match=said):
            federation.clients["a"].unmask(request_of(roster, cohort, everyone, wrong))
    assert federation.clients["a"].unmask(request)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("survivors", [(), (0,), (0, 1), (1, 2, 3)], ids=str)
def test_lists_too_short_or_without_the_client_are_refused(
    survivors: tuple[int, ...], signed: bool
) -> None:
    federation = masked(signed)
    roster, cohort = known(federation)
    client = federation.clients["a"]
    message = (survivors_of if signed else request_of)(roster, cohort, survivors)
    with pytest.raises(
        SecureAggregationError, match=r"at least 3 of 4 clients to survive|this client included"
    ):
        (client.sign_survivors if signed else client.unmask)(message)
    assert client.state is ClientState.MASKED


def test_who_shared_nothing_cannot_survive() -> None:
    federation = masked(drops={"d": "share"})
    roster, cohort = known(federation)
    with pytest.raises(
        SecureAggregationError, match="Expected survivors among those who exchanged shares"
    ):
        federation.clients["a"].unmask(request_of(roster, cohort, (0, 1, 2, 3)))


# --- keys


def changed(federation: Federation, keys: bytes, name: str, entry: Advertisement) -> bytes:
    roster = Roster.from_bytes(keys, federation.config)
    clients = tuple(entry if client.client_id == name else client for client in roster.clients)
    return Roster(federation.config, clients).to_bytes()


@pytest.mark.parametrize("signed", [False, True])
def test_a_client_sees_when_its_own_keys_were_replaced(signed: bool) -> None:
    federation = Federation("abcd", signed=signed)
    keys = federation.advertise()
    signature = Roster.from_bytes(keys, federation.config).clients[0].signature
    forged = changed(
        federation, keys, "a", Advertisement("a", bytes(32), bytes([1] * 32), signature)
    )
    with pytest.raises(SecureAggregationError, match="missing or changed"):
        federation.clients["a"].share_keys(forged)
    assert federation.clients["a"].state is ClientState.ADVERTISED
    assert federation.clients["a"].share_keys(keys)


@pytest.mark.parametrize("forger", ["nobody", "stranger", "another round"])
def test_keys_that_their_owner_did_not_sign_for_this_round_are_refused(forger: str) -> None:
    federation = Federation("abcd", signed=True)
    keys = federation.advertise()
    roster = Roster.from_bytes(keys, federation.config)
    entry = Advertisement("b", bytes([2] * 32), bytes([3] * 32), roster.clients[1].signature)
    if forger == "stranger":
        stranger = new_signing_keys()
        other = SecureAggregationClient(
            "b", federation.config, stranger.signing, {"b": stranger.verification}
        )
        entry = Advertisement.from_bytes(other.advertise(), federation.config)
    elif forger == "another round":
        config = SecureAggregationConfig("an older round", b"spec", 8, 3, signed=True)
        older = SecureAggregationClient(
            "b", config, federation.signers["b"].signing, federation.verification
        )
        entry = Advertisement.from_bytes(older.advertise(), config)
    with pytest.raises(
        SecureAggregationError, match="Expected keys signed by client 'b' for this round"
    ):
        federation.clients["a"].share_keys(changed(federation, keys, "b", entry))


def test_strangers_are_refused_in_a_signed_aggregation() -> None:
    federation = Federation("abcd", signed=True)
    stranger = new_signing_keys()
    other = SecureAggregationClient(
        "e", federation.config, stranger.signing, {"e": stranger.verification}
    )
    federation.send("e", other.advertise())
    with pytest.raises(SecureAggregationError, match="no verification key"):
        federation.clients["a"].share_keys(federation.advertise())


def test_a_server_that_knows_the_keys_refuses_forgeries_itself() -> None:
    federation = Federation("abcd", signed=True)
    federation.server._verification_keys = federation.verification
    message = federation.clients["a"].advertise()
    with pytest.raises(SecureAggregationError, match="the signature is wrong"):
        federation.send("a", message[:-1] + bytes([message[-1] ^ 1]))
    federation.send("a", message)

    federation = masked(signed=True)
    federation.server._verification_keys = federation.verification
    message = federation.clients["a"].sign_survivors(federation.server.survivors())
    with pytest.raises(SecureAggregationError, match="Expected the signature of client 'a'"):
        federation.send("a", message[:-1] + bytes([message[-1] ^ 1]))
    federation.send("a", message)


def test_keys_that_agree_with_everyone_are_refused() -> None:
    federation = Federation("abcd")
    keys = federation.advertise()
    low = Advertisement("b", bytes(32), bytes([1] + [0] * 31))  # points of small order
    with pytest.raises(SecureAggregationError, match="Expected a public key of X25519"):
        federation.clients["a"].share_keys(changed(federation, keys, "b", low))


def test_copied_keys_and_names_are_refused() -> None:
    federation = Federation("abcd")
    roster = Roster.from_bytes(federation.advertise(), federation.config)
    one, *others = roster.clients
    for copied in (
        (one, one, *others),
        (*others, Advertisement("z", one.sealing, others[0].masking)),
        others[::-1],
    ):
        with pytest.raises(SecureAggregationError, match="comes twice or out of order"):
            Roster(federation.config, tuple(copied))


def test_the_client_counts_for_itself() -> None:
    federation = Federation("abcd", min_clients=4)
    keys = federation.advertise()
    roster = Roster.from_bytes(keys, federation.config)
    short = Roster.__new__(Roster)  # a server that does not check
    object.__setattr__(short, "config", federation.config)
    object.__setattr__(short, "clients", roster.clients[:3])
    with pytest.raises(SecureAggregationError, match="Wait for more clients"):
        federation.clients["a"].share_keys(short.to_bytes())
    boxes = federation.share(keys)
    (message,) = roster.read_tables(boxes["a"], Kind.CIPHERTEXTS, roster.hash)
    del message[min(message)]
    with pytest.raises(
        SecureAggregationError, match="at least 4 of 4 clients to exchange shares but got 3"
    ):
        federation.clients["a"].mask(
            roster.pack_tables(Kind.CIPHERTEXTS, roster.hash, message), lambda: ZEROS
        )


# --- key shares


def test_boxes_open_only_for_whom_and_from_whom_they_are() -> None:
    federation = Federation("abcd")
    boxes = federation.share(federation.advertise())
    roster, _ = known(federation)
    (mine,), (others,) = (
        roster.read_tables(boxes[name], Kind.CIPHERTEXTS, roster.hash) for name in "ab"
    )
    swapped = dict(zip(mine, [*mine.values()][::-1], strict=True))
    reflected = dict(zip(mine, federation.server._rows[Stage.SHARE_KEYS][0][1:], strict=True))
    for wrong in (swapped, reflected, dict(zip(mine, others.values(), strict=True))):
        with pytest.raises(SecureAggregationError, match="does not open"):
            federation.clients["a"].mask(
                roster.pack_tables(Kind.CIPHERTEXTS, roster.hash, wrong),
                lambda: federation.factory("a"),
            )
    with pytest.raises(SecureAggregationError, match="got one's own"):
        federation.clients["a"].mask(boxes["b"], lambda: federation.factory("a"))
    assert federation.calls["a"] == 0
    federation.mask(boxes)
    assert federation.calls["a"] == 1


@pytest.mark.parametrize("drops", [{}, {"d": "mask"}], ids=["of a seed", "of a key"])
def test_a_wrong_share_is_seen_and_nothing_is_opened(drops: dict[str, str]) -> None:
    federation = masked(drops=drops)
    roster, _ = known(federation)
    request = federation.request()
    survivors = federation.server._survivors_hash
    for name in federation.present("answer"):
        message = federation.clients[name].unmask(request)
        if name == "b":
            sender, shares = roster.read_rows(message, Kind.ANSWER, survivors, 4)
            place = 3 if drops else 0
            share = shares[place]  # a middle byte: X25519 ignores the lowest bits of a key
            shares[place] = share[:16] + bytes([share[16] ^ 1]) + share[17:]
            message = roster.pack_rows(Kind.ANSWER, survivors, sender, *shares)
        federation.send(name, message)
    with pytest.raises(
        SecureAggregationError,
        match=r"it dealt wrong shares, or an answer holds one|a share is corrupt",
    ):
        federation.server.sum()


def test_a_wrong_commitment_is_seen() -> None:
    federation = Federation("abcd")
    keys = federation.advertise()
    roster, _ = known(federation)
    for name in "abcd":
        message = federation.clients[name].share_keys(keys)
        sender, (commitment, *boxes) = roster.read_rows(message, Kind.KEY_SHARES, roster.hash)
        wrong = bytes(32) if name == "c" else commitment
        federation.send(name, roster.pack_rows(Kind.KEY_SHARES, roster.hash, sender, wrong, *boxes))
    federation.mask(federation.server.ciphertexts())
    federation.answer(federation.request())
    with pytest.raises(
        SecureAggregationError, match="shares of client 'c' to give the seed it committed to"
    ):
        federation.server.sum()


# --- messages that come late, twice, early, or from somebody else


def test_the_first_message_stands() -> None:
    federation = Federation("abcd")
    first = federation.clients["a"].advertise()
    federation.send("a", first)
    federation.send("a", first)  # the network may repeat it
    with pytest.raises(SecureAggregationError, match="The first stands"):
        federation.send("a", federation.client("a").advertise())
    with pytest.raises(SecureAggregationError, match="to speak for itself"):
        federation.send("b", first)
    for name in "bcd":
        federation.send(name, federation.clients[name].advertise())
    federation.names = tuple("abcd")
    keys = federation.server.keys()
    federation.mask(federation.share(keys))
    federation.answer(federation.request())
    assert np.array_equal(federation.server.sum()[0], federation.expected("abcd"))


@pytest.mark.parametrize("buffer", [bytes, bytearray])
def test_another_message_is_never_ignored_in_silence(buffer: Callable[[bytes], bytes]) -> None:
    """Refused as another one, or as no bytes at all; but whoever sends it must hear of it."""
    federation = Federation("abcd")
    with contextlib.suppress(SecureAggregationError):
        federation.send("a", buffer(federation.clients["a"].advertise()))
    with pytest.raises(SecureAggregationError, match="Expected"):
        federation.send("a", buffer(federation.client("a").advertise()))


def test_a_repeated_masked_vector_counts_once() -> None:
    federation = Federation("abcd")
    boxes = federation.share(federation.advertise())
    for name in "abcd":
        message = federation.clients[name].mask(boxes[name], partial(federation.factory, name))
        federation.send(name, message)
        federation.send(name, message)
        with pytest.raises(SecureAggregationError, match="The first stands"):
            federation.send(name, message[:-1] + bytes([message[-1] ^ 1]))
    federation.answer(federation.request())
    assert np.array_equal(federation.server.sum()[0], federation.expected("abcd"))


def test_a_late_vector_is_not_kept() -> None:
    federation = Federation("abcd")
    federation.drops = {"d": "mask"}
    boxes = federation.share(federation.advertise())
    federation.mask(boxes)
    late = federation.clients["d"].mask(boxes["d"], lambda: federation.factory("d"))
    request = federation.request()
    with pytest.raises(
        SecureAggregationError, match="Expected a message ANSWER but got one MASKED"
    ):
        federation.send("d", late)
    with pytest.raises(SecureAggregationError, match="this client included"):
        federation.clients["d"].unmask(request)
    federation.answer(request)
    total, survivors = federation.server.sum()
    assert survivors == ("a", "b", "c")
    assert np.array_equal(total, federation.expected("abc"))


def test_who_dropped_out_does_not_come_back() -> None:
    federation = Federation("abcd")
    federation.drops = {"d": "share"}
    keys = federation.advertise()
    boxes = federation.share(keys)
    with pytest.raises(
        SecureAggregationError, match="Expected a message MASKED but got one KEY_SHARES"
    ):
        federation.send("d", federation.clients["d"].share_keys(keys))
    message = federation.clients["a"].mask(boxes["a"], lambda: ZEROS)
    forged = message[:70] + (3).to_bytes(2, "little") + message[72:]
    with pytest.raises(SecureAggregationError, match="It has dropped out of this round"):
        federation.send("d", forged)


def test_stages_come_in_order() -> None:
    federation = Federation("abcd")
    client, server = federation.clients["a"], federation.server
    for step in (server.ciphertexts, server.request, server.sum):
        with pytest.raises(SecureAggregationError, match="Close them in order"):
            step()
    with pytest.raises(SecureAggregationError, match="Call `request`"):
        server.survivors()
    with pytest.raises(
        SecureAggregationError, match="ADVERTISED for `share_keys` but this one is NEW"
    ):
        client.share_keys(b"")
    keys = federation.advertise()
    with pytest.raises(
        SecureAggregationError, match="NEW for `advertise` but this one is ADVERTISED"
    ):
        client.advertise()
    boxes = federation.share(keys)
    with pytest.raises(
        SecureAggregationError, match="ADVERTISED for `share_keys` but this one is SHARED"
    ):
        client.share_keys(keys)
    federation.mask(boxes)
    with pytest.raises(SecureAggregationError, match="SHARED for `mask` but this one is MASKED"):
        client.mask(boxes["a"], lambda: federation.factory("a"))
    with pytest.raises(SecureAggregationError, match="signed for `sign`"):
        client.sign_survivors(b"")
    assert federation.calls["a"] == 1
    assert server.keys() == keys
    assert server.ciphertexts() == boxes
    assert server.request() == federation.request()


def test_messages_of_another_round_are_refused() -> None:
    one, other = (Federation("abcd", round_id=round_id) for round_id in ("one", "other"))
    keys, other_keys = one.advertise(), other.advertise()
    with pytest.raises(SecureAggregationError, match="of this round and configuration"):
        one.clients["a"].share_keys(other_keys)
    boxes, other_boxes = one.share(keys), other.share(other_keys)
    with pytest.raises(SecureAggregationError, match="of this round and configuration"):
        one.clients["a"].mask(other_boxes["a"], lambda: ZEROS)
    one.mask(boxes)
    other.mask(other_boxes)
    with pytest.raises(SecureAggregationError, match="of this round and configuration"):
        one.clients["a"].unmask(other.request())
    again = Federation("abcd", round_id="one")  # the same configuration, but other keys
    again_keys = again.advertise()
    again_boxes = again.share(again_keys)
    fresh = one.client("a")
    fresh.advertise()
    with pytest.raises(SecureAggregationError, match="missing or changed"):
        fresh.share_keys(keys)
    with pytest.raises(SecureAggregationError, match="about the same clients and keys"):
        again.clients["a"].mask(boxes["a"], lambda: ZEROS)
    again.mask(again_boxes)
    with pytest.raises(SecureAggregationError, match="about the same clients and keys"):
        again.clients["a"].unmask(one.request())


# --- what is summed: the server writes the queries, and the binding says which one it is (attack 7)

SPEC = Spec("binary", 1, ScoreGrid.two_sided(16), DistributedDP(1.0, min_clients=3))
WHOLE, SMALL = Query(Tree((8, 8))), Query(Tree((8, 8)), 1 / 256)


def test_two_queries_that_differ_in_their_fraction_are_two_aggregations() -> None:
    bindings = [SPEC.binding(Query(Tree((8, 8)), number / 256)) for number in range(1, 257)]
    for start in range(0, 32, 8):  # 256 bits: every 64 of them tell the fractions apart
        assert len({binding[start : start + 8] for binding in bindings}) == 256
    one, other = (SecureAggregationConfig.for_query(SPEC, query, "7/1") for query in (WHOLE, SMALL))
    assert one.hash != other.hash
    assert (one.binding, len(one.binding)) == (SPEC.binding(WHOLE), 32)
    assert SecureAggregationConfig.from_bytes(one.to_bytes()).binding == SPEC.binding(WHOLE)
    one.check_agreed(SPEC, WHOLE, False)
    with pytest.raises(SecureAggregationError, match="bound to"):
        other.check_agreed(SPEC, WHOLE, False)


@pytest.mark.parametrize("size", [1, 5, 8, 16, 31])
def test_a_binding_that_was_cut_is_refused(size: int) -> None:
    config = SecureAggregationConfig.for_query(SPEC, WHOLE, "7/1")
    for binding in (
        config.binding[:size],
        config.binding[:size] + bytes(32 - size),
        config.binding + bytes(size),
    ):
        cut = SecureAggregationConfig.from_bytes(replace(config, binding=binding).to_bytes())
        with pytest.raises(SecureAggregationError, match="bound to"):
            cut.check_agreed(SPEC, WHOLE, False)


def test_every_bit_of_the_binding_is_compared() -> None:
    config = SecureAggregationConfig.for_query(SPEC, WHOLE, "7/1")
    for bit in range(256):
        binding = bytearray(config.binding)
        binding[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SecureAggregationError, match="bound to"):
            replace(config, binding=bytes(binding)).check_agreed(SPEC, WHOLE, False)


@pytest.mark.parametrize("signed", [False, True])
def test_a_client_draws_nothing_for_an_aggregation_of_another_query(signed: bool) -> None:
    """Agreed by all on a query for 1/256 of epsilon; a client that was asked for all of it does not take part."""
    names = "abc"
    config = SecureAggregationConfig.for_query(SPEC, SMALL, "7/1", signed=signed)
    keys = {name: new_signing_keys() for name in names}
    verification = {name: pair.verification for name, pair in keys.items()} if signed else None
    clients = {
        name: SecureAggregationClient(
            name, config, keys[name].signing if signed else None, verification
        )
        for name in names
    }
    server = SecureAggregationServer(config, verification)
    for name, client in clients.items():
        server.receive(name, client.advertise())
    roster = server.keys()
    for name, client in clients.items():
        server.receive(name, client.share_keys(roster))
    boxes = server.ciphertexts()
    metric = FederatedROC(quantiles=16, privacy=DistributedDP(1.0, min_clients=3))
    assert metric.spec == SPEC
    with pytest.raises(SecureAggregationError, match="bound to"):
        metric.mask(clients["a"], boxes["a"], round="7", query=WHOLE)
    assert len(metric.ledger) == 0
    assert clients["a"].state is ClientState.SHARED
    metric.mask(clients["a"], boxes["a"], round="7", query=SMALL)  # what was agreed on is answered
    assert len(metric.ledger) == 1


# --- the vector


class PaidError(Exception):
    """What a ledger might raise."""


@pytest.mark.parametrize("error", [PaidError, BudgetExceededError, KeyboardInterrupt])
def test_a_vector_that_fails_is_not_asked_for_again(error: type[BaseException]) -> None:
    federation = Federation("abcd")
    boxes = federation.share(federation.advertise())
    client = federation.clients["a"]

    def fail() -> NoReturn:
        federation.calls["a"] += 1
        raise error

    with pytest.raises(error):
        client.mask(boxes["a"], fail)
    assert client.state is ClientState.PURGED
    with pytest.raises(SecureAggregationError, match="PURGED"):
        client.mask(boxes["a"], lambda: federation.factory("a"))
    assert federation.calls["a"] == 1
    federation.drops = {"a": "mask"}
    federation.mask(boxes)
    federation.answer(federation.request())
    assert np.array_equal(federation.server.sum()[0], federation.expected("bcd"))


@pytest.mark.parametrize(
    "vector", [np.zeros(8), np.zeros(7, dtype=np.int64), np.zeros(8, dtype=np.int32), [0] * 8, None]
)
def test_a_vector_of_the_wrong_kind_is_not_sent(vector: object) -> None:
    federation = Federation("abcd")
    boxes = federation.share(federation.advertise())
    with pytest.raises(InputError, match="Expected a vector of int64 of shape"):
        federation.clients["a"].mask(boxes["a"], lambda: vector)  # type: ignore[arg-type,return-value]
    assert federation.clients["a"].state is ClientState.PURGED


def test_a_factory_cannot_mask_twice_by_calling_back() -> None:
    federation = Federation("abcd")
    boxes = federation.share(federation.advertise())
    client = federation.clients["a"]
    with pytest.raises(SecureAggregationError, match="SHARED for `mask` but this one is MASKED"):
        client.mask(
            boxes["a"],
            lambda: np.frombuffer(client.mask(boxes["a"], lambda: ZEROS), dtype=np.int64),
        )
    assert client.state is ClientState.PURGED


def test_a_factory_that_purges_sends_nothing() -> None:
    federation = Federation("abcd")
    boxes = federation.share(federation.advertise())
    client = federation.clients["a"]

    def purging() -> NDArray[np.int64]:
        client.purge()
        return ZEROS

    with pytest.raises(SecureAggregationError, match="purged while its vector"):
        client.mask(boxes["a"], purging)
    assert client.state is ClientState.PURGED


def test_a_client_is_not_copied() -> None:
    client = Federation("abc").clients["a"]
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(SecureAggregationError, match="two of them can answer two lists"):
            duplicate(client)


# --- bytes that were cut or changed


def scene(kind: Kind, signed: bool) -> tuple[bytes, Feed]:
    """Return a good message of a kind, and the party that waits for it."""
    federation = Federation("abcd", cells=2, signed=signed)
    federation.server._verification_keys = federation.verification
    client, server = federation.clients["a"], federation.server
    vector = np.zeros(2, dtype=np.int64)
    if kind is Kind.START:
        return server.start(), SecureAggregationConfig.from_bytes
    if kind is Kind.ADVERTISE:
        return client.advertise(), lambda message: server.receive("a", message)
    keys = federation.advertise()
    if kind is Kind.KEYS:
        return keys, client.share_keys
    if kind is Kind.KEY_SHARES:
        return client.share_keys(keys), lambda message: server.receive("a", message)
    boxes = federation.share(keys)
    if kind is Kind.CIPHERTEXTS:
        return boxes["a"], lambda message: client.mask(message, lambda: vector)
    if kind is Kind.MASKED:
        return client.mask(boxes["a"], lambda: vector), lambda message: server.receive("a", message)
    federation.vectors = dict.fromkeys("abcd", vector)
    federation.mask(boxes)
    if kind is Kind.SURVIVORS:
        return server.survivors(), client.sign_survivors
    if kind is Kind.SIGNATURE:
        return client.sign_survivors(server.survivors()), lambda message: server.receive(
            "a", message
        )
    request = federation.request()
    if kind is Kind.PROGRESS:
        keys_of_a = (federation.signers["a"].signing if signed else None), federation.verification
        return client.to_bytes(), lambda message: SecureAggregationClient.from_bytes(
            message, federation.config, *keys_of_a
        )
    if kind is Kind.REQUEST:
        return request, client.unmask
    return client.unmask(request), lambda message: server.receive("a", message)


SENT = [kind for kind in Kind if Kind.START <= kind <= Kind.PROGRESS]
SCENES = [
    (kind, signed)
    for kind in SENT
    for signed in (False, True)
    if signed or kind not in (Kind.SURVIVORS, Kind.SIGNATURE)
]
# Where every changed byte is seen at once. Elsewhere a change can only be garbage that nothing distinguishes from a
# vector, a share, a commitment, a box for another client or, unsigned, a key.
TIGHT = {
    (Kind.START, False),
    (Kind.PROGRESS, False),
    (Kind.START, True),
    (Kind.CIPHERTEXTS, False),
    (Kind.REQUEST, False),
}
TIGHT |= {(kind, True) for kind in SENT} - {
    (Kind.KEY_SHARES, True),
    (Kind.MASKED, True),
    (Kind.ANSWER, True),
}


def is_accepted(feed: Feed, message: bytes) -> bool:
    """Whether a message is taken; an error other than SecureAggregationError fails the test."""
    try:
        feed(message)
    except SecureAggregationError:
        return False
    return True


@pytest.mark.parametrize(("kind", "signed"), SCENES, ids=lambda value: str(value))
def test_cut_and_changed_messages_are_refused(kind: Kind, signed: bool) -> None:
    message, feed = scene(kind, signed)
    for size in range(len(message)):
        with pytest.raises(SecureAggregationError, match="Expected"):
            feed(message[:size])
    for longer in (message + b"\0", message + message):
        with pytest.raises(SecureAggregationError, match="Expected"):
            feed(longer)
    for wrong in (None, "text", 5):
        with pytest.raises(SecureAggregationError, match="Expected"):
            feed(wrong)  # type: ignore[arg-type]
    generator, accepted = random.Random(kind), []
    for place in range(len(message)):
        wrong_byte = bytes([message[place] ^ generator.randrange(1, 256)])
        if is_accepted(feed, message[:place] + wrong_byte + message[place + 1 :]):
            accepted.append(place)
            message, feed = scene(kind, signed)
    assert not accepted or (kind, signed) not in TIGHT
    assert all(place >= 38 for place in accepted)  # nothing of the header
    feed(message)


@pytest.mark.parametrize(("kind", "signed"), SCENES, ids=lambda value: str(value))
def test_noise_is_refused(kind: Kind, signed: bool) -> None:
    message, feed = scene(kind, signed)
    generator = random.Random(kind)
    for _ in range(100):
        with pytest.raises(SecureAggregationError):
            feed(message[:38] + generator.randbytes(generator.randrange(300)))


def test_errors_show_no_secret() -> None:
    federation = Federation("abcd", vectors=dict.fromkeys("abcd", np.full(8, 123456789)))
    keys = federation.advertise()
    boxes = federation.share(keys)
    secrets = [secret for pair in federation.secrets.values() for secret in pair]
    federation.mask(boxes)
    client = federation.clients["a"]
    calls: list[Callable[[], bytes]] = [
        lambda: client.unmask(keys),
        lambda: client.mask(boxes["a"], lambda: ZEROS),
        client.advertise,
    ]
    for call in calls:
        with pytest.raises(SecureAggregationError) as caught:
            call()
        said = str(caught.value) + repr(client)
        assert caught.value.__cause__ is None
        assert "123456789" not in said
        assert not any(secret.hex() in said or repr(secret) in said for secret in secrets)
