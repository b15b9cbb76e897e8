"""Tables: whatever holds the rows, and however they are split, the counts are those of the tensors, to the bit."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchmetrics_fed import FederatedAUROC, FederatedROC, InputError, LocalDP, ScoreGrid
from torchmetrics_fed.metrics import FederatedMetric

pa = pytest.importorskip("pyarrow")

import pyarrow.csv as csv  # noqa: E402
import pyarrow.feather as feather  # noqa: E402
import pyarrow.parquet as parquet  # noqa: E402

from torchmetrics_fed.app import batches  # noqa: E402
from torchmetrics_fed.app.tables import PartialCounts, count_table, merge_counts  # noqa: E402

ROWS = 5_000


@pytest.fixture(scope="module")
def scored() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    target = (torch.rand(ROWS, generator=generator) < 0.3).long()
    return (
        torch.randn(ROWS, generator=generator, dtype=torch.float64) + 2 * target
    ).sigmoid(), target


@pytest.fixture(scope="module")
def expected(scored: tuple[Tensor, Tensor]) -> Tensor:
    metric = FederatedROC()
    metric.update(*scored)
    return metric.counts


@pytest.fixture(scope="module")
def table(scored: tuple[Tensor, Tensor]) -> Any:
    return pa.table(
        {"id": list(range(ROWS)), "score": scored[0].numpy(), "label": scored[1].numpy()}
    )


def write(table: Any, path: Path) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=1_000)
    elif path.suffix == ".feather":
        feather.write_feather(table, path, chunksize=700)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=900)
    else:
        delimiter = "\t" if ".tsv" in path.suffixes else ","
        with pa.output_stream(str(path), compression="detect") as sink:
            csv.write_csv(table, sink, csv.WriteOptions(delimiter=delimiter))
    return path


@pytest.mark.parametrize(
    "name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet", "t.feather", "t.arrow"]
)
def test_files_of_every_kind_have_the_same_counts(
    table: Any, expected: Tensor, name: str, tmp_path: Path
) -> None:
    metric = FederatedROC()
    assert count_table(metric, write(table, tmp_path / name)) == (ROWS, 0)
    assert torch.equal(metric.counts, expected)


def test_tables_readers_batches_and_any_split_of_them_have_the_same_counts(
    table: Any, expected: Tensor
) -> None:
    sources = [
        table,
        table.to_reader(100),
        table.to_batches(77),
        (table[at : at + 999] for at in range(0, ROWS, 999)),
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
    parts = [part(table[at : at + 1_500]) for at in range(0, ROWS, 1_500)]
    assert merge_counts(metric, reversed(parts)) == (ROWS, 0)
    assert torch.equal(metric.counts, expected)
    with pytest.raises(InputError, match="counted for this metric"):
        merge_counts(FederatedROC(quantiles=64), parts)


@pytest.mark.parametrize(
    "kind",
    ["float32", "float16", "decimal128(12, 8)", "string", "large_string", "dictionary"],
    ids=str,
)
def test_scores_of_every_type_are_those_of_their_values(
    scored: tuple[Tensor, Tensor], kind: str
) -> None:
    preds = scored[0].to(
        {"float32": torch.float32, "float16": torch.float16}.get(kind, torch.float64)
    )
    values = pa.array(preds.numpy())
    if kind == "dictionary":
        values = values.dictionary_encode()
    elif kind.startswith("decimal"):
        values = values.cast(pa.decimal128(12, 8), safe=False)
        preds = torch.tensor(values.cast(pa.float64()).to_pylist(), dtype=torch.float64)
    elif "string" in kind:
        values = values.cast(kind)
    metric, other = FederatedROC(), FederatedROC()
    count_table(metric, pa.table({"score": values, "label": scored[1].numpy()}))
    other.update(preds, scored[1])
    assert torch.equal(metric.counts, other.counts)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([False, True, True], None),
        ([0.0, 1.0, 1.0], None),
        (["0", " 1", "1.0"], None),
        (["no", "yes ", "yes"], ["no", "yes"]),
        ([7, 9, 9], ["7", "9"]),
        (pa.array([0, 1, 1], pa.uint64()), None),
        (pa.array(["no", "yes", "yes"]).dictionary_encode(), ["no", "yes"]),
    ],
    ids=["bool", "float", "text", "names", "numbers as names", "uint64", "dictionary"],
)
def test_labels_of_every_kind(values: Any, labels: list[str] | None) -> None:
    metric, other = FederatedROC(labels=labels or ()), FederatedROC()
    count_table(metric, pa.table({"score": [0.1, 0.5, 0.9], "label": values}))
    other.update(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), torch.tensor([0, 1, 1]))
    assert torch.equal(metric.counts, other.counts)


def test_several_classes_and_labels_take_a_column_each() -> None:
    preds = torch.rand(200, 3, dtype=torch.float64).softmax(1)
    scores = {f"p{index}": preds[:, index].numpy() for index in range(3)}
    several, other = (FederatedAUROC("multiclass", num_classes=3) for _ in range(2))
    target = torch.randint(0, 3, (200,))
    count_table(
        several, pa.table({**scores, "y": target.numpy()}), score=["p0", "p1", "p2"], label="y"
    )
    other.update(preds, target)
    assert torch.equal(several.counts, other.counts)
    several, other = (FederatedAUROC("multilabel", num_labels=3) for _ in range(2))
    target = torch.randint(0, 2, (200, 3))
    labels = {f"y{index}": target[:, index].numpy() for index in range(3)}
    count_table(several, pa.table({**scores, **labels}), score=list(scores), label=list(labels))
    other.update(preds, target)
    assert torch.equal(several.counts, other.counts)
    with pytest.raises(InputError, match="Expected 3 `score` and 3 `label` columns"):
        count_table(several, pa.table(scores), score="p0")


def test_groups_are_a_column_of_names() -> None:
    table = pa.table(
        {"score": [0.1, 0.4, 0.6, 0.9], "label": [0, 1, 1, 0], "sex": ["f", "f", " m", "m"]}
    )
    metric, other = (FederatedAUROC(groups=("f", "m")) for _ in range(2))
    count_table(metric, table, group="sex")
    other.update(
        torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0, 1, 1])
    )
    assert torch.equal(metric.counts, other.counts)
    unknown = table.set_column(2, "sex", [["f", "x", None, "m"]])
    with pytest.raises(
        InputError, match=r"groups \['f', 'm'\] but row 2, column 'sex', holds something else"
    ):
        count_table(metric, unknown, group="sex")
    assert count_table(metric, unknown, group="sex", skip_bad=True, most_skipped=1.0) == (2, 2)


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


@pytest.mark.parametrize("kind", ["table", "t.csv", "t.parquet"])
@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_named_and_nothing_counted_or_it_is_left_out(
    case: str, kind: str, tmp_path: Path
) -> None:
    change, message = BAD[case]
    good: dict[str, list[Any]] = {"score": [0.1, 0.2, 0.3, 0.4], "label": [0, 1, 0, 1]}
    bad = {
        name: [*values[:2], change.get(name, values[2]), values[3]] for name, values in good.items()
    }
    source = pa.table(bad)
    if kind != "table":
        source = write(source, tmp_path / kind)
    if kind == "t.csv":
        message = message.replace(
            "holds something else", "(holds something else|is missing)"
        )  # NaN is "nan" there
    metric = FederatedROC(privacy=LocalDP(epsilon=1.0))
    with pytest.raises(InputError, match=message) as error:
        count_table(metric, source)
    assert not any(value in str(error.value) for value in ("1.5", "-1.0", "inf", "9"))
    assert not metric.counts.any()
    assert not metric.update_called
    assert count_table(metric, source, skip_bad=True, most_skipped=1.0) == (3, 1)
    assert int(metric.counts.sum()) == 3


@pytest.mark.parametrize(
    "ids", [[1, 2, 1, 1, 2, 3], ["1", "2", " 1", "1", "2 ", "3"]], ids=["integers", "texts"]
)
def test_no_person_is_counted_too_often_whatever_holds_the_rows(
    ids: list[Any], tmp_path: Path
) -> None:
    """Person 1 has three rows here and one more in the second file, which has its ids as numbers."""
    columns = {"score": [0.1, 0.2, 0.6, 0.9, 0.8, 0.3], "label": [0, 0, 1, 1, 1, 0]}
    metric = FederatedROC(privacy=LocalDP(1.0, examples_per_person=2, enforced=True))
    assert (
        count_table(
            metric, write(pa.table({**columns, "who": ids}), tmp_path / "a.csv"), person="who"
        ).rows
        == 6
    )
    more = pa.table({"score": [0.5, 0.5], "label": [1, 1], "who": [1, 3]})
    count_table(metric, write(more, tmp_path / "b.parquet"), person="who")
    assert (int(metric.counts.sum()), metric.persons.left_out, metric.persons.bound_enforced) == (6, 2, True)
    expected = FederatedROC()
    expected.update(torch.tensor([0.1, 0.2, 0.6, 0.8, 0.3, 0.5]), torch.tensor([0, 0, 1, 1, 0, 1]))
    assert torch.equal(metric.counts, expected.counts)


def test_a_row_without_a_person_is_bad_and_takes_back_what_came_before() -> None:
    metric = FederatedROC(privacy=LocalDP(1.0, enforced=True))
    good = pa.table({"score": [0.5, 0.6], "label": [0, 1], "who": ["a", "b"]})
    bad = pa.table({"score": [0.5, 0.6], "label": [0, 1], "who": ["c", None]})
    count_table(metric, good, person="who")
    with pytest.raises(InputError, match="persons' ids but row 4, column 'who', is missing"):
        count_table(metric, [bad[:1], good, bad[1:]], person="who")
    assert (int(metric.counts.sum()), metric.persons.left_out, metric.persons.bound_enforced) == (2, 0, True)
    assert count_table(metric, [bad, good], person="who", skip_bad=True, most_skipped=1.0) == (3, 1)
    assert (int(metric.counts.sum()), metric.persons.left_out) == (
        3,
        2,
    )  # of "c", who was forgotten with what was taken back


def test_persons_are_counted_in_one_place_and_have_ids(table: Any) -> None:
    metric = FederatedROC(privacy=LocalDP(1.0, enforced=True))
    with pytest.raises(InputError, match="counted too often"):
        PartialCounts.of(metric, person="id")(table)
    with pytest.raises(InputError, match="integers or texts in column 'score'"):
        count_table(metric, table, person="score")
    with pytest.raises(InputError, match="`persons` with every batch"):
        count_table(metric, table)
    assert not metric.counts.any()


def test_ignored_rows_are_not_bad() -> None:
    metric = FederatedROC(ignore_index=-1)
    assert count_table(
        metric,
        pa.table({"score": [0.1, 7.0, 0.3, None], "label": [0, -1, 1, 0]}),
        skip_bad=True,
        most_skipped=1.0,
    ) == (
        3,
        1,
    )
    assert int(metric.counts.sum()) == 2


def test_logits_and_other_ranges_have_other_bad_rows() -> None:
    logits = FederatedROC(normalization="sigmoid")
    assert count_table(
        logits,
        pa.table({"score": [-9.0, 9.0, None], "label": [0, 1, 0]}),
        skip_bad=True,
        most_skipped=1.0,
    ) == (2, 1)
    ranged = FederatedROC(grid=ScoreGrid.even(64, (-5.0, 5.0)))
    assert count_table(
        ranged, pa.table({"score": [-9.0, 4.0], "label": [0, 1]}), skip_bad=True, most_skipped=1.0
    ) == (1, 1)


def test_a_later_bad_row_takes_back_what_came_before(
    tmp_path: Path, table: Any, expected: Tensor
) -> None:
    metric = FederatedROC()
    count_table(metric, table)
    with pytest.raises(InputError, match=f"row {ROWS + 1}, "):
        count_table(metric, [*table.to_batches(500), pa.table({"score": [2.0], "label": [1]})])
    assert torch.equal(metric.counts, expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a header and rows but 't.csv' is empty"),
        ("p,y\n0.1,0\n", r"one column 'score' but the columns are \['p', 'y'\]"),
        ("score,score,label\n0.1,0.2,0\n", "one column 'score'"),
        ("score,label\n0.1,0\n0.2,1,5\n", "row 2 has more or fewer"),
        ("score,label\n0.1,0\nabc,1\n", "row 2, column 'score', holds something else"),
        ("score,label\n0.1,\xff\n", "'t.csv' cannot"),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode("latin1"))
    with pytest.raises(InputError, match=message):
        count_table(FederatedROC(), tmp_path / "t.csv")


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    for source, message in (
        (3, "Expected a table"),
        ([3], "Expected a table"),
        (tmp_path / "t.xls", "ends in one of"),
    ):
        with pytest.raises(InputError, match=message):
            count_table(FederatedROC(), source)
    with pytest.raises(InputError, match="No such file"):
        count_table(FederatedROC(), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="numbers in column 'score' but its type is list"):
        count_table(FederatedROC(), pa.table({"score": [[0.1]], "label": [0]}))


def open_files(name: str) -> int:
    """How many descriptors of this process, and of its memory maps, are those of a file."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(name in str(link.readlink()) for link in links)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc, as Linux has it")
