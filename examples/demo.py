"""Six hospitals, one classifier, one ROC curve that no hospital can draw alone.

    python examples/demo.py [--out demo.png]

The hospitals are simulated. Each has patients of its own kind: the first screens healthy people,
the last treats severe cases. Patients of one hospital are alike, so each local AUROC is low, and so
is their mean. Over all patients the classifier is good. Histograms of scores add up to the pooled
curve.
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

HOSPITALS = 6
PATIENTS = 2_000
TRAINING_PATIENTS = 1_000


# %% Patients whose illness shows in five noisy measurements, and a classifier trained elsewhere
def patients(
    severity: float, count: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    state = severity + 0.8 * generator.standard_normal(count)
    is_ill = generator.random(count) < 1 / (1 + np.exp(-1.5 * state))
    measurements = state[:, None] + 1.2 * generator.standard_normal((count, 5))
    return measurements, is_ill.astype(np.int64)


def scored() -> list[tuple[Tensor, Tensor]]:
    """Return scores and labels of each hospital."""
    generator = np.random.default_rng(0)
    severities = np.linspace(-2.5, 2.5, HOSPITALS)
    training = [patients(severity, TRAINING_PATIENTS, generator) for severity in severities]
    model = LogisticRegression().fit(
        np.concatenate([measurements for measurements, _ in training]),
        np.concatenate([labels for _, labels in training]),
    )
    hospitals = []
    for severity in severities:
        measurements, labels = patients(severity, PATIENTS, generator)
        scores = model.predict_proba(measurements)[:, 1]
        hospitals.append((torch.from_numpy(scores), torch.from_numpy(labels)))
    return hospitals


# %% Each hospital counts its scores, and one release moves the sum: exact, then at epsilon 1
def main(out: Path) -> None:
    hospitals = scored()
    preds = torch.cat([preds for preds, _ in hospitals])
    target = torch.cat([target for _, target in hospitals])
    pooled_area = roc_auc_score(target, preds)
    local_areas = [float(auroc(preds, target)) for preds, target in hospitals]
    mean_area = float(np.mean(local_areas))

    exact_release = simulate(hospitals, FederatedROC()).release
    privacy = DistributedDP(epsilon=1.0, min_clients=HOSPITALS)
    private_release = simulate(hospitals, FederatedROC(privacy=privacy)).release
    exact = FederatedROC.from_release(exact_release, confidence=0.95)
    private = FederatedROC.from_release(private_release, confidence=0.95)
    exact_area = float(exact.compute().scalars["auroc"])
    private_area = float(private.compute().scalars["auroc"])
    low, high = (float(end) for end in auroc_interval(private_release, 0.95))

    print(f"{len(preds):,} patients at {HOSPITALS} hospitals")
    lowest = min(local_areas)
    highest = max(local_areas)
    print(f"mean of local AUROCs  {mean_area:.4f}   from {lowest:.4f} to {highest:.4f}")
    print(f"pooled exact AUROC    {pooled_area:.4f}")
    print(f"federated AUROC       {exact_area:.4f}")
    print(f"federated, epsilon 1  {private_area:.4f}   95% interval {low:.4f} to {high:.4f}")

    # %% The figure: curves on the left, areas on the right
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, (curves_ax, areas_ax) = plt.subplots(
        1, 2, figsize=(9.5, 4.4), layout="constrained", width_ratios=[1.3, 1]
    )
    for number, (hospital_preds, hospital_target) in enumerate(hospitals):
        local = roc(hospital_preds, hospital_target)
        label = "each hospital alone" if number == 0 else None
        curves_ax.plot(local.fpr, local.tpr, color="0.6", linewidth=0.7, label=label)
    fpr, tpr, _ = roc_curve(target, preds)
    curves_ax.plot(fpr, tpr, color="0.8", linewidth=5, zorder=1, label="all patients pooled")
    private.compute().plot(
        ax=curves_ax, score=False, label="federated, epsilon 1, 95% band", band=private.band()
    )
    exact.compute().plot(ax=curves_ax, score=False, label="federated, exact")
    private_line, exact_line = curves_ax.get_lines()[-2:]
    exact_line.set(linestyle=(0, (3, 3)))
    curves_ax.legend(loc="lower right", fontsize=8, frameon=False)

    rows = {
        "each hospital\nalone": (local_areas, "0.6"),
        "mean of the six": ([mean_area], "#b00020"),
        "all patients\npooled": ([pooled_area], "0.6"),
        "federated,\nexact": ([exact_area], exact_line.get_color()),
        "federated,\nepsilon 1": ([private_area], private_line.get_color()),
    }
    for row, (values, color) in enumerate(rows.values()):
        areas_ax.plot(values, [row] * len(values), "o", color=color, markersize=6)
        if len(values) == 1:
            areas_ax.annotate(
                f"{values[0]:.3f}",
                (values[0], row),
                (0, 8),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
    areas_ax.plot([low, high], [4, 4], color=private_line.get_color(), linewidth=8, alpha=0.25)
    areas_ax.axvline(pooled_area, color="0.8", linewidth=1, zorder=0)
    areas_ax.set(
        yticks=range(len(rows)),
        yticklabels=rows,
        ylim=(4.5, -0.5),
        xlim=(0.66, 0.96),
        xlabel="AUROC",
    )
    areas_ax.tick_params(labelsize=9, length=0)
    areas_ax.grid(axis="y", color="0.93")
    areas_ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(out, dpi=150)
    print(f"figure                {out.resolve()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("demo.png"))
    main(parser.parse_args().out)
