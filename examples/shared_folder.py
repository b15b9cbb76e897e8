"""Three hospitals and a coordinator that share nothing but a folder: a private ROC curve.

    python examples/shared_folder.py [--out shared_folder.png]

There is no server and no trainer. The shares are hidden by secure aggregation, so a reader of the
folder sees the noisy sum and the names of the hospitals. Each hospital charges its own ledger.
"""

# %%
from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor

from torchmetrics_fed import DistributedDP, FederatedAUROC, FederatedROC, PrivacyLedger, Release
from torchmetrics_fed.app.folder import run_coordinator, run_site, status
from torchmetrics_fed.functional import auroc, roc

SITES = ("ann", "ben", "cem")
PRIVACY = DistributedDP(epsilon=1.0, min_clients=len(SITES))
ROUND = "2026-11"
PATIENTS = 3_000
BUDGET = 3.0


# %% The scores of each hospital have a range of their own
def patients(site: str) -> tuple[Tensor, Tensor]:
    number = SITES.index(site)
    generator = torch.Generator().manual_seed(number)
    target = (torch.rand(PATIENTS, generator=generator) < 0.2 + 0.2 * number).long()
    logits = torch.randn(PATIENTS, generator=generator) + 1.2 * target + 0.8 * number - 1.5
    return logits.sigmoid(), target


# %% A hospital's process counts, then replies to the coordinator. Its ledger is not in the folder
def hospital(site: str, folder: Path, ledgers: Path) -> None:
    ledger = PrivacyLedger(budget=BUDGET, path=ledgers / f"{site}.ledger")
    metric = FederatedROC(privacy=PRIVACY, ledger=ledger)
    preds, target = patients(site)
    metric.update(preds, target)
    run_site(folder, site, metric, round=ROUND, poll=0.1)


# %% The coordinator: this process
def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder, "shared")
        ledgers = Path(folder, "ledgers")
        shared.mkdir()
        ledgers.mkdir()
        context = multiprocessing.get_context("spawn")
        processes = []
        for site in SITES:
            process = context.Process(target=hospital, args=(site, shared, ledgers))
            process.start()
            processes.append(process)
        release = run_coordinator(
            shared, FederatedROC(privacy=PRIVACY), round=ROUND, clients=SITES, poll=0.1
        )
        for process in processes:
            process.join()
        print(status(shared))
        files = [path for path in shared.rglob("*") if path.is_file()]
        print(f"{len(files)} files in the folder")
        spent = PrivacyLedger(path=ledgers / "ann.ledger").spent()
        print(f"ann's ledger                {spent.epsilon:g} of {BUDGET:g}")
    report(release, out)


# %% For comparison only: all scores in one place
def report(release: Release, out: Path) -> None:
    scored = [patients(site) for site in SITES]
    local_areas = [float(auroc(preds, target)) for preds, target in scored]
    preds = torch.cat([preds for preds, _ in scored])
    target = torch.cat([target for _, target in scored])
    print(f"mean of local AUROCs        {sum(local_areas) / len(local_areas):.4f}")
    print(f"federated, epsilon 1        {FederatedAUROC.from_release(release).compute():.4f}")
    print(f"pooled AUROC                {auroc(preds, target):.4f}")

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6.8, 4.4), layout="constrained")
    for site, area, (site_preds, site_target) in zip(SITES, local_areas, scored, strict=True):
        curve = roc(site_preds, site_target)
        label = f"{site} alone (AUROC {area:.4f})"
        ax.plot(curve.fpr, curve.tpr, linewidth=0.8, alpha=0.7, label=label)
    curve = roc(preds, target)
    ax.plot(curve.fpr, curve.tpr, color="0.8", linewidth=5, label="pooled")
    FederatedROC.from_release(release).compute().plot(ax=ax, label="federated, epsilon 1")
    fig.savefig(out, dpi=150)
    print(f"figure                      {out.resolve()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("shared_folder.png"))
    main(parser.parse_args().out)
