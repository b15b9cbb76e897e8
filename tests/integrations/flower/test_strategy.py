"""Strategies with the mixin: secure aggregation sums the counts of all clients that stay."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, FedAvgM

from tests.integrations.flower.federation import (
    NODES,
    STAGES,
    auroc,
    clients,
    data,
    grid_of,
    pooled,
    roc,
    secure,
    start,
    strategy_of,
    warnings,
    without_share,
)
from tests.integrations.flower_grid import Cut
from torchmetrics_fed import DistributedDP, FederatedROC, InputError
from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin

KEPT_BACK = (
    "torchmetrics-fed: kept back loss, made from raw data and not protected as the counts are. "
    "Name them in `publish` if they may leave."
)


def test_the_aggregated_sum_is_the_pooled_counts_to_the_bit(
    folder: Path, log: pytest.LogCaptureFixture
) -> None:
    strategy = strategy_of(secure())
    result = start(strategy, grid_of(clients(secure, folder)), rounds=2)
    everyone = pooled(secure, data())
    for server_round in (1, 2):
        release = strategy.releases[server_round]
        assert torch.equal(release.leaf, everyone.counts)
        assert release.shares == 5
        assert result.evaluate_metrics_clientapp[server_round]["federated-auroc"] == auroc(release)
    assert warnings(log) == KEPT_BACK


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("stage", STAGES)
def test_survivors_of_any_drop_are_summed_to_the_bit(
    stage: str, when: Literal["before", "after"], folder: Path
) -> None:
    grid = grid_of(clients(secure, folder))
    strategy = strategy_of(secure())
    grid.cuts = {Cut(NODES[3], stage, when)}
    start(strategy, grid)
    survivors = {
        node: batch for node, batch in data().items() if node != NODES[3] or stage == "unmask"
    }
    assert torch.equal(strategy.releases[1].leaf, pooled(secure, survivors).counts)
    assert strategy.releases[1].shares == len(survivors)


@pytest.mark.parametrize("stage", STAGES)
def test_below_min_clients_nothing_is_opened_and_training_goes_on(
    stage: str, folder: Path, log: pytest.LogCaptureFixture
) -> None:
    parties = clients(secure, folder)
    grid = grid_of(parties)
    strategy = strategy_of(secure())
    grid.cuts = {Cut(node, stage) for node in NODES[:3]}
    result = start(strategy, grid)
    assert not strategy.releases
    assert 1 in result.train_metrics_clientapp
    assert "federated-auroc" not in result.evaluate_metrics_clientapp.get(1, {})
    assert "no curve of round 1" in warnings(log)
    if stage in ("advertise", "share_keys"):
        assert sum(client.evaluations for client in parties.values()) == 0
    grid.cuts = set()
    start(strategy, grid)
    assert strategy.releases[1].shares == 5


def test_a_node_without_the_mod_drops_out(folder: Path, log: pytest.LogCaptureFixture) -> None:
    parties = clients(secure, folder)
    parties[NODES[0]].folder = None
    grid = grid_of(parties)
    strategy = strategy_of(secure())
    start(strategy, grid)
    assert strategy.releases[1].shares == 4
    assert f"dropped out: {NODES[0]}. ReleaseError: Expected secure aggregation" in warnings(log)


def test_an_evaluation_that_forgets_the_record_drops_out(folder: Path) -> None:
    parties = clients(secure, folder)
    parties[NODES[0]].spoil = without_share
    grid = grid_of(parties)
    strategy = strategy_of(secure())
    start(strategy, grid)
    assert strategy.releases[1].shares == 4


def test_evaluation_only(folder: Path) -> None:
    grid = grid_of(clients(secure, folder))
    strategy = strategy_of(secure(), fraction_train=0.0)
    result = start(strategy, grid)
    assert not result.train_metrics_clientapp
    assert not grid.replies(MessageType.TRAIN)
    assert torch.equal(strategy.releases[1].leaf, pooled(secure, data()).counts)


def test_without_evaluation_there_is_no_sum(folder: Path) -> None:
    grid = grid_of(clients(secure, folder))
    strategy = strategy_of(secure(), fraction_evaluate=0.0)
    start(strategy, grid)
    assert {passed.stage for passed in grid.passed} == {MessageType.TRAIN}
    assert not strategy.releases


def test_any_strategy_can_be_mixed_in(folder: Path) -> None:
    class Momentum(FederatedEvaluationMixin, FedAvgM):
        pass

    strategy = strategy_of(secure(), Momentum)
    start(strategy, grid_of(clients(secure, folder)))
    assert torch.equal(strategy.releases[1].leaf, pooled(secure, data()).counts)


def test_evaluations_may_have_an_action_of_their_own(folder: Path) -> None:
    class Action(FedAvg):
        def configure_evaluate(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            messages = list(super().configure_evaluate(server_round, arrays, config, grid))
            for message in messages:
                message.metadata.message_type = "evaluate.curves"
            return messages

    class ActionCurves(FederatedEvaluationMixin, Action):
        pass

    strategy = strategy_of(secure(), ActionCurves)
    start(strategy, grid_of(clients(secure, folder, action="curves")))
    assert strategy.releases[1].shares == 5


def test_a_sum_that_cannot_be_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match="min_clients"):
        strategy_of(roc(privacy=DistributedDP(epsilon=1.0, min_clients=2)))


def test_the_mixin_sums_plain_counts_too(folder: Path) -> None:
    for notes in (None, folder):  # plain counts need no mod
        strategy = strategy_of(roc())
        start(strategy, grid_of(clients(roc, notes)))
        assert torch.equal(strategy.releases[1].leaf, pooled(roc, data()).counts)


class Curves(FederatedEvaluationMixin, FedAvg):
    pass


def test_a_strategy_that_may_sample_too_few_nodes_is_refused() -> None:
    metric = FederatedROC(privacy=DistributedDP(1.0, min_clients=8))
    with pytest.raises(InputError, match=r"samples at least 8 nodes.*which may sample 2"):
        Curves(metric=metric, min_evaluate_nodes=2)
    with pytest.raises(InputError, match="which may sample 5"):
        Curves(metric=metric, fraction_evaluate=0.5, min_available_nodes=10)
    Curves(metric=metric, min_evaluate_nodes=8)
    Curves(metric=metric, min_available_nodes=8)
    Curves(metric=metric, fraction_evaluate=0.0)  # which never evaluates


def test_a_threshold_that_no_aggregation_can_have_is_refused() -> None:
    metric = FederatedROC(privacy=DistributedDP(1.0, min_clients=4))
    with pytest.raises(InputError, match="threshold"):
        Curves(metric=metric, min_available_nodes=4, threshold=3)
