"""Ranks that are threads. They have nothing in common but a gather function."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchmetrics_fed.aggregation.ranks import Gather

__all__ = ["run_threads"]

Result = TypeVar("Result")


class _Rank(Thread):
    """One thread, and the tensor that it shows to all."""

    def __init__(self, work: Callable[[Gather], Any], barrier: Barrier) -> None:
        super().__init__()
        self.work = work
        self.barrier = barrier
        self.members: list[_Rank] = []
        self.tensor = torch.empty(0)
        self.result: Any = None

    def gather(self, tensor: Tensor, group: Any = None) -> list[Tensor]:
        self.tensor = tensor.clone()
        self.barrier.wait()
        gathered = [member.tensor.clone() for member in self.members]
        self.barrier.wait()
        return gathered

    def run(self) -> None:
        try:
            self.result = self.work(self.gather)
        except Exception as error:
            self.result = error


def run_threads(work: Callable[[Gather], Result], world: int = 3) -> list[Result | Exception]:
    """Return the result of ``work`` on each rank, or the exception that it raised."""
    barrier = Barrier(world, timeout=60)
    members = [_Rank(work, barrier) for _ in range(world)]
    for member in members:
        member.members = members
    for member in members:
        member.start()
    for member in members:
        member.join()
    return [member.result for member in members]
