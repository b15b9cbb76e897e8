"""Endpoints: one client as a transport reaches it, in this process or in one of its own that can be
killed.

A transport of messages is an Endpoint, six functions of bytes; :func:`carry_query` does everything
else, and makes a client late, doubled or missing on the way.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import pytest
from torch import Tensor

from torchmetrics_fed import (
    Coordinator,
    FederatedMetric,
    FederatedModelComparison,
    FederatedROC,
    PrivacyLedger,
    Query,
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
    Spec,
)
from torchmetrics_fed.aggregation import Ranks
from torchmetrics_fed.aggregation.secure.mask import MaskedVector
from torchmetrics_fed.errors import FederatedMetricError
from torchmetrics_fed.exchange import client as client_module

__all__ = [
    "MARK",
    "MEMORY",
    "SECURE_STAGES",
    "VISIBLE_STAGES",
    "Client",
    "Endpoint",
    "GoneError",
    "Part",
    "ProcessClient",
    "built",
    "carry_query",
    "counted",
    "leaking",
    "named",
]

MARK = 7_230_171
"""A number to recognise raw counts by, wherever they turn up."""
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A folder in memory where there is one: what is synced to disk takes most of the time of a
test."""

Part = tuple[Any, ...]
"""A client's scores, targets and, if it has them, groups or persons; or two tensors and a
mapping of all else."""

VISIBLE_STAGES = ("counting", "asked", "charged", "drawn", "answered")
SECURE_STAGES = (
    "counting",
    "advertising",
    "sharing keys",
    "asked",
    "charged",
    "drawn",
    "masked",
    "unmasking",
)
"""Where a client can die: at the beginning of what is named, or right after it."""

_log = logging.getLogger(__name__)


class GoneError(Exception):
    """A client that does not answer any more."""


def built(options: dict[str, Any], path: Path | None = None) -> FederatedROC:
    ledger = None
    if path is not None:
        ledger = PrivacyLedger(budget=1e6, path=path)
    kind: Any = FederatedROC
    if "models" in options:
        kind = FederatedModelComparison
    arguments = {"kind": kind, **options}
    metric: FederatedROC = arguments.pop("kind")(ledger=ledger, **arguments)
    return metric


def named(metric: FederatedMetric, part: Part) -> dict[str, Tensor]:
    """The arguments of ``update``: the third is the person of each example where the setting
    needs one."""
    names = ("preds", "target", "groups")
    if metric.spec.models:
        names = ("preds_old", "preds_new", "target")
    elif metric.spec.privacy.enforced:
        names = ("preds", "target", "persons")
    if isinstance(part[-1], Mapping):
        return {**dict(zip(names, part[:-1], strict=False)), **part[-1]}
    return dict(zip(names, part, strict=False))


def counted(metric: FederatedROC, part: Part, mark: bool) -> FederatedROC:
    metric.update(**named(metric, part))
    if mark:
        metric.counts *= MARK
    return metric


@contextmanager
def leaking(leak: bool) -> Iterator[None]:
    """Clients of this process that draw no noise and mask nothing."""
    with pytest.MonkeyPatch.context() as patch:
        if leak:
            patch.setattr(
                client_module,
                "noisy_cells",
                lambda spec, query, counts: spec.cells(query, counts.cpu()),
            )
            patch.setattr(Ranks, "hidden_sum", lambda ranks, cells, view: ranks.sum(cells))
            patch.setattr(MaskedVector, "mask", lambda vector, key: None)
            patch.setattr(MaskedVector, "unmask", lambda vector, key: None)
        yield


class Endpoint(Protocol):
    """One client, as messages reach it. A client that is gone raises GoneError, one that refuses
    its own error."""

    def count(self) -> bytes:
        """Evaluate: forget the round before, count the data."""

    def share(self, round: str, query: bytes) -> bytes:
        """Return the share, where it may be seen; the next four are for where it must be hidden."""

    def advertise(self, config: bytes) -> bytes:
        """Return the client's keys."""

    def share_keys(self, keys: bytes) -> bytes:
        """Return the boxes for the others."""

    def mask(self, boxes: bytes, round: str, query: bytes) -> bytes:
        """Return the masked answer."""

    def unmask(self, request: bytes) -> bytes:
        """Return what opens the sum."""


