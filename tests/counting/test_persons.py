"""The table of persons: nobody has more examples counted than allowed, whatever comes in whichever order."""

from __future__ import annotations

import pickle
import tracemalloc
from collections import Counter
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchmetrics_fed.counting import numbering, persons
from torchmetrics_fed.counting.binning import scratch
from torchmetrics_fed.counting.numbering import BLOCK, Hashed, Ranged, blocks, encrypted, encryptor
from torchmetrics_fed.counting.persons import Persons
from torchmetrics_fed.counting.validation import Rules
from torchmetrics_fed.errors import InputError, ReleaseError

BATCHES = st.lists(st.lists(st.integers(-3, 12), max_size=30), max_size=8)


def first_come(batches: list[list[Any]], most: int) -> list[list[bool]]:
    """The rule itself, one example after the other."""
    seen: Counter[Any] = Counter()
    admitted = []
    for batch in batches:
        row = []
        for person in batch:
            row.append(seen[person] < most)
            seen[person] += row[-1]
        admitted.append(row)
    return admitted


@settings(max_examples=60, deadline=None)
@given(BATCHES, st.integers(1, 5))
def test_the_first_examples_of_each_person_are_admitted(
    batches: list[list[int]], most: int
) -> None:
    expected = first_come(batches, most)
    texts = [[f"{person}" * (1 + 9 * (person > 9)) for person in batch] for batch in batches]
    far_apart = [
        [person << 59 for person in batch] for batch in batches
    ]  # 12 and -3 are nearly as far as integers go
    for kind in (batches, texts, far_apart):
        table = Persons(most)
        assert [table.admit(batch).tolist() for batch in kind] == expected
        assert table.left_out == sum(row.count(False) for row in expected)


@pytest.mark.parametrize("most", [1, 3, 300])
def test_chunks_and_growth_change_nothing(most: int) -> None:
    generator = np.random.default_rng(1)
    batches = [generator.integers(0, size, size) for size in (5, 70_000, 40_000, 1)]
    table = Persons(most)
    got = [table.admit(batch).tolist() for batch in batches]
    assert got == first_come([batch.tolist() for batch in batches], most)


IDS = st.one_of(
    st.lists(st.integers(-40, 40), max_size=40),
    st.lists(st.integers(0, 2_000), max_size=400),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    st.lists(st.sampled_from([-(2**63), 2**63 - 1, 0]), max_size=4),
    st.lists(st.sampled_from(["0", "1", "ann"]), max_size=4),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(IDS, max_size=12), st.integers(1, 3), st.sampled_from([2, 5, 15]))
def test_ids_of_all_kinds_may_follow_each_other(
    batches: list[list[Any]], most: int, bits: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for module, name, value in (
            (numbering, "CHUNK", 1 << bits),
            (persons, "CHUNK", 1 << bits),
            (persons, "_BITS", bits),
        ):
            patched.setattr(module, name, value)
        table, twin = Persons(most), Persons(most)
        for batch, expected in zip(batches, first_come(batches, most), strict=True):
            if batch:  # refused as a whole, it uses up nothing
                size = len(batch)
                with (
                    pytest.raises(KeyError),
                    table.admitted(batch, Rules(), 1, torch.rand(size), torch.zeros(size)),
                ):
                    raise KeyError
            assert table.admit(batch).tolist() == expected
        twin.merge(table)  # everybody is known, by whatever number
        again = [[*dict.fromkeys(batch)] for batch in batches]
        assert [twin.admit(batch).tolist() for batch in again] == [
            table.admit(batch).tolist() for batch in again
        ]


def test_integers_that_are_close_have_places_of_a_random_permutation() -> None:
    ids = np.arange(-1_000, 4_000)
    places = []
    for _ in range(2):
        found = Ranged(-1_000, 3_999)
        numbers = found.numbers(ids)
        assert numbers is not None
        numbers = numbers.copy()
        every = np.concatenate([number.copy() for _, number in found.known()])
        assert (np.sort(every) == np.arange(found.room)).all()
        assert found.numbers(np.array([found.ends()[1] + 1])) is None
        places.append(numbers)
    # neighbours are not beside each other, and another table has them elsewhere
    assert np.abs(np.corrcoef([ids, *places])[np.triu_indices(3, 1)]).max() < 0.1
    assert (places[0] == places[1]).mean() < 0.01
    with pytest.raises(AssertionError):  # the power of this test: places of the identity
        assert np.abs(np.corrcoef(ids, ids)[0, 1]) < 0.1


def test_no_id_stays_in_memory_that_is_kept() -> None:
    ids = np.array([5, 1_000_000_007])
    assert Ranged(0, 10).numbers(ids) is None
    assert not scratch.room("places", np.int64, len(ids))[1].any()
    assert Ranged(0, 10).numbers(np.array([5, 6])) is not None
    assert scratch.room("places", np.int64, len(ids))[1].any()  # places, for which the key is gone


def test_an_id_is_the_same_in_every_form() -> None:
    table = Persons(1)
    table.admit([5, 200])
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint64):
        assert not table.admit(torch.tensor([5, 200], dtype=dtype)).any()
    for ids in (
        (5, 200),
        np.array([5, 200], ">i4"),
        np.array([5, 200], object),
        np.array([200, 5])[::-1],
    ):
        assert not table.admit(ids).any()
    long = "a person whose name is long"
    table.admit(["ann", "zoë", long, ""])
    for names in (
        np.array(["ann", "zoë", long, ""]),
        ("ann", "zoë", long),
        np.array(["ann", long], object),
        [""],
    ):
        assert not table.admit(names).any()
    assert not table.admit(np.array(["ann"], "U40")).any()
    assert not table.admit(np.array(["ann", "zoë"], ">U5")).any()


