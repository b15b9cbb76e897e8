"""Tables: leaves on two axes over pairs of bins."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchmetrics_fed import Query, ScoreGrid, Spec
from torchmetrics_fed.counting import Table, Tree
from torchmetrics_fed.errors import FederatedMetricError, InputError, WireError

EDGES = (0, 1, 4, 8, 0, 3, 8)
JOINT, APART = Table((3, 2), EDGES), Table((3, 2), EDGES, joint=False)
COUNTS = torch.randint(0, 5, (1, 2, 64), generator=torch.Generator().manual_seed(1))
SPEC = Spec("binary", 1, ScoreGrid(8), models=("a", "b"), thresholds=(0.5, 0.25))


def test_cells_are_sums_over_blocks_of_bins() -> None:
    pairs = COUNTS.reshape(1, 2, 8, 8)
    blocks = [
        pairs[..., a:b, c:d].sum((-1, -2))
        for a, b in ((0, 1), (1, 4), (4, 8))
        for c, d in ((0, 3), (3, 8))
    ]
    assert torch.equal(JOINT.leaf(COUNTS), torch.stack(blocks, -1))
    first, second = APART.split(APART.joined(APART.leaf(COUNTS)))
    assert torch.equal(first, Tree((3,), (0, 1, 4, 8)).leaf(pairs.sum(-1)))
    assert torch.equal(second, Tree((2,), (0, 3, 8)).leaf(pairs.sum(-2)))
    assert torch.equal(Table.flat(8).leaf(COUNTS), COUNTS)
    assert JOINT.fits(8)
    assert not JOINT.fits(16)


@pytest.mark.parametrize(
    "given",
    [
        {"edges": (0, 1, 4, 8, 0, 3, 7)},
        {"edges": (0, 4, 1, 8, 0, 3, 8)},
        {"edges": (1, 2, 4, 8, 0, 3, 8)},
        {"edges": EDGES[:-1]},
        {"edges": None},
        {"branching": (3, 2, 2)},
        {"branching": (6,)},
    ],
)
def test_other_leaves_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="two axes"):
        Table(**{"branching": (3, 2), "edges": EDGES, **given})


@pytest.mark.parametrize(
    "query", [Query(JOINT), Query(APART, 5 / 64), Query(Table.flat(8))], ids=str
)
def test_bytes_are_one_to_one(query: Query) -> None:
    data = bytes(query)
    assert Query.from_bytes(data) == query
    for place in range(len(data)):  # no other bytes are taken for the same query
        for bit in range(8):
            other = bytearray(data)
            other[place] ^= 1 << bit
            try:
                assert Query.from_bytes(bytes(other)) != query
            except FederatedMetricError:
                continue
    for length in range(len(data)):
        with pytest.raises(WireError):
            Query.from_bytes(data[:length])


def test_a_claim_of_many_leaves_allocates_nothing() -> None:
    data = bytearray(bytes(Query(JOINT)))
    place = bytes(data).index((3).to_bytes(4, "little") + (2).to_bytes(4, "little"))
    data[place : place + 4] = (1 << 31).to_bytes(4, "little")
    with pytest.raises(WireError):
        Query.from_bytes(bytes(data))


def test_one_model_and_two_are_not_mixed_up() -> None:
    one = Spec("binary", 1, ScoreGrid(8))
    for spec, query in ((SPEC, Query(Tree.flat(8))), (one, Query(JOINT)), (SPEC, Query(APART))):
        with pytest.raises(InputError, match="Expected a query for"):
            spec.check_query(query)
    SPEC.check_query(Query(JOINT))
    assert Spec.from_canonical(SPEC.canonical) == SPEC
    assert SPEC.digest != one.digest
    assert SPEC.counts_shape == (1, 2, 64)


@pytest.mark.parametrize(
    "given",
    [
        {"models": ("a", "a")},
        {"models": ("a",)},
        {"models": ("a", "")},
        {"models": ()},
        {"thresholds": (0.5,)},
        {"thresholds": (0.5, 0.3)},
        {"thresholds": (0.5, 1.0)},
        {"groups": ("x", "y")},
        {"grid": ScoreGrid(4096)},
    ],
)
def test_what_cannot_be_compared_is_refused(given: dict[str, Any]) -> None:
    settings = {
        "task": "binary",
        "classes": 1,
        "grid": ScoreGrid(8),
        "models": ("a", "b"),
        "thresholds": (0.5, 0.5),
    }
    with pytest.raises(InputError, match="Expected"):
        Spec(**{**settings, **given})
