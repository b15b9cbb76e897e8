"""`aggregate_fn` in Flower's own strategies: a round releases the counts of the pooled data."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from tests.integrations.flower.federation import (
    NODES,
    auroc,
    charged,
    clients,
    data,
    grid_of,
    pooled,
    roc,
    start,
    strategy_of,
    warnings,
    without_share,
)
from tests.integrations.flower_grid import Client, Cut
from torchmetrics_fed import (
    DistributedDP,
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedROC,
    InputError,
    LocalDP,
)
from torchmetrics_fed.integrations.flower import RECORD, aggregate_fn
from torchmetrics_fed.typing import MultiClass


def test_the_release_is_the_pooled_counts_to_the_bit(log: pytest.LogCaptureFixture) -> None:
    curves = aggregate_fn(roc())
    result = start(FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(clients(roc)))
    (release,) = curves.releases
    everyone = pooled(roc, data())
    assert torch.equal(release.leaf, everyone.counts)
    assert release.shares == len(NODES)
    logged = result.evaluate_metrics_clientapp[1]
    assert logged["federated-auroc"] == float(
        FederatedAUROC.from_release(everyone.release()).compute()
    )
    area = FederatedAveragePrecision.from_release(everyone.release()).compute()
    assert logged["federated-average-precision"] == float(area)
    assert not warnings(log)


def test_it_is_not_the_average_of_the_clients() -> None:
    batches = data()
    areas = [auroc(pooled(roc, {0: batch}).release()) for batch in batches.values()]
    assert sum(areas) / len(areas) - auroc(pooled(roc, batches).release()) > 0.05


def test_other_metrics_are_aggregated_as_flower_does() -> None:
    results = []
    for options in ({}, {"evaluate_metrics_aggr_fn": aggregate_fn(roc())}):
        random.seed(0)  # Flower samples nodes with it, and floats depend on the order
        strategy = FedAvg(**options)  # type: ignore[arg-type]
        results.append(start(strategy, grid_of(clients(roc))).evaluate_metrics_clientapp[1])
    assert results[0]["loss"] == results[1]["loss"]
    curves = aggregate_fn(roc(), inner=lambda records, key: MetricRecord({"seen": len(records)}))
    logged = start(
        FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(clients(roc))
    ).evaluate_metrics_clientapp[1]
    assert set(logged) == {"seen", "federated-auroc", "federated-average-precision"}


def test_every_round_has_its_release() -> None:
    curves = aggregate_fn(roc())
    start(FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(clients(roc)), rounds=3)
    assert len({bytes(release) for release in curves.releases}) == 3


def with_garbage(content: RecordDict) -> None:
    content[RECORD] = ConfigRecord({"share": b"garbage"})


def with_text(content: RecordDict) -> None:
    content[RECORD] = ConfigRecord({"share": "text"})


@pytest.mark.parametrize("spoil", [without_share, with_garbage, with_text])
def test_what_cannot_be_read_is_left_out_and_the_round_goes_on(
    spoil: Callable[[RecordDict], None], log: pytest.LogCaptureFixture
) -> None:
    parties = clients(roc)
    parties[NODES[1]].spoil = spoil
    curves = aggregate_fn(roc())
    result = start(FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(parties))
    rest = {node: drawn for node, drawn in data().items() if node != NODES[1]}
    assert torch.equal(curves.releases[0].leaf, pooled(roc, rest).counts)
    assert {"loss", "federated-auroc"} <= set(result.evaluate_metrics_clientapp[1])
    assert "left out" in warnings(log)


def test_another_spec_is_left_out(log: pytest.LogCaptureFixture) -> None:
    parties = clients(roc)
    parties[NODES[1]].metric = lambda: FederatedROC(quantiles=32)
    curves = aggregate_fn(roc())
    start(FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(parties))
    assert curves.releases[0].shares == 4
    assert "left out a share" in warnings(log)


def test_a_share_that_comes_twice_counts_once(log: pytest.LogCaptureFixture) -> None:
    records: list[ConfigRecord] = []

    def repeat(content: RecordDict) -> None:
        if len(records) == 1:
            content[RECORD] = records[0]
        records.append(content.config_records[RECORD])

    curves = aggregate_fn(roc())
    start(FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(clients(roc, spoil=repeat)))
    assert curves.releases[0].shares == 4
    assert "Keep one of the two" in warnings(log)


@pytest.mark.parametrize("mixed_in", [False, True])
def test_a_share_of_another_round_keeps_nobody_else_out(mixed_in: bool) -> None:
    replayed = ConfigRecord({"share": bytes(pooled(roc, data()).share(round="an older round"))})
    parties = clients(roc)

    def replay(content: RecordDict) -> None:
        if sum(client.evaluations for client in parties.values()) == 1:  # the first reply of all
            content[RECORD] = replayed

    for client in parties.values():
        client.spoil = replay
    curves = aggregate_fn(roc())
    if mixed_in:
        strategy = strategy_of(roc())
        start(strategy, grid_of(parties))
        release = strategy.releases[1]
    else:
        start(FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(parties))
        release = curves.releases[0]
    assert release.shares == 4


def test_a_client_that_fails_is_left_out() -> None:
    parties = clients(roc)

    def fail(content: RecordDict) -> None:
        raise ValueError("no data here")

    parties[NODES[2]].spoil = fail
    curves = aggregate_fn(roc())
    grid = grid_of(parties)
    start(FedAvg(evaluate_metrics_aggr_fn=curves), grid)
    assert curves.releases[0].shares == 4
    assert "no data here" in grid.refusals(MessageType.EVALUATE)[0]


def test_no_share_at_all_is_no_curve_and_no_error(log: pytest.LogCaptureFixture) -> None:
    curves = aggregate_fn(roc())
    result = start(
        FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(clients(roc, spoil=without_share))
    )
    assert not curves.releases
    assert set(result.evaluate_metrics_clientapp[1]) == {"loss"}
    assert "no curve of this round" in warnings(log)


@pytest.mark.parametrize("present", [4, 5])
def test_fewer_than_min_clients_give_no_scalars(
    present: int, folder: Path, log: pytest.LogCaptureFixture
) -> None:
    def make(**options: Any) -> FederatedROC:
        return roc(
            privacy=DistributedDP(epsilon=1.0, min_clients=5, trusted_aggregator=True), **options
        )

    parties = charged(make, folder)
    for client in parties.values():
        client.folder = None
    curves = aggregate_fn(make())
    grid = grid_of(parties)
    grid.cuts = {Cut(node, MessageType.EVALUATE) for node in NODES[present:]}
    logged = start(FedAvg(evaluate_metrics_aggr_fn=curves), grid).evaluate_metrics_clientapp[1]
    assert len(curves.releases) == (present == 5)
    assert ("federated-auroc" in logged) == (present == 5)
    assert "loss" in logged
    assert ("min_clients=5" in warnings(log)) == (present < 5)
    # every client has sent how many examples it has
    assert "epsilon does not cover" in warnings(log)


@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
def test_multiclass_equals_pooled(multi_class: MultiClass) -> None:
    def make() -> FederatedAUROC:
        return FederatedAUROC("multiclass", num_classes=3, multi_class=multi_class, quantiles=64)

    generator = torch.Generator().manual_seed(5)
    parties = {}
    everyone = make()
    for node in NODES:
        target = torch.randint(0, 3, (200,), generator=generator)
        preds = (torch.randn(200, 3, generator=generator) + torch.eye(3)[target]).softmax(-1)
        parties[node] = Client(make, preds, target)
        everyone.update(preds, target)
    curves = aggregate_fn(make())
    logged = start(
        FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(parties)
    ).evaluate_metrics_clientapp[1]
    assert torch.equal(curves.releases[0].leaf, everyone.counts)
    assert logged["federated-auroc"] == float(
        FederatedAUROC.from_release(everyone.release()).compute()
    )


def test_a_plan_of_two_queries_needs_the_mixin() -> None:
    for plan in ("adaptive", "carry_over"):
        with pytest.raises(InputError, match="nobody can ask again"):
            aggregate_fn(roc(privacy=LocalDP(epsilon=1.0), plan=plan))
    assert not aggregate_fn(roc(privacy=LocalDP(epsilon=1.0))).terms.plan.asks_twice
