"""Peers: libraries that make a ROC or precision-recall curve of batches, each as its docs say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_curve
from torch import Tensor
from torchmetrics.classification import BinaryROC

from benchmarks.bench.timing import Candidate
from torchmetrics_fed import FederatedROC

__all__ = ["OURS", "PEERS", "READ", "SLOW", "Batches", "Peer", "missing"]

Batches = list[tuple[Tensor, Tensor]]
"""Scores and labels."""
Arrays = list[tuple[NDArray[np.float32], NDArray[np.int64]]]
"""The same as arrays."""
Peer = Callable[[Batches], Candidate]
"""Prepares a run of all updates and one compute."""

OURS = "this package"
READ = "read limit"
BINS = 4096


def read_limit(batches: Batches) -> Candidate:
    """Read the inputs once, as every peer has to."""
    return lambda: [(preds.sum(), target.sum()) for preds, target in batches]


class MetricPeer:
    """A metric with torchmetrics' interface, which torcheval has, too."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __call__(self, batches: Batches) -> Candidate:
        return partial(self._run, self._make(), batches)

    @staticmethod
    def _run(metric: Any, batches: Batches) -> None:
        metric.reset()
        for preds, target in batches:
            metric.update(preds, target)
        metric.compute()


def torcheval_metric(name: str, **options: object) -> Any:
    """Return a metric of torcheval."""
    return getattr(import_module("torcheval.metrics"), name)(**options)


def arrays_of(batches: Batches) -> Arrays:
    return [(preds.float().numpy(), target.numpy()) for preds, target in batches]


def scikit_learn(batches: Batches) -> Candidate:
    """Keep all scores, as every exact curve does."""
    return partial(_exact_curve, arrays_of(batches))


def _exact_curve(arrays: Arrays) -> None:
    target = np.concatenate([target for _, target in arrays])
    preds = np.concatenate([preds for preds, _ in arrays])
    roc_curve(target, preds)


def numpy_histograms(batches: Batches) -> Candidate:
    """Make two histograms of even bins, and their tails; nothing is checked."""
    return partial(_histograms, arrays_of(batches))


def _histograms(arrays: Arrays) -> None:
    counts = np.zeros((2, BINS), np.int64)
    for preds, target in arrays:
        for label in (0, 1):
            counts[label] += np.histogram(preds[target == label], BINS, (0.0, 1.0))[0]
    counts[:, ::-1].cumsum(1)


class DeclearnPeer:
    """declearn's BinaryRocAUC, which compares every score with every threshold.

    Args:
        scale: the distance of its thresholds.
        batch_size: examples of a batch; larger ones would need gigabytes.
    """

    def __init__(self, scale: float, batch_size: int) -> None:
        self._scale = scale
        self._batch_size = batch_size

    def __call__(self, batches: Batches) -> Candidate:
        arrays = []
        for preds, target in batches:
            parts = zip(preds.split(self._batch_size), target.split(self._batch_size), strict=True)
            arrays += arrays_of(list(parts))
        metric = import_module("declearn.metrics").BinaryRocAUC(scale=self._scale)
        return partial(self._run, metric, arrays)

    @staticmethod
    def _run(metric: Any, arrays: Arrays) -> None:
        metric.reset()
        for preds, target in arrays:
            metric.update(target, preds)
        metric.get_result()


PEERS: dict[str, Peer] = {
    OURS: MetricPeer(FederatedROC),
    READ: read_limit,
    "torchmetrics exact": MetricPeer(BinaryROC),
    "torchmetrics 200": MetricPeer(lambda: BinaryROC(thresholds=200)),
    "torchmetrics 4096": MetricPeer(lambda: BinaryROC(thresholds=BINS)),
    "torcheval exact": MetricPeer(lambda: torcheval_metric("BinaryAUROC")),
    "torcheval 4096": MetricPeer(
        lambda: torcheval_metric("BinaryBinnedPrecisionRecallCurve", threshold=BINS)
    ),
    "scikit-learn": scikit_learn,
    "numpy": numpy_histograms,
    "declearn 11": DeclearnPeer(0.1, 100_000),
    "declearn 1001": DeclearnPeer(0.001, 10_000),
}
SLOW = ("torchmetrics 4096", "declearn 1001")
"""Peers that take seconds for a million examples: they are timed in batches, up to a million."""


def missing() -> dict[str, str]:
    """Return the peers that are not installed, and the package that each needs."""
    packages = {}
    for package in ("torcheval", "declearn"):
        if find_spec(package) is None:
            for name in PEERS:
                if name.startswith(package):
                    packages[name] = package
    return packages
