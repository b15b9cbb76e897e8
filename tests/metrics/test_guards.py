"""Messages: each wrong call that a new user makes, and that the error has the remedy in code."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedCalibration,
    FederatedROC,
    InputError,
    LocalDP,
    Privacy,
    Release,
    Share,
    evaluation_report,
    federated_collection,
)
from torchmetrics_fed.functional import calibration, precision_recall_curve, roc, roc_from_counts

SCORES = torch.linspace(0.05, 0.95, 10)
LABELS = torch.tensor([0, 1] * 5)
TWO = torch.stack([1 - SCORES, SCORES], 1)
CLASSES = torch.tensor([0, 1, 2, 1, 0, 2, 1, 0, 2, 1])
THREE = torch.rand(10, 3)

BUILT: dict[str, tuple[dict[str, Any], str]] = {
    "classes of a binary task": ({"num_classes": 3}, 'task="multiclass"'),
    "labels of a binary task": ({"num_labels": 3}, 'task="multilabel"'),
    "labels of classes": (
        {"task": "multiclass", "num_classes": 3, "num_labels": 3},
        'task="multilabel"',
    ),
    "no number of classes": ({"task": "multiclass"}, "num_classes=3"),
    "labels in place of classes": ({"task": "multilabel", "num_classes": 3}, 'task="multiclass"'),
    "no number of labels": ({"task": "multilabel"}, "num_labels=3"),
    "average of one class": ({"average": "macro"}, 'task="multiclass"'),
    "a number as privacy": ({"privacy": 0.5}, "CentralDP(epsilon=0.5)"),
    "a word as privacy": ({"privacy": "central"}, "CentralDP(epsilon=1.0)"),
    "a class as privacy": ({"privacy": LocalDP}, "LocalDP(epsilon=1.0)"),
    "epsilon": ({"epsilon": 1}, "privacy=CentralDP(epsilon=1.0)"),
    "delta": ({"delta": 1e-6}, "privacy=CentralDP(epsilon=1.0, delta=1e-6"),
    "clients": ({"min_clients": 3}, "privacy=DistributedDP(epsilon=1.0, min_clients=8)"),
    "budget": ({"budget": 3.0}, "ledger=PrivacyLedger(budget=3.0)"),
    "a number as ledger": ({"ledger": 2.5}, "ledger=PrivacyLedger(budget=2.5)"),
    "a path as ledger": ({"ledger": "x.json"}, "ledger=PrivacyLedger(path='x.json'"),
    "a Path as ledger": ({"ledger": Path("x.json")}, "ledger=PrivacyLedger(path='x.json'"),
    "anything as ledger": ({"ledger": True}, "ledger=PrivacyLedger(budget=3.0)"),
}


@pytest.mark.parametrize(("options", "remedy"), BUILT.values(), ids=BUILT)
@pytest.mark.parametrize("build", [FederatedROC, FederatedAUROC, federated_collection])
def test_a_metric_that_cannot_be_meant_is_not_built(
    build: Any, options: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(InputError, match=r"^Expected ") as caught:
        build(**options)
    assert remedy in str(caught.value)
    assert "but got" in str(caught.value)


def test_no_average_is_what_a_binary_task_has() -> None:
    for average in ({}, {"average": None}, {"average": "none"}):
        assert FederatedAUROC(**average).average is None
    assert FederatedAUROC("multiclass", num_classes=3).average == "macro"


@pytest.mark.parametrize("function", [roc, precision_recall_curve, calibration])
@pytest.mark.parametrize("average", ["micro", "macro", "weighted"])
def test_functions_take_no_average_of_one_class(function: Any, average: str) -> None:
    with pytest.raises(InputError, match='task="multiclass"'):
        function(SCORES, LABELS, average=average)
    function(SCORES, LABELS, average=None)


def spoiled(value: float) -> Tensor:
    return SCORES.clone().index_fill_(0, torch.tensor([3]), value)


MULTICLASS = {"task": "multiclass", "num_classes": 3}
MULTILABEL = {"task": "multilabel", "num_labels": 3}
BATCHES: dict[str, tuple[dict[str, Any], Any, Any, list[str]]] = {
    "array of scores": ({}, SCORES.numpy(), LABELS, ["torch.as_tensor(preds)"]),
    "list of labels": ({}, SCORES, LABELS.tolist(), ["torch.as_tensor(target)"]),
    "classes as scores": ({}, LABELS, LABELS, ["preds.float()"]),
    "a column of scores": ({}, SCORES[:, None], LABELS, ["preds.squeeze(1)"]),
    "a column of labels": ({}, SCORES, LABELS[:, None], ["target.squeeze(1)"]),
    "scores of both classes": ({}, TWO, LABELS, ["preds[:, 1]"]),
    "scores of both, a column": ({}, TWO, LABELS[:, None], ["preds[:, 1]", "target.squeeze(1)"]),
    "scores of three classes": ({}, THREE, CLASSES, ['task="multiclass", num_classes=3']),
    "one-hot labels": ({}, SCORES, one_hot(LABELS), ["target.argmax(1)"]),
    "one-hot pairs": (
        {},
        TWO,
        one_hot(LABELS),
        ["target.argmax(1)", "preds[:, 1]", "target.flatten()"],
    ),
    "one-hot pairs of bool": ({}, TWO, one_hot(LABELS).bool(), ["target.argmax(1)"]),
    "one-hot pairs of floats": ({}, TWO, one_hot(LABELS).float(), ["target.argmax(1)"]),
    "one-hot classes": (MULTICLASS, THREE, one_hot(CLASSES), ["target.argmax(1)"]),
    "one-hot pixels": (
        MULTICLASS,
        torch.rand(4, 3, 5),
        torch.ones(4, 3, 5).long(),
        ["target.argmax(1)"],
    ),
    "a column of classes": (MULTICLASS, THREE, CLASSES[:, None], ["target.squeeze(1)"]),
    "more classes": (MULTICLASS, torch.rand(10, 4), CLASSES, ["num_classes=4"]),
    "more labels": (MULTILABEL, torch.rand(10, 4), torch.ones(10, 4).long(), ["num_labels=4"]),
    "scores without classes": (MULTICLASS, SCORES, LABELS, ['task="binary"']),
    "too few": ({}, SCORES, LABELS[:-1], ["one label for each score"]),
    "soft labels": ({}, SCORES, SCORES, ["(target > 0.5).long()"]),
    "soft labels of several": (MULTILABEL, THREE, THREE, ["(target > 0.5).long()"]),
    "fractions of classes": (MULTICLASS, THREE, CLASSES + 0.5, ["target.round().long()"]),
    "labels of -1": ({}, SCORES, 2 * LABELS - 1, ["Map them to 0 and 1", "ignore_index"]),
    "classes from 1": (MULTICLASS, THREE, CLASSES + 1, ["num_classes", "ignore_index"]),
    "NaN": ({}, spoiled(math.nan), LABELS, ["but got NaN", "preds.isnan().nonzero()"]),
    "NaN of logits": (
        {"normalization": "sigmoid"},
        spoiled(math.nan),
        LABELS,
        ["preds.isnan().nonzero()"],
    ),
    "infinite logits": (
        {"normalization": "sigmoid"},
        spoiled(math.inf),
        LABELS,
        ["preds.clamp(-1e4, 1e4)"],
    ),
    "logits": (
        {},
        spoiled(4.5),
        LABELS,
        ['normalization="sigmoid"', "grid=ScoreGrid.even(1024, (low, high))"],
    ),
    "logits of classes": (MULTICLASS, 9 * THREE, CLASSES, ['normalization="softmax"']),
}


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(("options", "preds", "target", "remedies"), BATCHES.values(), ids=BATCHES)
def test_a_batch_that_cannot_be_meant_is_refused(
    options: dict[str, Any], preds: Any, target: Any, remedies: list[str], private: bool
) -> None:
    metric = FederatedROC(**options, privacy=CentralDP(1.0) if private else None)
    with pytest.raises(InputError, match=r"^Expected [\s\S]* but got ") as caught:
        metric.update(preds, target)
    text = str(caught.value)
    assert all(remedy in text for remedy in remedies)
    # nothing else is blamed on logits
    assert "normalization" in remedies[0] or "normalization" not in text
    assert not (private and "4.5" in text)
    assert metric.counts.sum() == 0
    assert not metric.update_called


def test_pairs_that_are_not_one_hot_are_examples_as_in_torchmetrics() -> None:
    for target in (
        torch.ones(10, 2).long(),
        one_hot(LABELS).index_fill(0, torch.tensor([4]), 1),
        one_hot(LABELS)[:1],
    ):
        metric = FederatedROC()
        metric.update(TWO[: len(target)], target)
        assert metric.counts.sum() == target.numel()
    labels = FederatedROC("multilabel", num_labels=2)
    labels.update(TWO, one_hot(LABELS))  # which are labels of their own
    assert labels.counts.sum() == 20


def updated() -> Any:
    metric = FederatedROC()
    metric.update(SCORES, LABELS)
    return metric


CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a metric as spec": (
        lambda m: Share.from_bytes(bytes(m.share()), m),
        "Pass `metric.spec` and the query",
    ),
    "a metric with query": (
        lambda m: Share.from_bytes(bytes(m.share()), m, m.spec.all_bins),
        "metric.spec",
    ),
    "no query": (lambda m: Share.from_bytes(bytes(m.share()), m.spec), "coordinator.query"),
    "a share as release": (lambda m: FederatedROC.from_release(m.share()), "Release.sum([share])"),
    "shares as release": (lambda m: FederatedROC.from_release([m.share()]), "Release.sum(shares)"),  # type: ignore[arg-type]
    "a metric as release": (FederatedROC.from_release, "metric.release()"),
    "bytes as release": (
        lambda m: FederatedROC.from_release(bytes(m.release())),  # type: ignore[arg-type]
        "Release.from_bytes(data)",
    ),
    "a path as release": (lambda m: FederatedROC.from_release("x.release"), "Release.load(path)"),  # type: ignore[arg-type]
    "a report of a metric": (evaluation_report, "metric.release()"),
    "a report of a share": (lambda m: evaluation_report(m.share()), "Release.sum([share])"),
    "a curve of a metric": (roc_from_counts, "metric.release()"),
    "the sum of a share": (lambda m: Release.sum(m.share()), "Release.sum([share])"),
    "the sum of metrics": (lambda m: Release.sum([m]), "metric.share()"),
    "the sum of bytes": (
        lambda m: Release.sum([bytes(m.share())]),  # type: ignore[list-item]
        "Share.from_bytes(data, metric.spec, query)",
    ),
}


@pytest.mark.parametrize(("call", "remedy"), CALLS.values(), ids=CALLS)
def test_one_thing_in_place_of_another_is_named(call: Callable[[Any], Any], remedy: str) -> None:
    with pytest.raises(InputError, match=r"^Expected .* but got ") as caught:
        call(updated())
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    "build",
    [CentralDP, LocalDP, lambda epsilon: DistributedDP(epsilon, min_clients=3)],
    ids=["one", "each", "all"],
)
def test_an_epsilon_that_protects_nothing_warns_where_it_is_chosen(
    build: Callable[[float], Privacy],
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build(20.0)
        assert not caught
        setting = build(20.5)
        FederatedROC(privacy=setting)
        FederatedAUROC(privacy=setting)
        assert Privacy.from_fields(setting.fields) == setting  # read from bytes: who chose it knows
    assert len(caught) == 1
    assert caught[0].category is UserWarning
    assert "e^20.5" in str(caught[0].message)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "options", [MULTICLASS, MULTICLASS | {"multi_class": "ovo"}, MULTILABEL, {}]
)
@pytest.mark.parametrize("validate", [True, False, "deferred"])
@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_a_batch_of_which_all_is_ignored_counts_nothing(
    options: dict[str, Any], validate: Any, kind: Any
) -> None:
    metric = FederatedROC(**options, ignore_index=-1, validate_args=validate)
    preds = THREE if options else SCORES
    shape = preds.shape if options in (MULTILABEL, {}) else (10,)
    target = torch.full(shape, -1, dtype=kind)
    metric.update(preds, target)
    metric.update(torch.full_like(preds, torch.nan), target)
    assert metric.counts.sum() == 0
    assert metric._refused == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
# torchmetrics' own
@pytest.mark.filterwarnings("ignore:This property will be removed:DeprecationWarning")
@pytest.mark.parametrize(
    "metric", [FederatedROC(), FederatedAUROC(privacy=CentralDP(1.0)), FederatedCalibration()]
)
def test_a_module_that_holds_a_metric_can_be_scripted(metric: Any) -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.metric = metric

        def forward(self, examples: Tensor) -> Tensor:
            return self.layer(examples)  # type: ignore[no-any-return]

    module = Held()
    examples = torch.rand(4, 2)
    assert torch.equal(torch.jit.script(module)(examples), module(examples))
