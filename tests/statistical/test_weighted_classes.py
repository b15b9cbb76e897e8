"""Audits of weighted releases of several classes, through the public API.

The neighbouring data differ by the example that moves the weighted cells furthest. An audit can
refute a claim of epsilon and never prove it; each claim comes with noise for eight times the
epsilon, which the same audit refutes.
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
from torchmetrics_fed.typing import Floats, Task

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


def query_of(metric: FederatedROC) -> Query:
    return metric.plan.first_query(metric.spec, can_ask_again=False, previous=None)


def exact_cells(metric: FederatedROC, batches: list[Batch]) -> Integers:
    """Return the cells of the data without noise, which an attacker may know."""
    metric.reset()
    for preds, target in batches:
        metric.update(preds, target)
    cells: Integers = metric.spec.cells(query_of(metric), metric.counts).numpy().reshape(-1)
    return cells


def audited(
    mechanism: Callable[[int], Integers],
    neighbour: Callable[[int], Integers],
    score: Callable[[Integers], Floats],
    delta: float,
) -> AuditResult:
    return audit(
        mechanism,
        neighbour,
        claimed=1.0,
        delta=delta,
        trials=TRIALS,
        confidence=CONFIDENCE,
        score=score,
    )


def log_likelihood_ratio(
    cells: Integers, neighbour: Integers, is_gaussian: bool, outputs: Integers
) -> Floats:
    """Return the most powerful score there is, but for a factor."""
    if is_gaussian:
        return np.asarray(outputs @ (neighbour - cells), dtype=np.float64)
    ratio = np.abs(outputs - cells) - np.abs(outputs - neighbour)
    return np.asarray(ratio.sum(1), dtype=np.float64)


def weak(metric: FederatedROC, cells: Integers, trials: int) -> Integers:
    """Return cells with noise that is calibrated for eight times the epsilon."""
    spec = metric.spec
    privacy = replace(spec.privacy, epsilon=8 * spec.epsilon)  # type: ignore[type-var]
    law = replace(spec, privacy=privacy).noise(query_of(metric)).law
    assert law is not None
    noise: Integers = draw_noise(law, (trials, len(cells))).numpy()
    return cells + noise


SOFTMAX_ROWS = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]])
WORST_ROW = torch.tensor([[0.0, 0.75, 0.25, 0.0]])
"""A negative at the lower edge of each of the two heaviest leaves that have room in a row."""
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
        (SCORES[:1], torch.tensor([[1, 0, 0, 0]])),
    ),
}


@pytest.mark.audit
@pytest.mark.parametrize(
    ("name", "least"), [("softmax", 0.3), ("positives", 0.4), ("Gaussian", 0.1), ("labels", 0.3)]
)
def test_a_weighted_release_keeps_its_claim(name: str, least: float) -> None:
    task, privacy, options, batches, example = CASES[name]
    make = partial(metric_of, task, privacy, **options)
    metric = make()
    with_example = [*batches, example]
    cells = exact_cells(metric, batches)
    neighbour = exact_cells(metric, with_example)
    moved = int(np.abs(neighbour - cells).sum())
    declared = metric.spec.sensitivity(query_of(metric)).l1
    assert 0.95 * declared < moved <= declared
    score = partial(log_likelihood_ratio, cells, neighbour, privacy is GAUSSIAN)
    honest = audited(
        partial(releases, make, batches),
        partial(releases, make, with_example),
        score=score,
        delta=privacy.delta,
    )
    assert not honest.refuted
    assert honest.epsilon_lower > least
    refuted = audited(
        partial(weak, metric, cells),
        partial(weak, metric, neighbour),
        score=score,
        delta=privacy.delta,
    )
    assert refuted.refuted
