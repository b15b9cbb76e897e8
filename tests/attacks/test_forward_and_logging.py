"""Threat 2: forward, per-step logging and the sanity check release by habit."""

from __future__ import annotations

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
    FederatedROC,
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
EPOCHS, BATCHES = 2, 10


class Model(lightning.LightningModule):
    def __init__(self, metrics: Any, bare: str = "") -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.metrics = metrics
        self.bare = bare

    def training_step(self, batch: Any) -> Tensor:
        return self.layer(batch[0]).mean()  # type: ignore[no-any-return]

    def validation_step(self, batch: Any) -> None:
        scores = self.layer(batch[0])[:, 0].sigmoid()
        if self.bare == "forward":
            self.metrics(scores, batch[1])
        else:
            self.metrics.update(scores, batch[1])
        if self.bare:
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
    evaluation, logger = FederatedEvaluation("metrics"), Figures()
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
    assert metric.counts.sum() == len(
        data()
    )  # one epoch's, neither the sanity check's nor the sum of all
    metric.share(round="round")
    assert len(ledger) == 1


@pytest.mark.parametrize("habit", ["update", "forward"])
def test_bare_logging_shows_every_release_in_the_ledger(habit: str, tmp_path: Path) -> None:
    ledger = PrivacyLedger()
    trained(Model(FederatedAUROC(privacy=CentralDP(1.0), ledger=ledger), bare=habit), tmp_path)
    assert (
        len(ledger) == EPOCHS + 1
    )  # Lightning computes it in the sanity check as well; not once per batch


@pytest.mark.parametrize("habit", ["update", "forward"])
def test_a_curve_given_to_log_is_refused_before_it_is_released(habit: str, tmp_path: Path) -> None:
    ledger = PrivacyLedger()
    with pytest.raises(ReleaseError, match="Log FederatedAUROC"):
        trained(Model(FederatedROC(privacy=CentralDP(1.0), ledger=ledger), bare=habit), tmp_path)
    assert len(ledger) == 0


def test_areas_of_several_classes_given_to_log_are_refused_before_they_are_released(
    tmp_path: Path,
) -> None:
    class Classes(Model):
        def validation_step(self, batch: Any) -> None:
            self.metrics.update(torch.rand(len(batch[1]), 2), batch[1])
            self.log("area", self.metrics, on_step=False, on_epoch=True)

    ledger = PrivacyLedger()
    options: dict[str, Any] = {"num_classes": 2, "privacy": CentralDP(1.0), "ledger": ledger}
    with pytest.raises(ReleaseError, match="with an `average`"):
        trained(Classes(FederatedAUROC("multiclass", average=None, **options)), tmp_path)
    assert len(ledger) == 0
    trained(Classes(FederatedAUROC("multiclass", average="macro", **options)), tmp_path)
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
    assert len(ledger) == EPOCHS + 1  # written by hand, it computes in the sanity check too


def test_the_callback_logs_every_metric(tmp_path: Path) -> None:
    names = [
        "roc",
        "precision_recall_curve",
        "auroc",
        "det",
        "precision_recall_gain",
        "calibration",
    ]
    metrics, logger = federated_collection(privacy=CentralDP(1.0), metrics=names), Figures()
    trainer = trained(Model(metrics), tmp_path, FederatedEvaluation("metrics"), logger=logger)
    assert {"val_auroc", "val_average_precision", "val_brier_score", "val_area_under_gain"} <= set(
        trainer.callback_metrics
    )
    assert len(logger.figures) == EPOCHS * 5


def test_forward_never_releases(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0))
    for preds, target in zip(scored[0].chunk(BATCHES), scored[1].chunk(BATCHES), strict=True):
        assert metric(preds, target) is None
    assert len(metric.ledger) == 0
    assert metric.counts.sum() == 5_000
    collection: Any = federated_collection(privacy=CentralDP(1.0))
    collection(*scored)
    assert len(collection["roc"].ledger) == 0


def test_a_module_without_the_metric_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Model\.curves"):
        trained(Model(FederatedROC()), tmp_path, FederatedEvaluation("curves"))


def test_switches_that_would_release_by_habit_are_refused() -> None:
    switches: list[dict[str, Any]] = [{"dist_sync_on_step": True}, {"sync_on_compute": False}]
    for switch in switches:
        with pytest.raises(InputError, match="dist_sync_on_step"):
            FederatedROC(privacy=CentralDP(1.0), **switch)
