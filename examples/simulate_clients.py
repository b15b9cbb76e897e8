"""Eight clients with different patients and scores: mean of local, federated and pooled AUROC.

    python examples/simulate_clients.py [--out simulate_clients.png]

A model that is well calibrated at one hospital is shifted at the next. Each local AUROC compares
patients of one hospital only, so their mean misses the effect of one threshold on all patients.
Summed histograms do not, with noise or without.
"""

# %%
from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor

from torchmetrics_fed import DistributedDP, FederatedAUROC, FederatedROC
from torchmetrics_fed.functional import roc
from torchmetrics_fed.simulate import simulate

CLIENTS = 8
EPSILON = 0.3


# %% Clients differ in size, in the fraction of ill patients, and in the range of their scores
def clients() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    batches = []
    for client in range(CLIENTS):
        size = 400 * (client + 1)
        target = (torch.rand(size, generator=generator) < 0.15 + 0.08 * client).long()
        logits = torch.randn(size, generator=generator) + 1.2 * target + 0.35 * client - 2.0
        batches.append((logits.sigmoid(), target))
    return batches


# %% One call for exact counts, one with each client's share of the noise
def main(out: Path) -> None:
    exact = simulate(clients(), FederatedAUROC(), compare=True)
    metric = FederatedAUROC(privacy=DistributedDP(epsilon=EPSILON, min_clients=CLIENTS))
    private = simulate(clients(), metric)
    assert exact.comparison is not None
    exact_area = FederatedAUROC.from_release(exact.release).compute()
    private_area = FederatedAUROC.from_release(private.release).compute()

    # for comparison only: all scores in one place
    preds = torch.cat([preds for preds, _ in clients()])
    target = torch.cat([target for _, target in clients()])
    pooled = FederatedAUROC()
    pooled.update(preds, target)
    pooled_area = pooled.compute()
    is_identical = bool(exact_area == pooled_area)

    local = exact.comparison.local
    weighted = exact.comparison.local_weighted
    print(f"{len(preds)} patients at {exact.clients} clients")
    print(f"mean of local AUROCs        {local:.4f}   weighted {weighted:.4f}")
    print(f"federated AUROC             {exact_area:.4f}")
    print(f"pooled AUROC                {pooled_area:.4f}   identical {is_identical}")
    print(f"federated, epsilon {EPSILON:g}      {private_area:.4f}   {metric.ledger}")

    # %% The figure: the curve of each client, of the pooled data, and of the federation
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6.8, 4.4), layout="constrained")
    for number, (client_preds, client_target) in enumerate(clients()):
        curve = roc(client_preds, client_target)
        label = f"alone (mean AUROC {local:.4f})" if number == 0 else None
        ax.plot(curve.fpr, curve.tpr, color="0.55", linewidth=0.6, label=label)
    pooled_curve = roc(preds, target)
    ax.plot(pooled_curve.fpr, pooled_curve.tpr, color="0.8", linewidth=5, label="pooled")
    federated = FederatedROC.from_release(exact.release).compute()
    federated.plot(ax=ax, label="federated")
    noisy = FederatedROC.from_release(private.release).compute()
    noisy.plot(ax=ax, label=f"federated, epsilon {EPSILON:g}")
    fig.savefig(out, dpi=150)
    print(f"figure                      {out.resolve()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("simulate_clients.png"))
    main(parser.parse_args().out)
