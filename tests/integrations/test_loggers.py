"""The loggers' own clients, offline: each gets the results of a release once, and nothing else."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import matplotlib as mpl
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchmetrics_fed import CentralDP, PrivacyLedger, Release, ScoreGrid, federated_collection
from torchmetrics_fed.functional import auroc_from_counts, confusion_at
from torchmetrics_fed.integrations.lightning import FederatedEvaluation

CLIENTS = ("tensorboard", "wandb", "mlflow")
CURVES = ("val_roc", "val_precision_recall_curve")
LOG_HEADER = 7
"""Bytes of the header of a Weights & Biases file, and of each record: LevelDB's log."""
LOG_BLOCK = 2**15
"""Bytes of a block of LevelDB's log, whose end is padded if it is too short for a header."""
LAST_PARTS = (1, 4)
"""Part types of LevelDB's log that end a record: a full record, or its last part."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not all(map(find_spec, CLIENTS)), reason=f"needs {', '.join(CLIENTS)}: the extra `loggers`"
    ),
    pytest.mark.filterwarnings("ignore"),  # the clients' own
]
EPOCHS = 2
EXAMPLES = 1_000
mpl.use("Agg")


class Model(lightning.LightningModule):
    def __init__(self, metrics: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)
        self.metrics = metrics
        self.scores: list[Tensor] = []

    def training_step(self, batch: Any) -> Tensor:
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: Any) -> None:
        scores = self.layer(batch[0]).softmax(1)
        self.scores.append(scores)
        if self.metrics["roc"].spec.task == "binary":
            self.metrics.update(scores[:, 1], (batch[1] == 1).long())
        else:
            self.metrics.update(scores, batch[1])

    def train_dataloader(self) -> Any:
        return DataLoader(data(), batch_size=200)

    def val_dataloader(self) -> Any:
        return DataLoader(data(), batch_size=EXAMPLES)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    classes = torch.randint(0, 3, (EXAMPLES,), generator=generator)
    centres = torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, -1.0]])
    return TensorDataset(centres[classes] + torch.randn(EXAMPLES, 2, generator=generator), classes)


class Keeper(lightning.Callback):
    """Keeps each evaluation's release and step."""

    def __init__(self) -> None:
        self.releases: list[Release] = []
        self.steps: list[int] = []

    def on_validation_epoch_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.releases.append(pl_module.metrics["roc"].release())
            self.steps.append(trainer.global_step)


class Run(NamedTuple):
    """The results of one training."""

    model: Model
    keeper: Keeper
    ledger: PrivacyLedger
    folder: Path
    loggers: list[Any]


class Training:
    """Trains a model with some of the loggers' clients, all offline and in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, clients: str = "tensorboard wandb mlflow", **options: Any) -> Run:
        loggers = [self._logger(name) for name in clients.split()]
        ledger = PrivacyLedger()
        keeper = Keeper()
        metrics = federated_collection(
            metrics=["roc", "precision_recall_curve"], ledger=ledger, **options
        )
        model = Model(metrics)
        without_figures = lightning.pytorch.loggers.CSVLogger(self.folder)
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=EPOCHS,
            log_every_n_steps=1,
            num_sanity_val_steps=1,
            logger=[*loggers, without_figures],
            callbacks=[FederatedEvaluation("metrics"), keeper],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model)
        for logger in trainer.loggers:
            logger.finalize("success")
        return Run(
            model=model,
            keeper=keeper,
            ledger=ledger,
            folder=self.folder,
            loggers=loggers,
        )

    def _logger(self, name: str) -> Any:
        from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger

        if name == "tensorboard":
            return TensorBoardLogger(self.folder, name="board", version="0")
        if name == "wandb":
            return WandbLogger(project="fed", save_dir=self.folder, offline=True)
        return MLFlowLogger(
            "fed",
            tracking_uri=f"sqlite:///{self.folder}/mlflow.db",
            artifact_location=f"file:{self.folder}/artifacts",
        )


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield Training(tmp_path)
    import wandb

    wandb.finish()


def board(run: Run) -> Any:
    """Return the events that TensorBoard reads."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kinds = {"scalars": 0, "images": 0, "tensors": 0}
    return EventAccumulator(str(run.folder / "board" / "0"), kinds).Reload()


