"""Consumers: callers that compute a metric where its data is, as users write them, in one
process or on ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tests.transports.endpoints import Part, built, named
from torchmetrics_fed import FederatedMetric, PrivacyLedger, Release, federated_collection
from torchmetrics_fed.integrations.lightning import FederatedEvaluation
from torchmetrics_fed.privacy import LedgerEntry
from torchmetrics_fed.report import evaluation_report

__all__ = ["CONSUMERS", "Consumed", "consume", "flat"]


class Consumed(NamedTuple):
    """What a caller got of the last of some evaluations."""

    release: Release
    result: Any
    """What it was given for the metric's answer, as :func:`flat` makes it."""
    scalars: dict[str, Tensor]
    """The numbers that it logged or reported, by name."""
    charged: list[LedgerEntry]


def flat(value: Any) -> Any:
    """Return a result whose tensors are bytes, so that results are equal to the bit or not at
    all."""
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape), value.cpu().contiguous().numpy().tobytes()
    if isinstance(value, tuple):
        return tuple(map(flat, value))
    return value


def consume(
    rank: int, name: str, options: dict[str, Any], parts: list[Part], rounds: int, folder: str
) -> Consumed:
    """Evaluate the data some times, as the named caller does; on ranks, each its own."""
    if torch.distributed.is_initialized():
        parts = [parts[rank]]
    path = Path(folder, f"ledger {rank}")
    with warnings.catch_warnings():  # of noise and of Lightning, which ranks may take for errors
        warnings.simplefilter("ignore")
        consumed = CONSUMERS[name](options, parts, rounds, path)
    return consumed._replace(charged=list(PrivacyLedger(path=path)))


class _Module(lightning.LightningModule):
    """Updates its metric in every step, and logs it if asked to."""

    def __init__(self, metric: FederatedMetric, parts: list[Part], bare: bool) -> None:
        super().__init__()
        self.metric = metric
        self.parts = parts
        self.bare = bare
        self.release: Release

    def validation_step(self, number: int) -> None:
        self.metric.update(**named(self.metric, self.parts[number]))
        if self.bare:
            self.log("logged", self.metric, on_step=False, on_epoch=True, batch_size=1)

    def on_validation_epoch_end(self) -> None:
        if not self.bare:  # the callback has released already
            self.release = self.metric.release()

    def val_dataloader(self) -> Any:
        numbers: Any = range(len(self.parts))
        return DataLoader(numbers, batch_size=None)


class _Figures(lightning.pytorch.loggers.logger.DummyLogger):
    """A logger that takes figures."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @property
    def experiment(self) -> Any:
        return self

    def add_figure(self, name: str, figure: Any, step: int) -> None:
        self.names.append(name)


def _validated(module: _Module, rounds: int, logger: Any, *callbacks: Any) -> dict[str, Tensor]:
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=logger,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    for _ in range(rounds):
        trainer.validate(module, verbose=False)
    return dict(trainer.callback_metrics)


def _by_callback(options: dict[str, Any], parts: list[Part], rounds: int, path: Path) -> Consumed:
    module = _Module(built(options, path), parts, bare=False)
    evaluation = FederatedEvaluation("metric")
    figures = _Figures()
    logged = _validated(module, rounds, figures, evaluation)
    result = evaluation.curves["metric"]
    assert len(figures.names) == (0 if isinstance(result, Tensor) else rounds)
    return Consumed(module.release, flat(result), logged, [])


def _by_log(options: dict[str, Any], parts: list[Part], rounds: int, path: Path) -> Consumed:
    metric = built(options, path)
    module = _Module(metric, parts, bare=True)
    releases: list[Release] = []
    reset = metric.reset

    def keep_and_reset() -> None:  # Lightning resets what it has logged
        if metric.update_called:
            releases.append(metric.release())
        reset()

    metric.reset = keep_and_reset  # type: ignore[method-assign]
    logged = _validated(module, rounds, False)
    return Consumed(releases[-1], None, logged, [])


def _by_collection(options: dict[str, Any], parts: list[Part], rounds: int, path: Path) -> Consumed:
    arguments = {name: value for name, value in options.items() if name != "models"}
    kind = arguments.pop("kind")
    ledger = PrivacyLedger(budget=1e6, path=path)
    collection = federated_collection(
        metrics={"first": kind, "second": kind}, ledger=ledger, **arguments
    )
    metric: Any = collection["first"]
    for _ in range(rounds):
        collection.reset()
        for part in parts:
            collection.update(**named(metric, part))
        results = collection.compute()
        release = metric.release()
    if metric.spec.groups:
        assert set(metric.by_group()) == set(metric.spec.groups)
    assert flat(results["second"]) == flat(results["first"])
    return Consumed(release, flat(results["first"]), {}, [])


def _by_report(options: dict[str, Any], parts: list[Part], rounds: int, path: Path) -> Consumed:
    metric = built(options, path)
    for _ in range(rounds):
        metric.reset()
        for part in parts:
            metric.update(**named(metric, part))
        release = metric.release()
    report = evaluation_report(release, ledger=metric.ledger)
    report.save(path.with_suffix(".json"))
    scalars = {"auroc": report.auroc, "average_precision": report.average_precision}
    return Consumed(release, flat(metric.compute()), scalars, [])


CONSUMERS: dict[str, Callable[..., Consumed]] = {
    "callback": _by_callback,
    "log": _by_log,
    "collection": _by_collection,
    "report": _by_report,
}
