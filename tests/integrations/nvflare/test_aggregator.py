"""The aggregator, with real models of NVFlare; a whole job is in ``test_job``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedModelComparison,
    FederatedROC,
    LocalDP,
    Release,
    ScoreGrid,
    federated_collection,
)
from torchmetrics_fed.errors import FederatedMetricError, InputError
from torchmetrics_fed.privacy import Privacy

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg

from tests.integrations.nvflare.models import (
    JOB,
    TRUSTED,
    counted,
    ledger_of,
    model,
    pooled,
    scores,
)
from torchmetrics_fed.integrations.nvflare import META_KEY, FederatedMetricAggregator
from torchmetrics_fed.integrations.nvflare.client import round_name


def open_round(folder: Path, round: int = 0, **options: Any) -> FederatedMetricAggregator:
    aggregator = FederatedMetricAggregator(folder=str(folder), **options)
    aggregator.fl_ctx = FLContext()
    aggregator.fl_ctx.set_prop(ReservedKey.RUN_NUM, JOB, private=False, sticky=False)
    aggregator.fl_ctx.set_prop(AppConstants.CURRENT_ROUND, round, private=True, sticky=False)
    return aggregator


def written(folder: Path) -> dict[str, Release]:
    """The releases that an aggregator has left in a folder, by name."""
    paths = sorted((folder / JOB).glob("*.release"))
    return {path.stem: Release.load(path) for path in paths}


def test_the_sum_of_the_shares_is_the_pooled_metric_to_the_bit(tmp_path: Path) -> None:
    aggregator = open_round(tmp_path, round=2, figures=True)
    for site in (1, 2, 3):
        aggregator.accept_model(model(site, round=2))
    metrics = aggregator.aggregate_model().metrics
    assert metrics["global_auroc"] == pooled(1, 2, 3).compute()
    assert list(written(tmp_path)) == ["round-0002"]
    release = written(tmp_path)["round-0002"]
    assert (release.round, release.shares) == (round_name(JOB, 2), 3)
    assert release.spec == FederatedROC().spec
    assert torch.equal(release.last.cells, pooled(1, 2, 3).release().last.cells)
    assert (tmp_path / JOB / "round-0002.png").stat().st_size > 10_000


def test_pairs_of_classes_have_an_auroc_and_no_curve(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "task": "multiclass",
        "num_classes": 3,
        "multi_class": "ovo",
        "quantiles": 64,
    }
    aggregator = open_round(tmp_path, figures=True, **options)
    total = FederatedAUROC(**options)
    for site in (1, 2):
        generator = torch.Generator().manual_seed(site)
        metric = FederatedAUROC(**options)
        preds = torch.rand(60, 3, generator=generator).softmax(1)
        target = torch.randint(0, 3, (60,), generator=generator)
        metric.update(preds, target)
        total.update(preds, target)
        aggregator.accept_model(model(site, metric=metric))
    assert aggregator.aggregate_model().metrics == {"global_auroc": float(total.compute())}
    assert written(tmp_path)["round-0000"].shares == 2


@pytest.mark.parametrize(
    "grid",
    [ScoreGrid.even(64, (-1.0, 2.0)), ScoreGrid.from_edges([0.0, 0.1, 0.5, 0.6, 1.0])],
    ids=["range", "edges"],
)
def test_a_grid_of_ones_own_is_the_same_on_both_sides(grid: ScoreGrid, tmp_path: Path) -> None:
    aggregator = open_round(tmp_path, grid=grid)
    for site in (1, 2):
        aggregator.accept_model(model(site, metric=counted(site, grid=grid)))
    metrics = aggregator.aggregate_model().metrics
    assert metrics["global_auroc"] == pooled(1, 2, grid=grid).compute()
    aggregator.accept_model(model(1))  # of another grid, so left out
    assert aggregator.aggregate_model().metrics is None


def test_models_and_metrics_are_averaged_as_fedavg_does(tmp_path: Path) -> None:
    def updates() -> list[FLModel]:
        steps = [10, None, 3]
        return [
            model(site, steps=steps[site - 1], metrics={"loss": 0.5 * site, "note": "x"})
            for site in (1, 2, 3)
        ]

    aggregator = open_round(tmp_path)
    for update in updates():
        aggregator.accept_model(update)
    got = aggregator.aggregate_model()
    expected = BaseFedAvg.aggregate_fn(updates())
    assert torch.equal(got.params["w"], expected.params["w"])
    assert got.metrics["loss"] == expected.metrics["loss"]
    assert got.params_type == ParamsType.FULL


def test_weights_by_name_and_differences(tmp_path: Path) -> None:
    aggregator = open_round(tmp_path, aggregation_weights={"site-1": 3.0}, exclude_vars="b")
    for site in (1, 2):
        update = model(site)
        update.params = {"w": torch.tensor(float(site)), "b": torch.ones(1)}
        update.params_type = ParamsType.DIFF
        aggregator.accept_model(update)
    got = aggregator.aggregate_model()
    assert got.params == {"w": torch.tensor(1.25)}
    assert got.params_type == ParamsType.DIFF


def bad_update(kind: str, earlier: FLModel) -> FLModel:
    """A model whose share cannot be added to the sum of the earlier share and that of site 2."""
    update = model(3)
    if kind == "damaged":
        update.meta[META_KEY] = update.meta[META_KEY][:-3]
    elif kind == "missing":
        del update.meta[META_KEY]
    elif kind == "other spec":
        update = model(3, metric=counted(3, quantiles=256))
    elif kind == "other round":
        update = model(3, round=1)
    elif kind == "somebody else's":
        update.meta[META_KEY] = earlier.meta[META_KEY]
    elif kind == "a second one":
        update = model(2)
    elif kind == "too many":
        metric = FederatedROC()
        metric.update(*scores(3, 5_000))
        update = model(3, metric=metric)
    return update


@pytest.mark.parametrize(
    "kind",
    [
        "damaged",
        "missing",
        "other spec",
        "other round",
        "somebody else's",
        "a second one",
        "too many",
    ],
)
def test_a_bad_share_is_left_out_and_its_sender_named(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator = open_round(tmp_path, max_examples=1_000)
    updates = [model(1), model(2)]
    updates.append(bad_update(kind, updates[0]))
    with caplog.at_level(logging.WARNING):
        for update in updates:
            aggregator.accept_model(update)
    messages = [record.getMessage() for record in caplog.records]
    (message,) = [message for message in messages if "left out" in message]
    assert str(updates[-1].meta["client_name"]) in message
    got = aggregator.aggregate_model()
    assert got.metrics["global_auroc"] == pooled(1, 2).compute()
    averaged = BaseFedAvg.aggregate_fn(updates)
    assert torch.equal(got.params["w"], averaged.params["w"])  # training has lost no site


def test_too_few_shares_make_no_curve_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator = open_round(tmp_path, min_clients=3)
    for site in (1, 2):  # a client's value of the global metric must not fill the gap
        aggregator.accept_model(model(site, metrics={"global_auroc": 0.99, "loss": 1.0}))
    with caplog.at_level(logging.WARNING):
        got = aggregator.aggregate_model()
    assert got.metrics == {"loss": 1.0}
    assert torch.equal(got.params["w"], torch.tensor([1.0, 1.5]))
    assert "Expected shares of at least min_clients=3 clients but got 2" in caplog.text
    assert not list(tmp_path.rglob("*.release"))


def test_rounds_do_not_mix(tmp_path: Path) -> None:
    aggregator = open_round(tmp_path)
    for round_, sites in enumerate([(1, 2), (2, 3)]):
        aggregator.fl_ctx.set_prop(AppConstants.CURRENT_ROUND, round_, private=True, sticky=False)
        aggregator.reset_stats()
        for site in sites:
            aggregator.accept_model(model(site, round=round_))
        metrics = aggregator.aggregate_model().metrics
        assert metrics["global_auroc"] == pooled(*sites).compute()
    assert [(name, release.shares) for name, release in written(tmp_path).items()] == [
        ("round-0000", 2),
        ("round-0001", 2),
    ]


@pytest.mark.parametrize("privacy", [TRUSTED, LocalDP(epsilon=5.0)], ids=["trusted", "local"])
def test_private_shares_are_opened_once_their_noise_adds_up(
    privacy: Privacy, tmp_path: Path
) -> None:
    aggregator = open_round(tmp_path, privacy=privacy, min_clients=3)
    metrics = []
    for site in (1, 2, 3):
        ledger = ledger_of(tmp_path, site)
        metrics.append(counted(site, privacy=privacy, ledger=ledger))
    updates = [model(site, metric=metric) for site, metric in enumerate(metrics, 1)]
    assert [metric.ledger.spent().epsilon for metric in metrics] == [5.0, 5.0, 5.0]
    assert len({len(update.meta[META_KEY]) for update in updates}) == 1
    for update in updates:
        aggregator.accept_model(update)
    exact = float(pooled(1, 2, 3).compute())
    area = aggregator.aggregate_model().metrics["global_auroc"]
    assert area == pytest.approx(exact, abs=0.05)
    for update in updates[:2]:
        aggregator.accept_model(update)
    assert aggregator.aggregate_model().metrics is None


def test_min_clients_of_the_noise_counts_even_if_the_server_asks_for_fewer(tmp_path: Path) -> None:
    aggregator = open_round(tmp_path, privacy=TRUSTED)
    for site in (1, 2):
        metric = counted(site, privacy=TRUSTED, ledger=ledger_of(tmp_path, site))
        aggregator.accept_model(model(site, metric=metric))
    assert aggregator.aggregate_model().metrics is None
    assert not list(tmp_path.rglob("*.release"))


def test_central_noise_has_no_shares() -> None:
    with pytest.raises(FederatedMetricError, match="CentralDP"):
        FederatedMetricAggregator(privacy=CentralDP(epsilon=1.0))


def test_a_collection_sends_one_share(tmp_path: Path) -> None:
    aggregator = open_round(tmp_path, privacy=TRUSTED)
    ledgers = [ledger_of(tmp_path, site) for site in (1, 2, 3)]
    for site, ledger in enumerate(ledgers, 1):
        collection = federated_collection(privacy=TRUSTED, ledger=ledger)
        collection.update(*scores(site))
        aggregator.accept_model(model(site, metric=collection))
    assert "global_auroc" in aggregator.aggregate_model().metrics
    assert [len(ledger) for ledger in ledgers] == [1, 1, 1]


def test_the_best_model_can_only_be_chosen_by_what_there_is() -> None:
    with pytest.raises(InputError, match="key_metric"):
        FederatedMetricAggregator(key_metric="accuracy")


def test_two_models_are_compared_by_the_same_aggregator() -> None:
    spec = FederatedModelComparison(models=("old", "new"), thresholds=(0.4, 0.6)).spec
    # lists, as NVFlare's job file holds them
    aggregator = FederatedMetricAggregator(models=["old", "new"], thresholds=[0.4, 0.6])
    assert aggregator.spec == spec


@pytest.mark.parametrize(
    "unfit",
    [{"task": "multiclass", "num_classes": 3}, {"num_labels": 2}, {"groups": ("a", "b")}],
    ids=str,
)
def test_a_comparison_is_of_a_binary_task(unfit: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="leave out `task`"):
        FederatedMetricAggregator(models=("old", "new"), **unfit)
