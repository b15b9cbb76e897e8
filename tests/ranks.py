"""Real processes in a real gloo group, started once and tensors work."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Collectives", "RankPool"]


class Collectives(TorchDispatchMode):
    """Keeps, by the name of the collective, what goes into those that run inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.sent: list[tuple[str, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith("c10d"):
            name = str(func).split(".")[1]
            tensors = [*args[0], *(args[1] if "gather" in name else ())]
            self.count += 1
            self.sent += [
                (name, tensor.clone()) for tensor in tensors if isinstance(tensor, Tensor)
            ]
        return func(*args, **(kwargs or {}))


class RankPool:
    """Processes that each run the same function, with their rank as its first argument."""

    def __init__(self, size: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.size = size
        self.processes: list[Any] = []
        self.connections: list[Any] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, str(folder / "store"), theirs), daemon=True
            )
            process.start()
            self.processes.append(process)
            self.connections.append(ours)

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 60) -> list[Any]:
        """Return what the function returned on each rank, or the exception it raised there."""
        for connection in self.connections:
            connection.send((function, args))
        results = []
        for rank, connection in enumerate(self.connections):
            if not connection.poll(timeout):
                self.close()
                raise TimeoutError(f"rank {rank} did not answer within {timeout} s")
            results.append(connection.recv())
        return results

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _serve(rank: int, size: int, store: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=30),
    )
    while True:
        function, args = connection.recv()
        try:
            connection.send(function(rank, *args))
        except Exception as error:
            error.add_note(traceback.format_exc()) if hasattr(error, "add_note") else None
            connection.send(error)
