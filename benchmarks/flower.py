"""What a curve costs a Flower client in one evaluation round: bytes, messages and CPU time, beside averaged metrics.

    OMP_NUM_THREADS=1 python -m benchmarks.flower

Real ClientApps and messages over a grid in this process; bytes are those of Flower's messages without the model. One
thread; the mean of all clients, in the second of two rounds. CPU time is the app's: counting 1,000 scores, noise,
masks, notes and ledger.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from tests.integrations.flower_grid import MEMORY, Client, LocalGrid
from torchmetrics_fed import DistributedDP, FederatedROC, PrivacyLedger
from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin, aggregate_fn

EXAMPLES = 1000
PRIVATE = {"privacy": DistributedDP(1.0, min_clients=5)}
SETTINGS: dict[str, dict[str, Any] | None] = {
    "averaged metrics": None,
    "plain": {},
    "secure": {"secure": True},
    "private, one query": {**PRIVATE, "plan": "single"},
    "private, two queries": {**PRIVATE, "plan": "adaptive"},
}


class Curves(FederatedEvaluationMixin, FedAvg):
    """What a user writes."""


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
    """An app as in Flower's template: two numbers and a weight."""
    app = ClientApp()

    @app.evaluate()
    def evaluate(message: Message, context: object) -> Message:
        metrics = MetricRecord({"eval_loss": 0.3, "eval_acc": 0.9, "num-examples": EXAMPLES})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def cost(
    clients: int, classes: int, options: dict[str, Any] | None, folder: Path
) -> tuple[float, float, float, float]:
    """Return kB sent and received, messages answered and milliseconds of a client, in a round."""
    task: dict[str, Any] = {"task": "multiclass", "num_classes": classes} if classes > 2 else {}

    def make() -> FederatedROC:
        return FederatedROC(**task, **(options or {}), ledger=PrivacyLedger(budget=99.0))

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(EXAMPLES, classes, generator=generator)
    target = torch.randint(0, classes, (EXAMPLES,), generator=generator)
    preds = scores.softmax(1) if classes > 2 else scores[:, 0].sigmoid()
    app = averaging if options is None else Client(make, preds, target, folder=folder).app
    grid = Meter(dict.fromkeys(range(2**60, 2**60 + clients), app))
    everyone: dict[str, Any] = {"fraction_train": 0.0, "min_available_nodes": clients}
    if options:
        strategy: FedAvg = Curves(metric=make(), **everyone)
    else:
        strategy = FedAvg(
            **everyone, evaluate_metrics_aggr_fn=None if options is None else aggregate_fn(make())
        )
    arrays = ArrayRecord({"w": Array(torch.ones(1).numpy())})
    strategy.start(grid, arrays, num_rounds=1, timeout=1.0)
    grid.passed.clear()
    grid.seconds = 0.0
    strategy.start(grid, arrays, num_rounds=1, timeout=1.0)
    size: Counter[bool] = Counter()
    for passed in grid.passed:
        size[passed.reply] += len(passed.data)
    replies = sum(passed.reply for passed in grid.passed)
    return (
        size[True] / 1e3 / clients,
        size[False] / 1e3 / clients,
        replies / clients,
        grid.seconds * 1e3 / clients,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    warnings.simplefilter(
        "ignore"
    )  # of noise that drowns 1,000 examples: only the cost is asked for here
    print("| task | clients | | kB sent | kB received | messages | CPU ms |")
    print("|---|---|---|---|---|---|---|")
    for classes in (2, 10):
        for clients in (5, 50):
            for name, options in SETTINGS.items():
                with TemporaryDirectory(dir=MEMORY) as folder:
                    sent, received, messages, milliseconds = cost(
                        clients, classes, options, Path(folder)
                    )
                task = "binary" if classes == 2 else f"{classes} classes"
                figures = f"{sent:.1f} | {received:.1f} | {messages:.0f} | {milliseconds:.1f}"
                print(f"| {task} | {clients} | {name} | {figures} |", flush=True)
