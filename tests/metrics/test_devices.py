"""Devices: how often an update waits for one, and checks that are deferred."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.ranks import RankPool
from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    LocalDP,
    PrivacyLedger,
    ScoreGrid,
    federated_collection,
)
from torchmetrics_fed.counting import batch


class Operations(TorchDispatchMode):
    """Counts what a device would be asked to do, and how often the host would wait for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = self.reads = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.kernels += 1
        # nonzero, boolean indices and unique have sizes that depend on the data: they wait, too
        self.reads += any(
            word in str(function)
            for word in ("_local_scalar_dense", "nonzero", "unique", "masked_select")
        )
        return function(*args, **(kwargs or {}))


@pytest.fixture
def device_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on this machine what runs on a device."""
    monkeypatch.setattr(batch, "has_fast_way", lambda *_: False)
    monkeypatch.setattr(batch, "CHUNK", None)


def update(metric: FederatedROC, preds: Tensor, target: Tensor) -> Operations:
    metric.update(preds, target)  # tables are moved to the device once
    operations = Operations()
    with operations:
        metric.update(preds, target)
    return operations


GRIDS = [
    "two_sided",
    "even",
    ScoreGrid.even(64, (-1.0, 2.0)),
    ScoreGrid.from_edges([0, 0.2, 0.7, 1]),
]
TASKS: dict[str, dict[str, Any]] = {
    "binary": {},
    "multiclass": {"num_classes": 10},
    "one against one": {"num_classes": 10, "multi_class": "ovo"},
    "multilabel": {"num_labels": 10},
}


def drawn(task: str, examples: int, lowest: int = 0) -> tuple[Tensor, Tensor]:
    scores = torch.rand(examples, 10)
    if task == "binary":
        scores = torch.rand(examples)
    if task in ("binary", "multilabel"):
        return scores, torch.randint(lowest, 2, scores.shape)
    return scores, torch.randint(lowest, 10, (examples,))


@pytest.mark.usefixtures("device_path")
@pytest.mark.parametrize("ignore_index", [None, -1])
@pytest.mark.parametrize("grid", GRIDS, ids=["two_sided", "even", "range", "edges"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_an_update_waits_for_the_device_once_at_most(
    task: str, grid: Any, ignore_index: int | None, kind: torch.dtype
) -> None:
    kernels = []
    for examples in (100, 5_000):
        lowest = 0 if ignore_index is None else -1
        scores, target = drawn(task, examples, lowest)
        target = target.to(kind)
        for validate, reads in ((True, 1), (False, 0), ("deferred", 0)):
            options = TASKS[task] | {
                "grid": grid,
                "ignore_index": ignore_index,
                "validate_args": validate,
            }
            name: Any = task if task in ("binary", "multilabel") else "multiclass"
            operations = update(FederatedROC(name, **options), scores, target)
            assert operations.reads == reads
            kernels.append(operations.kernels)
    assert kernels[:3] == kernels[3:]  # as many, however large the batch is
    assert max(kernels) <= 70


@pytest.mark.usefixtures("device_path")
@pytest.mark.parametrize("validate", [True, False, "deferred"])
def test_a_segmentation_batch_is_a_fixed_number_of_kernels(validate: Any) -> None:
    costs = []
    for side in (8, 64):
        metric = FederatedROC(
            "multiclass", num_classes=21, quantiles=64, validate_args=validate, ignore_index=255
        )
        preds = torch.rand(2, 21, side, side)
        target = torch.randint(0, 21, (2, side, side))
        target[:, 0] = 255
        operations = update(metric, preds, target)
        costs.append((operations.reads, operations.kernels))
    assert costs[0] == costs[1]
    assert costs[0][0] == (validate is True)


@pytest.mark.usefixtures("device_path")
@pytest.mark.parametrize("normalization", ["softmax", "sigmoid"])
def test_logits_wait_no_more(normalization: Any) -> None:
    task: Any = "binary"
    if normalization == "softmax":
        task = "multiclass"
    scores, target = drawn(task, 500)
    expected: list[tuple[Any, int]] = [(True, 1), (False, 0), ("deferred", 0)]
    for validate, reads in expected:
        metric = FederatedROC(
            task, normalization=normalization, validate_args=validate, **TASKS[task]
        )
        assert update(metric, 9 * scores, target).reads == reads


@pytest.mark.usefixtures("device_path")
def test_looking_for_one_hot_targets_waits_no_more() -> None:
    scores = torch.rand(50, 2)
    target = torch.randint(0, 2, (50, 2))
    target[0] = 1
    modes: list[tuple[Any, int]] = [(True, 1), (False, 0), ("deferred", 0)]
    for validate, reads in modes:
        assert update(FederatedROC(validate_args=validate), scores, target).reads == reads
    metric = FederatedROC(validate_args="deferred")
    metric.update(scores, torch.eye(2).repeat(25, 1))
    assert metric._refused == 100
    assert metric.counts.sum() == 0


def spoiled(task: str) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, targets, and which examples are good: a score out of range, NaN, and a label that
    there is not."""
    scores, target = drawn(task, 400)
    good = torch.ones(400, dtype=torch.bool)
    good[[3, 77, 200]] = False
    scores.view(400, -1)[3, -1] = torch.nan
    scores.view(400, -1)[77, 0] = 1.0001
    target.view(400, -1)[200, 0] = 12
    return scores, target, good


