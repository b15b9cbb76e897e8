"""The server: trains with FedAvg, sums the shares, and draws the curves of all clients' data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any

import matplotlib as mpl
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
    """Run all rounds, save the model, and compare the last curves with those of the pooled data."""
    config = context.run_config
    clients, last, timeout = (
        int(config["clients"]),
        int(config["num-server-rounds"]),
        float(config["timeout"]),
    )
    strategy = Curves(
        metric=build(config),
        fraction_train=float(config["fraction-train"]),
        fraction_evaluate=float(config["fraction-evaluate"]),
        min_available_nodes=clients,
        stage_timeout=timeout,
    )
    torch.manual_seed(1)
    net = Net()
    if (
        not strategy.fraction_train
    ):  # nobody trains, so it is a model from elsewhere that is evaluated
        train(net, load_data(clients, clients + 1, 32)[0], 3, 0.05, torch.device("cpu"))
    first = ArrayRecord(net.state_dict())
    result = strategy.start(
        grid=grid,
        initial_arrays=first,
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=last,
        timeout=timeout,
    )
    final = result.arrays if config["fraction-train"] else first
    out = Path(str(config["out"]))
    torch.save(final.to_torch_state_dict(), out / "final_model.pt")
    release = strategy.releases.get(last)  # None where too few clients have answered
    if release is None:
        print("The model is saved. The last round has no curves: the log says who did not answer.")
        (out / "flower_app.json").write_text(json.dumps({"curves": len(strategy.releases)}))
        return
    metrics = result.evaluate_metrics_clientapp[last]
    release.save(out / "last.release")

    absent = [int(name) for name in str(config["absent"]).split()]
    pooled = pooled_release(final, clients, absent)
    summary: dict[str, Any] = {
        "averaged": metrics["auroc"],
        "federated": metrics["federated-auroc"],
        "pooled": float(FederatedAUROC.from_release(pooled).compute()),
        "equal": config["epsilon"] == 0 and torch.equal(pooled.leaf, release.leaf),
        "curves": len(strategy.releases),
        "shares": release.shares,
        "queries": len(release.queries),
    }
    print(
        "averaged local AUROC {averaged:.6f}, federated {federated:.6f}, pooled {pooled:.6f}".format(
            **summary
        )
    )
    draw(out / "flower_app.png", release, pooled, result.evaluate_metrics_clientapp)
    (out / "flower_app.json").write_text(json.dumps(summary))


def pooled_release(arrays: ArrayRecord, clients: int, absent: list[int]) -> Release:
    """Return what no real federation has: the counts of all the data in one place."""
    metric = FederatedROC("multiclass", num_classes=10, normalization="softmax")
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    for client in range(clients):
        if client not in absent:
            test(net, load_data(client, clients, 32)[1], torch.device("cpu"), metric)
    return metric.release()


def draw(
    path: Path, release: Release, pooled: Release, rounds: Mapping[int, Mapping[str, Any]]
) -> None:
    """Draw the curve of each class over the pooled one, and both AUROCs of every round."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(10.6, 4.2), layout="constrained")
    exact = FederatedROC.from_release(pooled).compute()
    for number, (fpr, tpr) in enumerate(zip(exact.fpr, exact.tpr, strict=True)):
        left.plot(fpr, tpr, color="0.85", linewidth=5, label=None if number else "pooled")
    FederatedROC.from_release(release).plot(ax=left)
    for name, label in (("auroc", "mean of local AUROCs"), ("federated-auroc", "federated AUROC")):
        areas = [metrics.get(name, nan) for metrics in rounds.values()]  # a round may have no curve
        right.plot(list(rounds), areas, marker="o", label=label)
    area = float(FederatedAUROC.from_release(pooled).compute())
    right.plot(
        max(rounds),
        area,
        marker="o",
        markersize=14,
        color="0.85",
        zorder=0,
        linestyle="",
        label="pooled AUROC",
    )
    right.set(xlabel="Round", ylabel="AUROC, mean over classes", xticks=list(rounds))
    right.legend()
    fig.savefig(path, dpi=120)