@pytest.mark.parametrize(
    "name", ["shut.csv", "shut.csv.gz", "shut.parquet", "shut.feather", "shut.arrow"]
)
@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [(20, {"score": "p"}, "one column 'p'"), (400_000, {}, "row 1, column 'label'")],
    ids=["wrong column", "bad row"],
)
def test_a_refused_file_is_closed_while_its_error_is_kept(
    rows: int, columns: dict[str, Any], message: str, name: str, tmp_path: Path
) -> None:
    labels = [2] + [0] * (rows - 1)
    path = write(pa.table({"score": [0.125] * rows, "label": labels}), tmp_path / name)
    with pytest.raises(InputError, match=message) as kept:
        count_table(FederatedROC(), path, **columns)
    assert kept.value.__traceback__ is not None
    assert open_files(name) == 0


def test_malformed_rows_have_their_numbers_in_every_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_CSV_BYTES", 64)  # a block ends within a line
    lines = ["0.125,1"] * 100
    lines[77] = "0.5"
    for end in ("\n", "\r\n", "\r"):
        path = tmp_path / "t.csv"
        path.write_bytes(end.join(["score,label", *lines]).encode())
        with pytest.raises(InputError, match="row 78 has more or fewer"):
            count_table(FederatedROC(), path)
        assert count_table(FederatedROC(), path, skip_bad=True) == (99, 1)


