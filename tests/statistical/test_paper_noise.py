"""With noise: the paper's figures come out, ours are better, and the number of clients does not matter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.private_area_error import PAPER, area_errors, cells
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from torchmetrics_fed import DistributedDP, FederatedROC, Release
from torchmetrics_fed.functional import area_error_roc

RUNS = 50


def mean_ratio(folder: Path, data: list[str], runs: int, epsilons: tuple[float, ...]) -> NDArray[np.float64]:
    """Geometric mean over cells of our Area Error over the published one: ROC, PR."""
    ratios = []
    for cell in cells(folder, data):
        if cell.epsilon in epsilons:
            path = folder / "data" / "scores" / f"{cell.scores}.npz"
            errors = area_errors(path, cell.epsilon, runs, cell.quantiles, "paper", **PAPER)
            ratios.append(errors.mean(0) / cell.paper)
    return np.asarray(np.exp(np.log(ratios).mean(0)))


@pytest.mark.audit
def test_the_papers_figures_come_out(shared_folder: Path) -> None:
    assert mean_ratio(shared_folder, ["adult", "bank"], RUNS, (0.1, 0.3, 1.0)) == pytest.approx(1, abs=0.1)


@pytest.mark.slow
def test_some_of_the_papers_figures_come_out(shared_folder: Path) -> None:
    assert mean_ratio(shared_folder, ["bank"], 6, (0.3,)) == pytest.approx(1, abs=0.25)


@pytest.mark.audit
def test_the_default_plan_is_no_worse_than_the_papers_best(shared_folder: Path) -> None:
    best: dict[tuple[str, float], NDArray[np.float64]] = {}
    for cell in cells(shared_folder, ["adult", "bank"]):
        key = cell.scores, cell.epsilon
        best[key] = np.minimum(best.get(key, np.full(2, np.inf)), cell.paper)
    ratios = [
        area_errors(shared_folder / "data" / "scores" / f"{scores}.npz", epsilon, RUNS).mean(0) / paper
        for (scores, epsilon), paper in best.items()
    ]
    assert (np.exp(np.log(ratios).mean(0)) < 1.05).all()


def client_errors(clients: int, runs: int, epsilon: float = 0.5) -> NDArray[np.float64]:
    """ROC Area Error of each run, data and noise split over the clients, shares cut for all of them."""
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(0, 2, (8_000,), generator=generator)
    preds = (torch.randn(8_000, generator=generator) + 1.5 * target).sigmoid()
    exact = roc_curve(target, preds)
    privacy = DistributedDP(epsilon, min_clients=clients, max_colluding=0)
    metrics = [FederatedROC(quantiles=64, privacy=privacy, plan="paper") for _ in range(clients)]
    errors = []
    for _ in range(runs):
        for metric, mine in zip(metrics, torch.arange(8_000).tensor_split(clients), strict=True):
            metric.reset()
            metric.update(preds[mine], target[mine])
        total = Release.sum(metric.release() for metric in metrics)
        errors.append(area_error_roc(FederatedROC.from_release(total).compute(), exact))
    return np.array(errors)


def distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Difference of the means in standard errors."""
    deviation = np.hypot(one.std() / len(one) ** 0.5, other.std() / len(other) ** 0.5)
    return float(abs(one.mean() - other.mean()) / deviation)


@pytest.mark.audit
def test_the_number_of_clients_does_not_matter() -> None:
    """1, 10 and 1000 clients; five standard errors are an alpha of 6e-7. Noise that is too large must show."""
    one = client_errors(1, 400)
    assert distance(one, client_errors(10, 200)) < 5
    assert distance(one, client_errors(1_000, 30)) < 5
    assert distance(one, client_errors(10, 200, epsilon=0.35)) > 5
