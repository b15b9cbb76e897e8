"""Classes and labels without examples: values, averages and warnings are those of torchmetrics'
exact metrics."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torchmetrics.classification as exact
from torch import Tensor

import torchmetrics_fed
from torchmetrics_fed import (
    CentralDP,
    FederatedAveragePrecision,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    ScoreGrid,
    evaluation_report,
)
from torchmetrics_fed.functional import average_precision_from_counts, read

K = 4
GRID = ScoreGrid.from_edges(ScoreGrid.even(16).edges)  # edges of the user's own: no word of ties
IGNORED = "Average precision score for one or more classes was `nan`. Ignoring these classes in {}-average"
Answer = tuple[Any, list[str]]


def scores(*shape: int) -> Tensor:
    """Scores on bin centres, so that binning changes nothing."""
    values = torch.rand(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return ((values * GRID.bins).floor() + 0.5) / GRID.bins


def some_labels(*constant: tuple[int, int]) -> Tensor:
    labels = torch.randint(0, 2, (60, K), generator=torch.Generator().manual_seed(2))
    for column, value in constant:
        labels[:, column] = value
    return labels


TARGETS: dict[str, tuple[str, Tensor]] = {
    "no positives": ("binary", torch.zeros(60, dtype=torch.int64)),
    "no negatives": ("binary", torch.ones(60, dtype=torch.int64)),
    "an absent class": ("multiclass", torch.arange(60) % 3),
    "two absent classes": ("multiclass", torch.arange(60) % 2 + 1),
    "one class only": ("multiclass", torch.full((60,), 2)),
    "an absent label": ("multilabel", some_labels((3, 0))),
    "an absent label, one that all have": ("multilabel", some_labels((3, 0), (2, 1))),
    "no label at all": ("multilabel", torch.zeros(60, K, dtype=torch.int64)),
}
SIZE = {"multiclass": {"num_classes": K}, "multilabel": {"num_labels": K}}


def answers(name: str, task: str, target: Tensor, **options: Any) -> tuple[Answer, Answer]:
    """What torchmetrics and we compute, each with the texts of its warnings."""
    options |= SIZE.get(task, {})
    preds = scores(60, K)
    if task == "binary":
        preds = scores(60)
    results: list[Answer] = []
    for metric in (
        getattr(exact, task.capitalize() + name)(**options),
        getattr(torchmetrics_fed, f"Federated{name}")(task, grid=GRID, **options),
    ):
        metric.update(preds, target)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results.append((metric.compute(), [str(warning.message) for warning in caught]))
    return results[0], results[1]


def close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first.double(), second.double(), rtol=0, atol=1e-6, equal_nan=True)


AVERAGES = {"binary": ["none"], "multiclass": ["none", "macro", "weighted"]}


@pytest.mark.parametrize("name", ["AUROC", "AveragePrecision"])
@pytest.mark.parametrize(
    ("case", "average"),
    [
        (case, average)
        for case, (task, _) in TARGETS.items()
        for average in AVERAGES.get(task, ["none", "macro", "weighted", "micro"])
    ],
)
def test_areas_are_those_of_torchmetrics(name: str, case: str, average: str) -> None:
    task, target = TARGETS[case]
    options = {"average": average}
    if task == "binary":
        options = {}
    (theirs, warned), (ours, texts) = answers(name, task, target, **options)
    assert close(ours, theirs)
    assert bool(texts) == bool(warned)
    ignored = IGNORED.format(average)
    assert (ignored in texts) == (ignored in warned)


@pytest.mark.parametrize("name", ["ROC", "PrecisionRecallCurve"])
@pytest.mark.parametrize("case", list(TARGETS))
def test_curves_are_those_of_torchmetrics(name: str, case: str) -> None:
    task, target = TARGETS[case]
    (theirs, warned), (ours, texts) = answers(name, task, target)
    assert bool(texts) == bool(warned)
    if task == "binary":
        theirs, ours = ([values[None] for values in curve] for curve in (theirs, ours))
    edges = ours[2].flatten().sort().values
    for index, (x, y, thresholds) in enumerate(zip(*theirs, strict=True)):
        # a score reaches the same scores as the edge below it; one point of each curve has no
        # threshold
        if name == "ROC":
            thresholds = thresholds[1:]
        at = (torch.searchsorted(edges, thresholds.double(), right=True) - 1).tolist()
        points = [*at, -1]
        if name == "ROC":
            points = [0, *(len(edges) - 1 - place for place in at)]
        assert close(ours[0][index][points], x)
        assert close(ours[1][index][points], y)


def test_a_macro_curve_leaves_absent_classes_out() -> None:
    """Where torchmetrics' is NaN throughout, without a word."""
    target = torch.arange(60) % 3
    metric = FederatedPrecisionRecallCurve("multiclass", num_classes=K, grid=GRID, average="macro")
    metric.update(scores(60, K), target)
    with pytest.warns(UserWarning, match="Ignoring these classes in macro-average"):
        curve = metric.compute()
    three = FederatedPrecisionRecallCurve("multiclass", num_classes=3, grid=GRID, average="macro")
    three.update(scores(60, K)[:, :3], target)
    assert all(
        torch.equal(values, expected)
        for values, expected in zip(curve, three.compute(), strict=True)
    )


