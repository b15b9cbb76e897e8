"""A table has leaves on two axes, over pairs of bins."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchmetrics_fed import Query, ScoreGrid, Spec
from torchmetrics_fed.counting import Table, Tree
from torchmetrics_fed.errors import FederatedMetricError, InputError, WireError

EDGES = (0, 1, 4, 8, 0, 3, 8)
JOINT = Table((3, 2), EDGES)
SEPARATE = Table((3, 2), EDGES, joint=False)
COUNTS = torch.randint(0, 5, (1, 2, 64), generator=torch.Generator().manual_seed(1))
SPEC = Spec("binary", 1, ScoreGrid(8), models=("a", "b"), thresholds=(0.5, 0.25))


def test_cells_are_sums_over_blocks_of_bins() -> None:
    pairs = COUNTS.reshape(1, 2, 8, 8)
    blocks = [
        pairs[..., rows, columns].sum((-1, -2))
        for rows in (slice(0, 1), slice(1, 4), slice(4, 8))
        for columns in (slice(0, 3), slice(3, 8))
    ]
    assert torch.equal(JOINT.leaf(COUNTS), torch.stack(blocks, -1))


def test_leaves_of_each_model_are_sums_over_the_bins_of_the_other() -> None:
    pairs = COUNTS.reshape(1, 2, 8, 8)
    first, second = SEPARATE.split(SEPARATE.joined(SEPARATE.leaf(COUNTS)))
    assert torch.equal(first, Tree((3,), (0, 1, 4, 8)).leaf(pairs.sum(-1)))
    assert torch.equal(second, Tree((2,), (0, 3, 8)).leaf(pairs.sum(-2)))


def test_a_flat_table_has_a_cell_for_every_pair_of_bins() -> None:
    assert torch.equal(Table.flat(8).leaf(COUNTS), COUNTS)


def test_a_table_fits_the_grid_of_its_edges() -> None:
    assert JOINT.fits(8)
    assert not JOINT.fits(16)


@pytest.mark.parametrize(
    "changes",
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
def test_other_leaves_are_refused(changes: dict[str, Any]) -> None:
    arguments = {"branching": (3, 2), "edges": EDGES, **changes}
    with pytest.raises(InputError, match="two axes"):
        Table(**arguments)


def decodes_to(data: bytes, query: Query) -> bool:
    try:
        return Query.from_bytes(data) == query
    except FederatedMetricError:
        return False


@pytest.mark.parametrize(
    "query", [Query(JOINT), Query(SEPARATE, 5 / 64), Query(Table.flat(8))], ids=str
)
def test_bytes_are_one_to_one(query: Query) -> None:
    data = bytes(query)
    assert Query.from_bytes(data) == query
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            assert not decodes_to(bytes(changed), query)
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
    spec_of_one = Spec("binary", 1, ScoreGrid(8))
    mixed = [
        (SPEC, Query(Tree.flat(8))),
        (spec_of_one, Query(JOINT)),
        (SPEC, Query(SEPARATE)),
    ]
    for spec, query in mixed:
        with pytest.raises(InputError, match="Expected a query for"):
            spec.check_query(query)
    SPEC.check_query(Query(JOINT))
    assert SPEC.digest != spec_of_one.digest


def test_a_spec_of_two_models_survives_its_text_and_counts_pairs() -> None:
    assert Spec.from_canonical(SPEC.canonical) == SPEC
    assert SPEC.counts_shape == (1, 2, 64)


@pytest.mark.parametrize(
    "changes",
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
def test_an_impossible_comparison_is_refused(changes: dict[str, Any]) -> None:
    arguments = {
        "task": "binary",
        "classes": 1,
        "grid": ScoreGrid(8),
        "models": ("a", "b"),
        "thresholds": (0.5, 0.5),
        **changes,
    }
    with pytest.raises(InputError, match="Expected"):
        Spec(**arguments)
