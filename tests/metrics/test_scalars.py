"""Numbers of a release as metrics: in collections, trackers, wrappers and groups, exact and
private."""

from __future__ import annotations

import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, f1_score, log_loss
from torch import Tensor
from torchmetrics import MetricCollection, MetricTracker
from torchmetrics.wrappers import ClasswiseWrapper, MinMaxMetric

from torchmetrics_fed import (
    CentralDP,
    FederatedBrierScore,
    FederatedCalibrationError,
    FederatedEER,
    FederatedHingeLoss,
    FederatedLogAUC,
    FederatedLogLoss,
    FederatedPrecisionAtFixedRecall,
    FederatedRecallAtFixedPrecision,
    FederatedScoreAtThreshold,
    FederatedSensitivityAtSpecificity,
    FederatedSpecificityAtSensitivity,
    InputError,
    ScoreGrid,
    federated_collection,
)
from torchmetrics_fed.functional import SCORE_NAMES, count
from torchmetrics_fed.metrics.collection import KINDS

plt = pytest.importorskip("matplotlib.pyplot")

Scored = tuple[Tensor, Tensor]

SCALARS: dict[str, Any] = {
    **{score: partial(FederatedScoreAtThreshold, score) for score in SCORE_NAMES},
    "equal_error_rate": FederatedEER,
    "log_auc": FederatedLogAUC,
    "calibration_error": FederatedCalibrationError,
    "calibration_error_l2": partial(FederatedCalibrationError, norm="l2"),
    "calibration_error_max": partial(FederatedCalibrationError, norm="max"),
    "log_loss": FederatedLogLoss,
    "brier_score": FederatedBrierScore,
    "hinge_loss": FederatedHingeLoss,
    "recall_at_precision": partial(FederatedRecallAtFixedPrecision, 0.6, with_threshold=False),
    "precision_at_recall": partial(FederatedPrecisionAtFixedRecall, 0.6, with_threshold=False),
    "sensitivity": partial(FederatedSensitivityAtSpecificity, 0.6, with_threshold=False),
    "specificity_at": partial(FederatedSpecificityAtSensitivity, 0.6, with_threshold=False),
}
"""Every metric that is one number, by a name."""

UNKNOWN: Any = "unknown"

CURVES = [kind.definition.name for kind in KINDS]

EVERY_SCALAR = pytest.mark.parametrize("name", SCALARS)

pytestmark = pytest.mark.filterwarnings("ignore:.*for one or more classes was `nan`")


def counted(name: str, scored: Scored, **options: Any) -> Any:
    metric = SCALARS[name](**options)
    metric.update(*scored)
    return metric


def test_a_collection_of_all_makes_one_release_and_one_charge(scored: Scored) -> None:
    kinds: dict[str, Any] = {kind.definition.name: kind for kind in KINDS}
    collection: Any = federated_collection(
        metrics={**kinds, **SCALARS}, privacy=CentralDP(epsilon=1.0)
    )
    collection.update(*scored)
    values = collection.compute()
    assert set(values) == {*CURVES, *SCALARS}
    members = list(collection.values(copy_state=False))
    assert len({bytes(member.release()) for member in members}) == 1
    assert all(member.ledger is members[0].ledger for member in members)
    assert [entry.epsilon for entry in members[0].ledger] == [1.0]


def test_a_collection_knows_scores_by_name(scored: Scored) -> None:
    names = [name for name in SCORE_NAMES if name != "fbeta"]
    collection: Any = federated_collection(metrics=[*names, "confusion_matrix", "log_loss"])
    collection.update(*scored)
    values = collection.compute()
    for name, value in values["confusion_matrix"].scalars.items():
        assert torch.equal(values[name], value)


@EVERY_SCALAR
def test_it_is_one_number_of_its_function(name: str, scored: Scored) -> None:
    metric = counted(name, scored)
    value = metric.compute()
    assert value.shape == ()
    assert value.dtype == torch.float64
    assert torch.equal(value, metric.scalar_of(count(*scored)))
    assert metric._is_scalar