def test_a_table_with_many_bad_rows_is_refused_and_changes_nothing() -> None:
    table = pa.table(
        {"score": [0.5] * 94 + [2.0] * 6, "label": [0, 1] * 50, "who": list(range(100))}
    )
    without: dict[str, Any] = {}
    for options in (without, {"person": "who"}):
        metric = FederatedROC(privacy=LocalDP(1.0, enforced=bool(options)))
        with pytest.raises(InputError, match=r"more than 0\.05 of the rows are bad") as error:
            count_table(metric, table, skip_bad=True, **options)
        assert not any(number in str(error.value) for number in ("94", "100", " 6 "))
        assert not metric.counts.any()
        assert not metric.update_called
        assert count_table(metric, table, skip_bad=True, most_skipped=0.06, **options) == (94, 6)
        assert metric.update_called


def test_parts_with_many_bad_rows_are_refused_as_a_whole() -> None:
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
    with pytest.raises(InputError, match="`most_skipped` to be a fraction"):
        count_table(FederatedROC(), pa.table({"score": [0.5], "label": [1]}), most_skipped=fraction)


def untouched_or_counted(metric: FederatedMetric, path: Path) -> None:
    """A damaged file is refused with a typed error, and changes nothing, or all of its rows are accounted for."""
    counted = None
    with suppress(InputError):
        counted = count_table(metric, path, skip_bad=True, most_skipped=1.0)
    assert int(metric.counts.sum()) == (counted.rows if counted else 0)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.lists(
            st.sampled_from(["0.5", "1", "0", "", "nan", "abc", "1e9", '"', "'", "\x00", " "]),
            max_size=4,
        )
    )
)
def test_any_text_as_csv_is_counted_or_refused(tmp_path: Path, cells: list[list[str]]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["score,label", *(",".join(row) for row in cells)]))
    untouched_or_counted(FederatedROC(quantiles=16), path)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_damage_to_a_file_is_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["t.parquet", "t.feather", "t.arrow"]))
    path = tmp_path / name
    whole = write(
        pa.table({"score": [0.1, 0.2, 0.3] * 20, "label": [0, 1, 0] * 20}), path
    ).read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["cut", "flip", "lose"]))
    flipped = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
    path.write_bytes(
        {
            "cut": whole[:at],
            "flip": whole[:at] + flipped + whole[at + 1 :],
            "lose": whole[:at] + whole[at + 9 :],
        }[kind]
    )
    untouched_or_counted(FederatedROC(quantiles=16), path)


PROGRAM = """
import resource, sys
import numpy as np, pyarrow as pa, pyarrow.parquet as parquet
from torchmetrics_fed import FederatedROC
from torchmetrics_fed.app.tables import count_table
rng = np.random.default_rng(0)
peaks = []
for millions in (1, 1, 10):
    schema = pa.schema([("score", pa.float32()), ("label", pa.int8())])
    with parquet.ParquetWriter("t.parquet", schema, compression="none", use_dictionary=False) as writer:
        for _ in range(millions):
            scores = rng.random(1_000_000, dtype=np.float32)
            writer.write_table(pa.table([scores, (rng.random(1_000_000) < scores).astype(np.int8)], schema=schema))
    assert count_table(FederatedROC(), "t.parquet").rows == millions * 1_000_000
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[2] - peaks[1])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert int(done.stdout) * (1 if sys.platform == "darwin" else 1024) < 20_000_000
