"""Audits of weighted releases of several classes, through the public API.

The neighbouring data differ by the example that moves the weighted cells furthest. An audit can
refute a claim of epsilon and never prove it; each claim comes with a release whose noise forgets
the weights, which the same audit refutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torchmetrics_fed import CentralDP, FederatedROC, Query
from torchmetrics_fed.audit import AuditResult, Integers, audit
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange.client import draw_noise
from torchmetrics_fed.exchange.weights import query_weights
from torchmetrics_fed.typing import Task

TRIALS = 20_000
RELEASES_OF_LEDGER = 250
"""Releases after which a new ledger begins: each charge reads all entries of a ledger."""
CONFIDENCE = 1 - 1e-6
CLASSES = 4
TREE = Tree((4,), (0, 16, 32, 48, 64))
PURE = CentralDP(1.0)
GAUSSIAN = CentralDP(1.0, mechanism="discrete_gaussian", delta=1e-5)

Batch = tuple[Tensor, Tensor]


def metric_of(task: Task, privacy: CentralDP, **options: Any) -> FederatedROC:
    """Return a metric on four leaves, with the weights of the default plan."""
    if task == "multiclass":
        options["num_classes"] = CLASSES
    else:
        options["num_labels"] = CLASSES
    options.update(privacy=privacy, grid="even", quantiles=16)
    spec = FederatedROC(task, **options).spec
    query = Query(TREE, weights=query_weights(spec, TREE))
    assert query.is_weighted
    return FederatedROC(task, plan=query, **options)


def releases(make: Callable[[], FederatedROC], batches: list[Batch], trials: int) -> Integers:
    """Return the cells of this number of releases of the same data."""
    cells = []
    for trial in range(trials):
        if trial % RELEASES_OF_LEDGER == 0:
            metric = make()
        metric.reset()
        for preds, target in batches:
            metric.update(preds, target)
        cells.append(metric.release().last.cells.numpy().reshape(-1))
    return np.stack(cells)


def audited(mechanism: Callable[[int], Integers], neighbour: Any, delta: float) -> AuditResult:
    return audit(
        mechanism,
        neighbour,
        claimed=1.0,
        delta=delta,
        trials=TRIALS,
        confidence=CONFIDENCE,
    )


def forgetful(metric: FederatedROC, batches: list[Batch], trials: int) -> Integers:
    """Return cells with noise that is calibrated for weights of 1."""
    metric.reset()
    for preds, target in batches:
        metric.update(preds, target)
    spec = metric.spec
    query = spec_query(metric)
    cells = spec.cells(query, metric.counts).reshape(-1)
    law = spec.noise(replace(query, weights=())).law
    assert law is not None
    return (cells + draw_noise(law, (trials, len(cells)))).numpy()


def spec_query(metric: FederatedROC) -> Query:
    return metric.plan.first_query(metric.spec, can_ask_again=False, previous=None)


SOFTMAX_ROWS = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]])
WORST_ROW = torch.tensor([[0.0, 0.98, 0.01, 0.01]])
SCORES = torch.tensor([[0.2, 0.4, 0.6, 0.8], [0.9, 0.9, 0.1, 0.1], [0.3, 0.3, 0.3, 0.3]])
CASES: dict[str, tuple[Task, CentralDP, dict[str, Any], list[Batch], Batch]] = {
    "softmax": (
        "multiclass",
        PURE,
        {},
        [(SOFTMAX_ROWS, torch.tensor([0, 3, 1]))],
        (WORST_ROW, torch.tensor([0])),
    ),
    "positives": (
        "multiclass",
        PURE,
        {"sums_to_one": False},
        [(SCORES, torch.tensor([0, 3, 1]))],
        (SCORES[:1], torch.tensor([0])),
    ),
    "Gaussian": (
        "multiclass",
        GAUSSIAN,
        {},
        [(SOFTMAX_ROWS, torch.tensor([0, 3, 1]))],
        (WORST_ROW, torch.tensor([0])),
    ),
    "labels": (
        "multilabel",
        PURE,
        {"labels_per_example": 1},
        [(SCORES, torch.tensor([[1, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]]))],
        (SCORES[:1], torch.tensor([[1, 1, 1, 1]])),
    ),
}


@pytest.mark.audit
@pytest.mark.parametrize("name", CASES)
def test_a_weighted_release_keeps_its_claim_and_one_with_forgotten_weights_does_not(
    name: str,
) -> None:
    task, privacy, options, batches, example = CASES[name]
    make = partial(metric_of, task, privacy, **options)
    metric = make()
    with_example = [*batches, example]
    honest = audited(
        partial(releases, make, batches),
        partial(releases, make, with_example),
        delta=privacy.delta,
    )
    assert not honest.refuted
    assert honest.epsilon_lower > 0.55
    naive = audited(
        partial(forgetful, metric, batches),
        partial(forgetful, metric, with_example),
        delta=privacy.delta,
    )
    assert naive.refuted
