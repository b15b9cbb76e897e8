"""Each dataloader has a metric, a release and names that no other dataloader has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader

from tests.integrations.lightning_scores import QUIET, Scorer, area, loader, trainer
from torchmetrics_fed import (
    CentralDP,
    FederatedROC,
    InputError,
    PrivacyLedger,
    federated_collection,
)
from torchmetrics_fed.integrations.lightning import FederatedEvaluation

pytestmark = QUIET


CONTAINERS = {
    "list": lambda first, second: [first, second],
    "dict": lambda first, second: {"first": first, "second": second},
    "nested": lambda first, second: [[first], {"second": second}],
    "combined": lambda first, second: CombinedLoader([first, second], "sequential"),
}
"""Builds a container of two dataloaders."""


@pytest.mark.parametrize("build", CONTAINERS.values(), ids=CONTAINERS)
def test_dataloaders_that_share_a_metric_are_refused_before_anything_is_counted(
    build: Any, tmp_path: Path
) -> None:
    module = Scorer(FederatedROC())
    loaders = build(loader(1), loader(2))
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    with pytest.raises(InputError, match=r"got 1 for 2 dataloaders.*ConcatDataset.*ModuleList"):
        runner.validate(module, loaders, verbose=False)
    with pytest.raises(InputError, match="2 dataloaders"):
        runner.test(module, loaders, verbose=False)
    assert module.metrics.counts.sum() == 0
    fitting = trainer(tmp_path, FederatedEvaluation("metrics"), num_sanity_val_steps=0)
    with pytest.raises(InputError, match="2 dataloaders"):
        fitting.fit(module, loader(0), loaders)
    assert fitting.global_step == 0  # and not after an epoch


@pytest.mark.parametrize("build", CONTAINERS.values(), ids=CONTAINERS)
def test_each_dataloader_has_its_own_metrics_and_names(build: Any, tmp_path: Path) -> None:
    collections = [federated_collection(metrics=["roc"]) for _ in range(2)]
    module = Scorer(torch.nn.ModuleList(collections))
    evaluation = FederatedEvaluation("metrics")
    runner = trainer(tmp_path, evaluation)
    expected = {
        "val_auroc/dataloader_0": area(1),
        "val_auroc/dataloader_1": area(2),
    }
    runner.fit(module, loader(0), build(loader(1), loader(2)))
    logged = {name: float(value) for name, value in runner.callback_metrics.items()}
    assert logged == expected
    assert sorted(evaluation.curves) == ["roc/dataloader_0", "roc/dataloader_1"]


def test_each_dataloader_is_a_release(tmp_path: Path) -> None:
    ledger = PrivacyLedger()
    metrics = [FederatedROC(privacy=CentralDP(1.0), ledger=ledger) for _ in range(2)]
    module = Scorer(torch.nn.ModuleList(metrics))
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    runner.validate(module, [loader(1), loader(2)], verbose=False)
    assert len(ledger) == 2


@pytest.mark.parametrize("number", [1, 3])
def test_a_list_of_another_length_is_refused(number: int, tmp_path: Path) -> None:
    module = Scorer([FederatedROC() for _ in range(number)])
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    with pytest.raises(InputError, match=f"got {number} for 2"):
        runner.validate(module, [loader(1), loader(2)], verbose=False)


def test_one_metric_twice_in_a_list_is_refused(tmp_path: Path) -> None:
    module = Scorer([FederatedROC()] * 2)
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    with pytest.raises(InputError, match="one of them twice"):
        runner.validate(module, [loader(1), loader(2)], verbose=False)


def test_a_metric_that_gets_none_of_its_dataloader_is_an_error(tmp_path: Path) -> None:
    class Mixing(Scorer):
        def validation_step(
            self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0
        ) -> None:
            self.metrics[0].update(*batch)

    module = Mixing(torch.nn.ModuleList([FederatedROC(), FederatedROC()]))
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    with pytest.raises(InputError, match="nothing was counted"):
        runner.validate(module, [loader(1), loader(2)], verbose=False)


def test_data_is_joined_in_one_dataloader(tmp_path: Path) -> None:
    parts = [loader(1).dataset, loader(2).dataset]
    joined: DataLoader[Any] = DataLoader(ConcatDataset(parts), batch_size=64)
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    logged = runner.validate(Scorer(FederatedROC()), joined, verbose=False)
    assert logged == [{"val_auroc": area(1, 2)}]


def test_loaders_that_come_in_one_step_have_a_metric_each(tmp_path: Path) -> None:
    class Zipped(Scorer):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            for number, part in enumerate(batch):
                super().validation_step(part, batch_idx, number)

    zipped = CombinedLoader([loader(1), loader(2)], "min_size")
    module = Zipped(torch.nn.ModuleList([FederatedROC(), FederatedROC()]))
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    logged = runner.validate(module, zipped, verbose=False)
    expected = {
        "val_auroc/dataloader_0": area(1),
        "val_auroc/dataloader_1": area(2),
    }
    assert logged == [expected]
