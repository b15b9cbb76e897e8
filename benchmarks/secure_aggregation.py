"""Secure aggregation of 8192 cells up to its limit of 1,024 clients: CPU time per client and at the server, and bytes.

    python -m benchmarks.secure_aggregation

One thread, one run after a warm-up. Every client works at its full cost; the figures are their mean. Where clients drop
out, a tenth does, after sharing keys, where it costs the server most. It takes half an hour, nearly all of it the
largest two.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from torchmetrics_fed.aggregation.secure import (
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
    new_signing_keys,
)
from torchmetrics_fed.aggregation.secure.config import MOST_CLIENTS

CELLS = 8192
Result = TypeVar("Result")


class Cost(NamedTuple):
    """What an aggregation costs one client, and the server."""

    client_ms: float
    up_kb: float
    down_kb: float
    server_ms: float


CLIENTS = (8, 64, 256, 512, MOST_CLIENTS)
SIGNED = (8, 64)


@dataclass
class Clock:
    """Adds up CPU time."""

    seconds: float = 0.0

    def __call__(self, work: Callable[[], Result]) -> Result:
        start = time.process_time()
        result = work()
        self.seconds += time.process_time() - start
        return result


def cost(count: int, dropped: int, signed: bool = False) -> Cost:
    """Run one aggregation in which the first clients drop out after sharing their keys, where it costs most."""
    names = [f"{number:020d}" for number in range(count)]  # as long as Flower's node ids
    signers = {name: new_signing_keys() for name in names} if signed else {}
    verification = {name: pair.verification for name, pair in signers.items()} or None
    config = SecureAggregationConfig("round 1", b"spec", CELLS, min_clients=3, signed=signed)
    server = SecureAggregationServer(config)
    clients = {
        name: SecureAggregationClient(
            name, config, signers[name].signing if signed else None, verification
        )
        for name in names
    }
    at_clients, at_server, up, down = Clock(), Clock(), 0, 0
    vector = np.arange(CELLS)
    alive = names[dropped:]

    def send(name: str, message: bytes) -> None:
        nonlocal up
        up += len(message) * (name in alive)
        at_server(lambda: server.receive(name, message))

    for name in names:
        send(name, at_clients(clients[name].advertise))
    keys = at_server(server.keys)
    for name in names:
        send(name, at_clients(lambda name=name: clients[name].share_keys(keys)))  # type: ignore[misc]
    boxes = at_server(server.ciphertexts)
    for name in alive:
        send(name, at_clients(lambda name=name: clients[name].mask(boxes[name], lambda: vector)))  # type: ignore[misc]
    if signed:
        survivors = at_server(server.survivors)
        down += len(survivors) * len(alive)
        for name in alive:
            send(name, at_clients(lambda name=name: clients[name].sign_survivors(survivors)))  # type: ignore[misc]
    request = at_server(server.request)
    for name in alive:
        send(name, at_clients(lambda name=name: clients[name].unmask(request)))  # type: ignore[misc]
    total, who = at_server(server.sum)
    assert np.array_equal(total, len(alive) * vector)
    assert list(who) == alive
    down += sum(len(server.start()) + len(keys) + len(boxes[name]) + len(request) for name in alive)
    each = 1e3 * len(alive)
    return Cost(
        at_clients.seconds * 1e3 / len(alive), up / each, down / each, at_server.seconds * 1e3
    )


def row(count: int, signed: bool = False) -> str:
    """Return a line of the table."""
    whole = cost(count, 0, signed)
    figures = (
        f"{whole.client_ms:.1f} | {whole.up_kb:.0f} / {whole.down_kb:.0f} | {whole.server_ms:.1f} |"
    )
    if signed:
        return f"| {count}, signed | {figures} |"
    return f"| {count:,} | {figures} {cost(count, max(1, count // 10)).server_ms:.1f} |"


if __name__ == "__main__":
    cost(8, 0)
    print(
        "| clients | ms per client | kB up / down | server ms, none dropped | a tenth dropped |\n|---|---|---|---|---|"
    )
    for number in CLIENTS:
        print(row(number), flush=True)
    for number in SIGNED:
        print(row(number, signed=True), flush=True)
    print(
        f"largest resident: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6:.0f} MB"
    )
