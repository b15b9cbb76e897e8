"""The federation: trains with FedAvg, sums the shares, and draws the curve of all patients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_app.task import Model, evaluate, loaded, metric
from torchmetrics_fed import FederatedAUROC, FederatedROC, Release
from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin

app = ServerApp()


class Curves(FederatedEvaluationMixin, FedAvg):
    """FedAvg whose evaluation rounds end in a curve."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, then compare the last curve with that of the pooled patients."""
    config = context.run_config
    hospitals, out, timeout = int(config["hospitals"]), Path(str(config["out"])), float(config["timeout"])
    strategy = Curves(
        metric=metric(config),
        fraction_train=1.0 if config["train"] else 0.0,
        min_available_nodes=hospitals,
        stage_timeout=timeout,
    )
    first = ArrayRecord(Model().state_dict())
    result = strategy.start(grid, first, num_rounds=int(config["rounds"]), timeout=timeout)

    last = int(config["rounds"])
    if last not in strategy.releases:
        raise RuntimeError("The last round has no curve: too few hospitals have answered. The log says who did not.")
    metrics = result.evaluate_metrics_clientapp[last]
    arrays = result.arrays if config["train"] else first
    summary: dict[str, Any] = {
        "averaged": metrics["auroc"],
        "federated": metrics["federated-auroc"],
        "curves": len(strategy.releases),
        "shares": strategy.releases[last].shares,
        "leaves": strategy.releases[last].last.query.tree.leaves,
    }
    pooled = pooled_release(arrays, [hospital for hospital in range(hospitals) if hospital != config["failing"]])
    summary["pooled"] = float(FederatedAUROC.from_release(pooled).compute())
    summary["equal"] = config["epsilon"] == 0 and torch.equal(pooled.leaf, strategy.releases[last].leaf)
    print("averaged local AUROC {averaged:.6f}, federated {federated:.6f}, pooled {pooled:.6f}".format(**summary))
    figure, _ = FederatedROC.from_release(strategy.releases[last]).plot()
    figure.savefig(out / "flower_app.png", dpi=120)
    (out / "flower_app.json").write_text(json.dumps(summary))


def pooled_release(arrays: ArrayRecord, hospitals: list[int]) -> Release:
    """Return what nobody could have made but for this demonstration: the counts of all patients in one place."""
    roc = FederatedROC()
    for hospital in hospitals:
        evaluate(loaded(arrays), hospital, roc)
    return roc.release()