class Client:
    """A client in this process."""

    def __init__(
        self,
        name: str,
        options: dict[str, Any],
        part: Part,
        path: Path,
        mark: bool = False,
        dies: str = "",
    ) -> None:
        self.name = name
        self._part = part
        self._mark = mark
        self._dies = dies
        self._metric = built(options, path)
        self._aggregation: SecureAggregationClient | None = None

    def reach(self, stage: str) -> None:
        """Die here, if that is the stage: as if the machine had lost its power."""
        if stage and stage == self._dies:
            os.kill(os.getpid(), signal.SIGKILL)

    def count(self) -> bytes:
        self.reach("counting")
        self._metric.reset()
        counted(self._metric, self._part, self._mark)
        return b""

    def share(self, round: str, query: bytes) -> bytes:
        self.reach("asked")
        with self._charging():
            share = bytes(self._metric.share(round=round, query=Query.from_bytes(query)))
        self.reach("drawn")
        return share

    def advertise(self, config: bytes) -> bytes:
        self.reach("advertising")
        self._aggregation = SecureAggregationClient(
            self.name, SecureAggregationConfig.from_bytes(config)
        )
        return self._aggregation.advertise()

    def share_keys(self, keys: bytes) -> bytes:
        self.reach("sharing keys")
        assert self._aggregation is not None
        return self._aggregation.share_keys(keys)

    def mask(self, boxes: bytes, round: str, query: bytes) -> bytes:
        self.reach("asked")
        assert self._aggregation is not None
        with self._charging():
            masked = self._metric.mask(
                self._aggregation, boxes, round=round, query=Query.from_bytes(query)
            )
        self.reach("drawn")
        return masked

    def unmask(self, request: bytes) -> bytes:
        self.reach("unmasking")
        assert self._aggregation is not None
        return self._aggregation.unmask(request)

    @contextmanager
    def _charging(self) -> Iterator[None]:
        """Reach a stage between the charge and the draw."""
        draw = client_module.noisy_cells

        def reaching(spec: Spec, query: Query, counts: Tensor) -> Tensor:
            self.reach("charged")
            return draw(spec, query, counts)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client_module, "noisy_cells", reaching)
            yield


class ProcessClient:
    """The same client in a process of its own, over a pipe."""

    _context = multiprocessing.get_context("forkserver")
    _context.set_forkserver_preload([__name__])

    def __init__(
        self,
        name: str,
        options: dict[str, Any],
        part: Part,
        path: Path,
        mark: bool = False,
        leak: bool = False,
        dies: str = "",
    ) -> None:
        self.name = name
        self._dies = dies
        self._ours, theirs = self._context.Pipe()
        arrays = tuple(side.numpy() for side in part)  # tensors would be sent through shared memory
        args = name, options, arrays, path, mark, leak, dies, theirs
        self._process = self._context.Process(target=_serve, args=args, daemon=True)
        self._process.start()
        theirs.close()

    def __getattr__(self, name: str) -> Callable[..., bytes]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: self._call(name, *args)

    def _call(self, name: str, *args: Any) -> bytes:
        try:
            self._ours.send((name, args))
            if not self._ours.poll(60):
                raise TimeoutError(f"{self.name} did not answer {name} within a minute")
            answer: bytes | Exception = self._ours.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            _log.info(
                "%s is gone: asked to %s, signal %s, at %r",
                self.name,
                name,
                self._process.exitcode,
                self._dies,
            )
            raise GoneError(f"{self.name} is gone") from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._ours.close()


