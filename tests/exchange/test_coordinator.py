"""The coordinator: the aggregator, over any transport, with as many queries as the plan takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import (
    CentralDP,
    Coordinator,
    DistributedDP,
    FederatedROC,
    InputError,
    LocalDP,
    ReleaseError,
    Share,
)
from torchmetrics_fed.errors import (
    DuplicateClientError,
    ImpossibleCountsError,
    RoundMismatchError,
    SpecMismatchError,
    WireError,
)
from torchmetrics_fed.release import ReleaseFlag
from torchmetrics_fed.release.sum import Adder

LOCAL = LocalDP(1.0)
NAMES = ("ann", "ben", "cleo")


def clients(
    scored: tuple[Tensor, Tensor], make: Callable[[], FederatedROC], names: Any = NAMES
) -> dict[str, FederatedROC]:
    parts = zip(*(values.chunk(len(names)) for values in scored), strict=True)
    metrics = {name: make() for name in names}
    for metric, (preds, target) in zip(metrics.values(), parts, strict=True):
        metric.update(preds, target)
    return metrics


def local() -> FederatedROC:
    return FederatedROC(privacy=LOCAL)


def answer(coordinator: Coordinator, metrics: dict[str, FederatedROC]) -> None:
    for name, metric in metrics.items():
        coordinator.receive(
            name, bytes(metric.share(round=coordinator.round, query=coordinator.query))
        )


def test_exact_sums_are_the_pooled_counts(scored: tuple[Tensor, Tensor]) -> None:
    coordinator = Coordinator(FederatedROC(), round="1")
    answer(coordinator, clients(scored, FederatedROC))
    coordinator.advance()
    pooled = FederatedROC()
    pooled.update(*scored)
    assert torch.equal(coordinator.release.leaf, pooled.counts)
    assert coordinator.release.round == "1"


def test_each_refusal_changes_nothing(scored: tuple[Tensor, Tensor]) -> None:
    metrics = clients(scored, local)
    coordinator = Coordinator(local(), round="1", max_examples=10_000)
    query = coordinator.query
    message = bytes(metrics["ann"].share(round="1", query=query))
    other_spec = clients(scored, lambda: FederatedROC(privacy=LocalDP(2.0)))
    other_round = clients(scored, local)
    large = FederatedROC(privacy=LOCAL)
    large.update(torch.rand(100_000), torch.randint(0, 2, (100_000,)))
    refused: list[tuple[type[Exception], str, bytes]] = [
        (SpecMismatchError, "ann", bytes(other_spec["ann"].share(round="1", query=query))),
        (RoundMismatchError, "ann", bytes(other_round["ann"].share(round="2", query=query))),
        (WireError, "ann", b"garbage"),
        # of another query
        (WireError, "ann", bytes(clients(scored, local)["ann"].share(round="1"))),
        (ImpossibleCountsError, "ann", bytes(large.share(round="1", query=query))),
        (InputError, "", message),
    ]
    for error, sender, data in refused:
        with pytest.raises(error):
            coordinator.receive(sender, data)
        assert coordinator.received == 0
    coordinator.receive("ann", message)
    with pytest.raises(DuplicateClientError, match="'ann'"):
        coordinator.receive("ann", bytes(metrics["ben"].share(round="1", query=query)))
    with pytest.raises(DuplicateClientError, match="every share once"):
        coordinator.receive("ben", message)
    assert coordinator.received == 1


def test_the_second_query_is_asked_of_those_whose_share_was_summed(
    scored: tuple[Tensor, Tensor],
) -> None:
    metrics = clients(scored, local)
    coordinator = Coordinator(local(), round="1")
    late = metrics.pop("cleo")
    first = coordinator.query
    answer(coordinator, metrics)
    coordinator.advance()
    assert sorted(coordinator.senders or ()) == ["ann", "ben"]
    assert coordinator.query != first
    late.share(round="1", query=first)
    with pytest.raises(ReleaseError, match="first share was summed"):
        coordinator.receive("cleo", bytes(late.share(round="1", query=coordinator.query)))
    answer(coordinator, metrics)
    coordinator.advance()
    assert [total.shares for total in coordinator.release.sums] == [2, 2]


def test_too_few_shares_leave_the_query_open(scored: tuple[Tensor, Tensor]) -> None:
    def make() -> FederatedROC:
        return FederatedROC(privacy=DistributedDP(1.0, 3, trusted_aggregator=True))

    metrics = clients(scored, make)
    coordinator = Coordinator(make(), round="1")
    late = metrics.pop("cleo")
    answer(coordinator, metrics)
    with pytest.raises(ReleaseError, match="min_clients=3"):
        coordinator.advance()
    with pytest.raises(ReleaseError, match="advance"):
        _ = coordinator.release
    coordinator.receive("cleo", late.share(round="1", query=coordinator.query))
    coordinator.advance()
    assert coordinator.query is not None


def test_it_is_stored_and_resumed_at_every_point(scored: tuple[Tensor, Tensor]) -> None:
    metrics = clients(scored, local)
    coordinator = Coordinator(local(), round="1", min_clients=3)

    def restored() -> Coordinator:
        return Coordinator.from_bytes(coordinator.to_bytes(), local(), min_clients=3)

    queries = []
    while coordinator.query is not None:
        queries.append(coordinator.query)
        for name, metric in metrics.items():
            coordinator = restored()
            assert coordinator.query == queries[-1]
            coordinator.receive(name, bytes(metric.share(round="1", query=coordinator.query)))
        coordinator = restored()
        with pytest.raises(DuplicateClientError):
            coordinator.receive("ann", metrics["ann"].share(round="1", query=coordinator.query))
        coordinator.advance()
    release = restored().release
    assert release.queries == tuple(queries)
    assert release.shares == 3
    assert all(len(metric.ledger) == 1 for metric in metrics.values())


def test_what_a_coordinator_cannot_do_is_said_at_once() -> None:
    with pytest.raises(InputError, match="CentralDP"):
        Coordinator(FederatedROC(privacy=CentralDP(1.0)), round="1")
    hidden = Coordinator(FederatedROC(privacy=DistributedDP(1.0, 3)), round="1")
    with pytest.raises(ReleaseError, match="secure aggregation"):
        hidden.receive("ann", b"")
    assert hidden.config.min_clients == 3


def test_that_rows_are_left_out_survives_a_restart(scored: tuple[Tensor, Tensor]) -> None:
    """The flag of one share is one of the release, whatever process has added it."""
    for skips in (False, True):
        coordinator = Coordinator(FederatedROC(), round="1")
        for number, name in enumerate(("ann", "ben")):
            metric = FederatedROC()
            metric.update(*scored)
            share = metric.share(round="1")
            coordinator.receive(name, replace(share, skips_bad=skips and number == 0))
            coordinator = Coordinator.from_bytes(coordinator.to_bytes(), FederatedROC())
        coordinator.advance()
        resumed = Coordinator.from_bytes(coordinator.to_bytes(), FederatedROC())
        for finished in (coordinator, resumed):
            assert (ReleaseFlag.ROWS_SKIPPED in finished.release.flags) == skips


def test_a_sum_that_was_taken_does_not_change_with_later_shares() -> None:
    """Nor do the shares: an adder adds in place only where nobody else holds the tensor."""
    spec = FederatedROC(quantiles=4).spec
    adder = Adder(spec, spec.all_bins)
    shares = [Share(spec, spec.all_bins, torch.full((1, 2, 16), n)) for n in (1, 2, 3)]
    sums = []
    for share in shares:
        adder.add(share)
        sums.append(adder.sum)
    adder.add(Share(spec, spec.all_bins, torch.full((1, 2, 16), 4)))
    assert [int(part.cells[0, 0, 0]) for part in (*shares, *sums)] == [1, 2, 3, 1, 3, 6]
    assert int(adder.sum.cells[0, 0, 0]) == 10
