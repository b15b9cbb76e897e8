"""Releases at the server's request: two queries, secure aggregation, and sites that drop out."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import (
    DistributedDP,
    FederatedROC,
    LocalDP,
    PrivacyLedger,
    Release,
    SecureAggregationConfig,
)
from torchmetrics_fed.errors import InputError, ReleaseError

pytest.importorskip("nvflare")

from nvflare.apis.dxo import MetaKey, from_shareable
from nvflare.apis.fl_constant import FLMetaKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel

from tests.integrations.nvflare_sites import JOB, Cut, Federation, Site
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.integrations.nvflare import META_KEY, FederatedMetricAggregator, attach
from torchmetrics_fed.integrations.nvflare.client import HELD, filters, payload

NAMES = ("site-1", "site-2", "site-3", "site-4")
HIDDEN = DistributedDP(epsilon=5.0, min_clients=3)
SETTINGS: dict[str, dict[str, Any]] = {
    "distributed": {"privacy": HIDDEN},
    "secure": {"secure": True},
    "trusted": {"privacy": replace(HIDDEN, trusted_aggregator=True)},
    "local": {"privacy": LocalDP(epsilon=5.0)},
}


@pytest.fixture(autouse=True)
def no_sites_left() -> Iterator[None]:
    yield
    filters.clear()


def scores(number: int, size: int = 500) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    target = (torch.rand(size, generator=generator) < 0.2 + 0.2 * number).long()
    logits = torch.randn(size, generator=generator) + 1.5 * target + number - 2
    return logits.sigmoid(), target


def ledger_of(folder: Path, name: str) -> PrivacyLedger:
    return PrivacyLedger(30.0, folder / f"{name} ledger")


def federation_of(folder: Path, names: tuple[str, ...] = NAMES, **options: Any) -> Federation:
    sites = []
    for number, name in enumerate(names):
        metric = FederatedROC(ledger=ledger_of(folder, name), **options)
        preds, target = scores(number)
        sites.append(Site(name, metric, preds, target))
    return Federation(sites, folder, **options)


def released(folder: Path) -> dict[str, Release]:
    paths = sorted((folder / JOB).glob("*.release"))
    return {path.stem: Release.load(path) for path in paths}


def pooled(*numbers: int) -> FederatedROC:
    metric = FederatedROC()
    for number in numbers:
        metric.update(*scores(number))
    return metric


def spent(folder: Path) -> list[int]:
    """How often each site was charged."""
    return [len(ledger_of(folder, name)) for name in NAMES]


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_is_asked_for_is_one_release_and_one_charge_a_site(
    setting: str, tmp_path: Path
) -> None:
    options = SETTINGS[setting]
    metrics = federation_of(tmp_path, **options).round().metrics
    release = released(tmp_path)["round-0000"]
    assert release.shares == 4
    if "privacy" in options:
        assert len(release.queries) == 2
        assert spent(tmp_path) == [1] * 4
    else:
        assert len(release.queries) == 1
        assert spent(tmp_path) == [0] * 4
        assert torch.equal(release.leaf, pooled(0, 1, 2, 3).counts)
    assert metrics["global_auroc"] == pytest.approx(area(pooled(0, 1, 2, 3)), abs=0.05)


def area(metric: FederatedROC) -> float:
    fpr, tpr, _ = metric.compute()
    return float(torch.trapezoid(tpr, fpr).abs())


STAGES = [
    (stage, query, when)
    for query in (1, 2)
    for stage in ("advertise", "share_keys", "mask", "unmask")
    for when in ("before", "after")
]


@pytest.mark.parametrize(("stage", "query", "when"), STAGES)
def test_a_site_may_drop_out_in_any_stage(
    stage: str, query: int, when: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federation_of(tmp_path, privacy=HIDDEN)
    federation.cuts.add(Cut("site-2", stage, query, when))
    with caplog.at_level(logging.INFO):
        metrics = federation.round().metrics
    assert metrics["global_auroc"] == pytest.approx(area(pooled(0, 1, 2, 3)), abs=0.1)
    messages = [record.getMessage() for record in caplog.records]
    (message,) = [message for message in messages if "silent" in message]
    place = f"{JOB}/round-0, query {query}, {stage}"
    assert message.startswith(f"torchmetrics-fed: {place}: 3 of 4 answered in ")
    assert re.search(r"; silent for \d+\.\d s: site-2\.$", message)
    first, second = released(tmp_path)["round-0000"].sums
    masked = stage == "unmask"  # its vector is in the sum, which the others open
    assert first.shares == 3 + (masked or query == 2)
    assert second.shares == 3 + masked
    # charged if its noise was drawn, heard or not; no site is charged twice for one release
    drew = query == 2 or masked or (stage, when) == ("mask", "after")
    assert spent(tmp_path) == [1, int(drew), 1, 1]
    stages = [str(request.stage) for name, request in federation.asked if name == "site-2"]
    assert masked or stages[-1] == stage  # a site that dropped out is not asked again


def test_with_too_few_left_nothing_is_opened_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federation_of(tmp_path, privacy=HIDDEN)
    federation.cuts |= {Cut("site-1", "mask"), Cut("site-4", "mask")}
    with caplog.at_level(logging.WARNING):
        model = federation.round()
    assert model.metrics is None
    assert model.params == {"w": 1.0}
    assert "No curve for simulate_job/round-0" in caplog.text
    assert not released(tmp_path)
    assert not [request for _, request in federation.asked if request.stage is Stage.UNMASK]
    federation.cuts.clear()
    assert "global_auroc" in federation.round(1).metrics


def test_nobody_there_is_one_clear_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federation_of(tmp_path, privacy=HIDDEN)
    federation.cuts |= {Cut(name, "advertise") for name in NAMES}
    federation.round()
    assert "Expected at least 3 clients but got 0, so the aggregation never began" in caplog.text
    assert spent(tmp_path) == [0, 0, 0, 0]


def test_jobs_of_one_name_are_distinct(tmp_path: Path) -> None:
    """The simulator calls every job the same, and the sites' ledgers outlive it."""
    for job in range(2):
        federation = federation_of(tmp_path, privacy=HIDDEN)
        assert "global_auroc" in federation.round().metrics, job
        for site in federation.sites.values():
            site.end()
    rounds = [[entry.round for entry in ledger_of(tmp_path, name)] for name in NAMES]
    assert all(mine == rounds[0] for mine in rounds)
    assert len(set(rounds[0])) == 2


