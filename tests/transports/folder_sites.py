"""Sites and coordinators of a shared folder in processes that can be killed at any point."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.typing import NDArray

from tests.transports.endpoints import Part, built, counted
from torchmetrics_fed import Query
from torchmetrics_fed.app.folder import run_coordinator, run_site
from torchmetrics_fed.app.folder.files import Files
from torchmetrics_fed.exchange import client as client_module
from torchmetrics_fed.exchange.node import Node
from torchmetrics_fed.exchange.request import Request

__all__ = [
    "HIDDEN_POINTS",
    "POLL",
    "VISIBLE_POINTS",
    "CoordinatorProcess",
    "SiteProcess",
    "wait_for",
]

VISIBLE_POINTS = ("share", "charged", "drawn", "share noted", "share written")
HIDDEN_POINTS = (
    "advertise",
    "advertise noted",
    "share_keys",
    "share_keys noted",
    "mask",
    "charged",
    "drawn",
    "mask noted",
    "mask written",
    "unmask",
    "unmask noted",
    "unmask written",
)
"""Where a site can die, in their order.

Before it replies, with the reply noted, and with the reply written into the folder.
"""

POLL = 0.02
"""Seconds between two looks into the folder."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


def die() -> None:
    """End this process as if the machine had lost its power."""
    os.kill(os.getpid(), signal.SIGKILL)


class _Process:
    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self._process = _context.Process(target=target, args=args, daemon=True)
        self._process.start()

    def wait(self, timeout: float = 120.0) -> int:
        """Return the exit code: 0, or minus the signal."""
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, "the process has not ended"
        return code

    def close(self) -> None:
        self._process.kill()
        self._process.join()


class SiteProcess(_Process):
    """A site that may die at one point of one query, the first of which is 1."""

    def __init__(
        self,
        folder: Path,
        name: str,
        options: dict[str, Any],
        part: Part,
        ledger: Path,
        dies: tuple[int, str] = (0, ""),
    ) -> None:
        arrays = tuple(side.numpy() for side in part)  # tensors would be sent through shared memory
        super().__init__(_run_site, folder, name, options, arrays, ledger, dies)


class CoordinatorProcess(_Process):
    """A coordinator that may die at one of its writes, the first of which is 1."""

    def __init__(
        self, folder: Path, options: dict[str, Any], names: list[str], out: Path, dies: int = 0
    ) -> None:
        super().__init__(_run_coordinator, folder, options, names, out, dies)


class _DyingSite:
    """Kills this process when its site reaches one point of one query.

    Args:
        query: the number of the query, from 1.
        point: where to die.
    """

    def __init__(self, query: int, point: str) -> None:
        self._death = (query, point)
        self._query = 0
        self._stage = ""
        self._reply = Node.reply
        self._draw = client_module.noisy_cells
        self._write = Files.write

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let every reply, draw and write of this process pass by here."""
        patch.setattr(
            Node, "reply", lambda node, request, evaluation: self.reply(node, request, evaluation)
        )
        patch.setattr(client_module, "noisy_cells", self.draw)
        patch.setattr(Files, "write", lambda files, path, *parts: self.write(files, path, *parts))

    def reply(self, node: Node, request: Request, evaluation: Any) -> bytes:
        is_pilot = Query.from_bytes(request.query).fraction < 0.5
        self._query = 1 if is_pilot else 2
        self._stage = str(request.stage)
        self._reach(self._stage)
        reply = self._reply(node, request, evaluation)
        self._reach(f"{self._stage} noted")
        return reply

    def draw(self, *arguments: Any) -> Any:
        self._reach("charged")
        cells = self._draw(*arguments)
        self._reach("drawn")
        return cells

    def write(self, files: Files, path: Path, *parts: bytes) -> bytes:
        digest = self._write(files, path, *parts)
        self._reach(f"{self._stage} written")
        return digest

    def _reach(self, point: str) -> None:
        if (self._query, point) == self._death:
            die()


def _run_site(
    folder: Path,
    name: str,
    options: dict[str, Any],
    arrays: tuple[NDArray[Any], NDArray[Any]],
    ledger: Path,
    dies: tuple[int, str],
) -> None:
    torch.set_num_threads(1)
    part = tuple(torch.from_numpy(array) for array in arrays)
    metric = counted(built(options, ledger), part, False)
    query, point = dies
    with pytest.MonkeyPatch.context() as patch:
        _DyingSite(query, point).install(patch)
        run_site(folder, name, metric, timeout=100.0, poll=POLL)


def _run_coordinator(
    folder: Path, options: dict[str, Any], names: list[str], out: Path, dies: int
) -> None:
    torch.set_num_threads(1)
    write = Files.write
    writes = 0

    def write_or_die(files: Files, path: Path, *parts: bytes) -> bytes:
        nonlocal writes
        digest = write(files, path, *parts)
        writes += 1
        if writes == dies:
            die()
        return digest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Files, "write", write_or_die)
        release = run_coordinator(folder, built(options), clients=names, timeout=60.0, poll=POLL)
    release.save(out)


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(POLL)
