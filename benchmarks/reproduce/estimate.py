"""The paper's estimates, made by this package: exact quantiles, exact counts, noisy counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.reproduce.cells import Reading, Setting
from benchmarks.reproduce.errors import Curves, Truth
from benchmarks.reproduce.range_query import noisy_ranges, range_curves
from torchmetrics_fed import CentralDP, FederatedPrecisionRecallCurve, FederatedROC, Release
from torchmetrics_fed.functional import (
    exact_quantiles,
    precision_recall_from_quantiles,
    roc_from_quantiles,
)
from torchmetrics_fed.reconstruct import Reconstruction

__all__ = ["estimates"]

PAPER = Reconstruction(method="quantile", non_negative=False)
"""The paper's reconstruction: quantiles of each class from its tree, least squares alone before it."""


def estimates(
    truth: Truth, setting: Setting, quantiles: int, epsilon: float, readings: Iterable[Reading]
) -> dict[Reading, Curves]:
    """Return the curves of one run, read in each of ``readings``; all of them read the same noise."""
    if setting == "EQ":
        return {"pchip": _exact(truth, quantiles)}
    if setting == "range":
        above = noisy_ranges(_histogram(truth, quantiles), epsilon)
        return {norm: range_curves(above, norm) for norm in ("l1", "l2") if norm in readings}
    release = _release(truth, setting, quantiles, epsilon)
    return {reading: _read(release, quantiles, reading) for reading in readings}


def _exact(truth: Truth, quantiles: int) -> Curves:
    score, target = truth.tensors
    found = exact_quantiles(score, target, quantiles)
    positive = int(target.sum())
    return Curves(
        roc_from_quantiles(found),
        precision_recall_from_quantiles(found, len(target) - positive, positive),
    )


def _release(truth: Truth, setting: Setting, quantiles: int, epsilon: float) -> Release:
    """One draw over every level of the binary tree. The noise of one trusted party has the law of clients' shares."""
    if setting == "SA":
        exact = FederatedROC(quantiles=quantiles, grid="even")
        exact.update(*truth.tensors)
        return exact.release()
    metric = FederatedROC(
        quantiles=quantiles, grid="even", privacy=CentralDP(epsilon), plan="paper"
    )
    metric.update(*truth.tensors)
    return metric.release()


def _read(release: Release, quantiles: int, reading: Reading) -> Curves:
    how = replace(
        PAPER, quantiles=quantiles, interpolation="linear" if reading == "linear" else "pchip"
    )
    strategy = "combine" if reading == "combine" else "separate"
    pr = FederatedPrecisionRecallCurve.from_release(
        release, strategy=strategy, reconstruction=how
    ).compute()
    if reading == "combine":  # a question of precision only
        return Curves(None, pr)
    return Curves(FederatedROC.from_release(release, reconstruction=how).compute(), pr)


def _histogram(truth: Truth, bins: int) -> Any:
    """Negatives and positives in even bins."""
    score, target = truth.score, truth.target
    return np.stack([np.histogram(score[target == label], bins, (0, 1))[0] for label in (0, 1)])