def test_a_plan_is_carried_over_from_round_to_round(tmp_path: Path) -> None:
    federation = federation_of(tmp_path, privacy=HIDDEN, plan="carry_over")
    for number in range(2):
        federation.round(number)
    assert [len(release.queries) for release in released(tmp_path).values()] == [2, 1]


def test_sites_without_data_or_with_one_class_take_part(tmp_path: Path) -> None:
    federation = federation_of(tmp_path, privacy=HIDDEN)
    federation.sites["site-1"].preds = torch.empty(0)
    federation.sites["site-1"].target = torch.empty(0, dtype=torch.long)
    federation.sites["site-2"].target = torch.zeros(500, dtype=torch.long)
    assert "global_auroc" in federation.round().metrics
    assert released(tmp_path)["round-0000"].shares == 4


def test_a_site_of_another_spec_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federation_of(tmp_path, privacy=HIDDEN)
    metric = FederatedROC(quantiles=256, privacy=HIDDEN, ledger=ledger_of(tmp_path, "site-3"))
    federation.sites["site-3"].metric = metric
    federation.round()
    assert released(tmp_path)["round-0000"].shares == 3
    assert (
        "query 1, advertise: dropped out: site-3. Expected one spec for all but bins: expected"
        in caplog.text
    )
    assert spent(tmp_path) == [1, 1, 0, 1]


@pytest.mark.parametrize("setting", ["distributed", "local"])
def test_a_site_that_sends_something_else_does_not_keep_the_others_from_a_release(
    setting: str, tmp_path: Path
) -> None:
    federation = federation_of(tmp_path, **SETTINGS[setting])
    federation.sites["site-1"].filter.process = spoiled  # type: ignore[method-assign, assignment]
    federation.round()
    assert released(tmp_path)["round-0000"].shares == 3


