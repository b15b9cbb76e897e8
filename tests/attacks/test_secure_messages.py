"""Threat: a network, or a client, that repeats, delays, exchanges and forges messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from tests.aggregation.secure.federation import Federation, known_to_all, masked_federation
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.release.wire import Kind

ZEROS = np.zeros(8, dtype=np.int64)


def test_boxes_open_only_for_their_recipient_and_from_their_sender() -> None:
    federation = Federation("abcd")
    messages = federation.share(federation.advertise())
    roster, _ = known_to_all(federation)
    (boxes_for_a,) = roster.read_tables(messages["a"], Kind.CIPHERTEXTS, roster.hash)
    (boxes_for_b,) = roster.read_tables(messages["b"], Kind.CIPHERTEXTS, roster.hash)
    boxes_from_a = federation.server._rows[Stage.SHARE_KEYS][0][1:]
    client = federation.clients["a"]
    draw = partial(federation.factory, "a")
    for wrong in (reversed(boxes_for_a.values()), boxes_from_a, boxes_for_b.values()):
        table = dict(zip(boxes_for_a, wrong, strict=True))
        with pytest.raises(SecureAggregationError, match="does not open"):
            client.mask(roster.pack_tables(Kind.CIPHERTEXTS, roster.hash, table), draw)
    with pytest.raises(SecureAggregationError, match="got one's own"):
        client.mask(messages["b"], draw)
    assert federation.calls["a"] == 0
    federation.mask(messages)
    assert federation.calls["a"] == 1


@pytest.mark.parametrize(
    ("drops", "place"), [({}, 0), ({"d": "mask"}, 3)], ids=["of a seed", "of a key"]
)
def test_a_wrong_share_is_seen_and_nothing_is_opened(drops: dict[str, str], place: int) -> None:
    federation = masked_federation(drops=drops)
    roster, _ = known_to_all(federation)
    request = federation.request()
    subject = federation.server._survivors_hash
    for name in federation.present("answer"):
        message = federation.clients[name].unmask(request)
        if name == "b":
            sender, shares = roster.read_rows(message, Kind.ANSWER, subject, 4)
            share = bytearray(shares[place])
            share[16] ^= 1  # a middle byte: X25519 ignores the lowest bits of a key
            shares[place] = bytes(share)
            message = roster.pack_rows(Kind.ANSWER, subject, sender, *shares)
        federation.send(name, message)
    with pytest.raises(
        SecureAggregationError,
        match=r"it dealt wrong shares, or an answer holds one|a share is corrupt",
    ):
        federation.server.sum()


def test_a_wrong_commitment_is_seen() -> None:
    federation = Federation("abcd")
    keys = federation.advertise()
    roster, _ = known_to_all(federation)
    for name, client in federation.clients.items():
        message = client.share_keys(keys)
        if name == "c":
            sender, rows = roster.read_rows(message, Kind.KEY_SHARES, roster.hash)
            rows[0] = bytes(32)
            message = roster.pack_rows(Kind.KEY_SHARES, roster.hash, sender, *rows)
        federation.send(name, message)
    federation.mask(federation.server.ciphertexts())
    federation.answer(federation.request())
    with pytest.raises(
        SecureAggregationError, match="shares of client 'c' to give the seed it committed to"
    ):
        federation.server.sum()


def test_the_first_message_stands() -> None:
    federation = Federation("abcd")
    first = federation.clients["a"].advertise()
    federation.send("a", first)
    federation.send("a", first)  # the network may repeat a message
    with pytest.raises(SecureAggregationError, match="The first stands"):
        federation.send("a", federation.client("a").advertise())
    with pytest.raises(SecureAggregationError, match="to speak for itself"):
        federation.send("b", first)
    for name in "bcd":
        federation.send(name, federation.clients[name].advertise())
    federation.mask(federation.share(federation.server.keys()))
    federation.answer(federation.request())
    total, _ = federation.server.sum()
    assert np.array_equal(total, federation.expected("abcd"))


@pytest.mark.parametrize("buffer", [bytes, bytearray])
def test_another_message_is_never_ignored_in_silence(buffer: Callable[[bytes], bytes]) -> None:
    """It is refused as a second message, or as no bytes at all; its sender must hear of it."""
    federation = Federation("abcd")
    with contextlib.suppress(SecureAggregationError):
        federation.send("a", buffer(federation.clients["a"].advertise()))
    with pytest.raises(SecureAggregationError, match="Expected"):
        federation.send("a", buffer(federation.client("a").advertise()))


def test_a_repeated_masked_vector_counts_once() -> None:
    federation = Federation("abcd")
    boxes = federation.share(federation.advertise())
    for name, client in federation.clients.items():
        message = client.mask(boxes[name], partial(federation.factory, name))
        federation.send(name, message)
        federation.send(name, message)
        with pytest.raises(SecureAggregationError, match="The first stands"):
            federation.send(name, message[:-1] + bytes([message[-1] ^ 1]))
    federation.answer(federation.request())
    total, _ = federation.server.sum()
    assert np.array_equal(total, federation.expected("abcd"))


def test_a_late_vector_is_not_kept() -> None:
    federation = Federation("abcd")
    federation.drops = {"d": "mask"}
    boxes = federation.share(federation.advertise())
    federation.mask(boxes)
    late_client = federation.clients["d"]
    late_message = late_client.mask(boxes["d"], partial(federation.factory, "d"))
    request = federation.request()
    with pytest.raises(
        SecureAggregationError, match="Expected a message ANSWER but got one MASKED"
    ):
        federation.send("d", late_message)
    with pytest.raises(SecureAggregationError, match="this client included"):
        late_client.unmask(request)
    federation.answer(request)
    total, survivors = federation.server.sum()
    assert survivors == ("a", "b", "c")
    assert np.array_equal(total, federation.expected("abc"))


def test_a_client_that_dropped_out_does_not_come_back() -> None:
    federation = Federation("abcd")
    federation.drops = {"d": "share"}
    keys = federation.advertise()
    boxes = federation.share(keys)
    with pytest.raises(
        SecureAggregationError, match="Expected a message MASKED but got one KEY_SHARES"
    ):
        federation.send("d", federation.clients["d"].share_keys(keys))
    message = federation.clients["a"].mask(boxes["a"], lambda: ZEROS)
    index_of_d = (3).to_bytes(2, "little")
    forged = message[:70] + index_of_d + message[72:]
    with pytest.raises(SecureAggregationError, match="It has dropped out of this round"):
        federation.send("d", forged)


def test_a_server_closes_stages_in_order() -> None:
    federation = Federation("abcd")
    server = federation.server
    for step in (server.ciphertexts, server.request, server.sum):
        with pytest.raises(SecureAggregationError, match="Close them in order"):
            step()
    with pytest.raises(SecureAggregationError, match="Call `request`"):
        server.survivors()
    keys = federation.advertise()
    boxes = federation.share(keys)
    federation.mask(boxes)
    assert server.keys() == keys
    assert server.ciphertexts() == boxes
    assert server.request() == federation.request()


def test_a_client_goes_through_stages_in_order() -> None:
    federation = Federation("abcd")
    client = federation.clients["a"]
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
        client.mask(boxes["a"], lambda: ZEROS)
    with pytest.raises(SecureAggregationError, match="signed for `sign`"):
        client.sign_survivors(b"")
    assert federation.calls["a"] == 1


def test_messages_of_another_round_are_refused() -> None:
    first = Federation("abcd", round_id="first")
    second = Federation("abcd", round_id="second")
    client = first.clients["a"]
    keys = first.advertise()
    foreign_keys = second.advertise()
    with pytest.raises(SecureAggregationError, match="of this round and configuration"):
        client.share_keys(foreign_keys)
    boxes = first.share(keys)
    foreign_boxes = second.share(foreign_keys)
    with pytest.raises(SecureAggregationError, match="of this round and configuration"):
        client.mask(foreign_boxes["a"], lambda: ZEROS)
    first.mask(boxes)
    second.mask(foreign_boxes)
    with pytest.raises(SecureAggregationError, match="of this round and configuration"):
        client.unmask(second.request())


def test_messages_about_other_keys_of_the_same_round_are_refused() -> None:
    first = Federation("abcd")
    keys = first.advertise()
    boxes = first.share(keys)
    first.mask(boxes)
    new_client = first.client("a")
    new_client.advertise()
    with pytest.raises(SecureAggregationError, match="missing or changed"):
        new_client.share_keys(keys)
    retry = Federation("abcd")
    retry_boxes = retry.share(retry.advertise())
    client = retry.clients["a"]
    with pytest.raises(SecureAggregationError, match="about the same clients and keys"):
        client.mask(boxes["a"], lambda: ZEROS)
    retry.mask(retry_boxes)
    with pytest.raises(SecureAggregationError, match="about the same clients and keys"):
        client.unmask(first.request())
