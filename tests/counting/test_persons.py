"""The table of persons: nobody has more examples counted than allowed, whatever comes in
whichever order."""

from __future__ import annotations

import pickle
from collections import Counter
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchmetrics_fed.counting.persons import DIGEST_BYTES, Persons
from torchmetrics_fed.counting.validation import Rules
from torchmetrics_fed.errors import InputError, ReleaseError

BATCHES = st.lists(st.lists(st.integers(-3, 12), max_size=30), max_size=8)


def first_come(batches: list[list[Any]], most: int) -> list[list[bool]]:
    """The rule itself, one example after the other. A person is the text of an id."""
    examples: Counter[str] = Counter()
    masks = []
    for batch in batches:
        mask = []
        for person in batch:
            may_count = examples[str(person)] < most
            examples[str(person)] += may_count
            mask.append(may_count)
        masks.append(mask)
    return masks


@settings(max_examples=60, deadline=None)
@given(BATCHES, st.integers(1, 5))
def test_the_first_examples_of_each_person_are_admitted(
    batches: list[list[int]], most: int
) -> None:
    expected = first_come(batches, most)
    names = [[f"person {number}" for number in batch] for batch in batches]
    far_apart = [[number << 59 for number in batch] for batch in batches]
    for ids in (batches, names, far_apart):
        table = Persons(most)
        assert [table.admit(batch).tolist() for batch in ids] == expected
        assert table.left_out == sum(mask.count(False) for mask in expected)


def test_large_batches_follow_the_rule() -> None:
    generator = np.random.default_rng(1)
    batches = [generator.integers(0, size, size) for size in (5, 70_000, 40_000, 1)]
    table = Persons(3)
    masks = [table.admit(batch).tolist() for batch in batches]
    assert masks == first_come([batch.tolist() for batch in batches], 3)


IDS = st.one_of(
    st.lists(st.integers(-40, 40), max_size=40),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    st.lists(st.sampled_from(["0", "1", "-1", "ann"]), max_size=4),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(IDS, max_size=12), st.integers(1, 3))
def test_ids_of_all_kinds_may_follow_each_other(batches: list[list[Any]], most: int) -> None:
    table = Persons(most)
    for batch, expected in zip(batches, first_come(batches, most), strict=True):
        if batch:  # a batch that is refused as a whole uses up nothing
            size = len(batch)
            scores = torch.rand(size)
            with (
                pytest.raises(KeyError),
                table.admitted(batch, Rules(), 1, scores, torch.zeros(size)),
            ):
                raise KeyError
        assert table.admit(batch).tolist() == expected
    twin = Persons(most)
    twin.merge(table)
    every_person = [[*dict.fromkeys(batch)] for batch in batches]
    masks = [table.admit(batch).tolist() for batch in every_person]
    assert [twin.admit(batch).tolist() for batch in every_person] == masks


def test_ids_that_print_the_same_are_the_same_person() -> None:
    table = Persons(1)
    table.admit([5, 200])
    forms: list[Any] = [
        (5, 200),
        ["5", "200"],
        [5, "200"],
        np.array([5, 200], ">i4"),
        np.array([5, 200], object),
        np.array(["5", "200"]),
        np.array([200, 5])[::-1],
    ]
    dtypes = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint64)
    forms += [torch.tensor([5, 200], dtype=dtype) for dtype in dtypes]
    for ids in forms:
        assert not table.admit(ids).any()
    table.admit(["ann", "zoë", "a person whose name is long", ""])
    assert not table.admit(np.array(["ann"], "U40")).any()
    assert not table.admit(np.array(["ann", "zoë"], ">U5")).any()
    assert not table.admit([""]).any()


def test_ids_that_look_alike_are_different_persons() -> None:
    names = ["1", "01", "\x01", "", "a" * 15, "a" * 16, "é", "e"]
    numbers = [0, -1, -(2**63), 2**62]
    table = Persons(1)
    assert table.admit(names).all()
    assert table.admit(numbers).all()
    # -2^63 and -1 have the same bits
    assert table.admit(np.array([2**63, 2**64 - 1], np.uint64)).all()


@pytest.mark.parametrize(
    "ids",
    [
        [1.5],
        torch.rand(3),
        [True, False],
        ["a", None],
        torch.ones(2, dtype=torch.bool),
        [b"a"],
        [[1], [2, 3]],
    ],
)
def test_other_values_are_refused(ids: Any) -> None:
    table = Persons(1)
    with pytest.raises(InputError, match="`persons` to hold integers or strings"):
        table.admit(ids)
    assert table.batches == 0


RULES = Rules("binary", None, -1)