def test_ids_that_look_alike_are_different_persons() -> None:
    ids: list[Any] = [
        ["1", "01", "\x01", "", "a" * 15, "a" * 16, "a" * 17, "é", "e"],
        [1, 0, -1, -(2**63), 2**62],
    ]
    table = Persons(1)
    for some in (*ids, np.array([2**63, 2**64 - 1], np.uint64)):  # -2^63 and -1 have the same bits
        assert table.admit(some).all()


@pytest.mark.parametrize(
    "ids",
    [
        [1.5],
        torch.rand(3),
        [True, False],
        [1, "1"],
        ["a", None],
        [2**64],
        torch.ones(2, dtype=torch.bool),
        [b"a"],
    ],
)
def test_what_is_no_id_is_refused(ids: Any) -> None:
    table = Persons(1)
    with pytest.raises(InputError, match="`persons`"):
        table.admit(ids)
    assert table.batches == 0


RULES = Rules("binary", None, -1)


def counted(
    table: Persons, ids: Any, preds: Any, target: Any, rules: Rules = RULES, columns: int = 1
) -> Any:
    with table.admitted(ids, rules, columns, torch.as_tensor(preds), torch.as_tensor(target)) as (
        _,
        labels,
    ):
        return labels


def test_ignored_examples_use_up_nothing() -> None:
    table, scores = Persons(1), [0.1, 0.2, 0.3, 0.4]
    assert counted(table, [7, 7, 7, 8], scores, [-1, 1, 0, -1]).tolist() == [1]
    assert counted(table, [7, 8, 8, 7], scores, [-1, 0, 1, -1]).tolist() == [0]
    assert table.left_out == 2


def test_every_position_is_an_example_of_its_person() -> None:
    scores, target = torch.rand(2, 3, 4), torch.arange(8).reshape(2, 4) % 3
    rules = Rules("multiclass")
    table = Persons(3)
    assert counted(table, ["a", "b"], scores, target, rules, 3).tolist() == [0, 1, 2, 1, 2, 0]
    each = torch.tensor([[1, 2, 1, 1], [1, 1, 2, 2]])
    with Persons(2).admitted(each, rules, 3, scores, target, each, None) as (
        preds,
        labels,
        kept,
        none,
    ):
        assert kept.tolist() == [1, 2, 1, 2]
        assert none is None
        assert labels.tolist() == target.reshape(-1)[[0, 1, 2, 6]].tolist()
        assert torch.equal(preds, scores.movedim(1, -1).reshape(-1, 3)[[0, 1, 2, 6]])