def _serve(
    name: str,
    options: dict[str, Any],
    arrays: tuple[Any, ...],
    path: Path,
    mark: bool,
    leak: bool,
    dies: str,
    connection: Connection,
) -> None:
    import torch

    torch.set_num_threads(1)
    client = Client(name, options, tuple(map(torch.from_numpy, arrays)), path, mark, dies)
    with leaking(leak):
        while True:
            try:
                function, args = connection.recv()
            except EOFError:
                return
            try:
                answer: bytes | Exception = getattr(client, function)(*args)
            except Exception as error:
                answer = error
            connection.send(answer)
            client.reach({"share": "answered", "mask": "masked"}.get(function, ""))


def carry_query(
    coordinator: Coordinator,
    clients: Mapping[str, Endpoint],
    late: Collection[str] = (),
    doubled: Collection[str] = (),
) -> tuple[bytes, dict[str, Exception]]:
    """Carry the query that is open to the clients and their answers back, and close it.

    Returns what the clients sent, and of each that was refused, refused itself or is gone, the last
    error.

    Args:
        coordinator: the aggregator's side.
        clients: by name.
        late: whose answers come when the query is closed.
        doubled: whose answers come twice.
    """
    requests = {
        name: clients[name]
        for name in clients
        if coordinator.senders is None or name in coordinator.senders
    }
    carry = _carry_hidden if coordinator.spec.hides_shares else _carry_shown
    return carry(coordinator, requests, late, doubled)


class _Post:
    """Takes messages to whoever receives them; what is refused is noted, and changes nothing."""

    def __init__(self, receive: Callable[[str, bytes], None]) -> None:
        self._receive = receive
        self.sent = b""
        self.refused = dict[str, Exception]()

    def __call__(self, sender: str, answer: Callable[[], bytes]) -> bytes:
        try:
            message = answer()
            self.sent += message
            self._receive(sender, message)
        except (FederatedMetricError, GoneError) as error:
            self.refused[sender] = error
            return b""
        return message


def _carry_shown(
    coordinator: Coordinator,
    clients: Mapping[str, Endpoint],
    late: Collection[str],
    doubled: Collection[str],
) -> tuple[bytes, dict[str, Exception]]:
    post = _Post(coordinator.receive)
    later = dict[str, bytes]()
    query = bytes(coordinator.query or b"")
    for name, client in clients.items():
        if name in late:
            later[name] = client.share(coordinator.round, query)
            continue
        share = post(name, lambda client=client: client.share(coordinator.round, query))  # type: ignore[misc]
        for sender in (name, f"{name} again") * (name in doubled):
            post(sender, lambda share=share: share)  # type: ignore[misc]
    coordinator.advance()
    for name, share in later.items():
        post(name, lambda share=share: share)  # type: ignore[misc]
    return post.sent, post.refused


def _carry_hidden(
    coordinator: Coordinator,
    clients: Mapping[str, Endpoint],
    late: Collection[str],
    doubled: Collection[str],
) -> tuple[bytes, dict[str, Exception]]:
    server = SecureAggregationServer(coordinator.config)
    query = bytes(coordinator.query or b"")
    post = _Post(server.receive)
    remaining = dict(clients)

    def stage(answer: Callable[[str, Endpoint], bytes]) -> None:
        for name, client in list(remaining.items()):
            message = post(name, lambda: answer(name, client))  # noqa: B023
            if name in doubled:
                post(name, lambda: message)  # noqa: B023
            if not message:
                del remaining[name]

    stage(lambda name, client: client.advertise(server.start()))
    keys = server.keys()
    stage(lambda name, client: client.share_keys(keys))
    boxes = server.ciphertexts()
    behind = {name: remaining.pop(name) for name in late if name in remaining}
    stage(lambda name, client: client.mask(boxes[name], coordinator.round, query))
    request = server.request()
    for name, client in behind.items():
        post(name, lambda: client.mask(boxes[name], coordinator.round, query))  # noqa: B023
    stage(lambda name, client: client.unmask(request))
    coordinator.accept(server)
    coordinator.advance()
    return post.sent, post.refused
