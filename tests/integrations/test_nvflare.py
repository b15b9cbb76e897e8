"""The aggregator and the client's part, with real models of NVFlare; a whole job is in ``test_nvflare_job``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedModelComparison,
    FederatedROC,
    LocalDP,
    PrivacyLedger,
    Release,
    ScoreGrid,
    federated_collection,
)
from torchmetrics_fed.errors import (
    BudgetExceededError,
    FederatedMetricError,
    InputError,
    ReleaseError,
)
from torchmetrics_fed.privacy import Privacy

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import FLMetaKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg
from nvflare.fuel.utils import fobs

from torchmetrics_fed.integrations.nvflare import META_KEY, FederatedMetricAggregator, attach
from torchmetrics_fed.integrations.nvflare.client import payload, round_name

JOB = "6f1c"
TRUSTED = DistributedDP(epsilon=5.0, min_clients=3, trusted_aggregator=True)


def scores(site: int, size: int = 500) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(site)
    target = (torch.rand(size, generator=generator) < 0.2 + 0.2 * site).long()
    return (torch.randn(size, generator=generator) + 1.5 * target + site - 2).sigmoid(), target


def ledger_of(folder: Path, site: int, budget: float | None = 20.0) -> PrivacyLedger:
    """The ledger of a site, as each of its processes opens it."""
    return PrivacyLedger(budget, folder / f"ledger of site {site}")


def counted(site: int, **options: Any) -> FederatedROC:
    metric = FederatedROC(**options)
    metric.update(*scores(site))
    return metric


def model(
    site: int, round: int = 0, metric: Any = None, steps: int | None = None, **fields: Any
) -> FLModel:
    """What the server gets from a site."""
    meta: dict[str, Any] = {"client_name": f"site-{site}"}
    if steps is not None:
        meta[FLMetaKey.NUM_STEPS_CURRENT_ROUND] = steps
    made = FLModel(params={"w": torch.tensor([1.0, float(site)])}, meta=meta, **fields)
    return attach(made, metric or counted(site), round=round, job=JOB)


def open_round(folder: Path, round: int = 0, **options: Any) -> FederatedMetricAggregator:
    aggregator = FederatedMetricAggregator(folder=str(folder), **options)
    aggregator.fl_ctx = FLContext()
    aggregator.fl_ctx.set_prop(ReservedKey.RUN_NUM, JOB, private=False, sticky=False)
    aggregator.fl_ctx.set_prop(AppConstants.CURRENT_ROUND, round, private=True, sticky=False)
    return aggregator


def written(folder: Path) -> dict[str, Release]:
    """The releases that an aggregator has left in a folder, by name."""
    return {path.stem: Release.load(path) for path in sorted((folder / JOB).glob("*.release"))}


def pooled(*sites: int, **options: Any) -> FederatedAUROC:
    metric = FederatedAUROC(**options)
    for site in sites:
        metric.update(*scores(site))
    return metric


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
    aggregator, total = open_round(tmp_path, figures=True, **options), FederatedAUROC(**options)
    for site in (1, 2):
        generator, metric = torch.Generator().manual_seed(site), FederatedAUROC(**options)
        batch = (
            torch.rand(60, 3, generator=generator).softmax(1),
            torch.randint(0, 3, (60,), generator=generator),
        )
        metric.update(*batch)
        total.update(*batch)
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
    assert aggregator.aggregate_model().metrics["global_auroc"] == pooled(1, 2, grid=grid).compute()
    aggregator.accept_model(model(1))  # of another grid, so left out
    assert aggregator.aggregate_model().metrics is None


def test_models_and_metrics_are_averaged_as_fedavg_does(tmp_path: Path) -> None:
    def sent() -> list[FLModel]:
        steps = [10, None, 3]
        return [
            model(s, steps=steps[s - 1], metrics={"loss": 0.5 * s, "note": "x"}) for s in (1, 2, 3)
        ]

    aggregator = open_round(tmp_path)
    for one in sent():
        aggregator.accept_model(one)
    got, expected = aggregator.aggregate_model(), BaseFedAvg.aggregate_fn(sent())
    assert torch.equal(got.params["w"], expected.params["w"])
    assert got.metrics["loss"] == expected.metrics["loss"]
    assert got.params_type == ParamsType.FULL


def test_weights_by_name_and_differences(tmp_path: Path) -> None:
    aggregator = open_round(tmp_path, aggregation_weights={"site-1": 3.0}, exclude_vars="b")
    for site in (1, 2):
        one = model(site)
        one.params, one.params_type = (
            {"w": torch.tensor(float(site)), "b": torch.ones(1)},
            ParamsType.DIFF,
        )
        aggregator.accept_model(one)
    got = aggregator.aggregate_model()
    assert got.params == {"w": torch.tensor(1.25)}
    assert got.params_type == ParamsType.DIFF


def bad(kind: str, earlier: FLModel) -> FLModel:
    """A model whose share cannot be added to a sum that holds the earlier one, and site 2's."""
    made = model(3)
    if kind == "damaged":
        made.meta[META_KEY] = made.meta[META_KEY][:-3]
    elif kind == "missing":
        del made.meta[META_KEY]
    elif kind == "other spec":
        made = model(3, metric=counted(3, quantiles=256))
    elif kind == "other round":
        made = model(3, round=1)
    elif kind == "somebody else's":
        made.meta[META_KEY] = earlier.meta[META_KEY]
    elif kind == "a second one":
        made = model(2)
    elif kind == "too many":
        metric = FederatedROC()
        metric.update(*scores(3, 5_000))
        made = model(3, metric=metric)
    return made


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
    sent = [model(1), model(2)]
    sent.append(bad(kind, sent[0]))
    with caplog.at_level(logging.WARNING):
        for one in sent:
            aggregator.accept_model(one)
    said = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(said) == 1
    assert str(sent[-1].meta["client_name"]) in said[0]
    got = aggregator.aggregate_model()
    assert got.metrics["global_auroc"] == pooled(1, 2).compute()
    assert torch.equal(
        got.params["w"], BaseFedAvg.aggregate_fn(sent).params["w"]
    )  # training has lost nobody


