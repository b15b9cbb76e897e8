"""The paper's estimates, made by this package: exact quantiles, exact counts, noisy counts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduce.cells import Reading, Setting
from benchmarks.reproduce.errors import Curves, Truth
from benchmarks.reproduce.range_query import noisy_ranges, range_curves
from torchmetrics_fed import CentralDP, FederatedPrecisionRecallCurve, FederatedROC, Release, paper
from torchmetrics_fed.functional import (
    PrecisionRecallCurve,
    precision_recall_from_quantiles,
    roc_from_quantiles,
)

__all__ = ["estimates"]


def estimates(
    truth: Truth, setting: Setting, quantiles: int, epsilon: float, readings: Iterable[Reading]
) -> dict[Reading, Curves]:
    """Return the curves of one run in each of ``readings``, which all read the same noise."""
    if setting == "EQ":
        return {"pchip": _exact(truth, quantiles)}
    if setting == "range":
        return _ranges(truth, quantiles, epsilon, readings)
    release = _release(truth, setting, quantiles, epsilon)
    return {reading: _read(release, quantiles, reading) for reading in readings}


def _exact(truth: Truth, quantiles: int) -> Curves:
    score, target = truth.tensors
    of_classes = paper.exact_quantiles(score, target, quantiles)
    positives = int(target.sum())
    negatives = len(target) - positives
    return Curves(
        roc_from_quantiles(of_classes),
        precision_recall_from_quantiles(of_classes, negatives, positives),
    )


def _ranges(
    truth: Truth, bins: int, epsilon: float, readings: Iterable[Reading]
) -> dict[Reading, Curves]:
    above = noisy_ranges(_histogram(truth, bins), epsilon)
    curves: dict[Reading, Curves] = {}
    if "l1" in readings:
        curves["l1"] = range_curves(above, "l1")
    if "l2" in readings:
        curves["l2"] = range_curves(above, "l2")
    return curves


def _release(truth: Truth, setting: Setting, quantiles: int, epsilon: float) -> Release:
    """Return one draw over every level of the binary tree.

    The noise of one trusted party has the law of the sum of clients' shares.
    """
    if setting == "SA":
        metric = FederatedROC(quantiles=quantiles, grid="even")
    else:
        metric = FederatedROC(
            quantiles=quantiles, grid="even", privacy=CentralDP(epsilon), plan="paper"
        )
    metric.update(*truth.tensors)
    return metric.release()


def _read(release: Release, quantiles: int, reading: Reading) -> Curves:
    """Read a release as the paper does: before the quantiles, least squares alone."""
    if reading == "combine":  # a strategy for precision only
        combining = paper.Quantiles(quantiles, strategy="combine", non_negative=False)
        return Curves(None, _precision_recall(release, combining))
    reconstruction = paper.Quantiles(quantiles, non_negative=False)
    if reading == "linear":
        reconstruction = paper.Quantiles(quantiles, interpolation="linear", non_negative=False)
    roc = FederatedROC.from_release(release, reconstruction=reconstruction).compute()
    return Curves(roc, _precision_recall(release, reconstruction))


def _precision_recall(release: Release, reconstruction: paper.Quantiles) -> PrecisionRecallCurve:
    metric = FederatedPrecisionRecallCurve.from_release(release, reconstruction=reconstruction)
    return metric.compute()


def _histogram(truth: Truth, bins: int) -> NDArray[np.int64]:
    """Return the counts of negatives and positives in even bins."""
    negatives = truth.score[truth.target == 0]
    positives = truth.score[truth.target == 1]
    return np.stack(
        [
            np.histogram(negatives, bins, (0, 1))[0],
            np.histogram(positives, bins, (0, 1))[0],
        ]
    )
