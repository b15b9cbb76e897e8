"""Wire: a reader returns what was packed, and refuses all other bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchmetrics_fed.errors import SecureAggregationError, WireError
from torchmetrics_fed.release.wire import (
    Kind,
    Reader,
    frame,
    kind_of,
    pack_block,
    pack_indices,
    pack_table,
    pack_text,
    sealed_frame,
    text_size,
)

ROWS = {5: b"five", 0: b"zero", 2: b"two "}


def reader_of(*parts: bytes) -> Reader:
    return Reader(frame(Kind.FILE, *parts), Kind.FILE)


def test_packed_values_come_back() -> None:
    reader = reader_of(
        pack_text("Zürich"),
        pack_block(b"block"),
        pack_indices((0, 3, 9)),
        pack_table(ROWS),
        (7).to_bytes(2, "little"),
        b"rest",
    )
    assert reader.text() == "Zürich"
    assert reader.block() == b"block"
    assert reader.indices(10) == (0, 3, 9)
    assert reader.table(6, 4) == ROWS
    assert reader.number(2) == 7
    assert bytes(reader.rest) == b"rest"
    assert reader.take(4) == b"rest"
    reader.end()


@pytest.mark.parametrize("kind", Kind)
def test_a_message_has_a_kind(kind: Kind) -> None:
    assert kind_of(frame(kind, b"body")) is kind
    successor = Kind.QUERY if kind is not Kind.QUERY else Kind.SHARE
    with pytest.raises(WireError, match=f"message {successor.name} but got one {kind.name}"):
        Reader(frame(kind, b"body"), successor)


@pytest.mark.parametrize(
    "data", [b"", b"TMFD", b"JUNK\x03\x01", b"TMFD\x03\xff", b"TMFD\x02\x01"], ids=repr
)
def test_foreign_bytes_have_no_kind(data: bytes) -> None:
    with pytest.raises(WireError, match="Expected"):
        kind_of(data)
    with pytest.raises(WireError, match="Expected"):
        Reader(data, Kind.QUERY)


@pytest.mark.parametrize(
    ("parts", "read"),
    [
        ([b"\x05four"], lambda reader: reader.text()),
        ([b"\x00"], lambda reader: reader.text()),
        ([b"\x01\xff"], lambda reader: reader.text()),
        ([pack_block(b"block")[:-1]], lambda reader: reader.block()),
        ([b"\1"], lambda reader: reader.number(2)),
        ([pack_indices((3, 3))], lambda reader: reader.indices(10)),
        ([pack_indices((3, 2))], lambda reader: reader.indices(10)),
        ([pack_indices((3, 10))], lambda reader: reader.indices(10)),
        ([pack_indices(tuple(range(11)))], lambda reader: reader.indices(10)),
        ([pack_table(ROWS)[:-1]], lambda reader: reader.table(6, 4)),
        ([b"left over"], lambda reader: reader.end()),
    ],
)
def test_other_bytes_are_refused(parts: list[bytes], read: Callable[[Reader], Any]) -> None:
    with pytest.raises(WireError, match="in a message FILE but got"):
        read(reader_of(*parts))


def test_an_empty_text_is_allowed_where_the_caller_says_so() -> None:
    assert reader_of(b"\x00").text(empty=True) == ""


def test_a_seal_finds_every_changed_bit() -> None:
    sealed = sealed_frame(Kind.FILE, b"body")
    assert bytes(Reader(sealed, Kind.FILE, sealed=True).rest) == b"body"
    for place in range(6, len(sealed)):
        for bit in range(8):
            changed = bytearray(sealed)
            changed[place] ^= 1 << bit
            with pytest.raises(WireError, match="damaged"):
                Reader(changed, Kind.FILE, sealed=True)


def test_a_reader_raises_the_error_of_its_protocol() -> None:
    with pytest.raises(SecureAggregationError, match="Expected"):
        Reader(b"", Kind.KEYS, SecureAggregationError)


@pytest.mark.parametrize(
    ("text", "size"), [("a", 1), ("é", 2), ("", 0), ("\ud800", 0), (b"a", 0), (None, 0)]
)
def test_the_size_of_a_text_is_that_of_its_encoding(text: object, size: int) -> None:
    assert text_size(text) == size


@pytest.mark.parametrize(
    ("text", "message"), [("é" * 128, "at most 255 bytes but got 256"), ("\ud800", "UTF-8")]
)
def test_texts_that_no_message_can_hold_are_refused(text: str, message: str) -> None:
    with pytest.raises(WireError, match=message):
        pack_text(text)
