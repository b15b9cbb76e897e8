"""Every validation and every test has its own data only, is released once and logged once."""

from __future__ import annotations

from pathlib import Path

import lightning
import pytest
import torch
from torch import Tensor

from tests.integrations.lightning_scores import QUIET, Scorer, area, loader, trainer
from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    PrivacyLedger,
    federated_collection,
)
from torchmetrics_fed.integrations.lightning import FederatedEvaluation

pytestmark = QUIET


def test_test_data_never_enters_the_next_validation(tmp_path: Path) -> None:
    module = Scorer(FederatedROC())
    evaluation = FederatedEvaluation("metrics")
    runner = trainer(tmp_path, evaluation)
    (before,) = runner.validate(module, loader(1), verbose=False)
    (tested,) = runner.test(module, loader(2), verbose=False)
    assert evaluation.curves["metrics"].scalars["auroc"].float() == tested["test_auroc"]
    (after,) = runner.validate(module, loader(1), verbose=False)
    assert before == after == {"val_auroc": area(1)}
    assert tested == {"test_auroc": area(2)}


def test_an_evaluation_that_broke_off_leaves_nothing_behind(tmp_path: Path) -> None:
    class Breaking(Scorer):
        breaks = True

        def validation_step(
            self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0
        ) -> None:
            super().validation_step(batch, batch_idx, dataloader_idx)
            if self.breaks and batch_idx == 2:
                raise RuntimeError("the disk is gone")

    module = Breaking(FederatedROC())
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    with pytest.raises(RuntimeError, match="disk"):
        runner.validate(module, loader(1), verbose=False)
    module.breaks = False
    assert runner.validate(module, loader(2), verbose=False) == [{"val_auroc": area(2)}]


def test_every_evaluation_is_one_entry_and_the_sanity_check_none(tmp_path: Path) -> None:
    ledger = PrivacyLedger()
    module = Scorer(federated_collection(privacy=CentralDP(1.0), ledger=ledger))
    runner = trainer(tmp_path, FederatedEvaluation("metrics"), num_sanity_val_steps=2)
    runner.fit(module, loader(0), loader(1))
    assert len(ledger) == 2  # epochs
    (tested,) = runner.test(module, loader(2), verbose=False)
    assert len(ledger) == 3
    assert set(tested) == {"test_auroc", "test_average_precision"}
    runner.validate(module, loader(1), verbose=False)
    assert len(ledger) == 4
    assert not any(metric.counts.any() for metric in module.metrics.values())


@pytest.mark.parametrize("privacy", [None, CentralDP(1.0)], ids=["exact", "private"])
def test_numbers_with_a_confidence_are_logged_with_their_intervals(
    tmp_path: Path, privacy: CentralDP | None
) -> None:
    metrics = federated_collection(metrics=["auroc", "det"], privacy=privacy, confidence=0.95)
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    (logged,) = runner.validate(Scorer(metrics), loader(1), verbose=False)
    for name in ("val_auroc", "val_equal_error_rate"):
        assert logged[f"{name}_low"] < logged[name] < logged[f"{name}_high"]


def test_a_number_that_says_little_is_logged_with_its_interval(tmp_path: Path) -> None:
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    module = Scorer(FederatedAUROC(privacy=CentralDP(0.01)))
    (logged,) = runner.validate(module, loader(1), verbose=False)
    (low,) = [value for name, value in logged.items() if name.endswith("_low")]
    (high,) = [value for name, value in logged.items() if name.endswith("_high")]
    assert high - low > 0.5


def test_prefixes_are_chosen_and_none_leaves_an_evaluation_alone(tmp_path: Path) -> None:
    module = Scorer(FederatedROC(), unseen=FederatedROC())
    runner = trainer(
        tmp_path,
        FederatedEvaluation("metrics", "hospital/", None),
        FederatedEvaluation("unseen", None, "unseen/"),
    )
    assert runner.validate(module, loader(1), verbose=False) == [{"hospital/auroc": area(1)}]
    assert runner.test(module, loader(2), verbose=False) == [{"unseen/auroc": area(2)}]
    assert runner.validate(module, loader(1), verbose=False) == [{"hospital/auroc": area(1)}]


@pytest.mark.parametrize("privacy", [None, CentralDP(1.0)], ids=["exact", "private"])
def test_a_step_that_counts_nothing_is_an_error_and_no_number(
    privacy: CentralDP | None, tmp_path: Path
) -> None:
    class Forgetful(Scorer):
        def test_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
            pass

    module = Forgetful(FederatedAUROC(privacy=privacy))
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    with pytest.raises(InputError, match="test_prefix=None"):
        runner.test(module, loader(1), verbose=False)
    assert "test_metrics" not in runner.callback_metrics
    validation_only = FederatedEvaluation("metrics", test_prefix=None)
    assert trainer(tmp_path, validation_only).test(module, loader(1)) == [{}]
    assert len(module.metrics.ledger) == 0


def test_a_federated_client_keeps_the_last_evaluation(tmp_path: Path) -> None:
    module = Scorer(FederatedROC())
    runner = trainer(tmp_path, FederatedEvaluation("metrics", federated=True))
    assert runner.validate(module, loader(1), verbose=False) == [{}]
    assert module.metrics.counts.sum() == 200
    runner.test(module, loader(2, 100), verbose=False)
    assert module.metrics.counts.sum() == 100


def test_numbers_reach_the_logger_and_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = lightning.pytorch.loggers.CSVLogger(tmp_path)
    module = Scorer(torch.nn.ModuleList([FederatedROC(), FederatedROC()]))
    runner = trainer(tmp_path, FederatedEvaluation("metrics"), logger=logger)
    runner.test(module, [loader(1), loader(2)])
    table = capsys.readouterr().out
    assert str(area(1))[:7] in table
    assert str(area(2))[:7] in table
    header, numbers = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    written = dict(zip(header.split(","), numbers.split(","), strict=True))
    assert float(written["test_auroc/dataloader_0"]) == pytest.approx(area(1))
    assert float(written["test_auroc/dataloader_1"]) == pytest.approx(area(2))
