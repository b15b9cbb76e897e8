"""Sum: it depends on neither order nor grouping, holds every share once, and does not overflow."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Iterator

import pytest
import torch

from tests.release.examples import EXACT, FLAT, NOISY, PRIVATE, TREE, cells, exact_share
from torchmetrics_fed import InputError, Query, Release, ReleaseError, ScoreGrid, Share, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import (
    DuplicateClientError,
    ImpossibleCountsError,
    SpecMismatchError,
)
from torchmetrics_fed.release import Sum


def test_the_sum_does_not_depend_on_order_or_grouping() -> None:
    shares = [exact_share() for _ in range(7)]
    total = Release.sum(shares)
    grouped = Release.sum([Release.sum(shares[4:]), shares[3], Release.sum(shares[:3])])
    assert torch.equal(total.last.cells, grouped.last.cells)
    assert total.shares == grouped.shares == 7
    assert torch.equal(total.leaf, torch.stack([share.cells for share in shares]).sum(0))


def test_summing_leaves_the_shares_alone() -> None:
    shares = [exact_share(), exact_share()]
    before = [share.cells.clone() for share in shares]
    Release.sum(shares)
    for share, cells_before in zip(shares, before, strict=True):
        assert torch.equal(share.cells, cells_before)


def test_another_spec_is_refused_and_its_place_named() -> None:
    spec = Spec("binary", 1, ScoreGrid(bins=16, score_range=(-1.0, 1.0)))
    foreign = Share(spec, FLAT, torch.zeros(1, 2, 16, dtype=torch.int64))
    with pytest.raises(SpecMismatchError, match=r"score_range.*share 1"):
        Release.sum([exact_share(), foreign])


def test_another_query_is_refused_and_its_place_named() -> None:
    """Also one with the same grid, the same number of cells, and even the same leaves."""
    placed = Query(Tree((16,), tuple(range(17))))
    counts = torch.zeros(1, 2, 16, dtype=torch.int64)
    with pytest.raises(ReleaseError, match="share 1, counted from 0, answers another"):
        Release.sum([Share(EXACT, FLAT, counts), Share(EXACT, placed, counts)])


def test_no_shares_is_an_error_not_an_empty_curve() -> None:
    with pytest.raises(ReleaseError, match="at least one share"):
        Release.sum([])
    with pytest.raises(InputError, match="Share or Release"):
        Release.sum([torch.zeros(1)])  # type: ignore[list-item]


def test_a_share_is_counted_once_in_whatever_grouping() -> None:
    a = exact_share()
    b = exact_share()
    c = exact_share()
    groupings: list[list[Share | Release]] = [
        [a, b, a],
        [Release.sum([a, b]), a],
        [a, Release.sum([b, a])],
    ]
    for shares in groupings:
        with pytest.raises(DuplicateClientError, match="Expected every share once"):
            Release.sum(shares)
    with pytest.raises(
        DuplicateClientError, match="share 1, counted from 0, holds 2 that came before"
    ):
        Release.sum([Release.sum([a, b, c]), Release.sum([b, a])])
    with pytest.raises(DuplicateClientError, match="share 2, counted from 0, holds 1"):
        Release.sum([a, b, Share.from_bytes(bytes(a), EXACT, FLAT)])
    assert Release.sum([Release.sum([a]), Release.sum([b, c])]).shares == 3


def test_a_refused_share_leaves_the_sum_as_it_was() -> None:
    share = exact_share()
    total = Release.sum([share, exact_share()])
    before = bytes(total)
    negative = Share(EXACT, FLAT, torch.full((1, 2, 16), -1))
    for bad in (share, exact_share("2"), negative):
        with pytest.raises(ReleaseError):
            Release.sum([total, bad])
    assert bytes(total) == before
    assert Release.sum([total, exact_share()]).shares == 3


def test_a_sum_does_not_overflow() -> None:
    huge = torch.zeros(1, 2, 16, dtype=torch.int64)
    huge[0, 0, 0] = 2**58 - 1
    shares = [Share(EXACT, FLAT, huge) for _ in range(40)]
    assert Release.sum(shares[:32]).leaf.max() == 32 * (2**58 - 1)
    for too_large in (shares[:33], [Share(EXACT, FLAT, huge + 1)]):
        with pytest.raises(ImpossibleCountsError, match="63 bits"):
            Release.sum(too_large)


@pytest.mark.parametrize(
    "ids",
    [
        b"x" * 15,
        b"x" * 32,
        b"y" * 16 + b"x" * 16,
        b"".join(bytes([number] * 16) for number in range(4)),
    ],
    ids=len,
)
def test_a_sum_has_sorted_ids_and_no_more_than_shares(ids: bytes) -> None:
    with pytest.raises(InputError, match="ids"):
        Sum(EXACT, FLAT, cells(EXACT, FLAT, range(32)), shares=3, ids=ids)


@pytest.mark.parametrize("query", [FLAT, TREE], ids=["flat", "tree"])
def test_a_vector_of_secure_aggregation_is_a_sum(query: Query) -> None:
    expected = Sum(NOISY, query, torch.randint(-9, 9, NOISY.shape(query)), shares=3)
    vector = expected.cells.reshape(-1).numpy()
    total = Sum.of_vector(NOISY, query, vector, shares=3)
    assert torch.equal(total.cells, expected.cells)
    assert total.shares == 3
    assert total.ids == b""


def test_groups_add_up_to_the_overall_sum_and_so_does_their_noise() -> None:
    spec = Spec("binary", 1, PRIVATE.grid, PRIVATE.privacy, groups=("a", "b", "c"))
    total = Sum(spec, TREE, torch.randint(-9, 9, spec.shape(TREE)))
    groups = [total.of_group(number) for number in range(3)]
    added = torch.stack([group.cells for group in groups]).sum(0)
    assert torch.equal(total.overall.cells, added)
    assert total.overall.spec == groups[0].spec == PRIVATE
    assert total.overall.noise_variance == pytest.approx(3 * groups[0].noise_variance)


def test_sums_that_differ_in_one_cell_have_different_digests() -> None:
    total = Sum(PRIVATE, TREE, torch.randint(-50, 50, PRIVATE.shape(TREE)))
    twin = Sum(PRIVATE, TREE, total.cells.clone())
    assert twin.digest == total.digest
    twin.cells[0, 0, 0] += 1
    assert twin.digest != total.digest


class CountedShares:
    """Makes shares one by one, and notes how many of them exist at once."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.most_alive = 0
        self._alive = weakref.WeakSet[Share]()
        self._cells = torch.randint(0, 50, (1, 2, 16))

    def __iter__(self) -> Iterator[Share]:
        for _ in range(self.number):
            share = Share(EXACT, FLAT, self._cells)
            self._alive.add(share)
            self.most_alive = max(self.most_alive, len(self._alive))
            yield share


@pytest.mark.slow
def test_memory_is_flat_over_many_clients() -> None:
    """Only the id of a share is left once it was added."""
    shares = CountedShares(20_000)
    tracemalloc.start()
    total = Release.sum(shares)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total.shares == 20_000
    assert len(total.last.ids) == 16 * 20_000
    assert shares.most_alive <= 2
    assert peak < 20_000 * 400  # an id, in a set and in lists of ids
