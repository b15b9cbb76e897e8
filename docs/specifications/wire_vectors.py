"""Test vectors of the wire format; `vectors.py` writes them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from torchmetrics_fed import DistributedDP, LocalDP, Query, Release, ScoreGrid, Share, Spec
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.counting import Table, Tree
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.release import ReleaseFlag, rice
from torchmetrics_fed.release.query import LevelWeights
from torchmetrics_fed.release.sum import Sum
from torchmetrics_fed.release.wire import pack_block

TRUSTED = DistributedDP(1.0, 3, trusted_aggregator=True)

SPECS = {
    "exact": Spec("binary", 1, ScoreGrid(bins=8)),
    "distributed": Spec("binary", 1, ScoreGrid(bins=8), TRUSTED),
    "local, one-vs-one, groups": Spec(
        "multiclass",
        3,
        ScoreGrid.from_edges([-1.0, 0.1, 2.5]),
        LocalDP(0.5, mechanism="skellam", delta=1e-6, examples_per_person=2, enforced=True),
        "ovo",
        groups=("Zürich", "Bern"),
        normalization="softmax",
        ignore_index=-100,
    ),
    "labels of a study": Spec("binary", 1, ScoreGrid(bins=8), labels=("no", "yes")),
    "labels per example": Spec("multilabel", 4, ScoreGrid(bins=8), labels_per_example=2),
    "softmax scores": Spec("multiclass", 4, ScoreGrid(bins=8), TRUSTED, sums_to_one=True),
    "hidden, two models": Spec(
        "binary",
        1,
        ScoreGrid(bins=8, kind="two_sided"),
        secure=True,
        models=("old", "new"),
        thresholds=(0.5, 0.25),
    ),
}
WEIGHTED = Query(Tree((2, 2), (0, 1, 3, 4, 8)), weights=(LevelWeights.of(4), LevelWeights.of(1)))
QUERIES = {
    "all bins": Query(Tree.flat(8)),
    "pilot": Query(Tree((4,)), 3 / 64),
    "placed leaves, weighted levels": Query(WEIGHTED.tree, 61 / 64, weights=WEIGHTED.weights),
    "weights of rows and nodes": Query(
        Tree((2, 2)),
        weights=(
            LevelWeights(negatives=(1, 2), positives=(4,)),
            LevelWeights(negatives=(1, 2, 3, 1), positives=(8, 8, 8, 7)),
        ),
    ),
    "groups added up": Query(Tree.flat(2), 1 / 1024, pools_groups=True),
    "groups and classes added up": Query(
        Tree.flat(2), 1 / 1024, pools_groups=True, pools_classes=True
    ),
    "two models, each by itself": Query(Table((2, 3), (0, 2, 4, 0, 1, 3, 4), joint=False), 0.25),
    "two models, table": Query(Table((2, 2), (0, 1, 4, 0, 3, 4))),
}
INTEGERS = {
    "small counts": [0, 3, 1, 0, 12, 1, 0, 5],
    "both signs": [0, -3, 1, 0, 12, -1, 0, 5],
    "nothing": [0] * 8,
    "two blocks, one of them empty": [0] * 64 + [1000, 999, 3],
    "two widths": [1] * 64 + [300, 255],
    "wide, so eight bytes each": [2**62, -(2**63), 2**63 - 1, -1],
}


def listed(*names: object) -> bytes:
    """Return 32 bytes that stand for random ones."""
    return hashlib.sha256(" ".join(map(str, ("vectors", *names))).encode()).digest()


def cells(name: str, query: Query, integers: list[int]) -> torch.Tensor:
    """Return integers as the cells of an answer."""
    return torch.tensor(integers).reshape(SPECS[name].shape(query))


def shares() -> dict[str, Share]:
    """One share of each encoding."""
    flat = QUERIES["all bins"]
    tree = WEIGHTED
    counts = [0, 3, 1, 0, 12, 1, 0, 5, 0, 0, 0, 2, 1, 9, 4, 0]
    noisy = [9, 30, 3, -1, 5, 2, 0, 17, 1, -2, 8, 8]
    return {
        "exact": Share(
            SPECS["exact"], flat, cells("exact", flat, counts), "1", listed("share", 0)[:16]
        ),
        "exact, some rows left out": Share(
            SPECS["exact"],
            flat,
            cells("exact", flat, counts[::-1]),
            "1",
            listed("share", 1)[:16],
            skips_bad=True,
        ),
        "with noise": Share(
            SPECS["distributed"],
            tree,
            cells("distributed", tree, noisy),
            "Runde zwölf",
            listed("share", 2)[:16],
        ),
    }


def releases() -> dict[str, Release]:
    """Releases of one query, of two, with a prior, simulated, and partial."""
    exact = [share for name, share in shares().items() if name.startswith("exact")]
    pilot = QUERIES["pilot"]
    placed = QUERIES["placed leaves, weighted levels"]
    ids = b"".join(sorted(listed("share", number)[:16] for number in range(3)))
    spec = SPECS["distributed"]
    first = Sum(spec, pilot, cells("distributed", pilot, [8, -1, 3, 40, 0, 2, 9, 7]), 3, ids)
    second = Sum(
        spec,
        placed,
        cells("distributed", placed, [20, 61, 4, -3, 9, 7, 1, 30, 2, -5, 8, 11]),
        3,
        ids,
    )
    only_query = Query(placed.tree)
    opened = Sum.of_vector(spec, only_query, second.cells.reshape(-1).numpy(), 4)
    return {
        "two exact shares": Release.sum(exact),
        "two queries": Release((first, second), "7"),
        "after secure aggregation, with a prior": Release((opened,), "8", second),
        "simulated, with a prior": Release((opened,), "8", second, flags=ReleaseFlag.SIMULATED),
        "partial": Release((first,), "9", flags=ReleaseFlag.PARTIAL),
    }


def requests() -> dict[str, Request]:
    """Requests of two stages."""
    query = bytes(QUERIES["all bins"])
    spec = SPECS["exact"].canonical
    return {
        "share": Request(Stage.SHARE, "1", query, spec=spec),
        "unmask": Request(Stage.UNMASK, "1", query, b"\x01", b"\x02\x03"),
    }


def _sealed(body: bytes) -> bytes:
    """Return a release with another body and the checksum of it."""
    return body + hashlib.sha256(body).digest()


def _flag_place() -> int:
    """Return where the flags of the release of two exact shares are."""
    release = releases()["two exact shares"]
    return 6 + 32 + 8 + len(release.spec.canonical) + 1 + len(release.round.encode())


def _spaced(body: bytes) -> bytes:
    """Return the body of a release with a space in its spec, which canonical JSON has not."""
    spec = SPECS["exact"].canonical
    spaced = spec.replace(b",", b", ", 1)
    return body[:6] + hashlib.sha256(spaced).digest() + pack_block(spaced) + body[46 + len(spec) :]


def _widened(body: bytes) -> bytes:
    """Return the body of a release with cells of eight bytes, where fewer are enough."""
    total = releases()["two exact shares"].last
    encoding, packed = rice.pack(total.cells.reshape(-1).numpy())
    end = 9 + len(packed)  # encoding, length and cells
    assert body[-end] == encoding
    return body[:-end] + b"\x00" + pack_block(total.cells.numpy().tobytes())


def _few() -> bytes:
    """Return a release whose sum holds two shares where three are needed."""
    release = releases()["partial"]
    body = bytes(release)[:-32]
    shares = (3).to_bytes(8, "little") + (1).to_bytes(2, "little")
    assert body.count(shares) == 1
    return _sealed(body.replace(shares, b"\x02" + shares[1:]))


def refused() -> list[dict[str, str]]:
    """Bytes that no reader takes."""
    query = bytes(QUERIES["all bins"])
    release = bytes(releases()["two exact shares"])
    placed = bytes(QUERIES["placed leaves, weighted levels"])
    body = release[:-32]
    flags = _flag_place()
    cases = [
        ("another magic", b"TMFE" + query[4:]),
        ("another version", query[:4] + b"\x02" + query[5:]),
        ("an unknown kind", query[:5] + b"\x63" + query[6:]),
        ("one byte short", query[:-1]),
        ("one byte too many", query + b"\x00"),
        (
            "a fraction that is no multiple of 1/1024",
            query[:6] + np.float64(0.3).tobytes() + query[14:],
        ),
        ("flags that do not go together", query[:15] + b"\x04" + query[16:]),
        ("a branching of 1", query[:16] + b"\x01" + query[17:]),
        ("a weight of 0", query[:-4] + bytes(4)),
        ("two weights of a node", query[:-8] + (2).to_bytes(4, "little") + query[-4:] * 2),
        ("edges that do not ascend", placed[:24] + placed[28:32] * 2 + placed[32:]),
        ("a release without its checksum", body),
        ("a release with one bit changed", body[:-1] + bytes([body[-1] ^ 1]) + release[-32:]),
        ("a release with the digest of another spec", _sealed(body[:6] + bytes(32) + body[38:])),
        ("a release whose spec has a space", _sealed(_spaced(body))),
        ("a release whose cells could be shorter", _sealed(_widened(body))),
        ("a release with an unknown flag", _sealed(body[:flags] + b"\x08" + body[flags + 1 :])),
        (
            "a whole release that says it is partial",
            _sealed(body[:flags] + b"\x02" + body[flags + 1 :]),
        ),
        ("a release of fewer shares than needed", _few()),
    ]
    return [{"what": fault, "hex": data.hex()} for fault, data in cases]


def vectors() -> dict[str, Any]:
    """Return the vectors of the wire format."""
    return {
        "specs": [
            {
                "name": name,
                "json": spec.canonical.decode(),
                "digest": spec.digest.hex(),
                "marks": {field: digest[:8].hex() for field, digest in spec.digests.items()},
            }
            for name, spec in SPECS.items()
        ],
        "queries": [
            {
                "name": name,
                "hex": bytes(query).hex(),
                "digest": query.digest.hex(),
                "fields": asked(query),
            }
            for name, query in QUERIES.items()
        ],
        "cells": [
            {"name": name, "integers": integers, **encoded(integers)}
            for name, integers in INTEGERS.items()
        ],
        "shares": [
            {
                "name": name,
                "hex": bytes(share).hex(),
                "fields": {
                    "spec": share.spec.canonical.decode(),
                    "query": bytes(share.query).hex(),
                    "binding": share.spec.binding(share.query).hex(),
                    "id": share.id.hex(),
                    "round": share.round,
                    "skips_bad": share.skips_bad,
                    "cells": share.cells.reshape(-1).tolist(),
                },
            }
            for name, share in shares().items()
        ],
        "releases": [
            {
                "name": name,
                "hex": bytes(release).hex(),
                "fields": {
                    "spec": release.spec.canonical.decode(),
                    "round": release.round,
                    "flags": int(release.flags),
                    "sums": [summed(part) for part in release.sums],
                    "prior": release.prior and summed(release.prior),
                },
            }
            for name, release in releases().items()
        ],
        "requests": [
            {
                "name": name,
                "hex": request.to_bytes().hex(),
                "fields": {
                    "stage": request.stage.value,
                    "round": request.round,
                    "query": request.query.hex(),
                    "message": request.message.hex(),
                    "start": request.start.hex(),
                    "spec": request.spec.decode(),
                },
            }
            for name, request in requests().items()
        ],
        "refused": refused(),
    }


def asked(query: Query) -> dict[str, Any]:
    """Return a query's fields."""
    tree = query.tree
    return {
        "fraction": query.fraction,
        "branching": list(tree.branching),
        "weights": [
            {"negatives": list(level.negatives), "positives": list(level.positives)}
            for level in query.weights
        ],
        "edges": None if tree.edges is None else list(tree.edges),
        "pools_groups": query.pools_groups,
        "pools_classes": query.pools_classes,
        "table": isinstance(tree, Table),
        "joint": isinstance(tree, Table) and tree.joint,
    }


def encoded(integers: list[int]) -> dict[str, Any]:
    """Return the encoding of integers, and their bytes."""
    encoding, packed = rice.pack(np.array(integers, dtype=np.int64))
    return {"encoding": encoding, "hex": packed.hex()}


def summed(part: Sum) -> dict[str, Any]:
    """Return the fields of a sum."""
    return {
        "query": bytes(part.query).hex(),
        "shares": part.shares,
        "times": part.times,
        "ids": [share_id.hex() for share_id in part.names],
        "cells": part.cells.reshape(-1).tolist(),
    }
