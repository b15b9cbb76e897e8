"""Roster: it comes back, binds names and keys, and its messages are about one hash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.aggregation.secure.federation import Federation
from torchmetrics_fed.aggregation.secure.roster import Advertisement, Roster
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.release.wire import Kind


def roster_of(federation: Federation) -> Roster:
    return Roster.from_bytes(federation.advertise(), federation.config)


@pytest.mark.parametrize("signed", [False, True])
def test_a_roster_comes_back(signed: bool) -> None:
    roster = roster_of(Federation("dacb", signed=signed))
    copy = Roster.from_bytes(roster.to_bytes(), roster.config)
    assert copy == roster
    assert copy.hash == roster.hash
    assert copy.indices == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_names_keys_cohort_and_survivors_are_in_the_hashes() -> None:
    roster = roster_of(Federation("abcd"))
    last = roster.clients[-1]
    variants = [
        replace(last, client_id="e"),
        replace(last, sealing=bytes(32)),
        replace(last, masking=bytes(32)),
    ]
    rosters = [replace(roster, clients=(*roster.clients[:-1], client)) for client in variants]
    hashes = {
        roster.hash,
        *(variant.hash for variant in rosters),
        roster.cohort_hash((0, 1, 2, 3)),
        roster.cohort_hash((0, 1, 2)),
        roster.survivors_hash((0, 1, 2, 3), (0, 1, 2)),
        roster.survivors_hash((0, 1, 2, 3), (0, 1, 3)),
        roster.survivors_hash((0, 1, 2), (0, 1, 2)),
    }
    assert len(hashes) == 9


def test_copied_keys_and_names_are_refused() -> None:
    roster = roster_of(Federation("abcd"))
    first, *rest = roster.clients
    copied_keys = Advertisement("z", first.sealing, rest[0].masking)
    for clients in ((first, first, *rest), (*rest, copied_keys), tuple(reversed(rest))):
        with pytest.raises(SecureAggregationError, match="comes twice or out of order"):
            Roster(roster.config, clients)


def test_rows_and_tables_come_back_about_their_hash_only() -> None:
    roster = roster_of(Federation("abcd", cells=2))
    row = bytes(range(16))
    message = roster.pack_rows(Kind.MASKED, b"x" * 32, 3, row)
    assert roster.read_rows(message, Kind.MASKED, b"x" * 32) == (3, [row])
    table = {0: b"", 2: b""}
    request = roster.pack_tables(Kind.REQUEST, b"x" * 32, table)
    assert roster.read_tables(request, Kind.REQUEST, b"x" * 32) == [table]
    with pytest.raises(SecureAggregationError, match="about the same clients and keys"):
        roster.read_rows(message, Kind.MASKED, b"y" * 32)
    with pytest.raises(SecureAggregationError, match="about the same clients and keys"):
        roster.read_tables(request, Kind.REQUEST, b"y" * 32)


def test_a_sender_is_in_the_roster() -> None:
    roster = roster_of(Federation("abcd", cells=2))
    message = roster.pack_rows(Kind.MASKED, b"x" * 32, 4, bytes(16))
    with pytest.raises(SecureAggregationError, match="an index below 4"):
        roster.read_rows(message, Kind.MASKED, b"x" * 32)
