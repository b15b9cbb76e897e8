"""Spec: two specs that differ anywhere have different digests, and the difference is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import torch

from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    InputError,
    LocalDP,
    Privacy,
    Query,
    ScoreGrid,
    Spec,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import SpecMismatchError, WireError

VARIANTS = {
    "base": Spec("binary", 1, ScoreGrid()),
    "bins": Spec("binary", 1, ScoreGrid(bins=64)),
    "score_range": Spec("binary", 1, ScoreGrid(score_range=(0.0, 1.0 + 2**-52))),
    "score_edges": Spec("binary", 1, ScoreGrid.from_edges([0.0, 0.3, 1.0])),
    "task": Spec("multilabel", 1, ScoreGrid()),
    "classes": Spec("multilabel", 2, ScoreGrid()),
    "multi_class": Spec("multiclass", 3, ScoreGrid(), multi_class="ovo"),
    "privacy": Spec("binary", 1, ScoreGrid(), CentralDP(1.0)),
    "secure": Spec("binary", 1, ScoreGrid(), secure=True),
    "normalization": Spec("binary", 1, ScoreGrid(), normalization="sigmoid"),
    "ignore_index": Spec("binary", 1, ScoreGrid(), ignore_index=-1),
    "labels": Spec("binary", 1, ScoreGrid(), labels=("no", "yes")),
    "order of labels": Spec("binary", 1, ScoreGrid(), labels=("yes", "no")),
    "labels_per_example": Spec("multilabel", 4, ScoreGrid(), labels_per_example=2),
    "sums_to_one": Spec("multiclass", 4, ScoreGrid(), CentralDP(1.0), sums_to_one=True),
}


def test_every_field_moves_the_digest() -> None:
    for spec, variant in combinations(VARIANTS.values(), 2):
        assert spec.digest != variant.digest
    assert Spec("binary", 1, ScoreGrid()).digest == VARIANTS["base"].digest


@pytest.mark.parametrize("field", [name for name in VARIANTS if name != "base"])
def test_a_mismatch_names_its_field(field: str) -> None:
    with pytest.raises(SpecMismatchError, match=field.removeprefix("order of ")):
        VARIANTS["base"].check(VARIANTS[field])


def test_arguments_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(InputError, match="task"):
        Spec("regression", 1, ScoreGrid())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="num_classes"):
        Spec("multiclass", 1, ScoreGrid())
    with pytest.raises(InputError, match="multi_class"):
        Spec("multilabel", 4, ScoreGrid(), multi_class="ovo")
    with pytest.raises(InputError, match="privacy"):
        Spec("binary", 1, ScoreGrid(), "a lot")  # type: ignore[arg-type]
    for privacy in PRIVACIES:
        with pytest.raises(InputError, match="`secure` only with `privacy=None`"):
            Spec("binary", 1, ScoreGrid(), privacy, secure=True)


def test_queries_that_do_not_fit_the_grid_or_the_privacy_are_refused() -> None:
    spec = Spec("binary", 1, ScoreGrid(), CentralDP(1.0))
    for tree in (Tree((3,)), Tree((2,), (0, 5, 4095)), Tree((2,), (0, 5, 4097))):
        with pytest.raises(InputError, match="whole bins"):
            spec.check_query(Query(tree))
    with pytest.raises(InputError, match="no epsilon to divide"):
        VARIANTS["base"].check_query(Query(Tree.flat(4096), 0.5))


QUERIES = {
    "base": Query(Tree((64, 64))),
    "fraction": Query(Tree((64, 64)), 1023 / 1024),
    "branching": Query(Tree((64, 32, 2))),
    "flat": Query(Tree((4096,))),
    "edges": Query(Tree((64, 64), tuple(range(4097)))),  # the same leaves, named otherwise
    "places": Query(Tree((2,), (0, 1, 4096))),
    "other places": Query(Tree((2,), (0, 2, 4096))),
}


def test_a_reply_is_bound_to_all_of_spec_and_query() -> None:
    """Two pairs that differ anywhere, also in the fraction, have different bindings of 256 bits."""
    bindings = [spec.binding(query) for spec in VARIANTS.values() for query in QUERIES.values()]
    assert all(len(binding) == 32 for binding in bindings)
    for start in range(0, 32, 4):  # every four bytes of it depend on everything
        assert len({binding[start : start + 4] for binding in bindings}) == len(bindings)
    received = Query.from_bytes(bytes(QUERIES["fraction"]))
    binding = Spec("binary", 1, ScoreGrid()).binding(received)
    assert binding == VARIANTS["base"].binding(QUERIES["fraction"])


PRIVACIES: list[Privacy] = [
    CentralDP(1.0),
    LocalDP(0.3, examples_per_person=4),
    DistributedDP(0.7, min_clients=5, max_colluding=2),
    DistributedDP(0.7, min_clients=5, trusted_aggregator=True, mechanism="skellam", delta=1e-6),
]
SPECS = [*VARIANTS.values(), *(Spec("binary", 1, ScoreGrid(), privacy) for privacy in PRIVACIES)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.digest.hex()[:8])
def test_the_canonical_encoding_comes_back(spec: Spec) -> None:
    copy = Spec.from_canonical(spec.canonical)
    assert copy == spec
    assert copy.digest == spec.digest


def encodings(spec: Spec) -> Iterator[bytes]:
    """Yield other JSON of the same fields, and JSON in which one value has another type."""
    fields = spec.fields
    yield json.dumps(fields, sort_keys=True).encode()
    yield json.dumps(dict(reversed(fields.items())), separators=(",", ":")).encode()
    yield spec.canonical + b" "
    yield spec.canonical[:-1] + b',"zzz":1}'
    yield spec.canonical.replace(b'"task"', b'"\\u0074ask"')
    yield spec.canonical.replace(b'"task":', b'"task":"binary","task":')
    paths: list[tuple[str, ...]] = [(name,) for name in fields]
    paths += [("privacy", name) for name in fields["privacy"] or ()]
    for path in paths:
        yield from retyped(fields, path)


def retyped(fields: dict[str, Any], path: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the JSON of the fields, with values of other types at one path."""
    changed = json.loads(json.dumps(fields))
    parent = changed
    for name in path[:-1]:
        parent = parent[name]
    value = parent[path[-1]]
    replacements: list[Any] = [{}]
    if not isinstance(value, list):
        replacements.append([])
    if isinstance(value, int):  # a bool is an int, too
        replacements += [int(value), float(value), str(value), bool(value)]
    if isinstance(value, str):
        replacements += [[value], value.upper(), f" {value}"]
    for replacement in replacements:
        parent[path[-1]] = replacement
        yield json.dumps(changed, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.digest.hex()[:8])
