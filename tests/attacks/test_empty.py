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
NO_SCORES = torch.empty(0)
NO_LABELS = torch.empty(0, dtype=torch.int64)


def share_cells(preds: Tensor, target: Tensor) -> Tensor:
    """Return the cells of the share of a client with this data."""
    metric = FederatedROC(quantiles=64, privacy=PRIVACY)
    metric.update(preds, target)
    return metric.share().cells


def test_an_empty_client_sends_what_any_client_sends() -> None:
    """Same size, same law of noise: a share must not show whether its client has data."""
    scores = torch.full((500,), 0.3)
    labels = torch.zeros(500, dtype=torch.int64)
    empty = torch.stack([share_cells(NO_SCORES, NO_LABELS) for _ in range(40)])
    full = torch.stack([share_cells(scores, labels) for _ in range(40)])
    assert empty.shape == full.shape
    noise_of_full = full - full.median(0).values
    table = [small_counts(empty), small_counts(noise_of_full)]
    assert stats.chi2_contingency(table).pvalue > 1e-6
    assert int((empty != 0).sum()) > 0


def small_counts(noise: Tensor) -> list[int]:
    """Return how often the integers from -2 to 2 occur."""
    return [int((noise == value).sum()) for value in range(-2, 3)]


def test_a_client_that_never_updated_can_take_part() -> None:
    metric = FederatedROC(quantiles=64, privacy=PRIVACY)
    assert metric.share().cells.shape == share_cells(NO_SCORES, NO_LABELS).shape


@pytest.mark.parametrize(
    ("preds", "target"),
    [
        (NO_SCORES, NO_LABELS),
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
        # The release may or may not show an empty class.
        warnings.simplefilter("ignore", UserWarning)
        curve = metric.compute()
    assert all(bool(values.isfinite().all()) for values in curve)


@pytest.mark.parametrize("score", [0.0, 1.0, 0.37])
def test_constant_scores_give_the_diagonal(score: float) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0))
    metric.update(torch.full((20_000,), score), torch.arange(20_000) % 2)
    assert area_error_roc(metric.compute(), ([0.0, 1.0], [0.0, 1.0])) < 0.02


def test_the_warning_comes_from_the_release_not_from_the_data() -> None:
    """The data has no positives, but noise may show some: then no warning may say otherwise."""
    warned = set()
    for _ in range(40):
        metric = FederatedROC(quantiles=64, privacy=CentralDP(0.5), plan="single")
        metric.update(torch.rand(500), torch.zeros(500, dtype=torch.int64))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            metric.compute()
        warned.add(any("No positive" in str(warning.message) for warning in caught))
    assert warned == {True, False}
