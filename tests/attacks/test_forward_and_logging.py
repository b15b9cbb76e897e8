"""Threat 2: forward, per-step logging and the sanity check release by habit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedConfusionMatrix,
    FederatedLogLoss,
    FederatedRecallAtFixedPrecision,
    FederatedROC,
    FederatedScoreAtThreshold,
    InputError,
    LocalDP,
    PrivacyLedger,
    ReleaseError,
    federated_collection,
)
from torchmetrics_fed.integrations.lightning import FederatedEvaluation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]
EPOCHS = 2
BATCHES = 10


class Model(lightning.LightningModule):
    """Updates its metrics in validation.

    Args:
        metrics: a metric or a collection.
        habit: how a step without the callback logs a metric: ``"update"`` or ``"forward"`` and
            then ``log``; empty if the step leaves logging to the callback.
    """

    def __init__(self, metrics: Any, habit: str = "") -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.metrics = metrics
        self.habit = habit

    def training_step(self, batch: Any) -> Tensor:
        return self.layer(batch[0]).mean()  # type: ignore[no-any-return]

    def validation_step(self, batch: Any) -> None:
        scores = self.layer(batch[0])[:, 0].sigmoid()
        if self.habit == "forward":
            self.metrics(scores, batch[1])
        else:
            self.metrics.update(scores, batch[1])
        if self.habit:
            self.log("area", self.metrics, on_step=False, on_epoch=True)

    def train_dataloader(self) -> Any:
        return DataLoader(data(), batch_size=100)

    def val_dataloader(self) -> Any:
        return DataLoader(data(), batch_size=1_000 // BATCHES)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(1_000, 2, generator=generator)
    return TensorDataset(features, (features[:, 0] > 0).long())


def trained(
    model: Model, folder: Path, *callbacks: lightning.Callback, logger: Any = False
) -> lightning.Trainer:
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        num_sanity_val_steps=2,
        logger=logger,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(model)
    return trainer


class Figures(lightning.pytorch.loggers.logger.DummyLogger):
    """A logger that takes figures, as TensorBoard's does."""

    def __init__(self) -> None:
        super().__init__()
        self.figures: list[str] = []

    @property
    def experiment(self) -> Any:
        return self

    def add_figure(self, name: str, figure: Any, step: int) -> None:
        assert len(figure.axes) == 1
        self.figures.append(name)


def test_with_the_callback_entries_are_epochs(tmp_path: Path) -> None:
    ledger = PrivacyLedger()
    metrics = federated_collection(privacy=CentralDP(1.0), ledger=ledger)
    evaluation = FederatedEvaluation("metrics")
    logger = Figures()
    trainer = trained(Model(metrics), tmp_path, evaluation, logger=logger)
    assert len(ledger) == EPOCHS
    assert set(trainer.callback_metrics) == {"val_auroc", "val_average_precision"}
    assert 0 <= trainer.callback_metrics["val_auroc"] <= 1
    assert sorted(evaluation.curves) == ["precision_recall_curve", "roc"]
    assert sorted(logger.figures) == sorted(["val_roc", "val_precision_recall_curve"] * EPOCHS)


def test_a_federated_client_keeps_the_last_epoch_and_releases_nothing_itself(
    tmp_path: Path,
) -> None:
    ledger = PrivacyLedger()
    metric = FederatedROC(privacy=LocalDP(1.0), ledger=ledger)
    trained(Model(metric), tmp_path, FederatedEvaluation("metrics", federated=True))
    assert len(ledger) == 0
    # of one epoch: neither the sanity check's data nor the sum of all epochs
    assert metric.counts.sum() == len(data())
    metric.share(round="round")
    assert len(ledger) == 1


@pytest.mark.parametrize("habit", ["update", "forward"])
def test_bare_logging_shows_every_release_in_the_ledger(habit: str, tmp_path: Path) -> None:
    ledger = PrivacyLedger()
    metric = FederatedAUROC(privacy=CentralDP(1.0), ledger=ledger)
    trained(Model(metric, habit=habit), tmp_path)
    # not once per batch; but Lightning computes it in the sanity check as well
    assert len(ledger) == EPOCHS + 1


@pytest.mark.parametrize("habit", ["update", "forward"])
def test_a_curve_given_to_log_is_refused_before_it_is_released(habit: str, tmp_path: Path) -> None:
    ledger = PrivacyLedger()
    metric = FederatedROC(privacy=CentralDP(1.0), ledger=ledger)
    with pytest.raises(ReleaseError, match="Log FederatedAUROC"):
        trained(Model(metric, habit=habit), tmp_path)
    assert len(ledger) == 0


@pytest.mark.parametrize("habit", ["update", "forward"])
@pytest.mark.parametrize(
    "build",
    [
        partial(FederatedScoreAtThreshold, "f1"),
        partial(FederatedRecallAtFixedPrecision, 0.6, with_threshold=False),
        FederatedLogLoss,
    ],
    ids=["score", "operating point", "loss"],
)
def test_a_number_is_logged(build: Any, habit: str, tmp_path: Path) -> None:
    ledger = PrivacyLedger()
    model = Model(build(privacy=CentralDP(1.0), ledger=ledger), habit=habit)
    trainer = trained(model, tmp_path)
    assert trainer.callback_metrics["area"].isfinite()
    assert len(ledger) == EPOCHS + 1


