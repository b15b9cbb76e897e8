"""The loggers' own clients, offline: what a release says reaches each of them, once, and nothing else does."""

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
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not all(map(find_spec, CLIENTS)), reason=f"needs {', '.join(CLIENTS)}: the extra `loggers`"
    ),
    pytest.mark.filterwarnings("ignore"),  # the clients' own
]
EPOCHS, EXAMPLES = 2, 1_000
mpl.use("Agg")


class Model(lightning.LightningModule):
    def __init__(self, metrics: Any) -> None:
        super().__init__()
        self.layer, self.metrics = torch.nn.Linear(2, 3), metrics
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
    """Keeps each evaluation's release, its step, and what Lightning logged."""

    def __init__(self) -> None:
        self.releases: list[Release] = []
        self.steps: list[int] = []

    def on_validation_epoch_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.releases.append(pl_module.metrics["roc"].release())
            self.steps.append(trainer.global_step)


class Run(NamedTuple):
    """What one training left."""

    model: Model
    kept: Keeper
    ledger: PrivacyLedger
    folder: Path
    loggers: list[Any]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("DO_NOT_TRACK", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "true")
    for name, value in (
        ("WANDB_MODE", "offline"),
        ("WANDB_SILENT", "true"),
        ("WANDB_ERROR_REPORTING", "false"),
    ):
        monkeypatch.setenv(name, value)
    from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger

    def train(clients: str = "tensorboard wandb mlflow", **options: Any) -> Run:
        every: dict[str, Any] = {
            "tensorboard": lambda: TensorBoardLogger(tmp_path, name="board", version="0"),
            "wandb": lambda: WandbLogger(project="fed", save_dir=tmp_path, offline=True),
            "mlflow": lambda: MLFlowLogger(
                "fed",
                tracking_uri=f"sqlite:///{tmp_path}/mlflow.db",
                artifact_location=f"file:{tmp_path}/artifacts",
            ),
        }
        loggers = [every[name]() for name in clients.split()]
        ledger, kept = PrivacyLedger(), Keeper()
        names = ["roc", "precision_recall_curve"]
        model = Model(federated_collection(metrics=names, ledger=ledger, **options))
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=EPOCHS,
            log_every_n_steps=1,
            num_sanity_val_steps=1,
            logger=[*loggers, CSVLogger(tmp_path)],  # which takes no figures
            callbacks=[FederatedEvaluation("metrics"), kept],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model)
        for logger in trainer.loggers:
            logger.finalize("success")
        return Run(model, kept, ledger, tmp_path, loggers)

    yield train
    if find_spec("wandb"):
        import wandb

        wandb.finish()


def board(run: Run) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(
        str(run.folder / "board" / "0"), {"scalars": 0, "images": 0, "tensors": 0}
    )
    return events.Reload()