def counted_labels(
    table: Persons,
    ids: Any,
    preds: Any,
    target: Any,
    *,
    rules: Rules = RULES,
    columns: int = 1,
) -> Tensor:
    """The labels of the examples that may be counted."""
    batch = table.admitted(ids, rules, columns, torch.as_tensor(preds), torch.as_tensor(target))
    with batch as (_, labels):
        return torch.as_tensor(labels)


def test_ignored_examples_use_up_nothing() -> None:
    table = Persons(1)
    scores = [0.1, 0.2, 0.3, 0.4]
    assert counted_labels(table, [7, 7, 7, 8], scores, [-1, 1, 0, -1]).tolist() == [1]
    labels = counted_labels(table, [7, 8, 8, 7], scores, [-1, 0, 1, -1])
    assert labels.tolist() == [0]
    assert table.left_out == 2


def test_every_position_is_an_example_of_its_person() -> None:
    scores = torch.rand(2, 3, 4)
    target = torch.arange(8).reshape(2, 4) % 3
    rules = Rules("multiclass")
    labels = counted_labels(Persons(3), ["a", "b"], scores, target, rules=rules, columns=3)
    assert labels.tolist() == [0, 1, 2, 1, 2, 0]
    ids = torch.tensor([[1, 2, 1, 1], [1, 1, 2, 2]])
    kept = [0, 1, 2, 6]
    with Persons(2).admitted(ids, rules, 3, scores, target, ids, None) as batch:
        preds, labels, persons, nothing = batch
        assert persons.tolist() == [1, 2, 1, 2]
        assert nothing is None
        assert labels.tolist() == target.reshape(-1)[kept].tolist()
        assert torch.equal(preds, scores.movedim(1, -1).reshape(-1, 3)[kept])


def test_a_row_of_labels_is_one_example() -> None:
    rules = Rules("multilabel", None, -1)
    target = torch.tensor([[-1, -1], [0, -1], [1, 1]])
    labels = counted_labels(Persons(1), [4, 4, 4], torch.rand(3, 2), target, rules=rules, columns=2)
    assert labels.tolist() == [[0, -1]]


@pytest.mark.parametrize(
    "ids", [[1], [1, 2, 3], torch.ones(2, 3, dtype=torch.int64), torch.tensor(1), [[1], [2]]]
)
def test_ids_of_another_shape_are_refused(ids: Any) -> None:
    message = r"an id for each of \(2,\) examples, or for each position, \(2, 4\)"
    with pytest.raises(InputError, match=message):
        counted_labels(Persons(1), ids, torch.rand(2, 4), torch.zeros(2, 4))


def test_a_one_hot_target_is_seen_with_examples_left_out() -> None:
    """By then it is flat, and every row would count twice."""
    target = torch.tensor([[0, 1], [1, 0], [1, 0]])
    labels = counted_labels(Persons(1), [1, 2, 2], torch.rand(3, 2), target)
    assert bool((labels < -1).all())  # which the kernel refuses


def test_a_batch_that_is_not_counted_is_taken_back() -> None:
    table = Persons(2)
    ids = np.arange(100_000) % 60_000
    table.admit([1, 2, 2])
    with (
        pytest.raises(KeyError),
        table.admitted(ids, Rules(), 1, torch.rand(100_000), torch.zeros(100_000)),
    ):
        raise KeyError
    assert (table.batches, table.left_out) == (1, 0)
    mask = table.admit([1, 1, 2, 5, 5, 5])
    assert mask.tolist() == [True, False, False, True, True, False]


def test_tables_add_up() -> None:
    table = Persons(3)
    part = Persons(3)
    table.admit([1, 2, 1])
    part.admit([1, 5, -1])
    table.merge(part)
    assert table.admit([1, 2, 2, 2, 5]).tolist() == [False, True, True, False, True]
    with pytest.raises(ReleaseError, match="Divide the data by person"):
        table.merge(part)
    # a table that was refused was not added
    assert table.admit([-1, -1, -1]).tolist() == [True, True, False]


def test_a_copy_goes_on_by_itself() -> None:
    table = Persons(2)
    table.admit([1, 1, 1])
    twin = deepcopy(table)
    assert (twin.batches, twin.left_out) == (1, 1)
    assert twin.admit([1, 2, 2]).tolist() == [False, True, True]
    assert table.admit([1, 2, 2]).tolist() == [False, True, True]


def test_a_table_is_in_no_pickle() -> None:
    with pytest.raises(ReleaseError, match="pickle"):
        pickle.dumps(Persons(1))


def test_digests_tell_nothing_without_the_key() -> None:
    table = Persons(2)
    table.admit(["1", "2", "2", "ann"])
    first = table.digests(bytes(32))
    assert sorted(first.values()) == [1, 1, 2]
    assert all(len(digest) == DIGEST_BYTES for digest in first)
    assert not first.keys() & table.digests(bytes([1] * 32)).keys()
    assert first == table.digests(bytes(32))
