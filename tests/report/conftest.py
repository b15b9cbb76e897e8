"""Releases of every task, exact and private, to check every form of a report on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import CentralDP, EvaluationReport, FederatedROC, Release, evaluation_report

KINDS = [
    "exact binary",
    "exact multiclass",
    "exact multilabel",
    "private binary",
    "private multiclass",
    "private multilabel",
]


def release_of(kind: str, classes: int = 3, examples: int = 3_000) -> Release:
    """A release of scores of a fair model."""
    privacy, task = kind.split()
    options: dict[str, Any] = {"task": task}
    if privacy == "private":
        options["privacy"] = CentralDP(epsilon=2.0)
    if task == "multiclass":
        options["num_classes"] = classes
    if task == "multilabel":
        options["num_labels"] = classes
    metric = FederatedROC(quantiles=128, data="validation", **options)
    metric.update(*scored_examples(task, classes, examples))
    return metric.release()


def scored_examples(task: str, classes: int, examples: int) -> tuple[Tensor, Tensor]:
    """Scores and targets."""
    generator = torch.Generator().manual_seed(3)
    shape = (examples,) if task == "binary" else (examples, classes)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    if task == "multiclass":
        target = torch.randint(0, classes, (examples,), generator=generator)
        truth = torch.nn.functional.one_hot(target, classes)
        return (noise + 2 * truth - 1).softmax(-1), target
    target = (torch.rand(shape, generator=generator) < 0.3).long()
    return (noise + 2 * target - 1).sigmoid(), target


@pytest.fixture(params=KINDS)
def release(request: pytest.FixtureRequest) -> Release:
    return release_of(request.param)


@pytest.fixture
def report(release: Release) -> EvaluationReport:
    return evaluation_report(release)


@pytest.fixture
def class_counts() -> Tensor:
    """Counts of three classes, ``(3, 2, 16)``, each better separated than the class before."""
    generator = torch.Generator().manual_seed(1)
    falling = torch.linspace(9, 1, 16)
    rising = torch.linspace(1, 9, 16)
    rates = []
    for skill in (1, 2, 3):
        positives = (3 - skill) * falling + skill * rising
        rates.append(torch.stack([30 * falling, 5 * positives]))
    return torch.poisson(torch.stack(rates), generator=generator).long()