def tables(events: Any, tag: str) -> list[tuple[int, Any]]:
    """Step and TP, FP, TN, FN, precision, recall at even thresholds, of each event of the PR-curve page."""
    from tensorboard.util.tensor_util import make_ndarray

    assert events.SummaryMetadata(tag).plugin_data.plugin_name == "pr_curves"
    return [(event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]


def test_tensorboard_has_figures_scalars_and_the_counts_of_exact_curves(trained: Any) -> None:
    run = trained("tensorboard")
    events, target = board(run), data().tensors[1] == 1
    assert set(events.Tags()["images"]) == {"val_roc", "val_precision_recall_curve"}
    for tag in events.Tags()["images"]:
        assert [event.step for event in events.Images(tag)] == run.kept.steps
    assert [event.value for event in events.Scalars("val_auroc")] == pytest.approx(
        [float(auroc_from_counts(release)) for release in run.kept.releases]
    )
    read = tables(events, "val_precision_recall_curve")
    assert [step for step, _ in read] == run.kept.steps
    for (_, table), release, scores in zip(
        read, run.kept.releases, run.model.scores[-EPOCHS:], strict=True
    ):
        assert table.shape == (6, 65)
        for column, threshold in zip(table.T, np.linspace(0, 1, 65), strict=True):
            (tn, fp), (fn, tp) = confusion_at(release, float(threshold)).matrix.tolist()
            assert column[:4].tolist() == [tp, fp, tn, fn]
            # and as one counts them by hand; the highest edge selects nothing
            selected = scores[:, 1] >= (float(threshold) if threshold < 1 else 2.0)
            assert (tp, fp) == (int((selected & target).sum()), int((selected & ~target).sum()))
            assert column[4] == pytest.approx(tp / (tp + fp) if tp + fp else 1)
            assert column[5] == pytest.approx(tp / (tp + fn))


def test_under_privacy_each_release_is_logged_once_by_every_client_and_nothing_else(
    trained: Any,
) -> None:
    run = trained(privacy=CentralDP(5.0))
    assert len(run.ledger) == len(run.kept.releases) == EPOCHS
    areas = [float(auroc_from_counts(release)) for release in run.kept.releases]
    # TensorBoard
    events = board(run)
    tags = events.Tags()
    assert set(tags["scalars"]) == {"val_auroc", "val_average_precision", "epoch"}
    assert set(tags["images"]) == {"val_roc", "val_precision_recall_curve"}
    assert set(tags["tensors"]) == {"val_precision_recall_curve"}
    assert all(
        [event.step for event in events.Images(tag)] == run.kept.steps for tag in tags["images"]
    )
    assert [event.value for event in events.Scalars("val_auroc")] == pytest.approx(areas)
    for (_, table), release in zip(
        tables(events, "val_precision_recall_curve"), run.kept.releases, strict=True
    ):
        for column, threshold in zip(table.T, np.linspace(0, 1, 65), strict=True):
            (tn, fp), (fn, tp) = confusion_at(release, float(threshold)).matrix.tolist()
            assert column[:4] == pytest.approx(np.array([tp, fp, tn, fn], np.float32), rel=0, abs=0)
    # Weights & Biases
    history = wandb_history(run)
    assert [row["val_auroc"] for row in history if "val_auroc" in row] == pytest.approx(areas)
    for name in ("val_roc", "val_precision_recall_curve"):
        figures = [file for row in history for file in row.get(f"{name}/filenames", ())]
        assert len(set(figures)) == EPOCHS
        (files,) = (run.folder / "wandb").glob("offline-run-*/files")
        assert all((files / file).read_bytes()[:4] == b"\x89PNG" for file in figures)
    named = {key.split("/")[0] for row in history for key in row if not key.startswith("_")}
    assert named == {*tags["scalars"], *tags["images"], "trainer"}  # the step
    # MLflow
    mlflow = run.loggers[2]
    logged = mlflow.experiment.get_run(mlflow.run_id).data.metrics
    assert set(logged) == set(tags["scalars"])
    assert [
        one.value for one in mlflow.experiment.get_metric_history(mlflow.run_id, "val_auroc")
    ] == pytest.approx(areas)
    for name in ("val_roc", "val_precision_recall_curve"):
        files = [one.path for one in mlflow.experiment.list_artifacts(mlflow.run_id, name)]
        assert files == [f"{name}/{step:08}.png" for step in run.kept.steps]


def wandb_history(run: Run) -> list[dict[str, Any]]:
    """The rows of the offline run's own file, a log of protobuf records in LevelDB's format."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.finish()
    (file,) = (run.folder / "wandb").glob("offline-run-*/*.wandb")
    log, place, whole, rows = file.read_bytes(), 7, b"", []
    while place + 7 <= len(log):
        if 2**15 - place % 2**15 < 7:  # a block's end, too short for a header
            place += 2**15 - place % 2**15
            continue
        _, size, part = struct.unpack_from("<IHB", log, place)
        whole += log[place + 7 : place + 7 + size]
        place += 7 + size
        if part in (1, 4):  # all of a record, or the last of it
            record, whole = wandb_internal_pb2.Record.FromString(whole), b""
            if record.HasField("history"):
                items = record.history.item
                rows.append(
                    {
                        "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                        for item in items
                    }
                )
    return rows


def test_every_class_has_a_pr_curve_of_its_own(trained: Any) -> None:
    run = trained("tensorboard", task="multiclass", num_classes=3)
    events, target = board(run), data().tensors[1]
    assert {f"val_precision_recall_curve_{label}" for label in range(3)} == set(
        events.Tags()["tensors"]
    )
    for label in range(3):
        table = tables(events, f"val_precision_recall_curve_{label}")[-1][1]
        selected = run.model.scores[-1][:, label] >= 0.5
        assert table[0, 32] == (selected & (target == label)).sum()
        assert table[1, 32] == (selected & (target != label)).sum()


@pytest.mark.parametrize(
    ("edges", "thresholds"), [([i / 8 for i in range(9)], 9), ([0.0, 0.3, 0.7, 1.0], 0)]
)
def test_only_edges_of_the_grid_are_thresholds(
    trained: Any, edges: list[float], thresholds: int
) -> None:
    events = board(trained("tensorboard", grid=ScoreGrid.from_edges(edges)))
    if thresholds:
        assert tables(events, "val_precision_recall_curve")[0][1].shape == (6, thresholds)
    else:
        assert events.Tags()["tensors"] == []
    assert "val_precision_recall_curve" in events.Tags()["images"]
