"""The cost of a curve for a Flower client in one evaluation round, beside averaged metrics.

    OMP_NUM_THREADS=1 python -m benchmarks.flower

Real ClientApps and messages over a grid in this process; bytes are those of Flower's messages
without the model. One thread; the mean of all clients, in the second of two rounds. CPU time is the
app's: counting 1,000 scores, noise, masks, notes and ledger.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from tests.integrations.flower_grid import MEMORY, Client, LocalGrid
from torchmetrics_fed import DistributedDP, FederatedROC, PrivacyLedger
from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin, aggregate_fn

EXAMPLES = 1000
PRIVACY = DistributedDP(1.0, min_clients=5)
SETTINGS: dict[str, dict[str, Any] | None] = {
    "averaged metrics": None,
    "plain": {},
    "secure": {"secure": True},
    "private, one query": {"privacy": PRIVACY, "plan": "single"},
    "private, two queries": {"privacy": PRIVACY, "plan": "adaptive"},
}
"""Arguments of the metric; None for Flower's own averages of metrics."""
FIRST_NODE = 2**60
"""A node id of the usual length."""


class Cost(NamedTuple):
    """The cost of one round for one client."""

    sent_kb: float
    received_kb: float
    messages: float
    cpu_ms: float


class Curves(FederatedEvaluationMixin, FedAvg):
    """A strategy as a user writes it."""


class Meter(LocalGrid):
    """A grid that times the apps."""

    def __init__(self, apps: Mapping[int, Callable[[], ClientApp]]) -> None:
        super().__init__(apps)
        self.seconds = 0.0

    def _processed(self, message: Message) -> Message:
        start = time.process_time()
        reply = super()._processed(message)
        self.seconds += time.process_time() - start
        return reply


def averaging() -> ClientApp:
    """Return an app as in Flower's template: two numbers and a weight."""
    app = ClientApp()

    @app.evaluate()
    def evaluate(message: Message, context: object) -> Message:
        metrics = MetricRecord({"eval_loss": 0.3, "eval_acc": 0.9, "num-examples": EXAMPLES})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def cost(clients: int, classes: int, options: dict[str, Any] | None, folder: Path) -> Cost:
    """Return the cost of a client in the second of two rounds."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(EXAMPLES, classes, generator=generator)
    target = torch.randint(0, classes, (EXAMPLES,), generator=generator)
    task: dict[str, Any] = {}
    preds = scores[:, 0].sigmoid()
    if classes > 2:
        task = {"task": "multiclass", "num_classes": classes}
        preds = scores.softmax(1)
    make = partial(_metric, task | (options or {}))
    app = averaging
    if options is not None:
        app = Client(make, preds, target, folder=folder).app
    grid = Meter(dict.fromkeys(range(FIRST_NODE, FIRST_NODE + clients), app))
    arrays = ArrayRecord({"w": Array(torch.ones(1).numpy())})
    strategy = _strategy(clients, options, make)
    strategy.start(grid, arrays, num_rounds=1, timeout=1.0)
    grid.passed.clear()
    grid.seconds = 0.0
    strategy.start(grid, arrays, num_rounds=1, timeout=1.0)
    replies = [len(passed.data) for passed in grid.passed if passed.reply]
    requests = [len(passed.data) for passed in grid.passed if not passed.reply]
    return Cost(
        sent_kb=sum(replies) / 1e3 / clients,
        received_kb=sum(requests) / 1e3 / clients,
        messages=len(replies) / clients,
        cpu_ms=grid.seconds * 1e3 / clients,
    )


def _metric(options: dict[str, Any]) -> FederatedROC:
    return FederatedROC(**options, ledger=PrivacyLedger(budget=99.0))


def _strategy(
    clients: int, options: dict[str, Any] | None, make: Callable[[], FederatedROC]
) -> FedAvg:
    """Return a strategy that evaluates on all clients and trains on none."""
    settings: dict[str, Any] = {"fraction_train": 0.0, "min_available_nodes": clients}
    if options is None:
        return FedAvg(**settings)
    if not options:
        return FedAvg(**settings, evaluate_metrics_aggr_fn=aggregate_fn(make()))
    return Curves(metric=make(), **settings)


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # noise drowns 1,000 examples, and only the cost is measured
    print("| task | clients | | kB sent | kB received | messages | CPU ms |")
    print("|---|---|---|---|---|---|---|")
    for classes, task in ((2, "binary"), (10, "10 classes")):
        for clients in (5, 50):
            for name, options in SETTINGS.items():
                with TemporaryDirectory(dir=MEMORY) as folder:
                    costs = cost(clients, classes, options, Path(folder))
                bytes_moved = f"{costs.sent_kb:.1f} | {costs.received_kb:.1f}"
                work = f"{costs.messages:.0f} | {costs.cpu_ms:.1f}"
                print(f"| {task} | {clients} | {name} | {bytes_moved} | {work} |", flush=True)


if __name__ == "__main__":
    main()
