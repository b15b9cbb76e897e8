"""The Lightning callback for clients under ``flare.patch``; a whole job is in ``test_job``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from tests.integrations.lightning_scores import QUIET, Scorer, loader, scores, trainer
from torchmetrics_fed import DistributedDP, FederatedROC, InputError, PrivacyLedger, Share
from torchmetrics_fed.privacy import Privacy

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_opt.lightning.api import FL_META_KEY, FLCallback

from torchmetrics_fed.integrations.nvflare import META_KEY
from torchmetrics_fed.integrations.nvflare.client import round_name
from torchmetrics_fed.integrations.nvflare.lightning import FlareEvaluation

pytestmark = QUIET
JOB = "6f1c"
TRUSTED = DistributedDP(epsilon=5.0, min_clients=3, trusted_aggregator=True)


class Received(FLCallback):  # type: ignore[misc, unused-ignore]
    """The callback of ``flare.patch`` once it has received a round's model, without a job."""

    def __init__(self, number: int) -> None:
        self.current_round = number
        self.metrics: dict[str, float] = {}  # so that it waits for no other model


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvflare.client.get_job_id", lambda: JOB)


def sent(module: Scorer) -> Share:
    """The share that the module would send with its model."""
    spec = module.metrics.spec
    query = module.metrics.plan.unasked_query(spec)
    return Share.from_bytes(getattr(module, FL_META_KEY)[META_KEY], spec, query)


def private(folder: Path) -> Scorer:
    ledger = PrivacyLedger(20.0, folder / "ledger")
    return Scorer(FederatedROC(privacy=TRUSTED, ledger=ledger))


def test_a_trainer_that_was_not_patched_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"flare\.patch"):
        trainer(tmp_path, FlareEvaluation("metrics")).validate(
            Scorer(FederatedROC()), loader(1), verbose=False
        )
    with pytest.raises(InputError, match=r"Scorer\.other"):
        trainer(tmp_path, FlareEvaluation("other")).validate(
            Scorer(FederatedROC()), loader(1), verbose=False
        )


@pytest.mark.parametrize("privacy", [None, TRUSTED], ids=["exact", "private"])
def test_lightning_sends_the_share_of_the_received_model_only(
    privacy: Privacy | None, tmp_path: Path
) -> None:
    class Module(lightning.LightningModule):
        __fl_meta__: dict[str, Any]

        def __init__(self) -> None:
            super().__init__()
            self.roc = FederatedROC(
                privacy=privacy, ledger=PrivacyLedger(20.0, tmp_path / "ledger")
            )
            self.__fl_meta__ = {"mine": 1}

    trainer = lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.callbacks.append(Received(3))  # type: ignore[attr-defined]
    module = Module()
    callback = FlareEvaluation("roc")

    module.roc.update(*scores(1))
    trainer.state.fn = TrainerFn.FITTING
    callback.on_validation_epoch_end(trainer, module)
    assert module.__fl_meta__ == {"mine": 1}
    assert (len(module.roc.ledger), int(module.roc.counts.sum())) == (0, 0)

    module.roc.update(*scores(1))
    trainer.state.fn = TrainerFn.VALIDATING
    callback.on_validation_epoch_end(trainer, module)
    share = Share.from_bytes(
        module.__fl_meta__[META_KEY],
        module.roc.spec,
        module.roc.plan.unasked_query(module.roc.spec),
    )
    assert share.round == round_name(JOB, 3)
    assert len(module.roc.ledger) == (privacy is not None)
    assert int(module.roc.counts.sum()) == 0
    # the patched trainer adds the steps, which tell the number of examples, unless they are there
    assert module.__fl_meta__.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND) == (
        None if privacy is None else 1
    )
    callback.on_fit_end(trainer, module)
    assert META_KEY not in module.__fl_meta__


def test_a_share_is_of_its_own_validation_only(tmp_path: Path) -> None:
    module = Scorer(FederatedROC())
    runner = trainer(tmp_path, Received(0), FlareEvaluation("metrics"))
    runner.validate(module, loader(1), verbose=False)
    runner.test(module, loader(2), verbose=False)
    runner.validate(module, loader(1), verbose=False)
    metric = FederatedROC()
    metric.update(*scores(1))
    assert sent(module).cells.equal(metric.share().cells)


def test_data_that_is_mixed_or_repeated_is_refused_before_a_share_is_made(tmp_path: Path) -> None:
    module = private(tmp_path)
    dataset = TensorDataset(*scores(1))
    runner = trainer(tmp_path, Received(0), FlareEvaluation("metrics"))
    sampler = RandomSampler(dataset, replacement=True)
    repeating = DataLoader(dataset, sampler=sampler)
    with pytest.raises(InputError, match="every example once"):
        runner.validate(module, repeating, verbose=False)
    with pytest.raises(InputError, match="2 dataloaders"):
        runner.validate(module, [loader(1), loader(2)], verbose=False)
    assert (len(module.metrics.ledger), int(module.metrics.counts.sum())) == (0, 0)
    shuffled = DataLoader(dataset, batch_size=50, shuffle=True)
    runner.validate(module, shuffled, verbose=False)
    assert len(module.metrics.ledger) == 1
