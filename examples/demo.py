"""Six hospitals, one classifier, one ROC curve that no hospital can draw alone.

    python examples/demo.py [--out demo.png]

The hospitals are simulated. Each has patients of its own kind: the first screens healthy people, the last treats severe
cases. Patients of one hospital are alike, so each local AUROC is low, and so is their mean. Over all patients the
classifier is good. Histograms of scores add up to the pooled curve.
"""

# %%
from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from torchmetrics_fed import DistributedDP, FederatedROC
from torchmetrics_fed.functional import auroc, auroc_interval, roc
from torchmetrics_fed.simulate import simulate

HOSPITALS, PATIENTS = 6, 2_000


# %% Patients whose illness shows in five noisy measurements, and a classifier trained elsewhere
def patients(
    severity: float, count: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    state = severity + 0.8 * generator.standard_normal(count)
    ill = generator.random(count) < 1 / (1 + np.exp(-1.5 * state))
    return state[:, None] + 1.2 * generator.standard_normal((count, 5)), ill.astype(np.int64)


def scored() -> list[tuple[Tensor, Tensor]]:
    """Scores and labels of each hospital."""
    generator = np.random.default_rng(0)
    severities = np.linspace(-2.5, 2.5, HOSPITALS)
    elsewhere = [patients(severity, 1_000, generator) for severity in severities]
    model = LogisticRegression().fit(
        *(np.concatenate(part) for part in zip(*elsewhere, strict=True))
    )
    local = (patients(severity, PATIENTS, generator) for severity in severities)
    return [(torch.from_numpy(model.predict_proba(x)[:, 1]), torch.from_numpy(y)) for x, y in local]


# %% Each hospital counts its scores, and one release moves the sum: exact, then with noise at epsilon 1
def main(out: Path) -> None:
    hospitals = scored()
    preds, target = (torch.cat(part) for part in zip(*hospitals, strict=True))
    pooled = roc_auc_score(target, preds)
    local = [float(auroc(*hospital)) for hospital in hospitals]
    mean = float(np.mean(local))

    exact = simulate(hospitals, FederatedROC()).release
    privacy = DistributedDP(epsilon=1.0, min_clients=HOSPITALS)
    private = simulate(hospitals, FederatedROC(privacy=privacy)).release
    curve, noisy = (
        FederatedROC.from_release(release, confidence=0.95) for release in (exact, private)
    )
    areas = [float(each.compute().scalars["auroc"]) for each in (curve, noisy)]
    low, high = auroc_interval(private, 0.95)

    print(f"{len(preds):,} patients at {HOSPITALS} hospitals")
    print(f"mean of local AUROCs  {mean:.4f}   from {min(local):.4f} to {max(local):.4f}")
    print(f"pooled exact AUROC    {pooled:.4f}")
    print(f"federated AUROC       {areas[0]:.4f}")
    print(f"federated, epsilon 1  {areas[1]:.4f}   95% interval {low:.4f} to {high:.4f}")

    # %% The figure: curves on the left, areas on the right
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(
        1, 2, figsize=(9.5, 4.4), layout="constrained", width_ratios=[1.3, 1]
    )
    for number, hospital in enumerate(hospitals):
        own = roc(*hospital)
        left.plot(
            own.fpr,
            own.tpr,
            color="0.6",
            linewidth=0.7,
            label=None if number else "each hospital alone",
        )
    fpr, tpr, _ = roc_curve(target, preds)
    left.plot(fpr, tpr, color="0.8", linewidth=5, zorder=1, label="all patients pooled")
    noisy.compute().plot(
        ax=left, score=False, label="federated, epsilon 1, 95% band", band=noisy.band()
    )
    curve.compute().plot(ax=left, score=False, label="federated, exact")
    private_line, exact_line = left.get_lines()[-2:]
    exact_line.set(linestyle=(0, (3, 3)))
    left.legend(loc="lower right", fontsize=8, frameon=False)

    rows = {
        "each hospital\nalone": (local, "0.6"),
        "mean of the six": ([mean], "#b00020"),
        "all patients\npooled": ([pooled], "0.6"),
        "federated,\nexact": ([areas[0]], exact_line.get_color()),
        "federated,\nepsilon 1": ([areas[1]], private_line.get_color()),
    }
    for row, (values, colour) in enumerate(rows.values()):
        right.plot(values, [row] * len(values), "o", color=colour, markersize=6)
        if len(values) == 1:
            right.annotate(
                f"{values[0]:.3f}",
                (values[0], row),
                (0, 8),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
    right.plot(
        [float(low), float(high)], [4, 4], color=private_line.get_color(), linewidth=8, alpha=0.25
    )
    right.axvline(pooled, color="0.8", linewidth=1, zorder=0)
    right.set(
        yticks=range(len(rows)),
        yticklabels=rows,
        ylim=(4.5, -0.5),
        xlim=(0.66, 0.96),
        xlabel="AUROC",
    )
    right.tick_params(labelsize=9, length=0)
    right.grid(axis="y", color="0.93")
    right.spines[["top", "right"]].set_visible(False)
    fig.savefig(out, dpi=150)
    print(f"figure                {out.resolve()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("demo.png"))
    main(parser.parse_args().out)