def test_all_examples_of_the_first_class_are_no_special_case() -> None:
    """Torchmetrics takes class 0 for negatives there and says 0 in place of NaN; of any other
    class it says NaN."""
    for only in range(K):
        (theirs, _), (ours, _) = answers(
            "AveragePrecision", "multiclass", torch.full((60,), only), average="none"
        )
        assert ours.isnan().tolist() == [index != only for index in range(K)]
        assert close(theirs, ours if only else ours.nan_to_num(0.0))


def test_without_any_data_averages_are_defined_or_nan() -> None:
    cases: list[tuple[Any, bool]] = [
        (None, True),
        ("macro", True),
        ("weighted", True),
        ("micro", False),
    ]
    for average, undefined in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            value = FederatedAveragePrecision(
                "multiclass", num_classes=K, average=average
            ).compute()
            curve = FederatedPrecisionRecallCurve(
                "multiclass", num_classes=K, average="macro"
            ).compute()
        assert bool(value.isnan().all()) == undefined
        assert curve.recall.isnan().any()


@pytest.mark.parametrize("average", ["macro", "weighted"])
def test_a_private_class_is_absent_where_its_estimated_size_is_not_positive(average: Any) -> None:
    outcomes = set()
    for _ in range(60):
        metric = FederatedROC(
            "multiclass",
            num_classes=K,
            grid=GRID,
            privacy=CentralDP(4.0),
            plan="single",
            sums_to_one=False,
        )
        metric.update(scores(60, K), torch.arange(60) % 3)
        release = metric.release()
        sizes = read(release).tails.total[:, 1]
        areas = average_precision_from_counts(release)
        assert torch.equal(areas.isnan(), sizes <= 0)
        weights = sizes.clamp(min=0)
        if average == "macro":
            weights = torch.ones(K)
        expected = (areas.nan_to_num(0.0) * weights).sum() / weights[sizes > 0].sum()
        mean = FederatedAveragePrecision.from_release(release, average=average)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert close(mean.compute(), expected)
        absent = bool((sizes <= 0).any())
        words = [str(warning.message) for warning in caught]
        # noise has its own
        assert [text for text in words if "95%" not in text] == [IGNORED.format(average)] * absent
        outcomes.add(absent)
        if len(outcomes) == 2:
            return
    raise AssertionError("noise showed the absent class always, or never")


def test_figures_and_reports_show_what_is_undefined() -> None:
    mpl = pytest.importorskip("matplotlib")
    mpl.use("Agg")
    metric = FederatedAveragePrecision("multiclass", num_classes=K, grid=GRID)
    metric.update(scores(60, K), torch.arange(60) % 3)
    _, ax = metric.plot()
    assert ax.get_lines()[-1].get_label() == "class 3 (AP nan)"
    with pytest.warns(UserWarning, match="No positive examples"):
        report = evaluation_report(metric.release())
    with pytest.warns(UserWarning, match="Ignoring these classes"):
        assert f"AP {metric.compute():.4f}" in repr(report)
    mpl.pyplot.close("all")
