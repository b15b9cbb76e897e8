"""Sites and coordinators of a shared folder in processes of their own, which can be killed at any point."""

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
"""Where a site can die, in their order: before it answers, with the answer noted, and with the answer in the folder."""

POLL = 0.02
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


def die() -> None:
    """As if the machine had lost its power."""
    os.kill(os.getpid(), signal.SIGKILL)


class _Process:
    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self._process = _context.Process(target=target, args=args, daemon=True)
        self._process.start()

    def wait(self, timeout: float = 120.0) -> int:
        """Return the exit code: 0, or minus the signal."""
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, "it runs on"
        return code

    def close(self) -> None:
        self._process.kill()
        self._process.join()


class SiteProcess(_Process):
    """A site that may die at one point of one query."""

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
        super().__init__(_site, folder, name, options, arrays, ledger, dies)


class CoordinatorProcess(_Process):
    """A coordinator that may die at one of its writes, the first of which is 1."""

    def __init__(
        self, folder: Path, options: dict[str, Any], names: list[str], out: Path, dies: int = 0
    ) -> None:
        super().__init__(_coordinator, folder, options, names, out, dies)


def _site(
    folder: Path,
    name: str,
    options: dict[str, Any],
    arrays: tuple[NDArray[Any], NDArray[Any]],
    ledger: Path,
    dies: tuple[int, str],
) -> None:
    torch.set_num_threads(1)
    now = [0, ""]

    def reach(point: str) -> None:
        if (now[0], point) == dies:
            die()

    answer, draw, write = Node.reply, client_module.noisy_cells, Files.write

    def replying(node: Node, asked: Request, evaluation: Any) -> bytes:
        now[:] = [1 if Query.from_bytes(asked.query).fraction < 0.5 else 2, str(asked.stage)]
        reach(str(asked.stage))
        given = answer(node, asked, evaluation)
        reach(f"{asked.stage} noted")
        return given

    def drawing(*args: Any) -> Any:
        reach("charged")
        cells = draw(*args)
        reach("drawn")
        return cells

    def writing(files: Files, path: Path, *parts: bytes) -> bytes:
        written = write(files, path, *parts)
        reach(f"{now[1]} written")
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "reply", replying)
        patch.setattr(client_module, "noisy_cells", drawing)
        patch.setattr(Files, "write", writing)
        part = torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1])
        run_site(
            folder, name, counted(built(options, ledger), part, False), timeout=100.0, poll=POLL
        )


def _coordinator(
    folder: Path, options: dict[str, Any], names: list[str], out: Path, dies: int
) -> None:
    torch.set_num_threads(1)
    left, write = [dies], Files.write

    def writing(files: Files, path: Path, *parts: bytes) -> bytes:
        written = write(files, path, *parts)
        left[0] -= 1
        if left[0] == 0:
            die()
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Files, "write", writing)
        run_coordinator(folder, built(options), clients=names, timeout=60.0, poll=POLL).save(out)


def wait_for(happens: Callable[[], object], seconds: float = 60.0) -> None:
    """Return once it happens."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(POLL)
