"""Threat 16: an empty client, an empty class, one example, constant scores, all ties."""

from __future__ import annotations

import warnings

import pytest
import torch
from scipy import stats
from torch import Tensor

from torchmetrics_fed import CentralDP, DistributedDP, FederatedROC
from torchmetrics_fed.functional import area_error_roc

PRIVACY = DistributedDP(1.0, min_clients=3, trusted_aggregator=True)
NOTHING = torch.empty(0), torch.empty(0, dtype=torch.int64)


def share(preds: Tensor, target: Tensor) -> Tensor:
    metric = FederatedROC(quantiles=64, privacy=PRIVACY)
    metric.update(preds, target)
    return metric.share().cells


def test_an_empty_client_sends_what_any_client_sends() -> None:
    """Same size, same law of noise: a share must not show whether its client has data."""
    empty = torch.stack([share(*NOTHING) for _ in range(40)])
    full = torch.stack(
        [share(torch.full((500,), 0.3), torch.zeros(500, dtype=torch.int64)) for _ in range(40)]
    )
    assert empty.shape == full.shape
    noise = empty.flatten(), (full - full.median(0).values).flatten()
    table = [[int((sample == value).sum()) for value in range(-2, 3)] for sample in noise]
    assert stats.chi2_contingency(table).pvalue > 1e-6
    assert int((empty != 0).sum()) > 0


def test_a_client_that_never_updated_can_take_part() -> None:
    assert FederatedROC(quantiles=64, privacy=PRIVACY).share().cells.shape == share(*NOTHING).shape


@pytest.mark.parametrize(
    ("preds", "target"),
    [
        NOTHING,
        (torch.tensor([0.5]), torch.tensor([1])),
        (torch.rand(500), torch.zeros(500, dtype=torch.int64)),
        (torch.zeros(500), torch.arange(500) % 2),
        (torch.ones(500), torch.arange(500) % 2),
    ],
    ids=["nothing", "one example", "one class", "all zero", "all one"],
)
@pytest.mark.parametrize("epsilon", [0.05, 5.0])
def test_curves_are_defined(preds: Tensor, target: Tensor, epsilon: float) -> None:
    metric = FederatedROC(quantiles=64, privacy=CentralDP(epsilon))
    metric.update(preds, target)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # the release may or may not show an empty class
        curve = metric.compute()
    assert all(bool(values.isfinite().all()) for values in curve)


@pytest.mark.parametrize("score", [0.0, 1.0, 0.37])
def test_constant_scores_give_the_diagonal(score: float) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0))
    metric.update(torch.full((20_000,), score), torch.arange(20_000) % 2)
    assert area_error_roc(metric.compute(), ([0.0, 1.0], [0.0, 1.0])) < 0.02


def test_the_warning_comes_from_the_release_not_from_the_data() -> None:
    """No positives in the data, but noise that shows some: no warning may say that there are none."""
    warned = set()
    for _ in range(40):
        metric = FederatedROC(quantiles=64, privacy=CentralDP(0.5), plan="single")
        metric.update(torch.rand(500), torch.zeros(500, dtype=torch.int64))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            metric.compute()
        warned.add(any("No positive" in str(warning.message) for warning in caught))
    assert warned == {True, False}
