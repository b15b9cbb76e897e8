"""Eight clients with patients and scores of their own kind: the mean of local AUROCs, the federated and the pooled one.

    python examples/simulate_clients.py [--out simulate_clients.png]

A model that is well calibrated at one hospital is shifted at the next. Each local AUROC compares patients of one
hospital only, so their mean misses what one threshold does to all. Summed histograms do not, with noise or without.
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


# %% Clients differ in size, in how many are ill, and in where their scores lie
def clients() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for client in range(CLIENTS):
        size = 400 * (client + 1)
        target = (torch.rand(size, generator=generator) < 0.15 + 0.08 * client).long()
        logits = torch.randn(size, generator=generator) + 1.2 * target + 0.35 * client - 2.0
        made.append((logits.sigmoid(), target))
    return made


# %% One call for exact counts, one with each client's share of the noise
def main(out: Path) -> None:
    exact = simulate(clients(), FederatedAUROC(), compare=True)
    private = DistributedDP(epsilon=EPSILON, min_clients=CLIENTS)
    metric = FederatedAUROC(privacy=private)
    noisy = simulate(clients(), metric)
    assert exact.comparison is not None
    federated = FederatedAUROC.from_release(exact.release).compute()

    # what no federation can do: all scores in one place
    preds, target = (torch.cat(sides) for sides in zip(*clients(), strict=True))
    pooled = FederatedAUROC()
    pooled.update(preds, target)

    print(f"{len(preds)} patients at {exact.clients} clients")
    print(
        f"mean of local AUROCs        {exact.comparison.local:.4f}   weighted {exact.comparison.local_weighted:.4f}"
    )
    print(f"federated AUROC             {federated:.4f}")
    print(
        f"pooled AUROC                {pooled.compute():.4f}   identical {bool(federated == pooled.compute())}"
    )
    print(
        f"federated, epsilon {EPSILON:g}      {FederatedAUROC.from_release(noisy.release).compute():.4f}",
        end="   ",
    )
    print(f"{metric.ledger}")

    # %% The figure: each client's own curve, the pooled one, and what the federation has
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6.8, 4.4), layout="constrained")
    for number, (some_preds, some_target) in enumerate(clients()):
        curve = roc(some_preds, some_target)
        label = None if number else f"alone (mean AUROC {exact.comparison.local:.4f})"
        ax.plot(curve.fpr, curve.tpr, color="0.55", linewidth=0.6, label=label)
    curve = roc(preds, target)
    ax.plot(curve.fpr, curve.tpr, color="0.8", linewidth=5, label="pooled")
    FederatedROC.from_release(exact.release).compute().plot(ax=ax, label="federated")
    FederatedROC.from_release(noisy.release).compute().plot(
        ax=ax, label=f"federated, epsilon {EPSILON:g}"
    )
    fig.savefig(out, dpi=150)
    print(f"figure                      {out.resolve()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("simulate_clients.png"))
    main(parser.parse_args().out)
