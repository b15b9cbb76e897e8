"""A history has the values of all evaluations, and survives a checkpoint."""

from __future__ import annotations

import io

import torch

from torchmetrics_fed import CentralDP, FederatedAUROC, FederatedROC
from torchmetrics_fed.functional.trend import smoothed
from torchmetrics_fed.metrics.history import History


def test_the_trend_is_that_of_all_values_so_far() -> None:
    values = torch.tensor([0.7, 0.78, 0.75, 0.8], dtype=torch.float64)
    history = History()
    for value in values:
        trend = history.add_value("auroc", value)
    assert torch.equal(trend.value, smoothed(values).value)
    assert torch.equal(history.trend("auroc").value, trend.value)


def test_private_areas_have_deviations_and_other_values_none() -> None:
    history = History()
    private = FederatedAUROC(privacy=CentralDP(1.0))
    exact = FederatedROC()
    for metric, name in ((private, "private"), (exact, "exact")):
        metric.update(torch.rand(500), torch.randint(0, 2, (500,)))
        metric.compute()
        history.add(name, "auroc", torch.tensor(0.5), metric)
    assert history.deviations["private"][0] is not None
    assert history.deviations["exact"] == [None]


def test_a_mean_over_classes_has_no_interval() -> None:
    metric = FederatedAUROC("multiclass", num_classes=3, privacy=CentralDP(5.0), average="macro")
    metric.update(torch.rand(600, 3).softmax(-1), torch.randint(0, 3, (600,)))
    history = History()
    history.add("auroc", "auroc", metric.compute(), metric)
    assert history.deviations["auroc"] == [None]


def test_a_checkpoint_keeps_it() -> None:
    history = History()
    for value in (0.7, 0.8, 0.75):
        history.add_value("auroc", torch.tensor(value), torch.tensor(0.01))
    file = io.BytesIO()
    torch.save(history.state, file)
    file.seek(0)
    again = History.from_state(torch.load(file, weights_only=True))
    assert torch.equal(again.trend("auroc").upper, history.trend("auroc").upper)
