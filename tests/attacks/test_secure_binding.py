"""Attack 7: a server that lets clients agree on one query and asks them for another.

The server writes the queries, and the binding says which query is summed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.aggregation.secure.federation import Federation
from torchmetrics_fed import DistributedDP, FederatedROC, Query, ScoreGrid, Spec
from torchmetrics_fed.aggregation.secure import SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.states import ClientState
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import SecureAggregationError

SPEC = Spec("binary", 1, ScoreGrid.two_sided(16), DistributedDP(1.0, min_clients=3))
WHOLE = Query(Tree((8, 8)))
SMALL = Query(Tree((8, 8)), 1 / 256)
CONFIG = SecureAggregationConfig.for_query(SPEC, WHOLE, "7/1")


def test_every_64_bits_of_a_binding_tell_the_fractions_apart() -> None:
    bindings = [SPEC.binding(Query(Tree((8, 8)), number / 256)) for number in range(1, 257)]
    for start in range(0, 32, 8):
        assert len({binding[start : start + 8] for binding in bindings}) == 256


def test_two_queries_that_differ_in_their_fraction_are_two_aggregations() -> None:
    small = SecureAggregationConfig.for_query(SPEC, SMALL, "7/1")
    assert CONFIG.hash != small.hash
    assert CONFIG.binding == SPEC.binding(WHOLE)
    assert len(CONFIG.binding) == 32
    assert SecureAggregationConfig.from_bytes(CONFIG.to_bytes()).binding == SPEC.binding(WHOLE)
    CONFIG.check_agreed(SPEC, WHOLE, False)
    with pytest.raises(SecureAggregationError, match="bound to"):
        small.check_agreed(SPEC, WHOLE, False)


@pytest.mark.parametrize("size", [1, 5, 8, 16, 31])
def test_a_binding_that_was_cut_is_refused(size: int) -> None:
    cut = CONFIG.binding[:size]
    for binding in (cut, cut + bytes(32 - size), CONFIG.binding + bytes(size)):
        message = replace(CONFIG, binding=binding).to_bytes()
        received = SecureAggregationConfig.from_bytes(message)
        with pytest.raises(SecureAggregationError, match="bound to"):
            received.check_agreed(SPEC, WHOLE, False)


def test_every_bit_of_the_binding_is_compared() -> None:
    for bit in range(256):
        binding = bytearray(CONFIG.binding)
        binding[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SecureAggregationError, match="bound to"):
            replace(CONFIG, binding=bytes(binding)).check_agreed(SPEC, WHOLE, False)


@pytest.mark.parametrize("signed", [False, True])
def test_a_client_draws_nothing_for_an_aggregation_of_another_query(signed: bool) -> None:
    """All clients agree on a query for 1/256 of epsilon, and one is asked for all of epsilon."""
    config = SecureAggregationConfig.for_query(SPEC, SMALL, "7/1", signed=signed)
    federation = Federation("abc", signed=signed, config=config)
    boxes = federation.share(federation.advertise())
    client = federation.clients["a"]
    metric = FederatedROC(quantiles=16, privacy=DistributedDP(1.0, min_clients=3))
    assert metric.spec == SPEC
    with pytest.raises(SecureAggregationError, match="bound to"):
        metric.mask(client, boxes["a"], round="7", query=WHOLE)
    assert len(metric.ledger) == 0
    assert client.state is ClientState.SHARED
    metric.mask(client, boxes["a"], round="7", query=SMALL)
    assert len(metric.ledger) == 1
