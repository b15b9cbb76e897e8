"""The test vectors of the wire format: the package and the specification alone give these bytes.

A byte that changes is a new version of the wire format (docs/specifications/wire_format.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.release import specification
from tests.release.specification import FIELDS, SlowReader, canonical, sha
from torchmetrics_fed import Query, Release, Share, Spec
from torchmetrics_fed.errors import WireError
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.release import ReleaseFlag, Sum, rice
from torchmetrics_fed.release.wire import Kind, kind_of

FOLDER = Path(__file__).parents[2] / "docs" / "specifications"
VECTORS: dict[str, Any] = json.loads(
    (FOLDER / "vectors" / "wire_format.json").read_text(encoding="utf-8")
)


def vectors(kind: str) -> pytest.MarkDecorator:
    """Run a test on every vector of a kind."""
    names = [vector.get("name", vector.get("what")) for vector in VECTORS[kind]]
    return pytest.mark.parametrize("vector", VECTORS[kind], ids=names)


def bytes_of(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["hex"])


def sums_of(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sums of a release, and the prior."""
    if fields["prior"]:
        return [*fields["sums"], fields["prior"]]
    return list(fields["sums"])


def test_the_script_writes_the_committed_vectors(tmp_path: Path) -> None:
    """Run `python docs/specifications/vectors.py` only for a new version of the wire format."""
    subprocess.run([sys.executable, str(FOLDER / "vectors.py"), str(tmp_path)], check=True)
    for name in ("wire_format.json", "secure_aggregation.json"):
        written = (tmp_path / name).read_text(encoding="utf-8")
        assert written == (FOLDER / "vectors" / name).read_text(encoding="utf-8")


@vectors("specs")
def test_specs_are_read_and_written(vector: dict[str, Any]) -> None:
    spec = Spec.from_canonical(vector["json"].encode())
    assert spec.canonical.decode() == vector["json"]
    assert spec.digest.hex() == vector["digest"]


@vectors("queries")
def test_queries_are_read_and_written(vector: dict[str, Any]) -> None:
    query = Query.from_bytes(bytes_of(vector))
    assert bytes(query).hex() == vector["hex"]
    assert query.digest.hex() == vector["digest"]
    fields = vector["fields"]
    assert query.fraction == fields["fraction"]
    assert list(query.tree.branching) == fields["branching"]
    assert list(query.tree.edges or []) == (fields["edges"] or [])
    assert query.pools_groups == fields["pools_groups"]
    assert query.pools_classes == fields["pools_classes"]
    for level, weights in zip(query.weights, fields["weights"], strict=True):
        assert list(level.negatives) == weights["negatives"]
        assert list(level.positives) == weights["positives"]


@vectors("cells")
def test_cells_are_read_and_written(vector: dict[str, Any]) -> None:
    integers = np.array(vector["integers"], dtype=np.int64)
    packed = bytes_of(vector)
    assert rice.pack(integers) == (vector["encoding"], packed)
    assert rice.unpack(vector["encoding"], packed, integers.size).tolist() == vector["integers"]


