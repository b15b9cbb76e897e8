"""What `plot` takes and draws: torchmetrics' calls do what they do there, and several models fit
in one figure."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import pytest
import torch
from sklearn.metrics import roc_curve
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryROC, MulticlassAUROC, MulticlassROC

from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedCalibration,
    FederatedDET,
    FederatedPrecisionRecallCurve,
    FederatedPrecisionRecallGain,
    FederatedROC,
    InputError,
)

mpl.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")

CURVES: list[tuple[Any, str]] = [
    (FederatedROC, "ROC"),
    (FederatedPrecisionRecallCurve, "PR"),
    (FederatedDET, "DET"),
    (FederatedPrecisionRecallGain, "PR gain"),
    (FederatedCalibration, "scores"),
]
AREAS: list[Any] = [FederatedAUROC, FederatedAveragePrecision]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def updated(kind: Any, scored: tuple[Tensor, Tensor], **options: Any) -> Any:
    metric = kind(**options)
    metric.update(*scored)
    return metric


def three(kind: Any, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    classes = torch.randint(0, 3, (600,), generator=generator)
    scores = torch.randn(600, 3, generator=generator) + 2 * torch.nn.functional.one_hot(classes, 3)
    return updated(kind, (scores.softmax(1), classes), **options)


def legend(ax: Any) -> list[str]:
    """The entries of the curves, without the line to compare with."""
    return [line.get_label() for line in ax.get_lines() if line.get_gid() == "curve"]


def values(ax: Any) -> list[list[float]]:
    return [list(map(float, line.get_ydata())) for line in ax.get_lines()]


@pytest.mark.parametrize(("kind", "name"), CURVES)
def test_score_is_computed_given_or_left_out(
    kind: Any, name: str, scored: tuple[Tensor, Tensor]
) -> None:
    metric = updated(kind, scored)
    (entry,) = legend(metric.plot()[1])
    assert legend(metric.plot(score=True)[1]) == [entry]
    assert entry.startswith(f"{name} (")
    assert legend(metric.plot(score=False)[1]) == [name]
    result = metric.compute()
    assert legend(metric.plot(result, True)[1]) == legend(result.plot(True)[1]) == [entry]
    assert legend(metric.plot(result, score=False)[1]) == legend(result.plot(False)[1]) == [name]


def test_a_score_that_is_given_is_shown(scored: tuple[Tensor, Tensor]) -> None:
    assert legend(updated(FederatedROC, scored).plot(score=torch.tensor(0.25))[1]) == [
        "ROC (AUROC 0.2500)"
    ]
    assert legend(updated(FederatedDET, scored).plot(score=0.25)[1]) == ["DET (EER 25.00%)"]
    with pytest.raises(InputError, match="hold 2 for each of 1 curves"):
        updated(FederatedCalibration, scored).plot(score=0.25)


@pytest.mark.parametrize("kind", [kind for kind, _ in CURVES])
def test_two_models_in_one_picture(kind: Any, scored: tuple[Tensor, Tensor]) -> None:
    first = updated(kind, scored)
    second = updated(kind, (scored[0].sqrt(), scored[1]))
    fig, ax = first.plot(label="one")
    assert second.plot(ax=ax, label="other") == (fig, ax)
    assert [entry.split(" (")[0] for entry in legend(ax)] == ["one", "other"]
    assert len({line.get_color() for line in ax.get_lines()}) == 3  # with the line to compare with


@pytest.mark.parametrize("kind", AREAS)
def test_two_models_of_several_classes(kind: Any) -> None:
    options = {"task": "multiclass", "num_classes": 3}
    _, ax = three(kind, **options).plot(label="one", labels=["cat", "dog", "bird"])
    three(kind, **options).plot(ax=ax, label="other")
    expected = [
        "one, cat",
        "one, dog",
        "one, bird",
        "other, class 0",
        "other, class 1",
        "other, class 2",
    ]
    assert [entry.split(" (")[0] for entry in legend(ax)] == expected


def test_an_area_is_shown_as_it_is_computed() -> None:
    options: dict[str, Any] = {"task": "multiclass", "num_classes": 3, "max_fpr": 0.1}
    areas = three(FederatedAUROC, average=None, **options).compute()
    for average in (None, "macro"):
        entries = legend(three(FederatedAUROC, average=average, **options).plot()[1])
        assert entries == [f"class {index} (AUROC {area:.4f})" for index, area in enumerate(areas)]


@pytest.mark.parametrize(("kind", "name"), CURVES)
def test_plain_tuples_are_curves(kind: Any, name: str, scored: tuple[Tensor, Tensor]) -> None:
    metric = updated(kind, scored)
    curve = tuple(metric.compute())
    _, ax = kind().plot(curve)
    _, expected = metric.plot()
    assert legend(ax) == legend(expected)
    assert values(ax) == values(expected) or name == "scores"  # whose empty bins are NaN
    with pytest.raises(
        InputError,
        match=rf"\({', '.join(kind.definition.result._fields)}\), but got 1 values\. .*same `ax`",
    ):
        kind().plot(curve[:1])
    with pytest.raises(InputError, match="but got FederatedROC"):
        kind().plot(FederatedROC())


def test_curves_of_others_are_drawn_beside_ours(scored: tuple[Tensor, Tensor]) -> None:
    _, ax = FederatedROC().plot(roc_curve(scored[1], scored[0]), label="scikit-learn")
    FederatedROC().plot(updated(BinaryROC, scored).compute(), ax=ax, label="torchmetrics")
    updated(FederatedROC, scored).plot(ax=ax, label="ours")
    areas = {entry.split("AUROC ")[1][:-1] for entry in legend(ax)}
    assert max(map(float, areas)) - min(map(float, areas)) < 1e-3
    # an exact curve of torchmetrics has other points for every class
    exact = three(MulticlassROC, num_classes=3).compute()
    _, ax = FederatedROC("multiclass", num_classes=3).plot(exact)
    areas = three(MulticlassAUROC, num_classes=3, average=None).compute()
    assert legend(ax) == [f"class {index} (AUROC {area:.4f})" for index, area in enumerate(areas)]


STEPS = [torch.tensor(0.5), torch.tensor(0.75), torch.tensor(0.875)]
CLASSES = [torch.tensor([0.5, 0.25, 1.0]), torch.tensor([0.75, 0.5, 0.5])]


@pytest.mark.parametrize("kind", AREAS)
@pytest.mark.parametrize(
    "val", [STEPS[0], STEPS, CLASSES[0], CLASSES], ids=["value", "steps", "classes", "both"]
)
def test_values_are_drawn_as_torchmetrics_draws_them(kind: Any, val: Any) -> None:
    exact: Any = BinaryAUROC()
    ax = kind().plot(val)[1]
    theirs = exact.plot(val)[1]
    assert values(ax) == values(theirs)
    across, expected = (
        [list(line.get_xdata()) for line in axes.get_lines()] for axes in (ax, theirs)
    )
    assert across == expected
    if isinstance(val, list):
        assert ax.get_xlabel() == theirs.get_xlabel() == "Step"
    assert ax.get_ylim()[0] <= 0 < 1 <= ax.get_ylim()[1]


def test_steps_of_two_models_and_of_named_classes() -> None:
    _, ax = FederatedAUROC().plot(STEPS, label="one")
    FederatedAUROC().plot([0.5, 0.5], ax=ax, label="other")
    assert legend(ax) == ["one", "other"]
    _, ax = FederatedAUROC().plot(CLASSES, labels=["cat", "dog", "bird"])
    assert legend(ax) == ["cat", "dog", "bird"]
    _, ax = FederatedAUROC().plot([torch.rand(12)] * 3)
    entries = sorted(text.get_text().split()[0] for text in ax.get_legend().get_texts())
    assert entries == ["best:", "mean", "worst:"]
    for refused in ({"auroc": 0.5}, [], [STEPS[0], CLASSES[0]], torch.rand(2, 2), "0.5"):
        with pytest.raises(InputError, match="`val` to be what `compute` returned"):
            FederatedAUROC().plot(refused)


@pytest.mark.parametrize("kind", [*AREAS, *(kind for kind, _ in CURVES)])
def test_nothing_is_released_for_what_is_given(kind: Any, scored: tuple[Tensor, Tensor]) -> None:
    result = updated(kind, scored).compute()
    private = updated(kind, scored, privacy=CentralDP(1.0))
    private.plot(result)
    assert len(private.ledger) == 0
    private.plot()
    private.plot(ax=private.plot(label="again")[1])
    assert len(private.ledger) == 1


def test_signatures_are_torchmetrics_own() -> None:
    for theirs, kinds in ((BinaryROC, [kind for kind, _ in CURVES]), (BinaryAUROC, AREAS)):
        expected = list(inspect.signature(theirs.plot).parameters)
        for kind in kinds:
            assert list(inspect.signature(kind.plot).parameters)[: len(expected)] == expected
    labelled = list(inspect.signature(MulticlassROC.plot).parameters)
    assert set(labelled) <= set(inspect.signature(FederatedROC.plot).parameters)


def test_a_collection_plots_each_of_its_metrics(scored: tuple[Tensor, Tensor]) -> None:
    collection: Any = MetricCollection({"roc": FederatedROC(), "auroc": FederatedAUROC()})
    collection.update(*scored)
    figures = dict(zip(collection.keys(), collection.plot(), strict=True))
    assert legend(figures["roc"][1])[0].startswith("ROC (AUROC")
    assert values(figures["auroc"][1]) == [[float(collection["auroc"].compute())]]
    areas: Any = MetricCollection([FederatedAUROC(), FederatedAveragePrecision()])
    steps = [areas(*scored), areas(*scored)]
    for (_, ax), name in zip(areas.plot(steps), areas.keys(), strict=True):
        assert values(ax) == [[float(step[name]) for step in steps]]
