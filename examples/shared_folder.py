"""Three hospitals and a coordinator, processes that share nothing but a folder: a private ROC curve of all patients.

    python examples/shared_folder.py [--out shared_folder.png]

There is no server and no trainer. The shares are hidden by secure aggregation, so whoever reads the folder sees the
noisy sum and who took part. Each hospital charges a ledger of its own.
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


# %% Each hospital's scores lie elsewhere
def patients(site: str) -> tuple[Tensor, Tensor]:
    number = SITES.index(site)
    generator = torch.Generator().manual_seed(number)
    target = (torch.rand(3000, generator=generator) < 0.2 + 0.2 * number).long()
    logits = torch.randn(3000, generator=generator) + 1.2 * target + 0.8 * number - 1.5
    return logits.sigmoid(), target


# %% A hospital's process: count, then answer what the coordinator asks. Its ledger stays outside the shared folder
def hospital(site: str, folder: Path, own: Path) -> None:
    metric = FederatedROC(
        privacy=PRIVACY, ledger=PrivacyLedger(budget=3.0, path=own / f"{site}.ledger")
    )
    metric.update(*patients(site))
    run_site(folder, site, metric, round=ROUND, poll=0.1)


# %% The coordinator: this process
def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shared, own = Path(folder, "shared"), Path(folder, "own")
        shared.mkdir()
        own.mkdir()
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=hospital, args=(site, shared, own)) for site in SITES]
        for process in processes:
            process.start()
        release = run_coordinator(
            shared, FederatedROC(privacy=PRIVACY), round=ROUND, clients=SITES, poll=0.1
        )
        for process in processes:
            process.join()
        print(status(shared))
        print(f"{len([path for path in shared.rglob('*') if path.is_file()])} files in the folder")
        print(
            f"ann's ledger                {PrivacyLedger(path=own / 'ann.ledger').spent().epsilon:g} of 3"
        )
    report(release, out)


# %% What no federation can do, to compare: all scores in one place
def report(release: Release, out: Path) -> None:
    scored = [patients(site) for site in SITES]
    local = [float(auroc(preds, target)) for preds, target in scored]
    preds, target = (torch.cat(sides) for sides in zip(*scored, strict=True))
    print(f"mean of local AUROCs        {sum(local) / len(local):.4f}")
    print(f"federated, epsilon 1        {FederatedAUROC.from_release(release).compute():.4f}")
    print(f"pooled AUROC                {auroc(preds, target):.4f}")

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6.8, 4.4), layout="constrained")
    for site, area, pair in zip(SITES, local, scored, strict=True):
        curve = roc(*pair)
        ax.plot(
            curve.fpr, curve.tpr, linewidth=0.8, alpha=0.7, label=f"{site} alone (AUROC {area:.4f})"
        )
    curve = roc(preds, target)
    ax.plot(curve.fpr, curve.tpr, color="0.8", linewidth=5, label="pooled")
    FederatedROC.from_release(release).compute().plot(ax=ax, label="federated, epsilon 1")
    fig.savefig(out, dpi=150)
    print(f"figure                      {out.resolve()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("shared_folder.png"))
    main(parser.parse_args().out)
