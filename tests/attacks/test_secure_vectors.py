"""Threat: a vector that is drawn twice, or sent although its draw failed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.aggregation.secure.federation import Federation, masked_federation
from torchmetrics_fed import BudgetExceededError, InputError
from torchmetrics_fed.aggregation.secure.states import ClientState
from torchmetrics_fed.errors import SecureAggregationError

ZEROS = np.zeros(8, dtype=np.int64)


class PaidError(Exception):
    """An error that a ledger might raise."""


@pytest.mark.parametrize("error", [PaidError, BudgetExceededError, KeyboardInterrupt])
def test_a_vector_that_fails_is_not_drawn_again(error: type[BaseException]) -> None:
    federation = Federation("abcd")
    boxes = federation.share(federation.advertise())
    client = federation.clients["a"]

    def fail() -> NoReturn:
        federation.calls["a"] += 1
        raise error

    with pytest.raises(error):
        client.mask(boxes["a"], fail)
    assert client.state is ClientState.PURGED
    with pytest.raises(SecureAggregationError, match="PURGED"):
        client.mask(boxes["a"], partial(federation.factory, "a"))
    assert federation.calls["a"] == 1
    federation.drops = {"a": "mask"}
    federation.mask(boxes)
    federation.answer(federation.request())
    total, _ = federation.server.sum()
    assert np.array_equal(total, federation.expected("bcd"))


@pytest.mark.parametrize(
    "vector", [np.zeros(8), np.zeros(7, dtype=np.int64), np.zeros(8, dtype=np.int32), [0] * 8, None]
)
def test_a_vector_of_the_wrong_kind_is_not_sent(vector: object) -> None:
    federation = Federation("abcd")
    boxes = federation.share(federation.advertise())
    client = federation.clients["a"]
    with pytest.raises(InputError, match="Expected a vector of int64 of shape"):
        client.mask(boxes["a"], lambda: vector)  # type: ignore[arg-type,return-value]
    assert client.state is ClientState.PURGED


def test_a_factory_cannot_mask_twice_by_calling_back() -> None:
    federation = Federation("abcd")
    boxes = federation.share(federation.advertise())
    client = federation.clients["a"]

    def mask_again() -> NDArray[np.int64]:
        message = client.mask(boxes["a"], lambda: ZEROS)
        return np.frombuffer(message, dtype=np.int64)

    with pytest.raises(SecureAggregationError, match="SHARED for `mask` but this one is MASKED"):
        client.mask(boxes["a"], mask_again)
    assert client.state is ClientState.PURGED


def test_a_factory_that_purges_sends_nothing() -> None:
    federation = Federation("abcd")
    boxes = federation.share(federation.advertise())
    client = federation.clients["a"]

    def purge() -> NDArray[np.int64]:
        client.purge()
        return ZEROS

    with pytest.raises(SecureAggregationError, match="purged while its vector was being drawn"):
        client.mask(boxes["a"], purge)
    assert client.state is ClientState.PURGED


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_client_is_not_copied(duplicate: Callable[[object], object]) -> None:
    client = Federation("abc").clients["a"]
    with pytest.raises(SecureAggregationError, match="two of them can answer two lists"):
        duplicate(client)


def test_errors_show_no_secret() -> None:
    federation = masked_federation()
    client = federation.clients["a"]
    keys = federation.server.keys()
    boxes = federation.server.ciphertexts()
    secrets = [secret for pair in federation.secrets.values() for secret in pair]
    vector = [str(value) for value in federation.vectors["a"]]
    calls: list[Callable[[], bytes]] = [
        lambda: client.unmask(keys),
        lambda: client.mask(boxes["a"], lambda: ZEROS),
        client.advertise,
    ]
    for call in calls:
        with pytest.raises(SecureAggregationError) as caught:
            call()
        text = str(caught.value) + repr(client)
        assert caught.value.__cause__ is None
        assert not any(value in text for value in vector)
        assert not any(secret.hex() in text or repr(secret) in text for secret in secrets)
