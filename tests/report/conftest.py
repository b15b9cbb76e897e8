"""Releases of every task, exact and private, that all that is made of a report is checked on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import CentralDP, EvaluationReport, FederatedROC, Release, evaluation_report

KINDS = [
    f"{privacy} {task}"
    for privacy in ("exact", "private")
    for task in ("binary", "multiclass", "multilabel")
]


def release_of(kind: str, classes: int = 3, examples: int = 3_000) -> Release:
    """A release of scores of a fair model."""
    privacy, task = kind.split()
    generator = torch.Generator().manual_seed(3)
    shape = (examples,) if task == "binary" else (examples, classes)
    metric = FederatedROC(
        task=task,  # type: ignore[arg-type]
        privacy=CentralDP(epsilon=2.0) if privacy == "private" else None,
        quantiles=128,
        data="validation",
        num_classes=classes if task == "multiclass" else None,
        num_labels=classes if task == "multilabel" else None,
    )
    logits, target = (
        torch.randn(shape, generator=generator, dtype=torch.float64),
        _target(task, shape, generator),
    )
    truth = torch.nn.functional.one_hot(target, classes) if task == "multiclass" else target
    logits = logits + 2 * truth - 1
    metric.update(logits.softmax(-1) if task == "multiclass" else logits.sigmoid(), target)
    return metric.release()


def _target(task: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if task == "multiclass":
        return torch.randint(0, shape[1], shape[:1], generator=generator)
    return (torch.rand(shape, generator=generator) < 0.3).long()


@pytest.fixture(params=KINDS)
def release(request: pytest.FixtureRequest) -> Release:
    return release_of(request.param)


@pytest.fixture
def report(release: Release) -> EvaluationReport:
    return evaluation_report(release)