def test_a_spec_has_one_encoding_and_strict_types(spec: Spec) -> None:
    for encoding in encodings(spec):
        if encoding != spec.canonical:
            with pytest.raises(WireError, match="Expected"):
                Spec.from_canonical(encoding)


HOSTILE = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"[" * 100_000,
    b"9" * 100_000,
    b'{"privacy":null}',
    b"\xff\xfe",
]


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: repr(data[:12]))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="Expected"):
        Spec.from_canonical(data)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"bins":4096', b'"bins":1208925819614629174706176'),
        (b'"bins":4096', b'"bins":0'),
        (b'"bins":4096', b'"bins":-4096'),
        (b'"classes":1', b'"classes":1e400'),
        (b'"0x1.0000000000000p+0"', b'"0x1p9999"'),
        (b'"0x1.0000000000000p+0"', b'"nan"'),
        (b'"0x1.0000000000000p+0"', b'"inf"'),
        (b'"version":4', b'"version":5'),
    ],
)
def test_values_that_no_spec_has_are_refused(old: bytes, new: bytes) -> None:
    canonical = VARIANTS["base"].canonical
    assert old in canonical
    with pytest.raises(WireError, match="Expected"):
        Spec.from_canonical(canonical.replace(old, new, 1))


def grid_of(edges: int) -> ScoreGrid:
    return ScoreGrid.from_edges(torch.linspace(0, 1, edges, dtype=torch.float64))


def test_a_spec_has_a_largest_size() -> None:
    """Parsed JSON takes many times its size: longer specs are neither written nor parsed."""
    large = Spec("binary", 1, grid_of(20_000))
    assert Spec.from_canonical(large.canonical) == large
    too_large = Spec("binary", 1, grid_of(40_000))
    with pytest.raises(InputError, match="at most 524288 bytes"):
        _ = too_large.digest
    with pytest.raises(WireError, match="at most 524288 bytes"):
        Spec.from_canonical(bytes(524_289))
