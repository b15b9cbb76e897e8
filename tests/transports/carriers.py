"""Carriers: every transport that moves queries and shares, behind one function, so that one law holds for all.

A new transport is added by a class with ``settings`` and ``carry``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
import torch
from torch import Tensor

from tests.ranks import Collectives, RankPool
from torchmetrics_fed import (
    CentralDP,
    Coordinator,
    DistributedDP,
    FederatedROC,
    LocalDP,
    PrivacyLedger,
    Query,
    Release,
    SecureAggregationClient,
    SecureAggregationServer,
    Spec,
)
from torchmetrics_fed.aggregation import Ranks
from torchmetrics_fed.aggregation.secure.mask import MaskedVector
from torchmetrics_fed.privacy import LedgerEntry
from torchmetrics_fed.simulate import simulate

__all__ = ["CLIENTS", "EPSILON", "MARK", "SETTINGS", "ByHand", "Carried", "Carrier", "Flower", "OverRanks", "Simulated"]

CLIENTS = 3
MARK = 7_230_171
"""A number to recognise raw counts by, wherever they turn up."""

Part = tuple[Tensor, Tensor]

EPSILON = 0.5
SETTINGS: dict[str, dict[str, Any]] = {
    "exact": {},
    "secure": {"secure": True},
    "distributed": {"privacy": DistributedDP(EPSILON, min_clients=CLIENTS)},
    "trusted": {"privacy": DistributedDP(EPSILON, min_clients=CLIENTS, trusted_aggregator=True)},
    "local": {"privacy": LocalDP(EPSILON)},
    "central": {"privacy": CentralDP(EPSILON)},
}
VISIBLE = ("exact", "secure", "distributed", "trusted", "local")


class Carried(NamedTuple):
    """What came of one round."""

    release: Release
    entries: list[list[LedgerEntry]]
    """Of each ledger, what was charged in this round."""
    sent: bytes
    """Everything that left a client, one after the other."""


class Carrier(Protocol):
    """One transport."""

    settings: tuple[str, ...]
    """Those of SETTINGS that it admits."""

    def carry(
        self, options: dict[str, Any], parts: list[Part], rounds: int, folder: Path, mark: bool, leak: bool
    ) -> list[Carried]:
        """Return what the clients' parts of the data give in some rounds.

        Args:
            options: of every metric.
            parts: each client's data.
            rounds: how often the data is evaluated.
            folder: for ledgers.
            mark: whether every count is multiplied by MARK.
            leak: whether clients leak: they draw no noise and mask nothing.
        """


def built(options: dict[str, Any], path: Path | None = None) -> FederatedROC:
    ledger = None if path is None else PrivacyLedger(budget=1e6, path=path)
    return FederatedROC(ledger=ledger, **options)


def counted(metric: FederatedROC, part: Part, mark: bool) -> FederatedROC:
    metric.update(*part)
    if mark:
        metric.counts *= MARK
    return metric


@contextmanager
def leaking(leak: bool) -> Iterator[None]:
    """Clients of this process that draw no noise and mask nothing."""
    with pytest.MonkeyPatch.context() as patch:
        if leak:
            patch.setattr(Spec, "noisy_cells", lambda spec, query, counts: spec.cells(query, counts.cpu()))
            patch.setattr(Ranks, "hidden_sum", lambda ranks, cells, view: ranks.sum(cells))
            patch.setattr(MaskedVector, "mask", lambda vector, key: None)
            patch.setattr(MaskedVector, "unmask", lambda vector, key: None)
        yield


class OverRanks:
    """``compute`` over the processes of a gloo group."""

    settings = tuple(SETTINGS)

    def __init__(self, pool: RankPool) -> None:
        self._pool = pool

    def carry(
        self, options: dict[str, Any], parts: list[Part], rounds: int, folder: Path, mark: bool, leak: bool
    ) -> list[Carried]:
        found = self._pool.run(on_a_rank, options, parts, rounds, str(folder), mark, leak)
        for error in found:
            if isinstance(error, Exception):
                raise error
        carried = []
        for of_ranks in zip(*found, strict=True):
            releases, entries, sent = zip(*of_ranks, strict=True)
            assert len(set(releases)) == 1  # every rank has the very same
            carried.append(Carried(Release.from_bytes(releases[0]), list(entries), b"".join(sent)))
        return carried


def on_a_rank(
    rank: int, options: dict[str, Any], parts: list[Part], rounds: int, folder: str, mark: bool, leak: bool
) -> list[tuple[bytes, list[LedgerEntry], bytes]]:
    metric, found = built(options, Path(folder, f"ledger {rank}")), []
    with leaking(leak):
        for _ in range(rounds):
            before = len(metric.ledger)
            counted(metric, parts[rank], mark)
            with Collectives() as wire:
                release = metric.release()
            sent = b"".join(tensor.numpy().tobytes() for _, tensor in wire.sent)
            found.append((bytes(release), list(metric.ledger)[before:], sent))
            metric.reset()
    return found


class Simulated:
    """``simulate``: nothing is sent, and one ledger stands for all."""

    settings = tuple(SETTINGS)

    def carry(
        self, options: dict[str, Any], parts: list[Part], rounds: int, folder: Path, mark: bool, leak: bool
    ) -> list[Carried]:
        metric, carried, previous = built(options, folder / "ledger"), [], None
        for number in range(rounds):
            before = len(metric.ledger)
            previous = simulate([[part] for part in parts], metric, round=str(number), previous=previous).release
            carried.append(Carried(previous, [list(metric.ledger)[before:]], b""))
        return carried


class ByHand:
    """A coordinator, and shares that somebody carries; through secure aggregation where they must be hidden."""

    settings = VISIBLE

    def carry(
        self, options: dict[str, Any], parts: list[Part], rounds: int, folder: Path, mark: bool, leak: bool
    ) -> list[Carried]:
        metrics = [built(options, folder / f"ledger {number}") for number in range(CLIENTS)]
        carried, previous = [], None
        with leaking(leak):
            for number in range(rounds):
                before = [len(metric.ledger) for metric in metrics]
                for metric, part in zip(metrics, parts, strict=True):
                    counted(metric, part, mark)
                coordinator = Coordinator(built(options), round=str(number), previous=previous)
                sent = b""
                while (query := coordinator.query) is not None:
                    send = _masked if coordinator.spec.hides_shares else _shown
                    sent += send(coordinator, metrics, query)
                    coordinator.advance()
                previous = coordinator.release
                new = [list(metric.ledger)[old:] for metric, old in zip(metrics, before, strict=True)]
                carried.append(Carried(previous, new, sent))
                for metric in metrics:
                    metric.reset()
        return carried


def _shown(coordinator: Coordinator, metrics: list[FederatedROC], query: Query) -> bytes:
    sent = b""
    for number, metric in enumerate(metrics):
        share = bytes(metric.share(round=coordinator.round, query=Query.from_bytes(bytes(query))))
        coordinator.receive(f"client {number}", share)
        sent += share
    return sent


def _masked(coordinator: Coordinator, metrics: list[FederatedROC], query: Query) -> bytes:
    config, sent = coordinator.config, b""
    server = SecureAggregationServer(config)
    clients = {f"client {number}": SecureAggregationClient(f"client {number}", config) for number in range(CLIENTS)}

    def each(answer: Callable[[str], bytes]) -> None:
        nonlocal sent
        for name in clients:
            message = answer(name)
            server.receive(name, message)
            sent += message

    each(lambda name: clients[name].advertise())
    keys = server.keys()
    each(lambda name: clients[name].share_keys(keys))
    boxes, of = server.ciphertexts(), dict(zip(clients, metrics, strict=True))
    each(lambda name: of[name].mask(clients[name], boxes[name], round=coordinator.round, query=query))
    request = server.request()
    each(lambda name: clients[name].unmask(request))
    coordinator.accept(server)
    return sent


class Flower:
    """Flower's strategy and mod over a grid in this process."""

    settings = VISIBLE

    def carry(
        self, options: dict[str, Any], parts: list[Part], rounds: int, folder: Path, mark: bool, leak: bool
    ) -> list[Carried]:
        from flwr.app import Array, ArrayRecord
        from flwr.serverapp.strategy import FedAvg

        from tests.integrations.flower_grid import Client, LocalGrid
        from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin

        class Curves(FederatedEvaluationMixin, FedAvg):
            pass

        paths = {node: folder / f"ledger {node}" for node in range(11, 11 + CLIENTS)}
        clients = {
            node: Client(
                lambda path=path: built(options, path),  # type: ignore[misc]
                *part,
                folder=folder / "notes",
                times=MARK if mark else 1,
            )
            for (node, path), part in zip(paths.items(), parts, strict=True)
        }
        grid = LocalGrid({node: client.app for node, client in clients.items()})
        strategy = Curves(metric=built(options), min_available_nodes=CLIENTS)
        arrays = ArrayRecord({"weight": Array(torch.ones(3).numpy())})
        with leaking(leak):
            strategy.start(grid, arrays, num_rounds=rounds, timeout=1.0)
        assert all(client.evaluations == rounds for client in clients.values())
        entries = [list(PrivacyLedger(path=path)) for path in paths.values()]
        sent = b"".join(passed.data for passed in grid.passed if passed.reply)
        each = [[mine[number : number + 1] for mine in entries] for number in range(rounds)]
        assert all(len(mine) <= rounds for mine in entries)
        return [Carried(strategy.releases[number + 1], each[number], sent) for number in range(rounds)]