def test_too_few_shares_make_no_curve_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator = open_round(tmp_path, min_clients=3)
    for site in (1, 2):  # a client's own word for the global metric must not fill the gap
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
        assert aggregator.aggregate_model().metrics["global_auroc"] == pooled(*sites).compute()
    assert [(name, release.shares) for name, release in written(tmp_path).items()] == [
        ("round-0000", 2),
        ("round-0001", 2),
    ]


@pytest.mark.parametrize("privacy", [TRUSTED, LocalDP(epsilon=5.0)], ids=["trusted", "local"])
def test_private_shares_are_opened_once_their_noise_adds_up(
    privacy: Privacy, tmp_path: Path
) -> None:
    aggregator = open_round(tmp_path, privacy=privacy, min_clients=3)
    metrics = [
        counted(site, privacy=privacy, ledger=ledger_of(tmp_path, site)) for site in (1, 2, 3)
    ]
    sent = [model(site, metric=metric) for site, metric in enumerate(metrics, 1)]
    assert [metric.ledger.spent().epsilon for metric in metrics] == [5.0, 5.0, 5.0]
    assert len({len(one.meta[META_KEY]) for one in sent}) == 1
    for one in sent:
        aggregator.accept_model(one)
    exact = float(pooled(1, 2, 3).compute())
    assert aggregator.aggregate_model().metrics["global_auroc"] == pytest.approx(exact, abs=0.05)
    for one in sent[:2]:
        aggregator.accept_model(one)
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


def lasting(kind: str, folder: Path) -> PrivacyLedger | None:
    """A ledger that has everything, or lacks what its kind says."""
    budget, path = (
        20.0 if "budget" not in kind else None,
        folder / "ledger" if "path" not in kind else None,
    )
    return None if kind == "no ledger" else PrivacyLedger(budget, path)


