"""Tables: whatever holds the rows, the counts are those of the same tensors, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.app.table_files import write_table
from torchmetrics_fed import FederatedAUROC, FederatedROC, InputError, LocalDP, ScoreGrid
from torchmetrics_fed.app.tables import PartialCounts, count_table, merge_counts

pa = pytest.importorskip("pyarrow")

ROWS = 5_000

SKIP: dict[str, Any] = {"skip_bad": True, "most_skipped": 1.0}
"""Leave out every bad row."""

Scored = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def scored() -> Scored:
    """Scores and labels."""
    generator = torch.Generator().manual_seed(3)
    target = (torch.rand(ROWS, generator=generator) < 0.3).long()
    logits = torch.randn(ROWS, generator=generator, dtype=torch.float64) + 2 * target
    return logits.sigmoid(), target


@pytest.fixture(scope="module")
def expected(scored: Scored) -> Tensor:
    return counts_of(*scored)


@pytest.fixture(scope="module")
def table(scored: Scored) -> Any:
    preds, target = scored
    return pa.table({"id": list(range(ROWS)), "score": preds.numpy(), "label": target.numpy()})


def counts_of(preds: Tensor, target: Tensor) -> Tensor:
    """The counts of tensors."""
    metric = FederatedROC()
    metric.update(preds, target)
    return metric.counts


# --- the same counts


@pytest.mark.parametrize(
    "name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet", "t.feather", "t.arrow"]
)
def test_files_of_every_format_have_the_same_counts(
    table: Any, expected: Tensor, name: str, tmp_path: Path
) -> None:
    metric = FederatedROC()
    assert count_table(metric, write_table(table, tmp_path / name)) == (ROWS, 0)
    assert torch.equal(metric.counts, expected)


def test_tables_readers_batches_and_any_split_of_them_have_the_same_counts(
    table: Any, expected: Tensor
) -> None:
    sources = [
        table,
        table.to_reader(100),
        table.to_batches(77),
        (table[start : start + 999] for start in range(0, ROWS, 999)),
    ]
    for source in sources:
        metric = FederatedROC()
        assert count_table(metric, source).rows == ROWS
        assert torch.equal(metric.counts, expected)


def test_parts_counted_elsewhere_merge_to_the_same_counts_in_any_order(
    table: Any, expected: Tensor
) -> None:
    metric = FederatedROC()
    part = PartialCounts.of(metric)
    parts = [part(table[start : start + 1_500]) for start in range(0, ROWS, 1_500)]
    assert merge_counts(metric, reversed(parts)) == (ROWS, 0)
    assert torch.equal(metric.counts, expected)
    with pytest.raises(InputError, match="counted for this metric"):
        merge_counts(FederatedROC(quantiles=64), parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_short_floats_are_counted_as_they_are(scored: Scored, dtype: torch.dtype) -> None:
    preds, target = scored
    short = preds.to(dtype)
    metric = FederatedROC()
    count_table(metric, pa.table({"score": short.numpy(), "label": target.numpy()}))
    assert torch.equal(metric.counts, counts_of(short, target))


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary", "decimal"])
def test_scores_of_other_types_are_those_of_their_values(scored: Scored, kind: str) -> None:
    preds, target = scored
    values = pa.array(preds.numpy())
    if kind == "dictionary":
        values = values.dictionary_encode()
    elif kind == "decimal":
        values = values.cast(pa.decimal128(12, 8), safe=False)
        preds = torch.tensor(values.cast(pa.float64()).to_pylist(), dtype=torch.float64)
    else:
        values = values.cast(kind)
    metric = FederatedROC()
    count_table(metric, pa.table({"score": values, "label": target.numpy()}))
    assert torch.equal(metric.counts, counts_of(preds, target))


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([False, True, True], ()),
        ([0.0, 1.0, 1.0], ()),
        (["0", " 1", "1.0"], ()),
        (["no", "yes ", "yes"], ["no", "yes"]),
        ([7, 9, 9], ["7", "9"]),
        (pa.array([0, 1, 1], pa.uint64()), ()),
        (pa.array(["no", "yes", "yes"]).dictionary_encode(), ["no", "yes"]),
    ],
    ids=["bool", "float", "text", "names", "numbers as names", "uint64", "dictionary"],
)
def test_labels_of_every_type(values: Any, labels: list[str]) -> None:
    metric = FederatedROC(labels=labels)
    count_table(metric, pa.table({"score": [0.1, 0.5, 0.9], "label": values}))
    preds = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    assert torch.equal(metric.counts, counts_of(preds, torch.tensor([0, 1, 1])))


def test_several_classes_take_a_column_of_scores_each() -> None:
    preds = torch.rand(200, 3, dtype=torch.float64).softmax(1)
    target = torch.randint(0, 3, (200,))
    columns = {f"p{index}": preds[:, index].numpy() for index in range(3)}
    table = pa.table({**columns, "y": target.numpy()})
    metric = FederatedAUROC("multiclass", num_classes=3)
    count_table(metric, table, score=["p0", "p1", "p2"], label="y")
    reference = FederatedAUROC("multiclass", num_classes=3)
    reference.update(preds, target)
    assert torch.equal(metric.counts, reference.counts)


def test_several_labels_take_a_column_of_scores_and_of_labels_each() -> None:
    preds = torch.rand(200, 3, dtype=torch.float64)
    target = torch.randint(0, 2, (200, 3))
    scores = {f"p{index}": preds[:, index].numpy() for index in range(3)}
    labels = {f"y{index}": target[:, index].numpy() for index in range(3)}
    metric = FederatedAUROC("multilabel", num_labels=3)
    count_table(metric, pa.table({**scores, **labels}), score=list(scores), label=list(labels))
    reference = FederatedAUROC("multilabel", num_labels=3)
    reference.update(preds, target)
    assert torch.equal(metric.counts, reference.counts)
    with pytest.raises(InputError, match="Expected 3 `score` and 3 `label` columns"):
        count_table(metric, pa.table(scores), score="p0")


def test_groups_are_a_column_of_names() -> None:
    columns = {"score": [0.1, 0.4, 0.6, 0.9], "label": [0, 1, 1, 0]}
    table = pa.table({**columns, "sex": ["f", "f", " m", "m"]})
    metric = FederatedAUROC(groups=("f", "m"))
    count_table(metric, table, group="sex")
    reference = FederatedAUROC(groups=("f", "m"))
    reference.update(
        torch.tensor(columns["score"]),
        torch.tensor(columns["label"]),
        torch.tensor([0, 0, 1, 1]),
    )
    assert torch.equal(metric.counts, reference.counts)
    unknown = pa.table({**columns, "sex": ["f", "x", None, "m"]})
    message = r"groups \['f', 'm'\] but row 2, column 'sex', holds something else"
    with pytest.raises(InputError, match=message):
        count_table(metric, unknown, group="sex")
    assert count_table(metric, unknown, group="sex", **SKIP) == (2, 2)


# --- persons


@pytest.mark.parametrize(
    "ids",
    [[1, 2, 1, 1, 2, 3], ["1", "2", " 1", "1", "2 ", "3"]],
    ids=["integers", "texts"],
)
def test_no_person_is_counted_too_often_whatever_holds_the_rows(
    ids: list[Any], tmp_path: Path
) -> None:
    """Person 1 has three rows here and one in the second file, which has its ids as numbers."""
    first = {"score": [0.1, 0.2, 0.6, 0.9, 0.8, 0.3], "label": [0, 0, 1, 1, 1, 0], "who": ids}
    second = {"score": [0.5, 0.5], "label": [1, 1], "who": [1, 3]}
    first_file = write_table(pa.table(first), tmp_path / "a.csv")
    second_file = write_table(pa.table(second), tmp_path / "b.parquet")
    metric = FederatedROC(privacy=LocalDP(1.0, examples_per_person=2, enforced=True))
    assert count_table(metric, first_file, person="who").rows == 6
    count_table(metric, second_file, person="who")
    assert metric.persons.left_out == 2
    assert metric.persons.bound_enforced
    preds = torch.tensor([0.1, 0.2, 0.6, 0.8, 0.3, 0.5])
    target = torch.tensor([0, 0, 1, 1, 0, 1])
    assert torch.equal(metric.counts, counts_of(preds, target))


def test_a_row_without_a_person_is_bad_and_takes_back_the_rows_before() -> None:
    metric = FederatedROC(privacy=LocalDP(1.0, enforced=True))
    good = pa.table({"score": [0.5, 0.6], "label": [0, 1], "who": ["a", "b"]})
    bad = pa.table({"score": [0.5, 0.6], "label": [0, 1], "who": ["c", None]})
    count_table(metric, good, person="who")
    with pytest.raises(InputError, match="persons' ids but row 4, column 'who', is missing"):
        count_table(metric, [bad[:1], good, bad[1:]], person="who")
    assert int(metric.counts.sum()) == 2
    assert metric.persons.left_out == 0
    assert metric.persons.bound_enforced
    assert count_table(metric, [bad, good], person="who", **SKIP) == (3, 1)
    assert int(metric.counts.sum()) == 3  # "c" was forgotten, and is counted now
    assert metric.persons.left_out == 2


def test_persons_are_counted_in_one_place_and_have_ids(table: Any) -> None:
    metric = FederatedROC(privacy=LocalDP(1.0, enforced=True))
    with pytest.raises(InputError, match="counted too often"):
        PartialCounts.of(metric, person="id")(table)
    with pytest.raises(InputError, match="integers or texts in column 'score'"):
        count_table(metric, table, person="score")
    with pytest.raises(InputError, match="`persons` with every batch"):
        count_table(metric, table)
    assert not metric.counts.any()


# --- bad rows


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "missing score": ({"score": None}, "row 3, column 'score', is missing"),
    "NaN": ({"score": float("nan")}, "row 3, column 'score', holds something else"),
    "infinite": ({"score": float("inf")}, "row 3, column 'score'"),
    "too large": ({"score": 1.5}, r"scores in \[0.0, 1.0\] but row 3, column 'score'"),
    "missing label": ({"label": None}, "row 3, column 'label', is missing"),
    "unknown label": (
        {"label": 2},
        "labels .*from 0 to 1.* but row 3, column 'label', holds something else",
    ),
    "both": ({"score": -1.0, "label": 9}, "row 3, column 'score'"),
}
"""By name, the values of a bad row, and the error."""


@pytest.mark.parametrize("source", ["table", "t.csv", "t.parquet"])
@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_named_and_nothing_counted_or_it_is_left_out(
    case: str, source: str, tmp_path: Path
) -> None:
    change, message = BAD[case]
    columns: dict[str, list[Any]] = {"score": [0.1, 0.2, 0.3, 0.4], "label": [0, 1, 0, 1]}
    for name, value in change.items():
        columns[name][2] = value
    table = pa.table(columns)
    if source != "table":
        table = write_table(table, tmp_path / source)
    if source == "t.csv":  # where NaN is a missing value
        message = message.replace("holds something else", "(holds something else|is missing)")
    metric = FederatedROC(privacy=LocalDP(epsilon=1.0))
    with pytest.raises(InputError, match=message) as raised:
        count_table(metric, table)
    for value in ("1.5", "-1.0", "inf", "9"):
        assert value not in str(raised.value)
    assert not metric.counts.any()
    assert not metric.update_called
    assert count_table(metric, table, **SKIP) == (3, 1)
    assert int(metric.counts.sum()) == 3


def test_a_text_that_is_no_number_is_bad() -> None:
    table = pa.table({"score": ["0.1", "abc"], "label": [0, 1]})
    message = "row 2, column 'score', holds something else"
    with pytest.raises(InputError, match=message):
        count_table(FederatedROC(), table)


def test_ignored_rows_are_not_bad() -> None:
    metric = FederatedROC(ignore_index=-1)
    table = pa.table({"score": [0.1, 7.0, 0.3, None], "label": [0, -1, 1, 0]})
    assert count_table(metric, table, **SKIP) == (3, 1)
    assert int(metric.counts.sum()) == 2


def test_every_finite_logit_is_good() -> None:
    table = pa.table({"score": [-9.0, 9.0, None], "label": [0, 1, 0]})
    assert count_table(FederatedROC(normalization="sigmoid"), table, **SKIP) == (2, 1)


def test_a_score_outside_the_range_of_the_grid_is_bad() -> None:
    metric = FederatedROC(grid=ScoreGrid.even(64, (-5.0, 5.0)))
    table = pa.table({"score": [-9.0, 4.0], "label": [0, 1]})
    assert count_table(metric, table, **SKIP) == (1, 1)


def test_a_later_bad_row_takes_back_the_rows_before(table: Any, expected: Tensor) -> None:
    metric = FederatedROC()
    count_table(metric, table)
    bad = pa.table({"score": [2.0], "label": [1]})
    with pytest.raises(InputError, match=f"row {ROWS + 1}, "):
        count_table(metric, [*table.to_batches(500), bad])
    assert torch.equal(metric.counts, expected)


@pytest.mark.parametrize("source", [3, [3]])
def test_an_object_that_is_no_table_is_refused(source: Any) -> None:
    with pytest.raises(InputError, match="Expected a table"):
        count_table(FederatedROC(), source)


def test_a_column_without_numbers_is_refused() -> None:
    table = pa.table({"score": [[0.1]], "label": [0]})
    with pytest.raises(InputError, match="numbers in column 'score' but its type is list"):
        count_table(FederatedROC(), table)


@pytest.mark.parametrize("columns", [{}, {"person": "who"}], ids=["rows", "persons"])
def test_a_table_with_many_bad_rows_is_refused_and_changes_nothing(
    columns: dict[str, Any],
) -> None:
    scores = [0.5] * 94 + [2.0] * 6
    table = pa.table({"score": scores, "label": [0, 1] * 50, "who": list(range(100))})
    metric = FederatedROC(privacy=LocalDP(1.0, enforced=bool(columns)))
    with pytest.raises(InputError, match=r"more than 0\.05 of the rows are bad") as raised:
        count_table(metric, table, skip_bad=True, **columns)
    for number in ("94", "100", " 6 "):
        assert number not in str(raised.value)
    assert not metric.counts.any()
    assert not metric.update_called
    assert count_table(metric, table, skip_bad=True, most_skipped=0.06, **columns) == (94, 6)
    assert metric.update_called


def test_parts_with_many_bad_rows_are_refused_together() -> None:
    good = pa.table({"score": [0.5] * 99, "label": [1] * 99})
    bad = pa.table({"score": [2.0], "label": [0]})
    metric = FederatedROC()
    part = PartialCounts.of(metric, skip_bad=True)
    assert merge_counts(metric, [part(bad), part(good)]) == (99, 1)
    with pytest.raises(InputError, match="no row of the table can be counted"):
        merge_counts(metric, [part(bad)])
    with pytest.raises(InputError, match="no row of the table can be counted"):
        merge_counts(metric, [])
    with pytest.raises(InputError, match=r"more than 0\.05 of the rows are bad"):
        merge_counts(metric, [part(bad), part(good[:9])])
    assert int(metric.counts.sum()) == 99


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_the_fraction_of_bad_rows_is_a_fraction(fraction: float) -> None:
    table = pa.table({"score": [0.5], "label": [1]})
    with pytest.raises(InputError, match="`most_skipped` to be a fraction"):
        count_table(FederatedROC(), table, most_skipped=fraction)
