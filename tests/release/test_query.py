"""The bytes of a query: one encoding, strict types, and bounds that are checked before anything is made of them."""

from __future__ import annotations

import math
import struct
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchmetrics_fed import InputError, Query, ScoreGrid
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import FederatedMetricError, WireError
from torchmetrics_fed.reconstruct.placement import pilot_query, single_query
from torchmetrics_fed.release.query import LEAST_FRACTION
from torchmetrics_fed.release.wire import Kind, frame

MAGIC = frame(Kind.QUERY)


def raw(
    fraction: float,
    branching: tuple[int, ...],
    edges: tuple[int, ...] | None = None,
    placed: int = -1,
    weights: tuple[int, ...] | None = None,
) -> bytes:
    """The bytes of a query that no query has to allow."""
    head = struct.pack(
        "<dBB", fraction, len(branching) % 256, (edges is not None) if placed < 0 else placed
    )
    return (
        MAGIC
        + head
        + struct.pack(f"<{len(branching)}I", *branching)
        + bytes((1,) * len(branching) if weights is None else weights)
        + struct.pack(f"<{len(edges or ())}I", *(edges or ()))
    )


@st.composite
def queries(draw: st.DrawFn) -> Query:
    branching = tuple(draw(st.lists(st.integers(2, 5), min_size=1, max_size=4)))
    edges = None
    if draw(st.booleans()):
        steps = draw(
            st.lists(
                st.integers(1, 2**16), min_size=math.prod(branching), max_size=math.prod(branching)
            )
        )
        edges = (0, *np.cumsum(steps).tolist())
    weights = draw(st.just(()) | st.tuples(*(st.integers(1, 64) for _ in branching)))
    return Query(Tree(branching, edges, weights), draw(st.integers(1, 1024)) * LEAST_FRACTION)


@given(queries())
def test_a_query_comes_back(query: Query) -> None:
    again = Query.from_bytes(bytes(query))
    assert again == query
    assert again.digest == query.digest
    assert bytes(query) == raw(
        query.fraction, query.tree.branching, query.tree.edges, weights=query.tree.weights
    )


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """The bytes of a query with a few bytes changed, put in, or left out."""
    data = bytearray(bytes(draw(queries())))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 4))
        data[place : place + cut] = draw(st.binary(max_size=5))
    return bytes(data)


def is_refused_or_itself(data: bytes) -> bool:
    """Whether it was refused; what is read must have these bytes and no others."""
    try:
        query = Query.from_bytes(data)
    except FederatedMetricError:
        return True
    assert bytes(query) == data
    assert type(query.fraction) is float
    assert {
        type(number)
        for number in (*query.tree.branching, *query.tree.weights, *(query.tree.edges or ()))
    } == {int}
    return False


@settings(max_examples=1_000)
@given(mutants())
def test_a_mutant_is_refused_or_its_own_encoding(data: bytes) -> None:
    is_refused_or_itself(data)


@settings(max_examples=500)
@given(
    st.floats(),
    st.lists(st.integers(0, 2**32 - 1), max_size=30).map(tuple),
    st.none() | st.lists(st.integers(0, 2**32 - 1), max_size=40).map(tuple),
    st.integers(-1, 255),
    st.none() | st.lists(st.integers(0, 255), max_size=30).map(tuple),
)
def test_any_numbers_are_refused_or_their_own_encoding(
    fraction: float,
    branching: tuple[int, ...],
    edges: tuple[int, ...] | None,
    placed: int,
    weights: tuple[int, ...] | None,
) -> None:
    is_refused_or_itself(raw(fraction, branching, edges, placed, weights))


def test_the_fuzz_has_power() -> None:
    """Some mutants are read, as other queries: the law above is not about refusals only."""
    query = Query(Tree((2, 2), (0, 5, 6, 7, 9), (2, 1)), 0.5)
    data = bytes(query)
    changed = [
        data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] for place in range(len(data))
    ]
    read = [Query.from_bytes(one) for one in changed if not is_refused_or_itself(one)]
    assert len(read) > 5
    assert (3, 1) in {one.tree.weights for one in read}
    assert query not in read
    assert len({one.digest for one in read} | {query.digest}) == len(read) + 1


@pytest.mark.parametrize(
    "fraction",
    [
        math.nan,
        -math.nan,
        math.inf,
        -math.inf,
        0.0,
        -0.0,
        -0.5,
        1.0 + 2**-52,
        LEAST_FRACTION / 2,
        0.1,
        1 - 2**-53,
        5e-324,
        1.7e308,
    ],
)
def test_fractions_that_are_none_are_refused(fraction: float) -> None:
    with pytest.raises(WireError, match="fraction"):
        Query.from_bytes(raw(fraction, (4, 4)))
    with pytest.raises(InputError, match="fraction"):
        Query(Tree((4, 4)), fraction)