@pytest.mark.parametrize("where", ["here", "device"])
@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
@pytest.mark.parametrize("label", [12, 0.5, torch.nan])
def test_deferred_checks_count_what_is_good_and_raise_before_anything_leaves(
    task: Any, where: str, label: float, request: pytest.FixtureRequest
) -> None:
    if where == "device":
        request.getfixturevalue("device_path")
    scores, target, good = spoiled(task)
    if label != 12:
        target = target.float()
        target.view(400, -1)[200, 0] = label
    metric, expected = (
        FederatedROC(task, validate_args=how, **TASKS[task]) for how in ("deferred", True)
    )
    metric.update(scores, target)
    metric.update(scores[good], target[good])
    for _ in range(2):
        expected.update(scores[good], target[good])
    assert torch.equal(metric.counts, expected.counts)
    assert metric._refused == 3
    for ask in (metric.compute, metric.share, metric.release, metric.plot):
        with pytest.raises(InputError, match="3 could not be counted"):
            ask()
    metric.reset()
    metric.update(scores[good], target[good])
    metric.compute()


def test_private_metrics_say_no_number_and_charge_nothing(tmp_path: Path) -> None:
    scores, target, _ = spoiled("binary")
    for privacy, ask in (
        (CentralDP(1.0), "compute"),
        (LocalDP(1.0), "share"),
        (CentralDP(1.0), "release"),
    ):
        ledger = PrivacyLedger(1.0, tmp_path / ask)
        metric = FederatedROC(privacy=privacy, validate_args="deferred", ledger=ledger)
        metric.update(scores, target)
        with pytest.raises(InputError, match="some could not be counted") as caught:
            getattr(metric, ask)()
        assert "3" not in str(caught.value)
        assert metric.ledger.spent().epsilon == 0
        metric.counts.zero_()  # what a pickle of a private metric may hold
        assert pickle.loads(pickle.dumps(metric))._refused == 0


def _one_rank_has_bad_examples(rank: int, private: bool) -> str:
    privacy = CentralDP(1.0) if private else None
    metric = FederatedAUROC(privacy=privacy, validate_args="deferred")
    highest = 0.9 if rank else 1.5
    metric.update(torch.tensor([0.2, highest]), torch.tensor([0, 1]))
    try:
        metric.compute()
    except InputError as error:
        return f"{metric.ledger.spent().epsilon:g} {error}"
    return "computed"


@pytest.mark.parametrize("private", [False, True])
def test_every_rank_raises_if_one_has_bad_examples(private: bool, ranks: RankPool) -> None:
    words = "some could not" if private else "1 could not"
    for message in ranks.run(_one_rank_has_bad_examples, private):
        assert message.startswith("0")
        assert words in message


def test_refused_examples_merge_copy_and_stay_in_their_group() -> None:
    metric = FederatedROC(validate_args="deferred")
    metric.update(torch.tensor([0.5, 7.0]), torch.tensor([1, 1]))
    total = copy.deepcopy(metric)
    total.merge_state(metric)
    assert total._refused == 2
    collection = federated_collection(metrics=("roc", "auroc"), validate_args="deferred")
    collection.update(torch.tensor([0.5, 7.0]), torch.tensor([1, 1]))
    with pytest.raises(InputError, match="1 could not"):
        collection.compute()
    with torch.inference_mode():
        metric.update(torch.tensor([2.0]), torch.tensor([1]))
    metric.update(torch.tensor([2.0]), torch.tensor([1]))
    assert metric._refused == 3


def test_another_word_for_validation_is_refused() -> None:
    with pytest.raises(InputError, match="deferred"):
        FederatedROC(validate_args="later")  # type: ignore[arg-type]


@pytest.mark.usefixtures("device_path")
def test_weights_wait_no_more_and_bad_ones_are_refused_later() -> None:
    scores, target = drawn("binary", 100)
    weight = torch.ones(100, dtype=torch.int32)
    modes: list[tuple[Any, int]] = [(True, 1), (False, 0), ("deferred", 0)]
    for validate, reads in modes:
        metric: Any = FederatedROC(validate_args=validate)
        metric.update(scores, target, sample_weight=weight)
        operations = Operations()
        with operations:
            metric.update(scores, target, sample_weight=weight)
        assert operations.reads == reads
    metric.update(scores, target, sample_weight=weight.index_fill(0, torch.tensor([3, 5]), -1))
    assert metric._refused == 2
    assert metric.counts.sum() == 298
