"""A server that sums the same draw twice, over other clients, and looks at the difference; or
asks again and again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from torchmetrics_fed import (
    BudgetExceededError,
    Coordinator,
    DistributedDP,
    FederatedROC,
    LocalDP,
    PrivacyLedger,
    Query,
    ReleaseError,
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
    Share,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import LedgerConflictError, SecureAggregationError
from torchmetrics_fed.exchange.client import noisy_cells

HIDDEN = DistributedDP(1.0, min_clients=3)
CLIENTS = [f"client {number}" for number in range(4)]
VICTIM = CLIENTS[0]


def counted(**options: Any) -> dict[str, FederatedROC]:
    metrics = {}
    for number, name in enumerate(CLIENTS):
        generator = torch.Generator().manual_seed(number)
        metrics[name] = FederatedROC(quantiles=16, **options)
        metrics[name].update(
            torch.rand(200, generator=generator), torch.randint(0, 2, (200,), generator=generator)
        )
    return metrics


@contextmanager
def suppress_into(refusals: dict[str, Exception], name: str) -> Iterator[None]:
    """Note why a client refused."""
    try:
        yield
    except (ReleaseError, SecureAggregationError) as error:
        refusals[name] = error


def aggregated(
    metrics: dict[str, FederatedROC], config: SecureAggregationConfig, query: Query, round: str
) -> tuple[NDArray[np.int64], dict[str, Exception]]:
    """The sum of those who let themselves be summed, and why others did not."""
    server = SecureAggregationServer(config)
    clients = {name: SecureAggregationClient(name, config) for name in metrics}
    for name, client in clients.items():
        server.receive(name, client.advertise())
    keys = server.keys()
    for name, client in clients.items():
        server.receive(name, client.share_keys(keys))
    refusals: dict[str, Exception] = {}
    for name, boxes in server.ciphertexts().items():
        with suppress_into(refusals, name):
            server.receive(name, metrics[name].mask(clients[name], boxes, round=round, query=query))
    if len(refusals) == len(metrics):
        return np.zeros(0, dtype=np.int64), refusals
    request = server.request()
    for name in metrics.keys() - refusals.keys():
        server.receive(name, clients[name].unmask(request))
    return server.sum()[0], refusals


def first(metrics: dict[str, FederatedROC], round: str) -> tuple[SecureAggregationConfig, Query]:
    coordinator = Coordinator(metrics[VICTIM], round=round, can_ask_again=False)
    assert coordinator.query is not None
    return coordinator.config, coordinator.query


@pytest.mark.parametrize(
    "options", [{"privacy": HIDDEN}, {"secure": True}], ids=["private", "secure"]
)
@pytest.mark.parametrize("name", ["7/1", "7/2", "whatever"])
def test_a_draw_enters_one_aggregation_whatever_the_second_calls_itself(
    options: dict[str, Any], name: str
) -> None:
    metrics = counted(**options)
    config, query = first(metrics, "7")
    total, refusals = aggregated(metrics, config, query, "7")
    assert not refusals
    rest = {client: metric for client, metric in metrics.items() if client != VICTIM}
    repeated = SecureAggregationConfig.for_query(metrics[VICTIM].spec, query, name)
    _, refusals = aggregated(rest, repeated, query, "7")
    assert refusals.keys() == rest.keys()
    assert all(
        isinstance(error, ReleaseError) and "entered one before" in str(error)
        for error in refusals.values()
    )
    assert all(len(metric.ledger) == ("privacy" in options) for metric in metrics.values())
    assert total.any()


@pytest.mark.parametrize(
    "options", [{"privacy": HIDDEN}, {"secure": True}], ids=["private", "secure"]
)
def test_a_copy_of_the_data_enters_no_aggregation_of_its_own(options: dict[str, Any]) -> None:
    """Copies that are made between the first update and the first aggregation share the client."""
    metrics = counted(**options)
    copies = deepcopy(metrics)
    config, query = first(metrics, "7")
    _, refusals = aggregated(metrics, config, query, "7")
    assert not refusals
    rest = {client: metric for client, metric in copies.items() if client != VICTIM}
    repeated = SecureAggregationConfig.for_query(metrics[VICTIM].spec, query, "7/2")
    _, refusals = aggregated(rest, repeated, query, "7")
    assert refusals.keys() == rest.keys()
    assert all("entered one before" in str(error) for error in refusals.values())


@pytest.mark.parametrize(
    "options", [{"privacy": HIDDEN}, {"secure": True}], ids=["private", "secure"]
)
def test_of_two_threads_one_enters_an_aggregation(options: dict[str, Any]) -> None:
    for _ in range(20):
        metric = counted(**options)[VICTIM]
        query = first({VICTIM: metric}, "7")[1]
        ready = [masking(metric, query, f"7/{number}") for number in (1, 2)]
        barrier = Barrier(2)

        def mask(client: SecureAggregationClient, boxes: bytes) -> bool:
            barrier.wait()  # noqa: B023
            try:
                metric.mask(client, boxes, round="7", query=query)  # noqa: B023
            except ReleaseError:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            entered = [pool.submit(mask, *side).result for side in ready]
            assert sum(result() for result in entered) == 1


def masking(metric: FederatedROC, query: Query, name: str) -> tuple[SecureAggregationClient, bytes]:
    """The metric's side of an aggregation of four that has come to its masks, and its boxes."""
    config = SecureAggregationConfig.for_query(metric.spec, query, name)
    server = SecureAggregationServer(config)
    clients = {client: SecureAggregationClient(client, config) for client in CLIENTS}
    for client, side in clients.items():
        server.receive(client, side.advertise())
    keys = server.keys()
    for client, side in clients.items():
        server.receive(client, side.share_keys(keys))
    return clients[VICTIM], server.ciphertexts()[VICTIM]


