"""The test vectors of the wire format: the package writes and reads these bytes, and so does the specification alone.

A byte that changes is a new version of the wire format (docs/specifications/wire_format.md).
"""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchmetrics_fed import Query, Release, Share, Spec
from torchmetrics_fed.errors import WireError
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.release import ReleaseFlag, rice
from torchmetrics_fed.release.wire import Kind, kind_of

FOLDER = Path(__file__).parents[2] / "docs" / "specifications"
VECTORS: dict[str, Any] = json.loads(
    (FOLDER / "vectors" / "wire_format.json").read_text(encoding="utf-8")
)
FIELDS = ["version", "task", "classes", "multi_class", "normalization", "ignore_index", "labels"]
FIELDS += ["labels_per_example", "secure", "groups", "models"]
FIELDS += ["grid", "bins", "score_range", "score_edges", "privacy"]


def each(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "vector", VECTORS[kind], ids=lambda vector: vector.get("name", vector.get("what"))
    )


def test_the_script_writes_what_is_committed(tmp_path: Path) -> None:
    """Run `python docs/specifications/vectors.py` for a new version of the wire format, and for nothing else."""
    subprocess.run([sys.executable, str(FOLDER / "vectors.py"), str(tmp_path)], check=True)
    for name in ("wire_format.json", "secure_aggregation.json"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (
            FOLDER / "vectors" / name
        ).read_text(encoding="utf-8")


@each("specs")
def test_specs_are_read_and_written(vector: dict[str, Any]) -> None:
    spec = Spec.from_canonical(vector["json"].encode())
    assert spec.canonical.decode() == vector["json"]
    assert spec.digest.hex() == vector["digest"]


@each("queries")
def test_queries_are_read_and_written(vector: dict[str, Any]) -> None:
    query, fields = Query.from_bytes(bytes.fromhex(vector["hex"])), vector["fields"]
    assert bytes(query).hex() == vector["hex"]
    assert query.digest.hex() == vector["digest"]
    assert (query.fraction, list(query.tree.branching)) == (fields["fraction"], fields["branching"])
    assert (query.tree.edges and list(query.tree.edges)) == fields["edges"]
    assert query.pools_groups == fields["pools_groups"]
    assert query.pools_classes == fields["pools_classes"]
    for level, weights in zip(query.weights, fields["weights"], strict=True):
        assert list(level.negatives) == weights["negatives"]
        assert list(level.positives) == weights["positives"]


@each("cells")
def test_cells_are_read_and_written(vector: dict[str, Any]) -> None:
    integers, packed = np.array(vector["integers"], dtype=np.int64), bytes.fromhex(vector["hex"])
    assert rice.pack(integers) == (vector["encoding"], packed)
    assert rice.unpack(vector["encoding"], packed, integers.size).tolist() == vector["integers"]


@each("shares")
def test_shares_are_read_and_written(vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    spec, query = (
        Spec.from_canonical(fields["spec"].encode()),
        Query.from_bytes(bytes.fromhex(fields["query"])),
    )
    share = Share.from_bytes(bytes.fromhex(vector["hex"]), spec, query)
    assert bytes(share).hex() == vector["hex"]
    assert share.cells.reshape(-1).tolist() == fields["cells"]
    assert (share.id.hex(), share.round, share.skips_bad) == (
        fields["id"],
        fields["round"],
        fields["skips_bad"],
    )


@each("releases")
def test_releases_are_read_and_written(vector: dict[str, Any]) -> None:
    release, fields = Release.from_bytes(bytes.fromhex(vector["hex"])), vector["fields"]
    assert bytes(release).hex() == vector["hex"]
    assert (release.spec.canonical.decode(), release.round) == (fields["spec"], fields["round"])
    assert release.flags == fields["flags"]
    assert all(part.flags == release.flags & ReleaseFlag.ROWS_SKIPPED for part in release.sums)
    prior = [] if release.prior is None else [release.prior]
    for found, expected in zip((*release.sums, *prior), sums_of(fields), strict=True):
        assert (bytes(found.query).hex(), found.shares, found.times) == tuple(
            list(expected.values())[:3]
        )
        assert [name.hex() for name in found.names] == expected["ids"]
        assert found.cells.reshape(-1).tolist() == expected["cells"]


@each("requests")
def test_requests_are_read_and_written(vector: dict[str, Any]) -> None:
    asked, fields = Request.from_bytes(bytes.fromhex(vector["hex"])), vector["fields"]
    assert asked.to_bytes().hex() == vector["hex"]
    assert (asked.stage.value, asked.round, asked.query.hex()) == (
        fields["stage"],
        fields["round"],
        fields["query"],
    )
    assert (asked.message.hex(), asked.start.hex()) == (fields["message"], fields["start"])
    assert asked.spec.decode() == fields["spec"]


@each("refused")
def test_what_is_refused(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    with pytest.raises(WireError):
        (Release if data[5] == 3 else Query).from_bytes(data)


@each("queries")
def test_every_changed_byte_of_a_query_is_another_query_or_none(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        try:
            assert bytes(Query.from_bytes(changed)) == changed
        except WireError:
            continue


def test_kinds_have_the_numbers_of_the_specification() -> None:
    table = (FOLDER / "wire_format.md").read_text(encoding="utf-8")
    assert all(f"| {kind.value} | `{kind.name}` |" in table for kind in Kind)
    assert kind_of(bytes.fromhex(VECTORS["requests"][0]["hex"])) is Kind.STAGE_REQUEST


def sums_of(fields: dict[str, Any]) -> list[dict[str, Any]]:
    return [*fields["sums"], *([fields["prior"]] if fields["prior"] else [])]


class Slow:
    """A reader and a writer made from the specification alone, byte by byte."""

    def __init__(self, data: bytes, kind: int) -> None:
        assert data[:6] == b"TMFD" + bytes([3, kind])
        self.data, self.at = data, 6

    def take(self, size: int) -> bytes:
        self.at += size
        assert self.at <= len(self.data)
        return self.data[self.at - size : self.at]

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
        places = sum(branching) + 2 if table else leaves + 1
        edges = self.numbers(places) if flags & 1 else None
        weights = []
        for _ in range(1 if joint else levels):
            negatives = self.numbers(self.number(4))
            positives = self.numbers(self.number(4))
            weights.append({"negatives": negatives, "positives": positives})
        assert self.at == len(self.data)
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

    def summed(self, spec: dict[str, Any]) -> dict[str, Any]:
        query, shares, times, ids, how = (
            self.block(),
            self.number(8),
            self.number(2),
            self.block(),
            self.number(1),
        )
        names = [ids[start : start + 16].hex() for start in range(0, len(ids), 16)]
        return {
            "query": query.hex(),
            "shares": shares,
            "times": times,
            "ids": names,
            "cells": slow_cells(how, self.block(), cells_of(spec, query)),
        }


def cells_of(spec: dict[str, Any], query: bytes) -> int:
    fields, size, levels = Slow(query, 1).query(), 1, []
    for children in fields["branching"]:
        size *= children
        levels.append(size)
    cells = sum(levels)
    if fields["table"]:
        cells = size if fields["joint"] else sum(fields["branching"])
    groups = 1 if fields["pools_groups"] else max(len(spec["groups"]), 1)
    classes = 1 if fields["pools_classes"] else spec["classes"]
    rows = spec["classes"] if spec["multi_class"] == "ovo" else 2
    return int(groups * classes * rows * cells)


def slow_cells(how: int, packed: bytes, size: int) -> list[int]:
    if how == 0:
        return list(struct.unpack(f"<{size}q", packed))
    flat: list[int] = []
    for start in range(0, size, 65536):
        part, packed = slow_part(packed, min(size - start, 65536))
        flat += part
    assert not packed
    return (
        flat
        if how == 1
        else [value >> 1 if value % 2 == 0 else -(value >> 1) - 1 for value in flat]
    )


def slow_part(packed: bytes, size: int) -> tuple[list[int], bytes]:
    """The values of one part, and the bytes behind it."""
    blocks = -(-size // 64)
    widths, at = list(packed[:blocks]), blocks
    values = [[0] * 64 for _ in widths]
    for bit in range(max(widths)):
        for block, width in enumerate(widths):
            if width > bit:
                for place in range(64):
                    values[block][place] |= (packed[at + place // 8] >> (7 - place % 8) & 1) << bit
                at += 8
    bits = iter("".join(f"{byte:08b}" for byte in packed[at:]))
    read = 0
    for block, width in enumerate(widths):
        for place in range(64):
            zeros = 0
            while next(bits) == "0":
                zeros += 1
            read += zeros + 1
            values[block][place] |= zeros << width
    end = at + -(-read // 8)
    assert all(next(bits) == "0" for _ in range(8 * (end - at) - read))
    return [value for block in values for value in block][:size], packed[end:]


def slow_code(integers: list[int]) -> tuple[int, bytes]:
    how = 1 if min(integers) >= 0 else 2
    values = integers if how == 1 else [2 * n if n >= 0 else -2 * n - 1 for n in integers]
    parts = [values[start : start + 65536] for start in range(0, len(values), 65536)]
    least = 3 if len(parts) > 1 else 0
    packed = b"".join(slow_part_code(part, least) for part in parts)
    return (
        (how, packed)
        if len(packed) < 8 * len(integers)
        else (0, struct.pack(f"<{len(integers)}q", *integers))
    )


def slow_part_code(values: list[int], least: int) -> bytes:
    values = values + [0] * (-len(values) % 64)
    blocks = [values[start : start + 64] for start in range(0, len(values), 64)]
    widths = [max((sum(block) // 64).bit_length() - 1, least) for block in blocks]
    wide = list(zip(blocks, widths, strict=True))
    planes = "".join(
        str(value >> bit & 1)
        for bit in range(64)
        for block, width in wide
        if width > bit
        for value in block
    )
    unary = "".join("0" * (value >> width) + "1" for block, width in wide for value in block)
    bits = planes + unary + "0" * (-len(unary) % 8)
    return bytes(widths) + bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def plain(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@each("specs")
def test_the_specification_is_enough_for_specs(vector: dict[str, Any]) -> None:
    fields = json.loads(vector["json"])
    assert plain(fields).decode() == vector["json"]
    assert sha(plain(fields)).hex() == vector["digest"]
    assert vector["marks"] == {name: sha(plain(fields[name]))[:8].hex() for name in FIELDS}
    assert list(vector["marks"]) == FIELDS


@each("queries")
def test_the_specification_is_enough_for_queries(vector: dict[str, Any]) -> None:
    data, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    assert Slow(data, 1).query() == fields
    flags = int(fields["edges"] is not None) + 2 * fields["pools_groups"] + 4 * fields["table"]
    flags += 8 * fields["joint"] + 16 * fields["pools_classes"]
    levels = len(fields["branching"])
    body = struct.pack(f"<dBB{levels}I", fields["fraction"], levels, flags, *fields["branching"])
    body += struct.pack(f"<{len(fields['edges'] or [])}I", *(fields["edges"] or []))
    for level in fields["weights"]:
        for row in (level["negatives"], level["positives"]):
            body += struct.pack(f"<{1 + len(row)}I", len(row), *row)
    assert b"TMFD\x03\x01" + body == data
    assert sha(data).hex() == vector["digest"]


@each("cells")
def test_the_specification_is_enough_for_cells(vector: dict[str, Any]) -> None:
    integers = vector["integers"]
    assert slow_code(integers) == (vector["encoding"], bytes.fromhex(vector["hex"]))
    assert slow_cells(vector["encoding"], bytes.fromhex(vector["hex"]), len(integers)) == integers


@each("shares")
def test_the_specification_is_enough_for_shares(vector: dict[str, Any]) -> None:
    reader, fields = Slow(bytes.fromhex(vector["hex"]), 2), vector["fields"]
    spec, query = json.loads(fields["spec"]), bytes.fromhex(fields["query"])
    assert (
        reader.take(32)
        == sha(sha(fields["spec"].encode()) + sha(query))
        == bytes.fromhex(fields["binding"])
    )
    assert [reader.take(8) for _ in range(reader.number(1))] == [
        sha(plain(spec[name]))[:8] for name in FIELDS
    ]
    assert reader.take(16).hex() == fields["id"]
    assert reader.text() == fields["round"]
    assert reader.number(1) == 4 * fields["skips_bad"]
    how = reader.number(1)
    assert slow_cells(how, reader.data[reader.at :], cells_of(spec, query)) == fields["cells"]
    assert spec["privacy"] == {"kind": "Exact"} or how == 0


@each("releases")
def test_the_specification_is_enough_for_releases(vector: dict[str, Any]) -> None:
    data, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    assert sha(data[:-32]) == data[-32:]
    reader = Slow(data[:-32], 3)
    digest, spec = reader.take(32), reader.block()
    assert (digest, spec.decode(), reader.text()) == (sha(spec), fields["spec"], fields["round"])
    assert reader.number(1) == fields["flags"]
    count, prior = reader.number(1), reader.number(1)
    assert (count, prior) == (len(fields["sums"]), fields["prior"] is not None)
    assert [reader.summed(json.loads(spec)) for _ in range(count + prior)] == sums_of(fields)
    assert reader.at == len(reader.data)


@each("requests")
def test_the_specification_is_enough_for_requests(vector: dict[str, Any]) -> None:
    reader, fields = Slow(bytes.fromhex(vector["hex"]), 4), vector["fields"]
    assert (reader.number(1), reader.text()) == (fields["stage"], fields["round"])
    assert [reader.block().hex() for _ in range(3)] == [
        fields[name] for name in ("query", "message", "start")
    ]
    assert reader.block().decode() == fields["spec"]
    assert reader.at == len(reader.data)


def test_the_specification_is_enough_for_several_parts() -> None:
    """More cells than a vector on a page can have: in a list of several parts no width is below 3."""
    integers = [0, 1, 0, 700] * 16_384 + [3, 0, -1]
    how, packed = rice.pack(np.array(integers, dtype=np.int64))
    assert slow_code(integers) == (how, packed)
    assert slow_cells(how, packed, len(integers)) == integers
    assert slow_code(integers[:65_536])[1] == rice.pack(np.array(integers[:65_536]))[1]
