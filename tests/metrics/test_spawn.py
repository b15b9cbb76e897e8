"""Metrics that are handed to spawned processes, as Lightning's `ddp_spawn` does."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import multiprocessing
from torch.multiprocessing.spawn import spawn

from torchmetrics_fed import CentralDP, FederatedROC, LocalDP, Privacy

pytestmark = pytest.mark.slow


def count(rank: int, metric: FederatedROC, results: Any) -> None:
    """Count twice, with a reset in between, in a process of its own."""
    for _ in range(2):
        metric.reset()
        metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
    results.put((int(metric.counts.sum()), metric.release().shares))


@pytest.mark.parametrize(
    "privacy", [None, CentralDP(1.0), LocalDP(1.0)], ids=["exact", "central", "local"]
)
def test_a_metric_counts_in_a_spawned_process(privacy: Privacy | None) -> None:
    metric = FederatedROC(quantiles=16, privacy=privacy)
    results = multiprocessing.get_context("spawn").SimpleQueue()
    spawn(count, (metric, results), nprocs=1)
    assert results.get() == (4, 1)
    assert not metric.counts.any()


def test_a_copy_by_pickle_leaves_its_defaults_alone() -> None:
    metric = pickle.loads(pickle.dumps(FederatedROC(quantiles=16, privacy=CentralDP(1.0))))
    metric.update(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]))
    metric.reset()
    assert not metric.counts.any()
