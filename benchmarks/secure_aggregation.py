"""Secure aggregation of 8192 cells, up to its limit of 1,024 clients: CPU time and bytes.

    python -m benchmarks.secure_aggregation

One thread, one run after a warm-up. Every client works at its full cost; the figures are means over
clients. In the last column a tenth of the clients drop out after sharing keys, which costs the
server most. It takes half an hour, nearly all of it for the two largest numbers of clients.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from torchmetrics_fed.aggregation.secure import (
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
    new_signing_keys,
)
from torchmetrics_fed.aggregation.secure.config import MOST_CLIENTS

CELLS = 8192
CLIENTS = (8, 64, 256, 512, MOST_CLIENTS)
SIGNED_CLIENTS = (8, 64)

Result = TypeVar("Result")


class Cost(NamedTuple):
    """The cost of an aggregation for one client, and for the server."""

    client_ms: float
    up_kb: float
    down_kb: float
    server_ms: float


@dataclass
class Clock:
    """Adds up CPU time."""

    seconds: float = 0.0

    def __call__(self, work: Callable[..., Result], *arguments: Any) -> Result:
        start = time.process_time()
        result = work(*arguments)
        self.seconds += time.process_time() - start
        return result


class Aggregation:
    """One aggregation in this process, with clocks for clients and server.

    Args:
        count: the number of clients.
        dropped: how many of them drop out after sharing their keys.
        signed: whether clients sign the list of survivors.
    """

    def __init__(self, count: int, dropped: int, signed: bool) -> None:
        self._signed = signed
        self.names = [f"{number:020d}" for number in range(count)]  # as long as Flower's node ids
        self.survivors = self.names[dropped:]
        config = SecureAggregationConfig("round 1", b"spec", CELLS, min_clients=3, signed=signed)
        self._server = SecureAggregationServer(config)
        self._clients = self._new_clients(config)
        self.client_clock = Clock()
        self.server_clock = Clock()
        self.up = 0
        """Bytes that the survivors send."""
        self.down = 0
        """Bytes that the survivors receive."""

    def _new_clients(self, config: SecureAggregationConfig) -> dict[str, SecureAggregationClient]:
        if not self._signed:
            return {name: SecureAggregationClient(name, config) for name in self.names}
        pairs = {name: new_signing_keys() for name in self.names}
        verification = {name: pair.verification for name, pair in pairs.items()}
        return {
            name: SecureAggregationClient(name, config, pair.signing, verification)
            for name, pair in pairs.items()
        }

    def run(self) -> None:
        """Run all stages, and check the sum."""
        server = self._server
        clients = self._clients
        vector = np.arange(CELLS)
        self.down += len(server.start()) * len(self.survivors)
        for name in self.names:
            self._send(name, self.client_clock(clients[name].advertise))
        keys = self.server_clock(server.keys)
        self.down += len(keys) * len(self.survivors)
        for name in self.names:
            self._send(name, self.client_clock(clients[name].share_keys, keys))
        boxes = self.server_clock(server.ciphertexts)
        for name in self.survivors:
            self.down += len(boxes[name])
            masked = self.client_clock(clients[name].mask, boxes[name], lambda: vector)
            self._send(name, masked)
        if self._signed:
            self._sign()
        request = self.server_clock(server.request)
        self.down += len(request) * len(self.survivors)
        for name in self.survivors:
            self._send(name, self.client_clock(clients[name].unmask, request))
        total, included = self.server_clock(server.sum)
        assert np.array_equal(total, len(self.survivors) * vector)
        assert list(included) == self.survivors

    def _sign(self) -> None:
        survivors = self.server_clock(self._server.survivors)
        self.down += len(survivors) * len(self.survivors)
        for name in self.survivors:
            signature = self.client_clock(self._clients[name].sign_survivors, survivors)
            self._send(name, signature)

    def _send(self, name: str, message: bytes) -> None:
        if name in self.survivors:
            self.up += len(message)
        self.server_clock(self._server.receive, name, message)


def cost(count: int, dropped: int, signed: bool = False) -> Cost:
    """Return the cost of one aggregation in which the first clients drop out."""
    aggregation = Aggregation(count, dropped, signed)
    aggregation.run()
    survivors = len(aggregation.survivors)
    return Cost(
        client_ms=aggregation.client_clock.seconds * 1e3 / survivors,
        up_kb=aggregation.up / 1e3 / survivors,
        down_kb=aggregation.down / 1e3 / survivors,
        server_ms=aggregation.server_clock.seconds * 1e3,
    )


def row(count: int, signed: bool = False) -> str:
    """Return a line of the table."""
    complete = cost(count, 0, signed)
    size = f"{complete.up_kb:.0f} / {complete.down_kb:.0f}"
    figures = f"{complete.client_ms:.1f} | {size} | {complete.server_ms:.1f} |"
    if signed:
        return f"| {count}, signed | {figures} |"
    with_dropouts = cost(count, max(1, count // 10))
    return f"| {count:,} | {figures} {with_dropouts.server_ms:.1f} |"


if __name__ == "__main__":
    cost(8, 0)
    print("| clients | ms per client | kB up / down | server ms, none dropped | a tenth dropped |")
    print("|---|---|---|---|---|")
    for number in CLIENTS:
        print(row(number), flush=True)
    for number in SIGNED_CLIENTS:
        print(row(number, signed=True), flush=True)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"largest resident: {resident:.0f} MB")