@EVERY_SCALAR
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_classes_and_averages(name: str, task: str) -> None:
    generator = torch.Generator().manual_seed(2)
    classes = torch.randint(0, 3, (900,), generator=generator)
    one_hot = torch.nn.functional.one_hot(classes, 3)
    preds = (torch.randn(900, 3, generator=generator) + one_hot).softmax(1)
    options: dict[str, Any] = {"task": task, "num_labels": 3}
    target = one_hot
    if task == "multiclass":
        options = {"task": task, "num_classes": 3}
        target = classes
    metric = SCALARS[name](average=None, **options)
    metric.update(preds, target)
    values = metric.compute()
    assert values.shape == (3,)
    for number in range(3):
        binary = counted(name, (preds[:, number], one_hot[:, number]))
        torch.testing.assert_close(values[number], binary.compute(), equal_nan=True)
    for average in metric.definition.averages:
        mean = SCALARS[name](average=average, **options)
        mean.update(preds, target)
        assert mean.compute().shape == ()
        if average == "macro" and name != "equal_error_rate":
            torch.testing.assert_close(mean.compute(), values.nanmean())
        if average == "micro":
            pooled = counted(name, (preds.flatten(), one_hot.flatten()))
            torch.testing.assert_close(mean.compute(), pooled.compute())


@EVERY_SCALAR
def test_groups_are_those_of_separate_metrics(name: str, scored: Scored) -> None:
    preds, target = scored
    groups = torch.arange(len(preds)) % 2
    metric = SCALARS[name](groups=["even", "odd"])
    metric.update(preds, target, groups)
    for number, value in enumerate(metric.by_group().values()):
        separate = counted(name, (preds[groups == number], target[groups == number]))
        assert torch.equal(value, separate.compute())


@EVERY_SCALAR
def test_a_private_value_is_near_the_exact_one_and_stays(name: str, scored: Scored) -> None:
    metric = counted(name, scored, privacy=CentralDP(epsilon=20.0))
    exact = counted(name, scored).compute()
    value = metric.compute()
    tolerance = 0.3 if name in ("positive_likelihood_ratio", "calibration_error_max") else 0.05
    assert value.item() == pytest.approx(exact.item(), abs=tolerance)
    assert torch.equal(metric.compute(), value)
    assert len(metric.ledger) == 1


@EVERY_SCALAR
def test_a_release_that_was_stored_has_the_number(name: str, scored: Scored) -> None:
    metric = counted(name, scored)
    builder = SCALARS[name]
    kind: Any = builder
    arguments: dict[str, Any] = {}
    if isinstance(builder, partial):
        kind = builder.func
        arguments = {
            "score": metric.score if isinstance(metric, FederatedScoreAtThreshold) else None,
            **builder.keywords,
        }
        for argument in ("min_precision", "min_recall", "min_specificity", "min_sensitivity"):
            arguments[argument] = getattr(metric, argument, None)
    options = {key: value for key, value in arguments.items() if value is not None}
    reader = kind.from_release(metric.release(), **options)
    assert torch.equal(reader.compute(), metric.compute())


@EVERY_SCALAR
def test_copies_and_pickles_keep_arguments_and_counts(name: str, scored: Scored) -> None:
    metric = counted(name, scored)
    for twin in (metric.clone(), pickle.loads(pickle.dumps(metric))):
        assert torch.equal(twin.compute(), metric.compute())
        assert twin.higher_is_better == metric.higher_is_better


@EVERY_SCALAR
def test_a_tracker_finds_the_best_epoch(name: str, scored: Scored) -> None:
    preds, target = scored
    metric = SCALARS[name]()
    tracker = MetricTracker(metric, maximize=bool(metric.higher_is_better))
    values = []
    for weight in (0.7, 0.8, 1.0):
        tracker.increment()
        tracker.update((preds * weight).clamp(0, 1), target)
        values.append(tracker.compute().item())
    best_epoch: Any = tracker.best_metric(return_step=True)
    best, step = best_epoch
    expected = max(values) if metric.higher_is_better else min(values)
    assert best == pytest.approx(expected)
    assert values[step] == pytest.approx(expected)


@EVERY_SCALAR
def test_wrappers_of_torchmetrics_take_it(name: str, scored: Scored) -> None:
    wrapped = MinMaxMetric(SCALARS[name]())
    wrapped.update(*scored)
    values = wrapped.compute()
    assert values["raw"].item() == pytest.approx(counted(name, scored).compute().item())
    labels = ClasswiseWrapper(
        SCALARS[name](task="multilabel", num_labels=2, average=None), labels=["a", "b"]
    )
    labels.update(torch.stack([scored[0]] * 2, 1), torch.stack([scored[1]] * 2, 1))
    assert len(labels.compute()) == 2


@EVERY_SCALAR
def test_figures_show_values_and_their_history(name: str, scored: Scored) -> None:
    metric = counted(name, scored)
    fig, ax = metric.plot()
    assert "exact" in [text.get_text() for text in ax.texts]
    plt.close(fig)
    history = [metric.compute(), metric.compute()]
    fig, ax = metric.plot(history, label="model")
    assert len(ax.get_lines()[0].get_xdata()) == 2
    plt.close(fig)
    collection = MetricCollection({"value": metric})
    ((fig, ax),) = collection.plot()
    plt.close(fig)


