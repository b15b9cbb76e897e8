"""The tables of states: calls are allowed where the table has a state, and refused elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import Coordinator, FederatedROC, LocalDP, Query, ReleaseError
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange.states import (
    CLIENT_MOVES,
    COORDINATOR_MOVES,
    Asking,
    State,
    moved,
)

# --- a client


def metric_in(state: State, scored: tuple[Tensor, Tensor]) -> FederatedROC:
    """A private metric whose client has come so far."""
    metric = FederatedROC(privacy=LocalDP(1.0))
    metric.update(*scored)
    if state is State.ANSWERED:
        metric.share(round="3", query=Query(Tree((16,)), 0.5))
    if state is State.RELEASED:
        metric.compute()
    return metric


CLIENT_CALLS: dict[str, Callable[[Any], Any]] = {
    "update": lambda metric: metric.update(torch.tensor([0.5]), torch.tensor([1])),
    "answer": lambda metric: metric.share(round="3", query=Query(Tree((8,)), 0.25)),
    "publish": lambda metric: metric.compute(),
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, CLIENT_CALLS)))
def test_a_client_allows_the_calls_of_its_table(
    state: State, event: str, scored: tuple[Tensor, Tensor]
) -> None:
    metric = metric_in(state, scored)
    client = metric._current_client()
    assert client is not None
    assert client.state is state
    entries = len(metric.ledger)
    if isinstance(CLIENT_MOVES[state, event], State):
        CLIENT_CALLS[event](metric)
        assert client.state is CLIENT_MOVES[state, event]
        return
    counts = metric.counts.clone()
    with pytest.raises(ReleaseError) as refusal:
        CLIENT_CALLS[event](metric)
    with pytest.raises(ReleaseError) as table_refusal:
        moved(CLIENT_MOVES, state, event)
    assert str(refusal.value) == str(table_refusal.value)
    assert client.state is state
    assert torch.equal(metric.counts, counts)
    assert len(metric.ledger) == entries


@pytest.mark.parametrize("state", State)
def test_a_reset_begins_a_new_client_anywhere(state: State, scored: tuple[Tensor, Tensor]) -> None:
    metric = metric_in(state, scored)
    spent = metric.ledger.spent().epsilon
    metric.reset()
    metric.update(*scored)
    metric.compute()
    assert metric.ledger.spent().epsilon == spent + 1


# --- a coordinator


def received(coordinator: Coordinator, metric: FederatedROC) -> None:
    coordinator.receive("ann", metric.share(round="1"))


def advanced(coordinator: Coordinator, metric: FederatedROC) -> None:
    received(coordinator, metric)
    coordinator.advance()


COORDINATOR_CALLS: dict[str, Callable[[Coordinator, FederatedROC], object]] = {
    "receive": received,
    "accept": lambda coordinator, metric: coordinator.accept(None),  # type: ignore[arg-type]
    "advance": advanced,
    "release": lambda coordinator, metric: coordinator.release,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(Asking, COORDINATOR_CALLS)))
def test_a_coordinator_allows_the_calls_of_its_table(
    state: Asking, event: str, scored: tuple[Tensor, Tensor]
) -> None:
    metric = FederatedROC()
    metric.update(*scored)
    coordinator = Coordinator(FederatedROC(), round="1")
    if state is Asking.RELEASED:
        advanced(coordinator, metric)
    assert coordinator.state is state
    if isinstance(COORDINATOR_MOVES[state, event], Asking):
        if event == "accept":  # past the table there is no server to take a sum of
            with pytest.raises(AttributeError):
                COORDINATOR_CALLS[event](coordinator, metric)
            return
        COORDINATOR_CALLS[event](coordinator, metric)
        assert coordinator.state in (COORDINATOR_MOVES[state, event], Asking.RELEASED)
        return
    with pytest.raises((ReleaseError, AssertionError)):
        COORDINATOR_CALLS[event](coordinator, metric)
    assert coordinator.state is state


def test_the_tables_have_every_state_and_event() -> None:
    assert set(CLIENT_MOVES) == set(itertools.product(State, CLIENT_CALLS))
    assert set(COORDINATOR_MOVES) == set(itertools.product(Asking, COORDINATOR_CALLS))
