"""States: how far client and server of one aggregation have come, and which call moves them on. Tables, and no I/O.

Every call is allowed exactly where its table has a row; everything moves forward only, and once.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from torchmetrics_fed.release.wire import Kind


class Stage(IntEnum):
    """How far a client has come."""

    NEW = 0
    ADVERTISED = 1
    SHARED = 2
    MASKED = 3
    SIGNED = 4
    ANSWERED = 5
    PURGED = 6


_CLIENT = {
    (Stage.NEW, "advertise"): Stage.ADVERTISED,
    (Stage.ADVERTISED, "share_keys"): Stage.SHARED,
    (Stage.SHARED, "mask"): Stage.MASKED,
    (Stage.ANSWERED, "unmask"): Stage.ANSWERED,  # the same request gets the same answer
}
_CLIENT_UNSIGNED = _CLIENT | {(Stage.MASKED, "unmask"): Stage.ANSWERED}
_CLIENT_SIGNED = _CLIENT | {(Stage.MASKED, "sign_survivors"): Stage.SIGNED, (Stage.SIGNED, "unmask"): Stage.ANSWERED}


def client_moves(signed: bool) -> Mapping[tuple[Stage, str], Stage]:
    """Return the client's table: stage and call to the next stage. ``purge`` is allowed anywhere, and ends it."""
    return _CLIENT_SIGNED if signed else _CLIENT_UNSIGNED


_SERVER = {(Kind.ADVERTISE, "keys"): Kind.KEY_SHARES, (Kind.KEY_SHARES, "ciphertexts"): Kind.MASKED}
_SERVER_UNSIGNED = _SERVER | {(Kind.MASKED, "request"): Kind.ANSWER}
_SERVER_SIGNED = _SERVER | {(Kind.MASKED, "survivors"): Kind.SIGNATURE, (Kind.SIGNATURE, "request"): Kind.ANSWER}


def server_moves(signed: bool) -> Mapping[tuple[Kind, str], Kind]:
    """Return the server's table: the kind of message that it collects, and the call that closes that stage."""
    return _SERVER_SIGNED if signed else _SERVER_UNSIGNED
