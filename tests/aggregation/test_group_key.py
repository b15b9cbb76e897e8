"""A key of all ranks: the same on each, another each time, and never on the wire."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest

from torchmetrics_fed.aggregation.group_key import agreed_key


class Wire:
    """An exchange between threads, with everything that went over it."""

    def __init__(self, ranks: int) -> None:
        self.messages: list[bytes] = []
        self._barrier = Barrier(ranks, timeout=60)
        self._payloads = [b""] * ranks

    def exchange(self, rank: int, payload: bytes) -> list[bytes]:
        """Return the payloads of all ranks."""
        self.messages.append(payload)
        self._payloads[rank] = payload
        self._barrier.wait()
        payloads = list(self._payloads)
        self._barrier.wait()
        return payloads


def keys_of(ranks: int, wire: Wire) -> list[bytes]:
    keys = [b""] * ranks

    def member(rank: int) -> None:
        keys[rank] = agreed_key(rank, lambda payload: wire.exchange(rank, payload))

    threads = [Thread(target=member, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return keys


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_all_ranks_have_one_key_that_no_listener_has(ranks: int) -> None:
    wire = Wire(ranks)
    keys = keys_of(ranks, wire)
    assert len(set(keys)) == 1
    assert len(keys[0]) == 32
    assert not any(keys[0] in message for message in wire.messages)
    assert keys_of(ranks, Wire(ranks)) != keys