def test_a_row_of_labels_is_one_example() -> None:
    rules, table = Rules("multilabel", None, -1), Persons(1)
    target = torch.tensor([[-1, -1], [0, -1], [1, 1]])
    assert counted(table, [4, 4, 4], torch.rand(3, 2), target, rules, 2).tolist() == [[0, -1]]


@pytest.mark.parametrize(
    "ids", [[1], [1, 2, 3], torch.ones(2, 3, dtype=torch.int64), torch.tensor(1), [[1], [2]]]
)
def test_ids_of_another_shape_are_refused(ids: Any) -> None:
    with pytest.raises(
        InputError, match=r"an id for each of \(2,\) examples, or for each position, \(2, 4\)"
    ):
        counted(Persons(1), ids, torch.rand(2, 4), torch.zeros(2, 4))


def test_a_one_hot_target_is_seen_with_examples_left_out() -> None:
    """By then it is flat, and every row would count twice."""
    labels = counted(
        Persons(1), [1, 2, 2], torch.rand(3, 2), torch.tensor([[0, 1], [1, 0], [1, 0]])
    )
    assert bool((labels < -1).all())  # which the kernel refuses


def test_what_is_not_counted_is_taken_back() -> None:
    table, ids = Persons(2), np.arange(100_000) % 60_000
    table.admit([1, 2, 2])
    with (
        pytest.raises(KeyError),
        table.admitted(ids, Rules(), 1, torch.rand(100_000), torch.zeros(100_000)),
    ):
        raise KeyError
    assert (table.batches, table.left_out) == (1, 0)
    assert table.admit([1, 1, 2, 5, 5, 5]).tolist() == [True, False, False, True, True, False]


def test_tables_add_up_whatever_their_keys() -> None:
    one, other = Persons(3), Persons(3)
    one.admit([1, 2, 1])
    other.admit([1, 5, -1])
    one.merge(other)
    assert one.admit([1, 2, 2, 2, 5]).tolist() == [False, True, True, False, True]
    with pytest.raises(ReleaseError, match="Divide the data by person"):
        one.merge(other)
    assert one.admit([-1, -1, -1]).tolist() == [True, True, False]  # what was refused was not added


def test_a_copy_goes_on_by_itself() -> None:
    table = Persons(2)
    table.admit([1, 1, 1])
    twin = deepcopy(table)
    assert (twin.batches, twin.left_out) == (1, 1)
    assert twin.admit([1, 2, 2]).tolist() == [False, True, True]
    assert table.admit([1, 2, 2]).tolist() == [False, True, True]


def test_hashes_tell_nothing_without_the_key() -> None:
    one, other = Hashed(), Hashed()
    own = []
    for table in (one, other):
        table.grow(3)
        table.numbers(np.array([1, 2, 3]))
        own.append({block.tobytes() for block in table._hashes[1:4]})
    assert not own[0] & own[1]
    shared = encrypted(encryptor(bytes(16)), blocks(np.array([1, 2, 3]))).tobytes()
    assert not any(
        number.to_bytes(8, "little") in block for number in (1, 2, 3) for block in (*own[0], shared)
    )
    with pytest.raises(ReleaseError, match="pickle"):
        pickle.dumps(Persons(1))


@pytest.mark.parametrize("kind", ["in order", "backwards", "shuffled", "far apart", "strings"])
def test_a_person_takes_at_most_64_bytes(kind: str) -> None:
    size = 100_000
    ids = np.arange(size)
    ids = {"backwards": ids[::-1], "shuffled": np.random.default_rng(1).permutation(ids)}.get(
        kind, ids
    )
    ids = ids * 1_000_003 if kind == "far apart" else ids.astype(str) if kind == "strings" else ids
    tracemalloc.start()
    try:
        table, before = Persons(4), tracemalloc.get_traced_memory()[0]
        most = 0.0
        for start in range(0, size, 1000):
            assert table.admit(ids[start : start + 1000]).all()
            if start >= 10_000:
                most = max(most, (tracemalloc.get_traced_memory()[0] - before) / (start + 1000))
    finally:
        tracemalloc.stop()
    assert most <= 64, f"{most:.0f} bytes"


def test_a_hash_has_128_bits() -> None:
    assert BLOCK == 16
