"""A budget is noticed before it is gone, and its end need not end the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch

from tests.integrations.lightning_scores import QUIET, Scorer, loader, trainer
from torchmetrics_fed import (
    BudgetExceededError,
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    PrivacyLedger,
    ReleaseError,
    federated_collection,
)
from torchmetrics_fed.integrations.lightning import FederatedEvaluation
from torchmetrics_fed.integrations.lightning.spending import planned_evaluations

pytestmark = QUIET


class Counter(lightning.Callback):
    """Counts planned and real validations."""

    def __init__(self) -> None:
        self.planned: int | None = None
        self.validations = 0

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        self.planned = planned_evaluations(trainer)

    def on_validation_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        self.validations += not trainer.sanity_checking


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_epochs": 6, "check_val_every_n_epoch": 2},
        {"val_check_interval": 0.5},
        {"val_check_interval": 2},
        {"max_epochs": 5, "max_steps": 12},
        {"check_val_every_n_epoch": None, "val_check_interval": 3, "max_epochs": 3},
    ],
    ids=str,
)
def test_the_planned_evaluations_are_those_that_come(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    counter = Counter()
    runner = trainer(tmp_path, counter, FederatedEvaluation("metrics"), **options)
    runner.fit(Scorer(FederatedROC()), loader(0), loader(1))
    assert counter.planned == counter.validations


def test_an_open_number_of_epochs_plans_nothing(tmp_path: Path) -> None:
    runner = trainer(tmp_path, Counter(), max_epochs=-1, max_time={"seconds": 1})
    assert planned_evaluations(runner) is None


def test_a_run_beyond_the_budget_says_so_before_it_trains(tmp_path: Path) -> None:
    ledger = PrivacyLedger(3.0, tmp_path / "ledger")
    metric = FederatedROC(privacy=CentralDP(1.0), ledger=ledger)
    runner = trainer(tmp_path, FederatedEvaluation("metrics"), max_epochs=40)
    message = r"plans 40 evaluations and would spend epsilon 40 of 3: the budget ends after 3"
    with pytest.warns(UserWarning, match=message), pytest.raises(BudgetExceededError):
        runner.fit(Scorer(metric), loader(0), loader(1))


def test_the_same_run_with_a_setting_for_it_says_nothing_and_ends(tmp_path: Path) -> None:
    ledger = PrivacyLedger(3.0, tmp_path / "ledger")
    privacy = CentralDP.for_run(3.0, evaluations=6)
    metric = FederatedROC(privacy=privacy, ledger=ledger)
    runner = trainer(tmp_path, FederatedEvaluation("metrics"), max_epochs=6)
    runner.fit(Scorer(metric), loader(0), loader(1))
    assert ledger.evaluations_left(privacy) == 0


@pytest.mark.parametrize(
    ("metric", "error"),
    [
        (FederatedROC(privacy=CentralDP(4.0), ledger=PrivacyLedger(3.0)), BudgetExceededError),
        (FederatedROC(privacy=DistributedDP(1.0, min_clients=5)), ReleaseError),
    ],
    ids=["epsilon above the budget", "fewer ranks than clients"],
)
def test_a_run_that_cannot_release_does_not_train(
    tmp_path: Path, metric: FederatedROC, error: type[Exception]
) -> None:
    module = Scorer(metric)
    before = module.layer.weight.clone()
    with pytest.raises(error, match="Cannot begin"):
        trainer(tmp_path, FederatedEvaluation("metrics")).fit(module, loader(0), loader(1))
    assert torch.equal(module.layer.weight, before)


def test_several_releases_per_evaluation_are_all_counted(tmp_path: Path) -> None:
    ledger = PrivacyLedger(3.0, tmp_path / "ledger")
    collection = federated_collection(privacy=CentralDP(1.0), ledger=ledger)
    other = FederatedAUROC(privacy=CentralDP(1.0), ledger=ledger)
    module = Scorer(torch.nn.ModuleList([collection, other]))
    runner = trainer(tmp_path, FederatedEvaluation("metrics", budget_end="skip"))
    message = "plans 4 evaluations and would spend epsilon 4 of 3"
    with pytest.warns(UserWarning, match=message), pytest.warns(match="training goes on"):
        runner.fit(module, loader(0), [loader(1), loader(2)])


def test_a_budget_that_ends_ends_the_evaluation_and_not_the_training(tmp_path: Path) -> None:
    ledger = PrivacyLedger(2.0, tmp_path / "ledger")
    module = Scorer(FederatedROC(privacy=CentralDP(1.0), ledger=ledger))
    runner = trainer(tmp_path, FederatedEvaluation("metrics", budget_end="skip"), max_epochs=4)
    with pytest.warns(UserWarning, match="training goes on"), pytest.warns(match="plans 4"):
        runner.fit(module, loader(0), loader(1))
    assert runner.current_epoch == 4
    assert len(ledger) == 2
    assert not module.metrics.counts.any()


def test_a_budget_in_memory_does_not_survive_and_says_so(tmp_path: Path) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0), ledger=PrivacyLedger(3.0))
    checkpoints = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path)
    runner = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[FederatedEvaluation("metrics"), checkpoints],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with pytest.warns(UserWarning, match="does not survive"):
        runner.fit(Scorer(metric), loader(0), loader(1))


def test_the_trend_is_logged_beside_the_value_and_resumed(tmp_path: Path) -> None:
    privacy = CentralDP.for_run(8.0, evaluations=10)
    ledger = PrivacyLedger(8.0, tmp_path / "ledger")
    module = Scorer(federated_collection(privacy=privacy, ledger=ledger))
    evaluation = FederatedEvaluation("metrics", trend=True)
    runner = trainer(tmp_path, evaluation, max_epochs=4)
    runner.fit(module, loader(0), loader(1, 2000))
    trend = evaluation.history.trend("val_auroc")
    assert len(trend.value) == 4
    assert runner.callback_metrics["val_auroc_trend"] == trend.value[-1].float()
    assert runner.callback_metrics["val_auroc"] == trend.raw[-1].float()
    assert "val_average_precision_trend" in runner.callback_metrics
    runner.save_checkpoint(tmp_path / "last.ckpt")
    resumed = FederatedEvaluation("metrics", trend=True)
    trainer(tmp_path, resumed, max_epochs=5).fit(
        module, loader(0), loader(1, 2000), ckpt_path=str(tmp_path / "last.ckpt")
    )
    assert len(resumed.history.trend("val_auroc").value) == 5
    assert len(ledger) == 5


def test_a_bad_budget_end_is_refused() -> None:
    with pytest.raises(InputError, match="`budget_end`"):
        FederatedEvaluation("metrics", budget_end="stop")  # type: ignore[arg-type]