def test_the_difference_would_have_been_the_victim() -> None:
    """The naive counterpart: vectors that are given out again, with one client fewer."""
    metrics = counted(privacy=DistributedDP(1.0, min_clients=22))
    query = first(metrics, "7")[1]
    drawn = {
        name: noisy_cells(metric.spec, query, metric.counts) for name, metric in metrics.items()
    }
    everyone = torch.stack(list(drawn.values())).sum(0)
    rest = torch.stack([cells for name, cells in drawn.items() if name != VICTIM]).sum(0)
    exact = metrics[VICTIM].spec.cells(query, metrics[VICTIM].counts)
    # most cells of a share carry no noise at all
    assert float((everyone - rest == exact).double().mean()) > 0.7


def test_another_round_is_a_fresh_draw_and_a_whole_charge() -> None:
    metrics = counted(privacy=HIDDEN)
    sums = []
    for round_ in ("7", "8"):
        config, query = first(metrics, round_)
        total, refusals = aggregated(metrics, config, query, round_)
        assert not refusals
        sums.append(total)
    assert (sums[0] != sums[1]).mean() > 0.4
    assert [metric.ledger.spent().epsilon for metric in metrics.values()] == [2.0] * 4


def test_exact_counts_enter_no_second_aggregation_in_any_round() -> None:
    metrics = counted(secure=True)
    config, query = first(metrics, "7")
    assert not aggregated(metrics, config, query, "7")[1]
    config, query = first(metrics, "8")
    assert aggregated(metrics, config, query, "8")[1].keys() == metrics.keys()


def test_what_must_be_hidden_is_never_given_out() -> None:
    for options in ({"privacy": HIDDEN}, {"secure": True}):
        metric = counted(**options)[VICTIM]
        with pytest.raises(ReleaseError, match="secure aggregation"):
            metric.share(round="7")
        assert len(metric.ledger) == 0
        assert not hasattr(metric, "vector")


def test_an_aggregation_of_something_else_is_refused_before_anything_is_drawn() -> None:
    metrics = counted(privacy=HIDDEN)
    _, query = first(metrics, "7")
    weaker = FederatedROC(quantiles=16, privacy=DistributedDP(20.0, min_clients=3)).spec
    for config in (
        SecureAggregationConfig.for_query(weaker, query, "7/1"),
        SecureAggregationConfig.for_query(metrics[VICTIM].spec, Query(query.tree, 0.5), "7/1"),
    ):
        _, refusals = aggregated(metrics, config, query, "7")
        assert {type(error) for error in refusals.values()} == {SecureAggregationError}
    assert all(len(metric.ledger) == 0 for metric in metrics.values())


# --- a server that asks a rebuilt client again and again


def test_forty_requests_in_one_round_are_one_draw(tmp_path: Path) -> None:
    """A client whose metric is rebuilt for each message: forty fresh draws would average the
    noise away."""
    path = tmp_path / "ledger"
    shares: list[Share] = []
    for _ in range(40):
        metric = FederatedROC(
            quantiles=16, privacy=LocalDP(1.0), ledger=PrivacyLedger(budget=5.0, path=path)
        )
        metric.update(torch.rand(50), torch.randint(0, 2, (50,)))
        with (
            pytest.raises(LedgerConflictError, match="another client") if shares else nullcontext()
        ):
            shares.append(metric.share(round="7", query=Query(Tree((16,)), 0.5)))
    assert len(shares) == 1
    assert len(PrivacyLedger(path=path)) == 1


def test_forty_rounds_end_with_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    answered = 0
    for number in range(40):
        metric = FederatedROC(
            quantiles=16, privacy=LocalDP(1.0), ledger=PrivacyLedger(budget=5.0, path=path)
        )
        metric.update(torch.rand(50), torch.randint(0, 2, (50,)))
        with pytest.raises(BudgetExceededError) if number >= 5 else nullcontext():
            metric.share(round=str(number))
            answered += 1
    assert answered == 5
