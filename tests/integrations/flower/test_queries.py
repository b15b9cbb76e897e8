"""Private releases: noise is summed exactly, and two queries are charged as one release."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

pytest.importorskip("flwr")


from tests.integrations.flower.federation import (
    NODES,
    Make,
    auroc,
    charged,
    data,
    grid_of,
    ledgers,
    pooled,
    private,
    roc,
    start,
    strategy_of,
    trusted,
    warnings,
)
from tests.integrations.flower_grid import Cut, Draws
from torchmetrics_fed.reconstruct.tuning import PILOT_FRACTION


def test_distributed_noise_is_summed_exactly_and_charged_once_per_client(folder: Path) -> None:
    parties = charged(private(plan="single"), folder)
    grid = grid_of(parties)
    strategy = strategy_of(private(plan="single")())
    grid.cuts = {Cut(NODES[4], "evaluate", "after")}
    with Draws() as drawn:
        start(strategy, grid)
    release = strategy.releases[1]
    order = [passed.node for passed in grid.passed if passed.reply and passed.stage == "evaluate"]
    summed = [cells for node, cells in zip(order, drawn, strict=True) if node != NODES[4]]
    assert torch.equal(release.last.cells, torch.stack(summed).sum(0))
    assert release.shares == 4
    assert [(len(ledger), ledger.spent().epsilon) for ledger in ledgers(folder)] == [(1, 2.0)] * 5
    rest = {node: batch for node, batch in data().items() if node != NODES[4]}
    assert (release.leaf - pooled(roc, rest).counts).any()


@pytest.mark.parametrize("make", [private(), trusted()], ids=["hidden", "trusted"])
def test_two_queries_are_one_evaluation_one_entry_and_one_release(make: Make, folder: Path) -> None:
    parties = charged(make, folder)
    grid = grid_of(parties)
    strategy = strategy_of(make())
    with Draws() as drawn:
        result = start(strategy, grid)
    release = strategy.releases[1]
    assert len(release.queries) == 2
    assert release.last.query.tree.edges is not None
    for number, total in enumerate(release.sums):
        assert torch.equal(total.cells, torch.stack(drawn[5 * number : 5 * number + 5]).sum(0))
    assert [client.evaluations for client in parties.values()] == [1] * 5
    assert [(len(ledger), ledger.spent().epsilon) for ledger in ledgers(folder)] == [(1, 2.0)] * 5
    exact = auroc(pooled(roc, data()).release())
    assert result.evaluate_metrics_clientapp[1]["federated-auroc"] == pytest.approx(exact, abs=0.1)


def test_the_second_query_carries_no_model(folder: Path) -> None:
    grid = grid_of(charged(private(), folder))
    strategy = strategy_of(private()())
    start(strategy, grid)
    second = [
        passed.message for passed in grid.passed if passed.stage == "answer" and not passed.reply
    ]
    assert len(second) == 5
    assert not any(message.content.array_records for message in second)


@pytest.mark.parametrize("make", [private(), trusted()], ids=["hidden", "trusted"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_who_drops_out_between_two_queries_is_not_in_the_second_sum(
    make: Make, when: Literal["before", "after"], folder: Path
) -> None:
    grid = grid_of(charged(make, folder))
    strategy = strategy_of(make())
    grid.cuts = {Cut(NODES[2], "answer", when)}
    start(strategy, grid)
    assert [total.shares for total in strategy.releases[1].sums] == [5, 4]
    assert [ledger.spent().epsilon for ledger in ledgers(folder)] == [2.0] * 5


@pytest.mark.parametrize("make", [private(), trusted()], ids=["hidden", "trusted"])
def test_without_a_second_answer_there_is_no_release(
    make: Make, folder: Path, log: pytest.LogCaptureFixture
) -> None:
    parties = charged(make, folder)
    grid = grid_of(parties)
    strategy = strategy_of(make())
    grid.cuts = {Cut(node, "answer") for node in NODES[:2]}
    start(strategy, grid)
    assert not strategy.releases
    assert "no curve of round 1" in warnings(log)
    pilot = 2.0 * PILOT_FRACTION
    # those that have drawn for the second query have paid for both
    assert [ledger.spent().epsilon for ledger in ledgers(folder)] == [pilot, pilot, 2.0, 2.0, 2.0]
    assert strategy.partial_releases[1].shares == 5
    grid.cuts = set()
    start(strategy, grid)
    assert strategy.releases[1].shares == 5


def test_leaves_are_carried_over_to_the_next_round(folder: Path) -> None:
    make = private(plan="carry_over")
    parties = charged(make, folder)
    strategy = strategy_of(make())
    start(strategy, grid_of(parties), rounds=2)
    assert [len(strategy.releases[number].queries) for number in (1, 2)] == [2, 1]
    assert strategy.releases[2].last.query.tree.edges is not None
    assert [(len(ledger), ledger.spent().epsilon) for ledger in ledgers(folder)] == [(2, 4.0)] * 5
    assert [client.evaluations for client in parties.values()] == [2] * 5
