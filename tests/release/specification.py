"""A reader and a writer of the wire format, made from its specification alone, byte by byte.

It uses nothing of the package: docs/specifications/wire_format.md must be enough.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

__all__ = [
    "FIELDS",
    "SlowReader",
    "canonical",
    "decoded",
    "encoded",
    "number_of_cells",
    "query_bytes",
    "sha",
]

FIELDS = [
    "version",
    "task",
    "classes",
    "multi_class",
    "normalization",
    "ignore_index",
    "labels",
    "labels_per_example",
    "sums_to_one",
    "secure",
    "groups",
    "models",
    "grid",
    "bins",
    "score_range",
    "score_edges",
    "privacy",
]
"""The fields of a spec, in the order of their marks."""


def sha(data: bytes) -> bytes:
    """Return the SHA-256."""
    return hashlib.sha256(data).digest()


def canonical(value: Any) -> bytes:
    """Return a value as the one JSON that is allowed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class SlowReader:
    """Reads a message of one kind."""

    def __init__(self, data: bytes, kind: int) -> None:
        assert data[:6] == b"TMFD" + bytes([3, kind])
        self.data = data
        self.position = 6

    def take(self, size: int) -> bytes:
        start = self.position
        self.position += size
        assert self.position <= len(self.data)
        return self.data[start : self.position]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def numbers(self, count: int) -> list[int]:
        return list(struct.unpack(f"<{count}I", self.take(4 * count)))

    def text(self) -> str:
        return self.take(self.number(1)).decode()

    def block(self) -> bytes:
        return self.take(self.number(8))

    def query(self) -> dict[str, Any]:
        fraction, levels, flags = struct.unpack("<dBB", self.take(10))
        branching = self.numbers(levels)
        leaves = 1
        for children in branching:
            leaves *= children
        table = bool(flags & 4)
        joint = bool(flags & 8)
        edges = None
        if flags & 1:
            places = sum(branching) + 2 if table else leaves + 1
            edges = self.numbers(places)
        weights = []
        for _ in range(1 if joint else levels):
            negatives = self.numbers(self.number(4))
            positives = self.numbers(self.number(4))
            weights.append({"negatives": negatives, "positives": positives})
        assert self.position == len(self.data)
        return {
            "fraction": fraction,
            "branching": branching,
            "weights": weights,
            "edges": edges,
            "pools_groups": bool(flags & 2),
            "pools_classes": bool(flags & 16),
            "table": table,
            "joint": joint,
        }

    def sum(self, spec: dict[str, Any]) -> dict[str, Any]:
        query = self.block()
        shares = self.number(8)
        times = self.number(2)
        ids = self.block()
        encoding = self.number(1)
        return {
            "query": query.hex(),
            "shares": shares,
            "times": times,
            "ids": [ids[start : start + 16].hex() for start in range(0, len(ids), 16)],
            "cells": decoded(encoding, self.block(), number_of_cells(spec, query)),
        }


def query_bytes(fields: dict[str, Any]) -> bytes:
    """Return the bytes of a query."""
    flags = 2 * fields["pools_groups"] + 4 * fields["table"]
    flags += 8 * fields["joint"] + 16 * fields["pools_classes"]
    edges = fields["edges"] or []
    if edges:
        flags += 1
    branching = fields["branching"]
    body = struct.pack("<dBB", fields["fraction"], len(branching), flags)
    body += struct.pack(f"<{len(branching)}I", *branching)
    body += struct.pack(f"<{len(edges)}I", *edges)
    for level in fields["weights"]:
        for row in (level["negatives"], level["positives"]):
            body += struct.pack(f"<{1 + len(row)}I", len(row), *row)
    return b"TMFD\x03\x01" + body


def number_of_cells(spec: dict[str, Any], query: bytes) -> int:
    """Return the number of cells of a reply to a query."""
    fields = SlowReader(query, 1).query()
    nodes = 1
    sizes = []
    for children in fields["branching"]:
        nodes *= children
        sizes.append(nodes)
    cells = sum(sizes)
    if fields["table"]:
        cells = nodes if fields["joint"] else sum(fields["branching"])
    groups = 1 if fields["pools_groups"] else max(len(spec["groups"]), 1)
    classes = 1 if fields["pools_classes"] else spec["classes"]
    rows = spec["classes"] if spec["multi_class"] == "ovo" else 2
    return int(groups * classes * rows * cells)


def decoded(encoding: int, packed: bytes, size: int) -> list[int]:
    """Return the integers of a code."""
    if encoding == 0:
        return list(struct.unpack(f"<{size}q", packed))
    values: list[int] = []
    for start in range(0, size, 65536):
        part, packed = _decoded_part(packed, min(size - start, 65536))
        values += part
    assert not packed
    if encoding == 1:
        return values
    return [_unzigzagged(value) for value in values]


def encoded(integers: list[int]) -> tuple[int, bytes]:
    """Return the encoding of integers, and their code."""
    encoding = 1
    values = integers
    if min(integers) < 0:
        encoding = 2
        values = [_zigzagged(integer) for integer in integers]
    parts = [values[start : start + 65536] for start in range(0, len(values), 65536)]
    least_width = 3 if len(parts) > 1 else 0
    packed = b"".join(_encoded_part(part, least_width) for part in parts)
    if len(packed) < 8 * len(integers):
        return encoding, packed
    return 0, struct.pack(f"<{len(integers)}q", *integers)


def _zigzagged(integer: int) -> int:
    if integer >= 0:
        return 2 * integer
    return -2 * integer - 1


def _unzigzagged(value: int) -> int:
    if value % 2 == 0:
        return value >> 1
    return -(value >> 1) - 1


def _decoded_part(packed: bytes, size: int) -> tuple[list[int], bytes]:
    """Return the values of one part, and the bytes behind it."""
    blocks = -(-size // 64)
    widths = list(packed[:blocks])
    position = blocks
    values = [[0] * 64 for _ in widths]
    for bit in range(max(widths)):
        for block, width in enumerate(widths):
            if width <= bit:
                continue
            for place in range(64):
                byte = packed[position + place // 8]
                values[block][place] |= (byte >> (7 - place % 8) & 1) << bit
            position += 8
    bits = iter("".join(f"{byte:08b}" for byte in packed[position:]))
    used = 0
    for block, width in enumerate(widths):
        for place in range(64):
            zeros = 0
            while next(bits) == "0":
                zeros += 1
            used += zeros + 1
            values[block][place] |= zeros << width
    end = position + -(-used // 8)
    assert all(next(bits) == "0" for _ in range(8 * (end - position) - used))
    flat = [value for block_values in values for value in block_values]
    return flat[:size], packed[end:]


def _encoded_part(values: list[int], least_width: int) -> bytes:
    padded = values + [0] * (-len(values) % 64)
    blocks = [padded[start : start + 64] for start in range(0, len(padded), 64)]
    widths = [max((sum(block) // 64).bit_length() - 1, least_width) for block in blocks]
    bits = ""
    for bit in range(64):
        for block, width in zip(blocks, widths, strict=True):
            if width > bit:
                bits += "".join(str(value >> bit & 1) for value in block)
    for block, width in zip(blocks, widths, strict=True):
        bits += "".join("0" * (value >> width) + "1" for value in block)
    bits += "0" * (-len(bits) % 8)
    return bytes(widths) + bytes(
        int(bits[start : start + 8], 2) for start in range(0, len(bits), 8)
    )
