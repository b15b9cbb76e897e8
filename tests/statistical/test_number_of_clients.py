"""With distributed noise, the number of clients does not change the error of a curve."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve

from torchmetrics_fed import DistributedDP, FederatedROC, Release
from torchmetrics_fed.functional import area_error_roc
from torchmetrics_fed.typing import Floats

EXAMPLES = 8_000


def roc_errors(clients: int, runs: int, epsilon: float = 0.5) -> Floats:
    """Return the ROC Area Error of each run.

    Data and noise are split over the clients, and the noise is calibrated for all of them.
    """
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(0, 2, (EXAMPLES,), generator=generator)
    preds = (torch.randn(EXAMPLES, generator=generator) + 1.5 * target).sigmoid()
    exact = roc_curve(target, preds)
    privacy = DistributedDP(epsilon, min_clients=clients, max_colluding=0, trusted_aggregator=True)
    metrics = [
        FederatedROC(quantiles=64, grid="even", privacy=privacy, plan="paper")
        for _ in range(clients)
    ]
    parts = torch.arange(EXAMPLES).tensor_split(clients)
    errors = []
    for _ in range(runs):
        for metric, part in zip(metrics, parts, strict=True):
            metric.reset()
            metric.update(preds[part], target[part])
        release = Release.sum(metric.share() for metric in metrics)
        curve = FederatedROC.from_release(release).compute()
        errors.append(area_error_roc(curve, exact))
    return np.array(errors)


def distance(first: Floats, second: Floats) -> float:
    """Return the difference of the means in standard errors."""
    standard_error = np.hypot(first.std() / len(first) ** 0.5, second.std() / len(second) ** 0.5)
    return float(abs(first.mean() - second.mean()) / standard_error)


@pytest.mark.audit
def test_the_number_of_clients_does_not_matter() -> None:
    """1, 10 and 1000 clients; five standard errors are an alpha of 6e-7.

    Noise that is too large must show.
    """
    of_one_client = roc_errors(1, 400)
    assert distance(of_one_client, roc_errors(10, 200)) < 5
    assert distance(of_one_client, roc_errors(1_000, 30)) < 5
    assert distance(of_one_client, roc_errors(10, 200, epsilon=0.35)) > 5