@pytest.mark.parametrize("fraction", ["1", None, [1.0], 1j])
def test_a_fraction_is_a_number(fraction: object) -> None:
    with pytest.raises(InputError, match="fraction"):
        Query(Tree((4, 4)), fraction)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        raw(1.0, ()),
        raw(1.0, (0,)),
        raw(1.0, (1,)),
        raw(1.0, (4, 1)),
        raw(1.0, (2,) * 25),
        raw(1.0, (2,) * 255),
        raw(1.0, (2**25,)),
        raw(1.0, (2**32 - 1,) * 24),
        raw(1.0, (2**32 - 1, 0), (0,)),
        raw(1.0, (2,), (0, 1)),
        raw(1.0, (2,), (0, 1, 2, 3)),
        raw(1.0, (2,), (1, 2, 3)),
        raw(1.0, (2,), (0, 2, 2)),
        raw(1.0, (2,), (0, 3, 2)),
        raw(1.0, (2,), (0, 1, 2), placed=0),
        raw(1.0, (2,), (0, 1, 2), placed=2),
        raw(1.0, (2,), (0, 1, 2), placed=255),
        raw(1.0, (2,), placed=1),
        raw(1.0, (2,)) + b"\0",
        raw(1.0, (2,))[:-1],
        raw(1.0, (2, 3), weights=(0, 1)),
        raw(1.0, (2, 3), weights=(1, 65)),
        raw(1.0, (2, 3), weights=(255, 255)),
        raw(1.0, (2, 3), weights=(1,)),
        raw(1.0, (2, 3), weights=(1, 1, 1)),
        raw(1.0, (2, 3), weights=()),
        MAGIC,
        b"",
        b"22",
    ],
    ids=lambda data: data[6:26].hex(),
)
def test_what_no_query_is_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="Expected"):
        Query.from_bytes(data)


@pytest.mark.parametrize(
    "data", [None, "22", 5, [2, 2], memoryview(b"")], ids=lambda data: type(data).__name__
)
def test_a_query_is_bytes(data: object) -> None:
    with pytest.raises(WireError, match="Expected"):
        Query.from_bytes(data)  # type: ignore[arg-type]


PLACES = tuple(range(200_001))
LARGE = {
    "a query": raw(1.0, (200_000,), PLACES),
    "in two levels": raw(1.0, (400, 500), PLACES),
    "that does not ascend": raw(1.0, (200_000,), (*PLACES[:-1], 5)),
    "of zeros": raw(1.0, (200_000,), (0,) * 200_001),
    "of the wrong length": raw(1.0, (200_000,), PLACES)[:-4],
    "that claims more": raw(1.0, (2**24,), PLACES),
    "that claims fewer": raw(1.0, (2,), PLACES),
    "without places": raw(1.0, (2,), PLACES, placed=0),
    "of no kind": b"\xff" * 800_000,
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_message_costs_little(name: str) -> None:
    """0.8 MB take less than 0.1 s and some 20 times their size: nobody is kept busy by what they are asked."""
    assert 799_000 < len(LARGE[name]) < 801_000
    took = []
    for _ in range(3):
        start = time.process_time()
        is_refused_or_itself(LARGE[name])
        took.append(time.process_time() - start)
    assert min(took) < 0.1
    tracemalloc.start()
    is_refused_or_itself(LARGE[name])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_a_claim_allocates_next_to_nothing() -> None:
    """Few bytes that claim millions of leaves, with and without places for them."""
    for claim in (
        raw(1.0, (2**24,), placed=1),
        raw(1.0, (2,) * 24, placed=1),
        raw(1.0, (2**24,)),
        raw(0.5, (2,) * 24),
    ):
        tracemalloc.start()
        is_refused_or_itself(claim)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000


def test_the_queries_of_the_plans_travel() -> None:
    for bins in (256, 4096, 2**16):
        assert Query.from_bytes(bytes(pilot_query(ScoreGrid.two_sided(bins // 4)))) == pilot_query(
            ScoreGrid.two_sided(bins // 4)
        )
        for epsilon in (1.0, 4.0):
            single = single_query(ScoreGrid.two_sided(bins // 4), epsilon)
            assert Query.from_bytes(bytes(single)) == single
        assert Query.from_bytes(bytes(Query(Tree.binary(bins)))) == Query(Tree.binary(bins))
        assert Query.from_bytes(bytes(Query(Tree.flat(bins)))) == Query(Tree.flat(bins))


def test_a_level_that_is_counted_more_often_is_another_question() -> None:
    """Whoever answers binds its share to the weights, because they scale what it sends."""
    trees = [Tree((4, 4), weights=weights) for weights in ((), (2, 1), (1, 2), (2, 2))]
    assert (
        len({Query(tree).digest for tree in trees})
        == len({str(tree.fields) for tree in trees})
        == 4
    )
    assert Query(Tree((4, 4))).digest == Query(Tree((4, 4), weights=(1, 1))).digest


def test_equal_queries_have_equal_digests() -> None:
    """A fraction of 1 is 1.0, whichever type it was given in."""
    one, other = Query(Tree((4, 4)), 1), Query(Tree((4, 4)), 1.0)
    assert one == other
    assert one.digest == other.digest
    assert hash(one) == hash(other)
