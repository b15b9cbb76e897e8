"""Threat: whoever listens to the ranks of a client learns who is in its data."""

from __future__ import annotations

import hashlib
from threading import Barrier, Thread

import torch
from torch import Tensor

from torchmetrics_fed.aggregation.ranks import Ranks
from torchmetrics_fed.counting.persons import DIGEST_BYTES, Persons

PERSONS = ["Ulysses-51771", "4711", "a person whose id is long"]


def wire_of(ranks: int) -> bytes:
    """Everything that ranks send to compare their persons."""
    barrier = Barrier(ranks, timeout=60)
    slots = [torch.empty(0)] * ranks
    messages: list[bytes] = []

    def member(rank: int) -> None:
        def gather(tensor: Tensor, group: object = None) -> list[Tensor]:
            messages.append(tensor.cpu().numpy().tobytes())
            slots[rank] = tensor
            barrier.wait()
            parts = list(slots)
            barrier.wait()
            return parts

        table = Persons(len(PERSONS) * ranks)
        table.admit(PERSONS)
        group = Ranks(torch.device("cpu"), gather=gather, persons=table)
        group.check_persons(len(PERSONS) * ranks)

    threads = [Thread(target=member, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return b"".join(messages)


def test_a_listener_cannot_test_an_id() -> None:
    """Neither the texts nor any digest that can be made without the key, of all keys on the
    wire."""
    wire = wire_of(3)
    assert len(wire) > 3 * len(PERSONS) * DIGEST_BYTES  # something was sent
    windows = {wire[start : start + 32] for start in range(len(wire) - 31)}
    for person in PERSONS:
        text = person.encode()
        assert text not in wire
        assert hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest() not in wire
        for key in windows:
            digest = hashlib.blake2b(text, key=key, digest_size=DIGEST_BYTES).digest()
            assert digest not in wire


def test_the_scan_finds_a_key_in_the_clear() -> None:
    """The power of the test above: a digest and its key in one stream are found."""
    key = bytes(range(32))
    text = PERSONS[0].encode()
    digest = hashlib.blake2b(text, key=key, digest_size=DIGEST_BYTES).digest()
    wire = b"xyz" + key + digest
    windows = {wire[start : start + 32] for start in range(len(wire) - 31)}
    assert any(
        hashlib.blake2b(text, key=window, digest_size=DIGEST_BYTES).digest() in wire
        for window in windows
    )