@vectors("shares")
def test_shares_are_read_and_written(vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    spec = Spec.from_canonical(fields["spec"].encode())
    query = Query.from_bytes(bytes.fromhex(fields["query"]))
    share = Share.from_bytes(bytes_of(vector), spec, query)
    assert bytes(share).hex() == vector["hex"]
    assert share.cells.reshape(-1).tolist() == fields["cells"]
    assert share.id.hex() == fields["id"]
    assert share.round == fields["round"]
    assert share.skips_bad == fields["skips_bad"]


@vectors("releases")
def test_releases_are_read_and_written(vector: dict[str, Any]) -> None:
    release = Release.from_bytes(bytes_of(vector))
    fields = vector["fields"]
    assert bytes(release).hex() == vector["hex"]
    assert release.spec.canonical.decode() == fields["spec"]
    assert release.round == fields["round"]
    assert release.flags == fields["flags"]
    for total in release.sums:
        assert total.flags == release.flags & ReleaseFlag.ROWS_SKIPPED
    totals = list(release.sums)
    if release.prior is not None:
        totals.append(release.prior)
    assert [fields_of(total) for total in totals] == sums_of(fields)


def fields_of(total: Sum) -> dict[str, Any]:
    return {
        "query": bytes(total.query).hex(),
        "shares": total.shares,
        "times": total.times,
        "ids": [name.hex() for name in total.names],
        "cells": total.cells.reshape(-1).tolist(),
    }


@vectors("requests")
def test_requests_are_read_and_written(vector: dict[str, Any]) -> None:
    request = Request.from_bytes(bytes_of(vector))
    assert request.to_bytes().hex() == vector["hex"]
    assert vector["fields"] == {
        "stage": request.stage.value,
        "round": request.round,
        "query": request.query.hex(),
        "message": request.message.hex(),
        "start": request.start.hex(),
        "spec": request.spec.decode(),
    }


@vectors("refused")
def test_refused_bytes_are_refused(vector: dict[str, Any]) -> None:
    data = bytes_of(vector)
    reader = Release if data[5] == Kind.RELEASE else Query
    with pytest.raises(WireError):
        reader.from_bytes(data)


@vectors("queries")
def test_every_changed_byte_of_a_query_is_another_query_or_none(vector: dict[str, Any]) -> None:
    data = bytes_of(vector)
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        try:
            query = Query.from_bytes(changed)
        except WireError:
            continue
        assert bytes(query) == changed


def test_kinds_have_the_numbers_of_the_specification() -> None:
    table = (FOLDER / "wire_format.md").read_text(encoding="utf-8")
    for kind in Kind:
        assert f"| {kind.value} | `{kind.name}` |" in table
    assert kind_of(bytes_of(VECTORS["requests"][0])) is Kind.STAGE_REQUEST


@vectors("specs")
def test_the_specification_is_enough_for_specs(vector: dict[str, Any]) -> None:
    fields = json.loads(vector["json"])
    assert canonical(fields).decode() == vector["json"]
    assert sha(canonical(fields)).hex() == vector["digest"]
    marks = {name: sha(canonical(fields[name]))[:8].hex() for name in FIELDS}
    assert vector["marks"] == marks
    assert list(vector["marks"]) == FIELDS


@vectors("queries")
def test_the_specification_is_enough_for_queries(vector: dict[str, Any]) -> None:
    data = bytes_of(vector)
    fields = vector["fields"]
    assert SlowReader(data, Kind.QUERY).query() == fields
    assert specification.query_bytes(fields) == data
    assert sha(data).hex() == vector["digest"]


@vectors("cells")
def test_the_specification_is_enough_for_cells(vector: dict[str, Any]) -> None:
    integers = vector["integers"]
    packed = bytes_of(vector)
    assert specification.encoded(integers) == (vector["encoding"], packed)
    assert specification.decoded(vector["encoding"], packed, len(integers)) == integers


@vectors("shares")
def test_the_specification_is_enough_for_shares(vector: dict[str, Any]) -> None:
    reader = SlowReader(bytes_of(vector), Kind.SHARE)
    fields = vector["fields"]
    spec = json.loads(fields["spec"])
    query = bytes.fromhex(fields["query"])
    binding = sha(sha(fields["spec"].encode()) + sha(query))
    assert reader.take(32) == binding == bytes.fromhex(fields["binding"])
    marks = [reader.take(8) for _ in range(reader.number(1))]
    assert marks == [sha(canonical(spec[name]))[:8] for name in FIELDS]
    assert reader.take(16).hex() == fields["id"]
    assert reader.text() == fields["round"]
    assert reader.number(1) == 4 * fields["skips_bad"]
    encoding = reader.number(1)
    packed = reader.data[reader.position :]
    size = specification.number_of_cells(spec, query)
    assert specification.decoded(encoding, packed, size) == fields["cells"]
    is_exact = spec["privacy"] == {"kind": "Exact"}
    assert is_exact or encoding == rice.FIXED


@vectors("releases")
def test_the_specification_is_enough_for_releases(vector: dict[str, Any]) -> None:
    data = bytes_of(vector)
    assert sha(data[:-32]) == data[-32:]
    reader = SlowReader(data[:-32], Kind.RELEASE)
    fields = vector["fields"]
    digest = reader.take(32)
    spec = reader.block()
    assert digest == sha(spec)
    assert spec.decode() == fields["spec"]
    assert reader.text() == fields["round"]
    assert reader.number(1) == fields["flags"]
    assert reader.number(1) == len(fields["sums"])
    assert reader.number(1) == (fields["prior"] is not None)
    for expected in sums_of(fields):
        assert reader.sum(json.loads(spec)) == expected
    assert reader.position == len(reader.data)


@vectors("requests")
def test_the_specification_is_enough_for_requests(vector: dict[str, Any]) -> None:
    reader = SlowReader(bytes_of(vector), Kind.STAGE_REQUEST)
    fields = vector["fields"]
    assert reader.number(1) == fields["stage"]
    assert reader.text() == fields["round"]
    for name in ("query", "message", "start"):
        assert reader.block().hex() == fields[name]
    assert reader.block().decode() == fields["spec"]
    assert reader.position == len(reader.data)


def test_the_specification_is_enough_for_several_parts() -> None:
    """These are more cells than a vector has: in a list of several parts no width is below 3."""
    integers = [0, 1, 0, 700] * 16_384 + [3, 0, -1]
    encoding, packed = rice.pack(np.array(integers, dtype=np.int64))
    assert specification.encoded(integers) == (encoding, packed)
    assert specification.decoded(encoding, packed, len(integers)) == integers
    first_part = integers[:65_536]
    assert specification.encoded(first_part) == rice.pack(np.array(first_part))
