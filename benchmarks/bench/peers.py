"""Peers: everybody who draws a ROC or precision-recall curve of batches, each as it is meant to be used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
from sklearn.metrics import roc_curve
from torch import Tensor
from torchmetrics.classification import BinaryROC

from benchmarks.bench.timing import Candidate
from torchmetrics_fed import FederatedROC

__all__ = ["OURS", "PEERS", "READ", "SLOW", "Batches", "Peer", "missing"]

Batches = list[tuple[Tensor, Tensor]]
Peer = Callable[[Batches], Candidate]

OURS, READ = "this package", "read limit"


def read_limit(batches: Batches) -> Candidate:
    """One read of the inputs, which nobody can do without."""
    return lambda: [(preds.sum(), target.sum()) for preds, target in batches]


def metric(make: Callable[[], FederatedROC | BinaryROC]) -> Peer:
    """Whoever has torchmetrics' interface, all updates and one compute; torcheval has it, too."""

    def peer(batches: Batches) -> Candidate:
        one = make()

        def run() -> None:
            one.reset()
            for preds, target in batches:
                one.update(preds, target)
            one.compute()

        return run

    return peer


def scikit_learn(batches: Batches) -> Candidate:
    """Keeps everything, like every exact curve."""
    arrays = [(preds.float().numpy(), target.numpy()) for preds, target in batches]
    return lambda: roc_curve(
        np.concatenate([target for _, target in arrays]),
        np.concatenate([preds for preds, _ in arrays]),
    )


def numpy_histograms(batches: Batches) -> Candidate:
    """Two histograms of 4096 even bins, and their tails; nothing is checked."""
    arrays = [(preds.float().numpy(), target.numpy()) for preds, target in batches]

    def run() -> None:
        counts = np.zeros((2, 4096), np.int64)
        for preds, target in arrays:
            for label in (0, 1):
                counts[label] += np.histogram(preds[target == label], 4096, (0.0, 1.0))[0]
        counts[:, ::-1].cumsum(1)

    return run


def torcheval_peer(name: str, **options: object) -> Peer:
    """A metric of torcheval."""

    def make() -> BinaryROC:
        made: BinaryROC = getattr(import_module("torcheval.metrics"), name)(**options)
        return made

    return metric(make)


def declearn_peer(scale: float, most: int) -> Peer:
    """declearn's BinaryRocAUC, which compares every score with every threshold: in batches of at most ``most``."""

    def peer(batches: Batches) -> Candidate:
        arrays = [
            (preds[start:end].float().numpy(), target[start:end].numpy())
            for preds, target in batches
            for start, end in pairwise([*range(0, len(preds), most), len(preds)])
        ]
        one = import_module("declearn.metrics").BinaryRocAUC(scale=scale)

        def run() -> None:
            one.reset()
            for preds, target in arrays:
                one.update(target, preds)
            one.get_result()

        return run

    return peer


PEERS: dict[str, Peer] = {
    OURS: metric(FederatedROC),
    READ: read_limit,
    "torchmetrics exact": metric(BinaryROC),
    "torchmetrics 200": metric(lambda: BinaryROC(thresholds=200)),
    "torchmetrics 4096": metric(lambda: BinaryROC(thresholds=4096)),
    "torcheval exact": torcheval_peer("BinaryAUROC"),
    "torcheval 4096": torcheval_peer("BinaryBinnedPrecisionRecallCurve", threshold=4096),
    "scikit-learn": scikit_learn,
    "numpy": numpy_histograms,
    "declearn 11": declearn_peer(0.1, 100_000),
    "declearn 1001": declearn_peer(0.001, 10_000),
}
# Seconds for a million examples: only timed up to there, once
SLOW = ("torchmetrics 4096", "declearn 1001")


def missing() -> dict[str, str]:
    """Return the peers that are not installed, and what they need."""
    absent = [package for package in ("torcheval", "declearn") if find_spec(package) is None]
    return {name: package for name in PEERS for package in absent if name.startswith(package)}