def test_a_second_model_of_a_site_is_not_a_second_share(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federation_of(tmp_path, privacy=HIDDEN)
    accept = federation.aggregator.accept_model

    def twice(model: FLModel) -> None:
        accept(model)
        accept(model)

    federation.aggregator.accept_model = twice  # type: ignore[method-assign]
    federation.round()
    assert released(tmp_path)["round-0000"].shares == 4
    assert "The share of site-3 is left out of simulate_job/round-0" in caplog.text
    assert spent(tmp_path) == [1, 1, 1, 1]


def spoiled(shareable: Shareable, context: FLContext) -> Shareable:
    """What a site sends that is of another version, or hostile."""
    dxo = from_shareable(shareable)
    dxo.meta[META_KEY] = b"nonsense"
    return dxo.update_shareable(shareable)


def replies(federation: Federation, name: str, request: Request) -> str:
    reply = federation.ask(name, request)
    assert "answer" not in reply
    return str(reply["error"])


def test_a_server_that_asks_twice_gets_nothing(tmp_path: Path) -> None:
    federation = federation_of(tmp_path, privacy=HIDDEN)
    federation.round()
    for name, request in list(federation.asked):
        if request.stage is Stage.UNMASK:
            continue  # the same request gets the same answer, while it is open
        assert replies(federation, name, request)
        assert replies(federation, name, replace(request, round=f"{request.round}x"))
        assert replies(federation, name, replace(request, stage=Stage.SHARE))
    assert spent(tmp_path) == [1, 1, 1, 1]


def test_a_server_cannot_ask_about_another_round_or_begin_in_the_middle(tmp_path: Path) -> None:
    federation = federation_of(tmp_path, privacy=HIDDEN)
    federation.cuts |= {Cut(name, "mask") for name in NAMES}  # the data stays where it is
    federation.round()
    advertise = next(
        request for name, request in federation.asked if request.stage is Stage.ADVERTISE
    )
    late = replace(advertise, round=advertise.round.replace("round-0", "round-7"))
    assert (
        "Expected a question about data that this site holds, of simulate_job/round-0"
        in replies(federation, "site-1", late)
    )
    config = SecureAggregationConfig.from_bytes(advertise.start)
    weak_config = replace(config, min_clients=3, round_id="elsewhere/1")
    weak = replace(advertise, start=weak_config.to_bytes())
    assert "Expected an aggregation of" in replies(federation, "site-1", weak)
    weak_mask = replace(weak, stage=Stage.MASK)
    assert "Expected an aggregation of" in replies(federation, "site-1", weak_mask)
    seventh_config = replace(config, round_id=f"{advertise.round}/7")
    seventh = replace(advertise, start=seventh_config.to_bytes(), stage=Stage.MASK)
    assert "made for another" in replies(federation, "site-1", seventh)
    plain = replace(advertise, stage=Stage.SHARE, start=b"")
    assert "secure aggregation" in replies(federation, "site-1", plain)
    assert spent(tmp_path) == [0, 0, 0, 0]


def test_exact_counts_enter_one_sum(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = federation_of(tmp_path, secure=True)
    federation.round()
    metric = FederatedROC(secure=True)
    metric.update(*scores(0))
    federation.sites["site-1"].metric = metric
    metric.reset = lambda: None  # type: ignore[method-assign]  # a script that forgets it
    federation.round(1)
    with pytest.raises(ReleaseError, match="Expected no update"):
        metric.update(*scores(0))
    metric.update = lambda **_: None  # type: ignore[method-assign]  # and counts nothing more
    federation.round(2)
    assert [release.shares for release in released(tmp_path).values()] == [4, 4, 3]
    assert "query 1, mask: dropped out: site-1. " in caplog.text


@pytest.mark.parametrize(
    "options", [{"privacy": HIDDEN}, {"secure": True}], ids=["distributed", "secure"]
)
def test_other_numbers_stay_at_the_site(options: dict[str, Any], tmp_path: Path) -> None:
    metric = FederatedROC(ledger=ledger_of(tmp_path, "site-1"), **options)
    site = Site("site-1", metric, *scores(0), publish=("accuracy",))
    site.evaluate()
    meta = from_shareable(site.result(0)).meta
    assert meta[MetaKey.INITIAL_METRICS] == {"accuracy": 0.5}
    assert meta[FLMetaKey.NUM_STEPS_CURRENT_ROUND] == 1
    assert HELD in meta.values()
    failed = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    # the server is named about failures
    assert site.filter.process(failed, site.context()) is failed
    open_site = Site("site-2", FederatedROC(), *scores(1))
    meta = from_shareable(open_site.result(0)).meta
    assert set(meta[MetaKey.INITIAL_METRICS]) == {"loss", "accuracy"}
    assert meta[FLMetaKey.NUM_STEPS_CURRENT_ROUND] == 500


@pytest.mark.parametrize(
    "options", [{"privacy": HIDDEN}, {"secure": True}], ids=["distributed", "secure"]
)
def test_without_the_filter_hidden_shares_do_not_leave(
    options: dict[str, Any], tmp_path: Path
) -> None:
    metric = FederatedROC(ledger=ledger_of(tmp_path, "site-1"), **options)
    metric.update(*scores(0))
    with pytest.raises(
        ReleaseError, match=r"FederatedMetricFilter.*LocalDP.*trusted_aggregator=True"
    ):
        payload(metric, 0, job=JOB)
    assert len(metric.ledger) == 0  # nothing was drawn or charged


def test_a_budget_that_is_used_up_is_said_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federation_of(tmp_path, privacy=HIDDEN)
    federation.sites["site-2"].metric = FederatedROC(
        privacy=HIDDEN, ledger=PrivacyLedger(4.0, tmp_path / "small")
    )
    federation.round()
    assert released(tmp_path)["round-0000"].shares == 3
    assert "query 1, advertise: dropped out: site-2. " in caplog.text
    assert "Not answered to the server" in caplog.text
    assert len(PrivacyLedger(path=tmp_path / "small")) == 0


def test_holding_needs_a_limit_that_lasts(tmp_path: Path) -> None:
    Site("site-1", FederatedROC(), *scores(0))
    metric = FederatedROC(privacy=HIDDEN)
    with pytest.raises(InputError, match="a ledger with a budget and a path"):
        attach(FLModel(params={"w": 1}), metric, 0, job=JOB, site="site-1")


def test_a_threshold_that_cannot_be_met_starts_no_job() -> None:
    with pytest.raises(InputError, match="min_clients"):
        FederatedMetricAggregator(secure=True, min_clients=2_000)
