"""Query: one encoding, strict types, and bounds that are checked before anything is allocated."""

from __future__ import annotations

import math
import struct
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.queries import weighted
from torchmetrics_fed import CentralDP, InputError, Query, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import FederatedMetricError, WireError
from torchmetrics_fed.exchange.placement import pilot_query, single_query
from torchmetrics_fed.release.query import LEAST_FRACTION, MOST_WEIGHT, LevelWeights
from torchmetrics_fed.release.wire import Kind, frame

MAGIC = frame(Kind.QUERY)


Weights = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""For each level the weights of negatives and of positives."""


def raw(
    fraction: float,
    branching: tuple[int, ...],
    edges: tuple[int, ...] | None = None,
    flags: int = -1,
    weights: Weights | None = None,
) -> bytes:
    """Return the bytes of a query, also of one that is not allowed."""
    if flags < 0:
        flags = int(edges is not None)
    if weights is None:
        weights = (((1,), (1,)),) * len(branching)
    data = MAGIC + struct.pack("<dBB", fraction, len(branching) % 256, flags)
    data += struct.pack(f"<{len(branching)}I", *branching)
    data += struct.pack(f"<{len(edges or ())}I", *(edges or ()))
    for level in weights:
        for row in level:
            data += struct.pack(f"<I{len(row)}I", len(row), *row)
    return data


def once(*weights: int) -> Weights:
    """Return one weight for each level."""
    return tuple(((weight,), (weight,)) for weight in weights)


@st.composite
def levels(draw: st.DrawFn, nodes: int) -> LevelWeights:
    """Draw the weights of a level: one for all nodes, or one for each."""
    weight = st.integers(1, MOST_WEIGHT)
    rows = st.tuples(weight) | st.tuples(*[weight] * nodes)
    return LevelWeights(negatives=draw(rows), positives=draw(rows))


@st.composite
def queries(draw: st.DrawFn) -> Query:
    branching = tuple(draw(st.lists(st.integers(2, 5), min_size=1, max_size=3)))
    leaves = math.prod(branching)
    edges = None
    if draw(st.booleans()):
        steps = draw(st.lists(st.integers(1, 2**16), min_size=leaves, max_size=leaves))
        edges = (0, *np.cumsum(steps).tolist())
    tree = Tree(branching, edges)
    weights: tuple[LevelWeights, ...] = ()
    if draw(st.booleans()):
        weights = tuple(draw(levels(size)) for size in tree.sizes)
    return Query(
        tree,
        draw(st.integers(1, 1024)) * LEAST_FRACTION,
        weights=weights,
        pools_groups=draw(st.booleans()),
        pools_classes=draw(st.booleans()),
    )


@given(queries())
def test_a_query_comes_back(query: Query) -> None:
    copy = Query.from_bytes(bytes(query))
    assert copy == query
    assert copy.digest == query.digest
    flags = (query.tree.edges is not None) + 2 * query.pools_groups + 16 * query.pools_classes
    assert bytes(query) == raw(
        query.fraction,
        query.tree.branching,
        query.tree.edges,
        flags=flags,
        weights=tuple((level.negatives, level.positives) for level in query.weights),
    )


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """Draw the bytes of a query with a few bytes changed, put in, or left out."""
    data = bytearray(bytes(draw(queries())))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 4))
        data[place : place + cut] = draw(st.binary(max_size=5))
    return bytes(data)


def is_refused_or_itself(data: bytes) -> bool:
    """Return whether the bytes were refused. A query that is read must have these bytes."""
    try:
        query = Query.from_bytes(data)
    except FederatedMetricError:
        return True
    assert bytes(query) == data
    assert type(query.fraction) is float
    numbers = [*query.tree.branching, *(query.tree.edges or ())]
    for level in query.weights:
        numbers += [*level.negatives, *level.positives]
    assert {type(number) for number in numbers} == {int}
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
    st.none()
    | st.lists(
        st.tuples(
            st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple),
            st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple),
        ),
        max_size=30,
    ).map(tuple),
)
def test_any_numbers_are_refused_or_their_own_encoding(
    fraction: float,
    branching: tuple[int, ...],
    edges: tuple[int, ...] | None,
    flags: int,
    weights: Weights | None,
) -> None:
    is_refused_or_itself(raw(fraction, branching, edges, flags=flags, weights=weights))


def test_the_fuzz_has_power() -> None:
    """A few mutants are read, as other queries: the law above is not about refusals only."""
    query = weighted(Tree((2, 2), (0, 5, 6, 7, 9)), 2, 1, fraction=0.5)
    data = bytes(query)
    changed = [
        data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] for place in range(len(data))
    ]
    accepted = [Query.from_bytes(mutant) for mutant in changed if not is_refused_or_itself(mutant)]
    assert len(accepted) > 5
    top_levels = {mutant.weights[0] for mutant in accepted}
    assert LevelWeights(negatives=(3,), positives=(2,)) in top_levels
    assert query not in accepted
    digests = {mutant.digest for mutant in accepted}
    assert len(digests | {query.digest}) == len(accepted) + 1


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
        raw(1.0, (2,), (0, 1, 2), flags=0),
        raw(1.0, (2,), (0, 1, 2), flags=2),
        raw(1.0, (2,), (0, 1, 2), flags=255),
        raw(1.0, (2,), flags=1),
        raw(1.0, (2,)) + b"\0",
        raw(1.0, (2,))[:-1],
        raw(1.0, (2, 3), weights=once(0, 1)),
        raw(1.0, (2, 3), weights=once(1, MOST_WEIGHT + 1)),
        raw(1.0, (2, 3), weights=once(1)),
        raw(1.0, (2, 3), weights=once(1, 1, 1)),
        raw(1.0, (2, 3), weights=()),
        raw(1.0, (2, 3), weights=(*once(1), ((), (1,)))),
        raw(1.0, (2, 3), weights=(*once(1), ((1, 2, 3), (1,)))),
        raw(1.0, (2, 3), weights=(((2, 2), (1,)), *once(1))),
        raw(1.0, (2, 3), flags=32),
        MAGIC,
        b"",
        b"22",
    ],
    ids=lambda data: data[6:26].hex(),
)
def test_other_bytes_are_refused(data: bytes) -> None:
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
    "without places": raw(1.0, (2,), PLACES, flags=0),
    "of no kind": b"\xff" * 800_000,
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_message_costs_little(name: str) -> None:
    """0.8 MB take less than 0.1 s and about 20 times their size: a query keeps no client busy."""
    assert 799_000 < len(LARGE[name]) < 801_000
    seconds = []
    for _ in range(3):
        start = time.process_time()
        is_refused_or_itself(LARGE[name])
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.1
    tracemalloc.start()
    is_refused_or_itself(LARGE[name])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_a_claim_allocates_next_to_nothing() -> None:
    """Few bytes that claim millions of leaves, with and without places for them."""
    for claim in (
        raw(1.0, (2**24,), flags=1),
        raw(1.0, (2,) * 24, flags=1),
        raw(1.0, (2**24,)),
        raw(0.5, (2,) * 24),
    ):
        tracemalloc.start()
        is_refused_or_itself(claim)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000


def private_spec(bins: int, epsilon: float) -> Spec:
    return Spec.build("binary", quantiles=bins // 4, privacy=CentralDP(epsilon))


def test_the_queries_of_the_plans_travel() -> None:
    for bins in (256, 4096, 2**16):
        plan_queries = [
            pilot_query(private_spec(bins, 1.0)),
            single_query(private_spec(bins, 1.0)),
            single_query(private_spec(bins, 4.0)),
            Query(Tree.binary(bins)),
            Query(Tree.flat(bins)),
        ]
        for query in plan_queries:
            assert Query.from_bytes(bytes(query)) == query


def test_a_level_that_is_counted_more_often_is_another_question() -> None:
    """A client binds its share to the weights, because they scale its cells."""
    tree = Tree((4, 4))
    positives = LevelWeights(positives=(3,))
    different = [
        Query(tree),
        weighted(tree, 2, 1),
        weighted(tree, 1, 2),
        weighted(tree, 2, 2),
        Query(tree, weights=(positives, positives)),
        Query(tree, pools_classes=True),
        Query(tree, pools_groups=True),
    ]
    digests = {query.digest for query in different}
    assert len(digests) == len(set(different)) == len(different)
    assert Query(tree).digest == weighted(tree, 1, 1).digest


def test_weights_that_are_all_alike_are_one() -> None:
    same = LevelWeights(negatives=(2, 2, 2), positives=(5, 5, 5))
    assert same == LevelWeights(negatives=(2,), positives=(5,))
    assert same.single is None
    assert LevelWeights.of(7).single == 7
    assert same.rows.tolist() == [[2], [5]]
    assert LevelWeights(negatives=(1, 3), positives=(2,)).rows.tolist() == [[1, 3], [2, 2]]


@pytest.mark.parametrize("weights", [(), (0,), (-1,), (1.5,), (True,), ("2",), (MOST_WEIGHT + 1,)])
def test_a_weight_is_a_positive_int(weights: tuple[int, ...]) -> None:
    """A fraction of a count would not be hidden by noise in integers."""
    for row in ("negatives", "positives"):
        with pytest.raises(InputError, match=f"`{row}` to be ints from 1 to {MOST_WEIGHT}"):
            LevelWeights(**{row: weights})


@pytest.mark.parametrize(
    "weights",
    [
        (LevelWeights(),),
        (LevelWeights(),) * 3,
        (LevelWeights(), LevelWeights(negatives=(1, 2))),
        (LevelWeights(positives=(1, 2, 3)), LevelWeights()),
    ],
)
def test_every_level_has_its_weights(weights: tuple[LevelWeights, ...]) -> None:
    with pytest.raises(InputError, match="`weights` to be a LevelWeights for each of 2 levels"):
        Query(Tree((2, 3)), weights=weights)


def test_equal_queries_have_equal_digests() -> None:
    """A fraction of 1 is 1.0, as an int and as a float."""
    of_int = Query(Tree((4, 4)), 1)
    of_float = Query(Tree((4, 4)), 1.0)
    assert of_int == of_float
    assert of_int.digest == of_float.digest
    assert hash(of_int) == hash(of_float)
