"""Signed aggregations: clients trust the agreed verification keys only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")


from tests.integrations.flower.federation import (
    NODES,
    clients,
    data,
    grid_of,
    pooled,
    secure,
    start,
    strategy_of,
    warnings,
)
from tests.integrations.flower_grid import Client, Cut
from torchmetrics_fed.aggregation.secure import new_signing_keys


def signed(folder: Path) -> tuple[dict[int, Client], dict[str, bytes]]:
    keys = {node: new_signing_keys() for node in NODES}
    verification = {str(node): pair.verification for node, pair in keys.items()}
    parties = clients(secure, folder, verification_keys=verification)
    for node, client in parties.items():
        client.signing_key = keys[node].signing
    return parties, verification


def test_a_signed_aggregation_is_the_pooled_counts_to_the_bit(folder: Path) -> None:
    parties, verification = signed(folder)
    grid = grid_of(parties)
    strategy = strategy_of(secure(), verification_keys=verification)
    grid.cuts = {Cut(NODES[0], "evaluate")}
    start(strategy, grid)
    rest = {node: batch for node, batch in data().items() if node != NODES[0]}
    assert torch.equal(strategy.releases[1].leaf, pooled(secure, rest).counts)
    assert len(grid.replies("sign")) == 4


@pytest.mark.parametrize("believed", [True, False])
def test_a_wrong_key_is_refused(
    believed: bool, folder: Path, log: pytest.LogCaptureFixture
) -> None:
    parties, verification = signed(folder)
    stranger = new_signing_keys()
    node = NODES[0]
    parties[node].signing_key = stranger.signing
    if believed:  # by the node itself, so that only the others can refuse it
        parties[node].verification_keys = verification | {str(node): stranger.verification}
    grid = grid_of(parties)
    strategy = strategy_of(secure(), verification_keys=verification)
    start(strategy, grid)
    assert strategy.releases[1].shares == 4
    assert f"query 1, advertise: dropped out: {node}. " in warnings(log)


def test_clients_do_not_believe_the_servers_keys(folder: Path) -> None:
    parties, verification = signed(folder)
    stranger = new_signing_keys()
    node = NODES[0]
    forged = verification | {str(node): stranger.verification}
    parties[node].signing_key = stranger.signing
    parties[node].verification_keys = forged
    grid = grid_of(parties)
    strategy = strategy_of(secure(), verification_keys=forged)
    start(strategy, grid)
    assert not strategy.releases
    assert (
        sum("Expected keys signed by client" in reason for reason in grid.refusals("share_keys"))
        == 4
    )


def test_an_unsigned_aggregation_is_refused_where_signed_ones_were_agreed(folder: Path) -> None:
    parties, _ = signed(folder)
    grid = grid_of(parties)
    strategy = strategy_of(secure())
    start(strategy, grid)
    assert not strategy.releases
    assert all("Expected a signed aggregation" in reason for reason in grid.refusals("advertise"))
    assert len(grid.refusals("advertise")) == 5


def test_a_signed_aggregation_is_refused_without_keys(folder: Path) -> None:
    _, verification = signed(folder)
    grid = grid_of(clients(secure, folder))
    strategy = strategy_of(secure(), verification_keys=verification)
    start(strategy, grid)
    assert len(grid.refusals("advertise")) == 5