@pytest.mark.parametrize("privacy", [TRUSTED, LocalDP(epsilon=5.0)], ids=["trusted", "local"])
@pytest.mark.parametrize("kind", ["no ledger", "no budget", "no path", "no budget, no path"])
def test_a_private_metric_needs_a_limit_that_lasts(
    kind: str, privacy: Privacy, tmp_path: Path
) -> None:
    """The server decides how many rounds there are, and a site's next process must know of those before it."""
    metric = counted(1, privacy=privacy, ledger=lasting(kind, tmp_path))
    with pytest.raises(
        InputError, match="a ledger with a budget and a path because here the server decides"
    ):
        payload(metric, 0, job=JOB)
    with pytest.raises(InputError, match="a ledger with a budget and a path"):
        attach(FLModel(params={"w": 1}), metric, round=0, job=JOB)
    assert len(metric.ledger) == 0  # nothing was drawn or charged
    assert payload(counted(1, privacy=privacy, ledger=lasting("all", tmp_path)), 0, job=JOB)
    assert payload(
        counted(1, ledger=lasting(kind, tmp_path)), 0, job=JOB
    )  # exact counts spend nothing


def test_the_budget_ends_the_rounds_of_a_site_and_its_next_process_knows(tmp_path: Path) -> None:
    for round in range(4):  # epsilon 5 each, of 20; every round another process
        payload(counted(1, privacy=TRUSTED, ledger=ledger_of(tmp_path, 1)), round, job=JOB)
    with pytest.raises(BudgetExceededError):
        payload(counted(1, privacy=TRUSTED, ledger=ledger_of(tmp_path, 1)), 4, job=JOB)
    with pytest.raises(
        FederatedMetricError, match="A retry is a new round"
    ):  # nor does an old one get a new draw
        payload(counted(1, privacy=TRUSTED, ledger=ledger_of(tmp_path, 1)), 3, job=JOB)
    assert len(ledger_of(tmp_path, 1)) == 4


def test_the_same_round_gets_the_same_bytes(tmp_path: Path) -> None:
    metric = counted(1, privacy=TRUSTED, ledger=ledger_of(tmp_path, 1))
    assert payload(metric, 0, job=JOB) == payload(metric, 0, job=JOB)
    with pytest.raises(ReleaseError, match="the same noise in two sums"):
        payload(metric, 1, job=JOB)
    assert len(metric.ledger) == 1


def test_a_share_survives_the_wire_of_nvflare() -> None:
    sent = model(1)
    got = FLModelUtils.from_shareable(fobs.loads(fobs.dumps(FLModelUtils.to_shareable(sent))))
    assert got.meta[META_KEY] == sent.meta[META_KEY]


def test_attach_adds_one_entry_and_says_what_it_lacks(tmp_path: Path) -> None:
    made = FLModel(params={"w": 1}, metrics={"loss": 1.0}, meta={"mine": 2}, current_round=4)
    attach(made, counted(1, privacy=TRUSTED, ledger=ledger_of(tmp_path, 1)), job=JOB)
    assert set(made.meta) == {"mine", META_KEY}
    assert (made.params, made.metrics) == ({"w": 1}, {"loss": 1.0})
    with pytest.raises(InputError, match=r"received\.current_round"):
        attach(FLModel(params={"w": 1}), counted(1), job=JOB)
    with pytest.raises(InputError, match="federated metric"):
        payload(torch.nn.Linear(1, 1), 0, job=JOB)  # type: ignore[arg-type]


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
    wanted = FederatedModelComparison(models=("old", "new"), thresholds=(0.4, 0.6)).spec
    # lists, as NVFlare's job file holds them
    made = FederatedMetricAggregator(models=["old", "new"], thresholds=[0.4, 0.6])
    assert made.spec == wanted


@pytest.mark.parametrize(
    "unfit",
    [{"task": "multiclass", "num_classes": 3}, {"num_labels": 2}, {"groups": ("a", "b")}],
    ids=str,
)
def test_a_comparison_is_of_a_binary_task(unfit: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="leave out `task`"):
        FederatedMetricAggregator(models=("old", "new"), **unfit)
