"""Ranks: agreement and sums over a torch.distributed process group."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from torchmetrics_fed.errors import SpecMismatchError, SyncError
from torchmetrics_fed.spec import Spec

__all__ = ["Agreement", "Gather", "Ranks"]

Gather = Callable[..., Sequence[Tensor]]

# The header has room to grow, for ranks of two versions of this package must be able to compare theirs: unequal sizes
# abort gloo instead of telling anybody what is wrong.
_HEADER_SLOTS = 32


class Agreement(NamedTuple):
    """What the ranks have told each other."""

    statuses: tuple[int, int]
    """The lowest and the highest status of any rank."""
    proposal: int
    """The largest proposal."""


@dataclass(frozen=True)
class Ranks:
    """The ranks that sum together.

    Args:
        group: their process group; all ranks if None.
        gather: torchmetrics' ``dist_sync_fn``: ``gather(tensor, group=group)`` returns every rank's tensor. Where one
            is given everything goes through it, else through ``all_reduce``, which shows no rank another one's counts.
    """

    group: Any = None
    gather: Gather | None = None

    def agree(self, spec: Spec, device: torch.device, status: int = 0, proposal: int = 0, plan: str = "") -> Agreement:
        """Compare specs and statuses; raise on every rank alike, naming the fields, unless all have this spec.

        Args:
            spec: this rank's spec.
            device: where the backend wants its tensors.
            status: a small number in which the ranks may differ.
            proposal: a number below 2**62, of which all ranks get the largest.
            plan: how the release is made, for ranks that are about to make one.
        """
        digests = spec.digests | {"plan": hashlib.sha256(plan.encode()).digest()}
        numbers = [int.from_bytes(digest[:8], "big") >> 1 for digest in digests.values()]
        room = [0] * (_HEADER_SLOTS - len(numbers) - 3)
        header = torch.tensor([*numbers, *room, 0, status, proposal], dtype=torch.int64, device=device)
        highest = self._reduce(torch.stack([header, -header]), dist.ReduceOp.MAX)
        unequal = (highest[0] != -highest[1])[:-3].tolist()
        names = [name for name, differs in zip(digests, unequal, strict=False) if differs]
        if any(unequal):
            raise SpecMismatchError(
                f"Expected every rank to have the same spec but they differ in {', '.join(names) or 'the version'}; "
                f"this rank has { {name: spec.fields.get(name, plan) for name in names} }. Build the metric with the "
                "same arguments on every rank."
            )
        statuses = int(-highest[1, -2]), int(highest[0, -2])
        return Agreement(statuses, int(highest[0, -1]))

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is up on any rank; the same answer on all."""
        return bool(self._reduce(torch.tensor([int(flag)], device=device), dist.ReduceOp.MAX))

    @property
    def size(self) -> int:
        """Number of ranks."""
        if self.gather is not None:
            return len(self.gather(torch.zeros(1, dtype=torch.int64), group=self.group))
        return dist.get_world_size(self.group)

    @property
    def is_first(self) -> bool:
        """Whether this is the first rank of the group, who draws where one draw serves all."""
        return dist.get_rank(self.group) == 0

    def exchange(self, payload: bytes) -> list[bytes]:
        """Return every rank's payload, all of one length, in the order of the ranks."""
        own = torch.tensor(list(payload), dtype=torch.uint8)
        if self.gather is not None:
            parts = list(self.gather(own, group=self.group))
        else:
            self._check_member()
            parts = [torch.empty_like(own) for _ in range(self.size)]
            with _told():
                dist.all_gather(parts, own, group=self.group)
        return [bytes(part.cpu().tolist()) for part in parts]

    @property
    def rank(self) -> int:
        """This rank's place in the group."""
        self._check_member()
        return dist.get_rank(self.group)

    def sum_to_first(self, counts: Tensor) -> Tensor:
        """Return the sum of all ranks' ``counts`` on the first rank; what other ranks get is of no use."""
        self._check_member()
        total = counts.clone(memory_format=torch.contiguous_format)
        with _told():
            dist.reduce(total, self._global_first(), group=self.group)
        return total

    def from_first(self, tensor: Tensor) -> Tensor:
        """Return the first rank's tensor on every rank."""
        if self.gather is not None:
            return self.gather(tensor, group=self.group)[0]
        self._check_member()
        received = tensor.clone(memory_format=torch.contiguous_format)
        with _told():
            dist.broadcast(received, self._global_first(), group=self.group)
        return received

    def _global_first(self) -> int:
        return 0 if self.group is None else dist.get_global_rank(self.group, 0)

    def sum(self, counts: Tensor) -> Tensor:
        """Return the sum of all ranks' ``counts``, the same on every rank. ``counts`` is left alone."""
        return self._reduce(counts, dist.ReduceOp.SUM)

    def _reduce(self, tensor: Tensor, operation: Any) -> Tensor:
        if self.gather is not None:
            gathered = torch.stack([part.to(tensor.device) for part in self.gather(tensor, group=self.group)])
            return gathered.amax(0) if operation == dist.ReduceOp.MAX else gathered.sum(0)
        self._check_member()
        total = tensor.clone(memory_format=torch.contiguous_format)
        with _told():
            dist.all_reduce(total, operation, group=self.group)
        return total

    def _check_member(self) -> None:
        """Raise unless this process belongs to the group."""
        if not (dist.is_available() and dist.is_initialized()):
            raise SyncError(
                "Expected torch.distributed to be initialized because `distributed_available_fn` says so, but it is "
                "not. Call init_process_group, or pass `dist_sync_fn` to move the counts another way."
            )
        if dist.get_rank(self.group) < 0:
            raise SyncError(
                "Expected this rank to belong to the metric's `process_group` but it does not. Compute only on the "
                "group's ranks."
            )


@contextmanager
def _told() -> Iterator[None]:
    """Say of a broken collective what it means here."""
    try:
        yield
    except RuntimeError as error:
        raise SyncError(
            "Expected every rank to take part in the sum but one is gone or did not answer before the group's timeout; "
            "nothing was released. Start the group anew, and call `reset` before counting the data again."
        ) from error
