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

from flower_app.task import CLASSES, Net, build, load_data, test, train
from torchmetrics_fed import FederatedAUROC, FederatedROC, Release
from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin

app = ServerApp()


class Curves(FederatedEvaluationMixin, FedAvg):
    """FedAvg whose evaluation rounds end in curves."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, save the model, and compare the last curves with those of the pooled data."""
    config = context.run_config
    clients = int(config["clients"])
    rounds = int(config["num-server-rounds"])
    timeout = float(config["timeout"])
    out = Path(str(config["out"]))
    strategy = Curves(
        metric=build(config),
        fraction_train=float(config["fraction-train"]),
        fraction_evaluate=float(config["fraction-evaluate"]),
        min_available_nodes=clients,
        stage_timeout=timeout,
    )
    torch.manual_seed(1)
    net = Net()
    if not strategy.fraction_train:  # no client trains: a model from elsewhere is evaluated
        trainloader, _ = load_data(clients, clients + 1, 32)
        train(net, trainloader, 3, 0.05, torch.device("cpu"))
    initial = ArrayRecord(net.state_dict())
    result = strategy.start(
        grid=grid,
        initial_arrays=initial,
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=rounds,
        timeout=timeout,
    )
    final = result.arrays if config["fraction-train"] else initial
    torch.save(final.to_torch_state_dict(), out / "final_model.pt")
    release = strategy.releases.get(rounds)
    if release is None:  # too few clients have replied
        print("The model is saved. The last round has no curves: the log names missing clients.")
        (out / "flower_app.json").write_text(json.dumps({"curves": len(strategy.releases)}))
        return
    release.save(out / "last.release")
    absent = [int(name) for name in str(config["absent"]).split()]
    pooled = pooled_release(final, clients, absent)
    metrics = result.evaluate_metrics_clientapp[rounds]
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
        f"averaged local AUROC {summary['averaged']:.6f}, "
        f"federated {summary['federated']:.6f}, pooled {summary['pooled']:.6f}"
    )
    draw(out / "flower_app.png", release, pooled, result.evaluate_metrics_clientapp)
    (out / "flower_app.json").write_text(json.dumps(summary))


def pooled_release(arrays: ArrayRecord, clients: int, absent: list[int]) -> Release:
    """Return the counts of all the data in one place, which no real federation has."""
    metric = FederatedROC("multiclass", num_classes=CLASSES, normalization="softmax")
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    for client in range(clients):
        if client not in absent:
            _, testloader = load_data(client, clients, 32)
            test(net, testloader, torch.device("cpu"), metric)
    return metric.release()


def draw(
    path: Path, release: Release, pooled: Release, rounds: Mapping[int, Mapping[str, Any]]
) -> None:
    """Draw the curve of each class over the pooled one, and both AUROCs of every round."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, (curves_ax, rounds_ax) = plt.subplots(1, 2, figsize=(10.6, 4.2), layout="constrained")
    exact = FederatedROC.from_release(pooled).compute()
    for number, (fpr, tpr) in enumerate(zip(exact.fpr, exact.tpr, strict=True)):
        label = "pooled" if number == 0 else None
        curves_ax.plot(fpr, tpr, color="0.85", linewidth=5, label=label)
    FederatedROC.from_release(release).plot(ax=curves_ax)
    for name, label in (("auroc", "mean of local AUROCs"), ("federated-auroc", "federated AUROC")):
        areas = [metrics.get(name, nan) for metrics in rounds.values()]  # a round may have no curve
        rounds_ax.plot(list(rounds), areas, marker="o", label=label)
    pooled_area = float(FederatedAUROC.from_release(pooled).compute())
    rounds_ax.plot(
        max(rounds),
        pooled_area,
        marker="o",
        markersize=14,
        color="0.85",
        zorder=0,
        linestyle="",
        label="pooled AUROC",
    )
    rounds_ax.set(xlabel="Round", ylabel="AUROC, mean over classes", xticks=list(rounds))
    rounds_ax.legend()
    fig.savefig(path, dpi=120)