@pytest.mark.parametrize(
    "metric",
    [FederatedConfusionMatrix, partial(FederatedRecallAtFixedPrecision, 0.6)],
    ids=["confusion matrix", "operating point"],
)
def test_several_numbers_given_to_log_are_refused_with_a_remedy(
    metric: Any, tmp_path: Path
) -> None:
    ledger = PrivacyLedger()
    with pytest.raises(ReleaseError, match=r"FederatedScoreAtThreshold.*with_threshold=False"):
        trained(Model(metric(privacy=CentralDP(1.0), ledger=ledger), habit="update"), tmp_path)
    assert len(ledger) == 0


def test_the_callback_logs_every_score_of_a_confusion_matrix(tmp_path: Path) -> None:
    ledger = PrivacyLedger()
    metrics = federated_collection(
        metrics={
            "confusion": FederatedConfusionMatrix,
            "f1": partial(FederatedScoreAtThreshold, "f1"),
            "recall": partial(FederatedRecallAtFixedPrecision, 0.6),
        },
        privacy=CentralDP(1.0),
        ledger=ledger,
    )
    logger = Figures()
    trainer = trained(Model(metrics), tmp_path, FederatedEvaluation("metrics"), logger=logger)
    assert len(ledger) == EPOCHS
    logged = trainer.callback_metrics
    assert torch.equal(logged["val_f1"], logged["val_confusion_f1"])
    assert 0 <= logged["val_accuracy"] <= 1
    assert {"val_recall_value", "val_recall_threshold"} <= set(logged)
    assert sorted(set(logger.figures)) == ["val_confusion", "val_recall"]


def test_areas_of_several_classes_given_to_log_are_refused_before_they_are_released(
    tmp_path: Path,
) -> None:
    class Classes(Model):
        def validation_step(self, batch: Any) -> None:
            self.metrics.update(torch.rand(len(batch[1]), 2).softmax(1), batch[1])
            self.log("area", self.metrics, on_step=False, on_epoch=True)

    ledger = PrivacyLedger()
    options: dict[str, Any] = {"num_classes": 2, "privacy": CentralDP(1.0), "ledger": ledger}
    of_each_class = FederatedAUROC("multiclass", average=None, **options)
    with pytest.raises(ReleaseError, match="with an `average`"):
        trained(Classes(of_each_class), tmp_path)
    assert len(ledger) == 0
    averaged = FederatedAUROC("multiclass", average="macro", **options)
    trained(Classes(averaged), tmp_path)
    assert len(ledger) == EPOCHS + 1


def test_scalars_of_a_collection_are_logged_as_one_dictionary(tmp_path: Path) -> None:
    class Together(Model):
        def validation_step(self, batch: Any) -> None:
            self.metrics.update(self.layer(batch[0])[:, 0].sigmoid(), batch[1])

        def on_validation_epoch_end(self) -> None:
            self.log_dict(self.metrics.compute())
            self.metrics.reset()

    ledger = PrivacyLedger()
    metrics = federated_collection(
        privacy=CentralDP(1.0), ledger=ledger, metrics=["auroc", "average_precision"]
    )
    trainer = trained(Together(metrics), tmp_path)
    assert set(trainer.callback_metrics) == {"auroc", "average_precision"}
    assert len(ledger) == EPOCHS + 1  # and one in the sanity check


def test_the_callback_logs_every_metric(tmp_path: Path) -> None:
    names = [
        "roc",
        "precision_recall_curve",
        "auroc",
        "det",
        "precision_recall_gain",
        "calibration",
    ]
    metrics = federated_collection(privacy=CentralDP(1.0), metrics=names)
    logger = Figures()
    trainer = trained(Model(metrics), tmp_path, FederatedEvaluation("metrics"), logger=logger)
    logged = trainer.callback_metrics
    for name in ("auroc", "average_precision", "brier_score", "area_under_gain"):
        assert f"val_{name}" in logged
    assert len(logger.figures) == EPOCHS * 5  # an area alone has no figure


def test_forward_never_releases(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0))
    preds, target = scored
    for batch in zip(preds.chunk(BATCHES), target.chunk(BATCHES), strict=True):
        assert metric(*batch) is None
    assert len(metric.ledger) == 0
    assert metric.counts.sum() == 5_000
    collection: Any = federated_collection(privacy=CentralDP(1.0))
    collection(preds, target)
    assert len(collection["roc"].ledger) == 0


def test_a_module_without_the_metric_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Model\.curves"):
        trained(Model(FederatedROC()), tmp_path, FederatedEvaluation("curves"))


@pytest.mark.parametrize("switch", [{"dist_sync_on_step": True}, {"sync_on_compute": False}])
def test_switches_that_would_release_by_habit_are_refused(switch: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="dist_sync_on_step"):
        FederatedROC(privacy=CentralDP(1.0), **switch)
