"""Six hospitals, one classifier, one ROC curve that nobody could draw alone.

    python examples/demo.py [--out demo.png]

Each client sees patients of its own kind, so each local AUROC answers another question and their mean answers none.
Histograms of scores add up to the pooled curve instead.
"""

# %%
from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import precision_recall_curve, roc_auc_score, roc_curve
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from torchmetrics_fed import FederatedPrecisionRecallCurve, FederatedROC, Release
from torchmetrics_fed.functional import area_error_pr, area_error_roc

# %% A classifier that is good but not perfect, and its scores on data that it has not seen
CLIENTS = 6


def scored() -> tuple[Tensor, Tensor]:
    features, target = load_breast_cancer(return_X_y=True)
    few = features[:, [1, 4, 8]]  # texture, smoothness, symmetry: enough to be useful, too little to be sure
    train = np.arange(len(target)) % 5 == 0
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(few[train], target[train])
    return torch.from_numpy(model.predict_proba(few[~train])[:, 1]), torch.from_numpy(target[~train])


def split(preds: Tensor) -> list[Tensor]:
    """Indices of each client's patients: each sees another range of scores, most of them."""
    order = (preds + 0.25 * torch.rand(len(preds), generator=torch.Generator().manual_seed(0))).argsort()
    return list(order.tensor_split(CLIENTS))


# %% Each client counts and sends one share; the server adds them up
def main(out: Path) -> None:
    preds, target = scored()
    shares, local = [], []
    for mine in split(preds):
        metric = FederatedROC()
        metric.update(preds[mine], target[mine])
        shares.append(metric.share())
        local.append(roc_auc_score(target[mine], preds[mine]))
    total = Release.sum(shares)
    roc, pr = FederatedROC.from_release(total), FederatedPrecisionRecallCurve.from_release(total)
    roc_curve_, pr_curve_ = roc.compute(), pr.compute()

    exact_roc, exact_pr = roc_curve(target, preds), precision_recall_curve(target, preds)
    print(f"{len(preds)} patients at {CLIENTS} clients, {len(bytes(shares[0])):,} bytes from each")
    print(f"mean of local AUROCs  {np.mean(local):.4f}   from {min(local):.4f} to {max(local):.4f}")
    print(f"federated AUROC       {roc_curve_.scalars['auroc']:.4f}")
    print(f"pooled exact AUROC    {roc_auc_score(target, preds):.4f}")
    print(f"Area Error            ROC {area_error_roc(roc_curve_, exact_roc):.5f}", end="   ")
    print(f"PR {area_error_pr(pr_curve_, exact_pr):.5f}")

    # %% The figure: pooled curves underneath, federated ones on top
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    left.plot(exact_roc[0], exact_roc[1], color="0.75", linewidth=5, label="pooled, exact")
    roc_curve_.plot(ax=left, label="federated")
    right.plot(exact_pr[1], exact_pr[0], color="0.75", linewidth=5, drawstyle="steps-post", label="pooled, exact")
    pr_curve_.plot(ax=right, label="federated")
    fig.savefig(out, dpi=150)
    print(f"figure                {out.resolve()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("demo.png"))
    main(parser.parse_args().out)