def pr_tables(events: Any, tag: str) -> list[tuple[int, Any]]:
    """Return step and table of each event of the PR-curve page.

    A table has the rows tp, fp, tn, fn, precision and recall, and a column for each threshold.
    """
    from tensorboard.util.tensor_util import make_ndarray

    assert events.SummaryMetadata(tag).plugin_data.plugin_name == "pr_curves"
    return [(event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]


def areas_of(run: Run) -> list[float]:
    return [float(auroc_from_counts(release)) for release in run.keeper.releases]


def check_counts(table: Any, release: Release) -> None:
    """Check that a table has the release's counts at even thresholds, in TensorBoard's float32."""
    thresholds = np.linspace(0, 1, table.shape[1])
    for column, threshold in zip(table.T, thresholds, strict=True):
        (tn, fp), (fn, tp) = confusion_at(release, float(threshold)).matrix.tolist()
        assert column[:4].tolist() == np.array([tp, fp, tn, fn], np.float32).tolist()


def test_tensorboard_has_figures_and_scalars(trained: Training) -> None:
    run = trained("tensorboard")
    events = board(run)
    assert set(events.Tags()["images"]) == set(CURVES)
    for tag in CURVES:
        assert [event.step for event in events.Images(tag)] == run.keeper.steps
    logged = [event.value for event in events.Scalars("val_auroc")]
    assert logged == pytest.approx(areas_of(run))


def test_tensorboard_has_the_counts_of_exact_curves(trained: Training) -> None:
    run = trained("tensorboard")
    is_positive = data().tensors[1] == 1
    tables = pr_tables(board(run), "val_precision_recall_curve")
    assert [step for step, _ in tables] == run.keeper.steps
    scores_of_epochs = run.model.scores[-EPOCHS:]
    for (_, table), release, scores in zip(
        tables, run.keeper.releases, scores_of_epochs, strict=True
    ):
        assert table.shape == (6, 65)
        check_counts(table, release)
        for column, threshold in zip(table.T, np.linspace(0, 1, 65), strict=True):
            tp, fp, _, fn, precision, recall = column
            is_selected = scores[:, 1] >= float(threshold)
            if threshold == 1:
                is_selected = torch.zeros_like(is_positive)  # the highest edge selects nothing
            assert tp == (is_selected & is_positive).sum()
            assert fp == (is_selected & ~is_positive).sum()
            assert precision == pytest.approx(tp / (tp + fp) if tp + fp else 1)
            assert recall == pytest.approx(tp / (tp + fn))


def test_under_privacy_each_release_is_logged_once_by_every_client_and_nothing_else(
    trained: Training,
) -> None:
    run = trained(privacy=CentralDP(5.0))
    assert len(run.ledger) == EPOCHS
    assert len(run.keeper.releases) == EPOCHS
    check_tensorboard(run)
    check_wandb(run)
    check_mlflow(run)


SCALARS = {"val_auroc", "val_average_precision", "epoch"}


def check_tensorboard(run: Run) -> None:
    events = board(run)
    tags = events.Tags()
    assert set(tags["scalars"]) == SCALARS
    assert set(tags["images"]) == set(CURVES)
    assert set(tags["tensors"]) == {"val_precision_recall_curve"}
    for tag in CURVES:
        assert [event.step for event in events.Images(tag)] == run.keeper.steps
    logged = [event.value for event in events.Scalars("val_auroc")]
    assert logged == pytest.approx(areas_of(run))
    tables = pr_tables(events, "val_precision_recall_curve")
    for (_, table), release in zip(tables, run.keeper.releases, strict=True):
        check_counts(table, release)


def check_wandb(run: Run) -> None:
    history = wandb_history(run)
    logged = [row["val_auroc"] for row in history if "val_auroc" in row]
    assert logged == pytest.approx(areas_of(run))
    (folder,) = (run.folder / "wandb").glob("offline-run-*/files")
    for name in CURVES:
        figures = [file for row in history for file in row.get(f"{name}/filenames", ())]
        assert len(set(figures)) == EPOCHS
        for file in figures:
            assert (folder / file).read_bytes()[:4] == b"\x89PNG"
    keys = {key.split("/")[0] for row in history for key in row if not key.startswith("_")}
    assert keys == {*SCALARS, *CURVES, "trainer"}  # the trainer's step


def check_mlflow(run: Run) -> None:
    logger = run.loggers[2]
    client = logger.experiment
    assert set(client.get_run(logger.run_id).data.metrics) == SCALARS
    history = client.get_metric_history(logger.run_id, "val_auroc")
    assert [entry.value for entry in history] == pytest.approx(areas_of(run))
    for name in CURVES:
        files = [entry.path for entry in client.list_artifacts(logger.run_id, name)]
        assert files == [f"{name}/{step:08}.png" for step in run.keeper.steps]


def wandb_history(run: Run) -> list[dict[str, Any]]:
    """Return the rows of the offline run's file, a log of protobuf records in LevelDB's format."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.finish()
    (file,) = (run.folder / "wandb").glob("offline-run-*/*.wandb")
    rows = []
    for message in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(message)
        if record.HasField("history"):
            row = {}
            for item in record.history.item:
                key = "/".join(item.nested_key) or item.key
                row[key] = json.loads(item.value_json)
            rows.append(row)
    return rows


def log_records(log: bytes) -> Iterator[bytes]:
    """Yield the records of a LevelDB log. Long records come in several parts."""
    place = LOG_HEADER
    record = b""
    while place + LOG_HEADER <= len(log):
        left_in_block = LOG_BLOCK - place % LOG_BLOCK
        if left_in_block < LOG_HEADER:
            place += left_in_block
            continue
        _, size, part = struct.unpack_from("<IHB", log, place)
        place += LOG_HEADER
        record += log[place : place + size]
        place += size
        if part in LAST_PARTS:
            yield record
            record = b""


def test_every_class_has_a_pr_curve_of_its_own(trained: Training) -> None:
    run = trained("tensorboard", task="multiclass", num_classes=3)
    events = board(run)
    target = data().tensors[1]
    names = [f"val_precision_recall_curve_{label}" for label in range(3)]
    assert set(events.Tags()["tensors"]) == set(names)
    for label, name in enumerate(names):
        _, table = pr_tables(events, name)[-1]
        tp, fp = table[:2, 32]  # at a threshold of 0.5
        is_selected = run.model.scores[-1][:, label] >= 0.5
        assert tp == (is_selected & (target == label)).sum()
        assert fp == (is_selected & (target != label)).sum()


def test_even_edges_of_the_grid_are_thresholds(trained: Training) -> None:
    grid = ScoreGrid.from_edges([eighth / 8 for eighth in range(9)])
    events = board(trained("tensorboard", grid=grid))
    _, table = pr_tables(events, "val_precision_recall_curve")[0]
    assert table.shape == (6, 9)


def test_a_grid_without_even_edges_has_no_counts_but_a_figure(trained: Training) -> None:
    grid = ScoreGrid.from_edges([0.0, 0.3, 0.7, 1.0])
    events = board(trained("tensorboard", grid=grid))
    assert events.Tags()["tensors"] == []
    assert "val_precision_recall_curve" in events.Tags()["images"]
