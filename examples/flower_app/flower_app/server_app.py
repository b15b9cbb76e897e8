"""The server: trains with FedAvg, sums the shares, and draws the curves of all clients' data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_app.task import Net, build, load_data, test, train
from torchmetrics_fed import FederatedAUROC, FederatedROC, Release
from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin

app = ServerApp()


class Curves(FederatedEvaluationMixin, FedAvg):
    """FedAvg whose evaluation rounds end in curves."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, then compare the last curves with those of the pooled data."""
    config = context.run_config
    clients, last, timeout = int(config["clients"]), int(config["num-server-rounds"]), float(config["timeout"])
    strategy = Curves(
        metric=build(config),
        fraction_train=float(config["fraction-train"]),
        fraction_evaluate=float(config["fraction-evaluate"]),
        min_available_nodes=clients,
        stage_timeout=timeout,
    )
    torch.manual_seed(1)
    net = Net()
    if not strategy.fraction_train:  # nobody trains, so it is a model from elsewhere that is evaluated
        train(net, load_data(clients, clients + 1, 32)[0], 3, 0.05, torch.device("cpu"))
    first = ArrayRecord(net.state_dict())
    result = strategy.start(
        grid=grid,
        initial_arrays=first,
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=last,
        timeout=timeout,
    )
    if last not in strategy.releases:
        raise RuntimeError("The last round has no curves: too few clients have answered. The log says who did not.")
    release, metrics = strategy.releases[last], result.evaluate_metrics_clientapp[last]
    out = Path(str(config["out"]))
    release.save(out / "last.release")
    figure, _ = FederatedROC.from_release(release).plot()
    figure.savefig(out / "flower_app.png", dpi=120)

    absent = [int(name) for name in str(config["absent"]).split()]
    pooled = pooled_release(result.arrays if config["fraction-train"] else first, clients, absent)
    summary: dict[str, Any] = {
        "averaged": metrics["auroc"],
        "federated": metrics["federated-auroc"],
        "pooled": float(FederatedAUROC.from_release(pooled).compute()),
        "equal": config["epsilon"] == 0 and torch.equal(pooled.leaf, release.leaf),
        "curves": len(strategy.releases),
        "shares": release.shares,
        "queries": len(release.queries),
    }
    print("averaged local AUROC {averaged:.6f}, federated {federated:.6f}, pooled {pooled:.6f}".format(**summary))
    (out / "flower_app.json").write_text(json.dumps(summary))


def pooled_release(arrays: ArrayRecord, clients: int, absent: list[int]) -> Release:
    """Return what nobody could have but for this demonstration: the counts of all the data in one place."""
    metric = FederatedROC("multiclass", num_classes=10, normalization="softmax")
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    for client in range(clients):
        if client not in absent:
            test(net, load_data(client, clients, 32)[1], torch.device("cpu"), metric)
    return metric.release()
