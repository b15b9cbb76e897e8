"""Carriers: every transport that moves queries and shares, behind one function, so that one law
holds for all.

A new transport is added by a class with ``settings`` and ``carry``. Where it moves messages, and so
can lose some, it is an :class:`~tests.transports.endpoints.Endpoint` instead: six functions of
bytes, and the law of faults holds, too.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from tests.ranks import Collectives, RankPool
from tests.transports.endpoints import (
    MARK,
    MEMORY,
    Client,
    Endpoint,
    Part,
    ProcessClient,
    built,
    carry_query,
    counted,
    leaking,
    named,
)
from torchmetrics_fed import (
    CentralDP,
    Coordinator,
    DistributedDP,
    FederatedROC,
    LocalDP,
    PrivacyLedger,
    Release,
)
from torchmetrics_fed.app.folder import run_coordinator, run_site
from torchmetrics_fed.privacy import LedgerEntry
from torchmetrics_fed.simulate import simulate

__all__ = [
    "CLIENTS",
    "EPSILON",
    "MARK",
    "SETTINGS",
    "VISIBLE",
    "ByHand",
    "Carried",
    "Carrier",
    "Declearn",
    "Flower",
    "Folder",
    "OverRanks",
    "Part",
    "Pfl",
    "Processes",
    "Simulated",
    "built",
    "leaking",
]

CLIENTS = 3

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
    """One transport: what it admits, and one function. One that cannot ask twice says
    ``asks_again = False``."""

    settings: tuple[str, ...]
    """Those of SETTINGS that it admits."""

    def carry(
        self,
        options: dict[str, Any],
        parts: list[Part],
        rounds: int,
        folder: Path,
        mark: bool,
        leak: bool,
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


class OverRanks:
    """``compute`` over the processes of a gloo group."""

    settings = tuple(SETTINGS)

    def __init__(self, pool: RankPool) -> None:
        self._pool = pool

    def carry(
        self,
        options: dict[str, Any],
        parts: list[Part],
        rounds: int,
        folder: Path,
        mark: bool,
        leak: bool,
    ) -> list[Carried]:
        results = self._pool.run(on_a_rank, options, parts, rounds, str(folder), mark, leak)
        for error in results:
            if isinstance(error, Exception):
                raise error
        carried = []
        for of_ranks in zip(*results, strict=True):
            releases, entries, traffic = zip(*of_ranks, strict=True)
            assert len(set(releases)) == 1  # every rank has the very same
            carried.append(
                Carried(Release.from_bytes(releases[0]), list(entries), b"".join(traffic))
            )
        return carried


def on_a_rank(
    rank: int,
    options: dict[str, Any],
    parts: list[Part],
    rounds: int,
    folder: str,
    mark: bool,
    leak: bool,
) -> list[tuple[bytes, list[LedgerEntry], bytes]]:
    metric = built(options, Path(folder, f"ledger {rank}"))
    results = []
    with leaking(leak):
        for _ in range(rounds):
            before = len(metric.ledger)
            counted(metric, parts[rank], mark)
            with Collectives() as wire:
                release = metric.release()
            traffic = b"".join(tensor.numpy().tobytes() for _, tensor in wire.sent)
            results.append((bytes(release), list(metric.ledger)[before:], traffic))
            metric.reset()
    return results


class Simulated:
    """``simulate``: nothing is sent, and one ledger stands for all."""

    settings = tuple(SETTINGS)

    def carry(
        self,
        options: dict[str, Any],
        parts: list[Part],
        rounds: int,
        folder: Path,
        mark: bool,
        leak: bool,
    ) -> list[Carried]:
        metric = built(options, folder / "ledger")
        carried = []
        previous = None
        for number in range(rounds):
            before = len(metric.ledger)
            previous = simulate(
                [[named(metric, part)] for part in parts],
                metric,
                round=str(number),
                previous=previous,
            ).release
            carried.append(Carried(previous, [list(metric.ledger)[before:]], b""))
        return carried


class ByHand:
    """A coordinator, and messages that somebody carries; through secure aggregation where they
    must be hidden."""

    settings = VISIBLE

    def carry(
        self,
        options: dict[str, Any],
        parts: list[Part],
        rounds: int,
        folder: Path,
        mark: bool,
        leak: bool,
    ) -> list[Carried]:
        with leaking(leak):
            return carry_rounds(partial(Client, mark=mark), options, parts, rounds, folder)


class Processes:
    """The same, with each client in a process of its own."""

    settings = VISIBLE

    def carry(
        self,
        options: dict[str, Any],
        parts: list[Part],
        rounds: int,
        folder: Path,
        mark: bool,
        leak: bool,
    ) -> list[Carried]:
        started: list[ProcessClient] = []

        def start(name: str, options: dict[str, Any], part: Part, path: Path) -> Endpoint:
            started.append(ProcessClient(name, options, part, path, mark, leak))
            return started[-1]

        try:
            with leaking(leak):
                return carry_rounds(start, options, parts, rounds, folder)
        finally:
            for client in started:
                client.close()


def carry_rounds(
    start: Callable[..., Endpoint],
    options: dict[str, Any],
    parts: list[Part],
    rounds: int,
    folder: Path,
) -> list[Carried]:
    """Return what some rounds over these endpoints give."""
    paths = {f"client {number}": folder / f"ledger {number}" for number in range(len(parts))}
    clients = {
        name: start(name, options, part, paths[name])
        for name, part in zip(paths, parts, strict=True)
    }
    carried = []
    previous = None
    charged = dict.fromkeys(paths, 0)
    for number in range(rounds):
        coordinator = Coordinator(built(options), round=str(number), previous=previous)
        traffic = b""
        for client in clients.values():
            client.count()
        while coordinator.query is not None:
            message, refused = carry_query(coordinator, clients)
            assert not refused
            traffic += message
        previous = coordinator.release
        entries = {name: list(PrivacyLedger(path=path)) for name, path in paths.items()}
        carried.append(
            Carried(previous, [entries[name][charged[name] :] for name in paths], traffic)
        )
        charged = {name: len(mine) for name, mine in entries.items()}
    return carried


class Flower:
    """Flower's strategy and mod over a grid in this process."""

    settings = VISIBLE

    def carry(
        self,
        options: dict[str, Any],
        parts: list[Part],
        rounds: int,
        folder: Path,
        mark: bool,
        leak: bool,
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
        traffic = b"".join(passed.data for passed in grid.passed if passed.reply)
        charges = [[mine[number : number + 1] for mine in entries] for number in range(rounds)]
        assert all(len(mine) <= rounds for mine in entries)
        return [
            Carried(strategy.releases[number + 1], charges[number], traffic)
            for number in range(rounds)
        ]


class Folder:
    """Files in a shared folder, with each site in a thread of its own."""

    settings = VISIBLE

    def carry(
        self,
        options: dict[str, Any],
        parts: list[Part],
        rounds: int,
        folder: Path,
        mark: bool,
        leak: bool,
    ) -> list[Carried]:
        carried = []
        previous = None
        with (
            leaking(leak),
            ThreadPoolExecutor(CLIENTS) as pool,
            TemporaryDirectory(dir=MEMORY) as home,
        ):
            shared = Path(home, "shared")
            paths = [Path(home, f"ledger {number}") for number in range(CLIENTS)]
            shared.mkdir()
            for number in range(rounds):
                before = [len(PrivacyLedger(path=path)) for path in paths]
                sites = [
                    pool.submit(
                        run_site,
                        shared,
                        path.name,
                        counted(built(options, path), part, mark),
                        round=str(number),
                        poll=0.01,
                    )
                    for path, part in zip(paths, parts, strict=True)
                ]
                names = [path.name for path in paths]
                previous = run_coordinator(
                    shared,
                    built(options),
                    round=str(number),
                    clients=names,
                    timeout=60.0,
                    poll=0.01,
                    previous=previous,
                )
                for site in sites:
                    site.result()
                entries = [
                    list(PrivacyLedger(path=path))[old:]
                    for path, old in zip(paths, before, strict=True)
                ]
                traffic = b"".join(path.read_bytes() for path in sorted(shared.glob("site-*/*/*")))
                carried.append(Carried(previous, entries, traffic))
        return carried


class Declearn:
    """declearn's metric through its own masks, or as its server reads it where shares may be
    seen."""

    settings = VISIBLE
    plans = (None, "single", "paper")
    asks_again = False

    def carry(
        self,
        options: dict[str, Any],
        parts: list[Part],
        rounds: int,
        folder: Path,
        mark: bool,
        leak: bool,
    ) -> list[Carried]:
        from declearn.secagg.masking import MaskingDecrypter, MaskingEncrypter

        from torchmetrics_fed.integrations.declearn import ShareMetric, ShareState

        class Curves(ShareMetric, register=False):  # type: ignore[call-arg]
            name = "curves"
            client = SimpleNamespace(secagg="on")

            def build(self, ledger: PrivacyLedger | None) -> FederatedROC:
                return FederatedROC(ledger=ledger, **options)

        server = Curves()
        clients = []
        carried = []
        for number in range(CLIENTS):
            Curves.ledger = PrivacyLedger(budget=1e6, path=folder / f"ledger {number}")
            clients.append(Curves.from_config(server.get_config()))
        pairs = {
            (low, high): 10 * low + high
            for high in range(CLIENTS)
            for low in range(high)
            if not leak
        }
        for _ in range(rounds):
            before = [len(client.one.ledger) for client in clients]
            states = []
            traffic = b""
            for index, (client, part) in enumerate(zip(clients, parts, strict=True)):
                client.reset()
                client.update(part[1].numpy(), part[0].numpy())
                if mark:
                    client.one.counts *= MARK
                with leaking(leak):
                    if client.one.spec.hides_shares:
                        seeds = [
                            [seed for pair, seed in pairs.items() if pair[side] == index]
                            for side in (0, 1)
                        ]
                        states.append(
                            MaskingEncrypter(*seeds).encrypt_aggregate(client.get_states())
                        )
                        traffic += (
                            np.array(states[-1].encrypted, np.uint64) - np.uint64(1 << 40)
                        ).tobytes()
                    else:
                        states.append(ShareState.from_dict(client.get_states().to_dict()))
                        traffic += states[-1].shares[0]
            total = states[0] + states[1] + states[2]
            if server.one.spec.hides_shares:
                total = MaskingDecrypter(CLIENTS).decrypt_aggregate(total)
            server.reset()
            server.set_states(server.get_states() + total)
            entries = [
                list(client.one.ledger)[old:] for client, old in zip(clients, before, strict=True)
            ]
            carried.append(Carried(server.releases[-1], entries, traffic))
        return carried


class Pfl:
    """pfl's metric values, added up as its backend does; nothing is sent, and one ledger stands
    for all."""

    settings = VISIBLE
    plans = (None, "single", "paper", "carry_over")
    asks_again = False

    def carry(
        self,
        options: dict[str, Any],
        parts: list[Part],
        rounds: int,
        folder: Path,
        mark: bool,
        leak: bool,
    ) -> list[Carried]:
        from torchmetrics_fed.integrations.pfl import UserShares

        metric = built(options, folder / "ledger")
        carried = []
        users = UserShares(metric)
        for _ in range(rounds):
            before = len(metric.ledger)
            values = [of_user(value) for value, of_user in (users(*part) for part in parts)]
            total = values[0]
            for value in values[1:]:
                total = total + value
            carried.append(Carried(total.release, [list(metric.ledger)[before:]], b""))
        return carried
