"""Counts are read with the edges of their leaves, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import FederatedROC, InputError, evaluation_report
from torchmetrics_fed import functional as F

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "read": F.read,
    "roc": F.roc_from_counts,
    "auroc": F.auroc_from_counts,
    "precision_recall": F.precision_recall_from_counts,
    "average_precision": F.average_precision_from_counts,
    "det": F.det_from_counts,
    "gain": F.precision_recall_gain_from_counts,
    "area_under_gain": F.area_under_gain,
    "calibration": F.calibration_from_counts,
    "calibration_error": F.calibration_error,
    "brier_score": F.brier_score,
    "log_loss": F.log_loss,
    "hinge_loss": F.hinge_loss,
    "log_auc": F.log_auc,
    "equal_error_rate": F.equal_error_rate,
    "mann_whitney_u": F.mann_whitney_u,
    "kolmogorov_smirnov": F.kolmogorov_smirnov,
    "best_f1": F.best_f1,
    "youden": F.youden,
    "least_cost": F.least_cost,
    "confusion_at": lambda source: F.confusion_at(source, 0.5),
    "score_at_threshold": lambda source: F.score_at_threshold(source, "f1"),
    "predictive_values": lambda source: F.predictive_values(source, 0.5),
    "recall_at_precision": lambda source: F.recall_at_precision(source, 0.5),
    "precision_at_recall": lambda source: F.precision_at_recall(source, 0.5),
    "sensitivity_at_specificity": lambda source: F.sensitivity_at_specificity(source, 0.5),
    "specificity_at_sensitivity": lambda source: F.specificity_at_sensitivity(source, 0.5),
    "net_benefit": F.net_benefit,
    "cumulative_gains": F.cumulative_gains,
    "report": evaluation_report,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_counts_without_edges_are_refused_with_a_remedy(
    name: str, scored: tuple[Tensor, Tensor]
) -> None:
    metric = FederatedROC(quantiles=16)
    metric.update(*scored)
    with pytest.raises(InputError, match=r"metric.release\(\).*metric.spec.grid.edges"):
        FUNCTIONS[name](metric.counts[0])
    FUNCTIONS[name](metric.release())


def test_counts_with_their_edges_are_the_release(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC()
    metric.update(*scored)
    counts = F.read(metric.counts[0], edges=metric.spec.grid.edges)
    release = F.read(metric.release())
    assert torch.equal(counts.leaf, release.leaf)
    assert torch.equal(counts.edges, release.edges)
    assert torch.equal(F.calibration_error(counts), F.calibration_error(release))
    assert F.read(counts) is counts


def test_edges_enclose_the_leaves() -> None:
    with pytest.raises(InputError, match="hold 3 numbers for 2 leaves"):
        F.read(torch.ones(2, 2), edges=torch.tensor([0.0, 1.0]))


def test_edges_become_float64() -> None:
    histograms = F.read(torch.ones(2, 2), edges=torch.tensor([0, 0.5, 1]))
    assert histograms.edges.dtype == torch.float64