@EVERY_SCALAR
def test_ties_are_warned_of_where_the_order_of_scores_counts(name: str) -> None:
    """All scores of a bin of the coarsest grid are tied."""
    metric = SCALARS[name](grid=ScoreGrid.even(2))
    metric.update(torch.rand(1_000), torch.randint(0, 2, (1_000,)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metric.compute()
    is_warned = any("share a bin" in str(warning.message) for warning in caught)
    assert is_warned == metric.definition.has_order


def test_a_value_outside_of_0_and_1_is_in_the_figure(scored: Scored) -> None:
    fig, ax = counted("positive_likelihood_ratio", scored).plot()
    assert ax.get_ylim()[1] > 1.1
    plt.close(fig)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: FederatedScoreAtThreshold(UNKNOWN), "score"),
        (lambda: FederatedScoreAtThreshold("f1", threshold=float("nan")), "threshold"),
        (lambda: FederatedScoreAtThreshold("fbeta", beta=-1.0), "beta"),
        (lambda: FederatedLogAUC(fpr_range=(0.0, 0.1)), "fpr_range"),
        (lambda: FederatedCalibrationError(n_bins=0), "bins"),
        (lambda: FederatedCalibrationError(norm=UNKNOWN), "norm"),
        (lambda: FederatedEER("multilabel", num_labels=2, average="weighted"), "average"),
    ],
)
def test_arguments_are_checked_when_the_metric_is_built(build: Any, named: str) -> None:
    with pytest.raises(InputError, match=f"`{named}`"):
        build()


SCORE_FILES = [
    f"{data}_{model}"
    for data in ("adult", "bank", "synthcover")
    for model in ("LogisticRegression", "XGBClassifier")
]

PRIVATE_TOLERANCE = 0.02
"""At epsilon 1, with tens of thousands of examples."""


@pytest.mark.parametrize("file", SCORE_FILES)
def test_private_values_of_real_scores_are_near_scikit_learns(
    file: str, shared_folder: Path
) -> None:
    with np.load(shared_folder / "data" / "scores" / f"{file}.npz") as data:
        target = torch.from_numpy(data["y_true"]).long()
        preds = torch.from_numpy(data["y_score"])
    collection: Any = federated_collection(
        metrics=["accuracy", "f1", "brier_score", "log_loss", "equal_error_rate"],
        privacy=CentralDP(epsilon=1.0),
        confidence=0.99,
    )
    collection.update(preds, target)
    values = collection.compute()
    calls = preds >= 0.5
    expected = {
        "accuracy": (calls == target).double().mean().item(),
        "f1": f1_score(target, calls),
        "brier_score": brier_score_loss(target, preds),
        "log_loss": log_loss(target, preds.double()),
        "equal_error_rate": counted("equal_error_rate", (preds, target)).compute().item(),
    }
    for name, value in expected.items():
        assert values[name].item() == pytest.approx(value, abs=PRIVATE_TOLERANCE), name
        (interval,) = collection[name].intervals().values()
        assert interval.low < value < interval.high, name
        assert interval.high - interval.low < 0.2, name
    assert len(collection["f1"].ledger) == 1


@pytest.mark.parametrize("privacy", [None, CentralDP(epsilon=1.0)], ids=["exact", "private"])
def test_every_number_has_an_interval_around_its_value(privacy: CentralDP | None) -> None:
    """From one release, whatever the number is computed from."""
    generator = torch.Generator().manual_seed(6)
    target = torch.randint(0, 2, (4_000,), generator=generator)
    preds = (torch.randn(4_000, generator=generator) + 1.5 * target - 0.7).sigmoid()
    collection: Any = federated_collection(
        metrics=["f1", "log_auc", "hinge_loss", "calibration_error", "confusion_matrix"],
        privacy=privacy,
        confidence=0.95,
    )
    collection.update(preds, target)
    values = collection.compute()
    matrix_scores = values.pop("confusion_matrix").scalars
    intervals = collection["confusion_matrix"].intervals()
    assert set(intervals) == set(matrix_scores)
    for name, value in matrix_scores.items():
        assert intervals[name].low <= value <= intervals[name].high, name
    for name, value in values.items():
        (interval,) = collection[name].intervals().values()
        assert interval.low <= value <= interval.high, name
    if privacy is not None:
        assert len(collection["f1"].ledger) == 1
