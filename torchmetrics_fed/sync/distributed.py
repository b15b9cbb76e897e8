"""Ranks: agreement and sums over a torch.distributed process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchmetrics_fed.errors import SpecMismatchError, SyncError
from torchmetrics_fed.spec import Spec

__all__ = ["Gather", "Ranks"]

Gather = Callable[..., Sequence[Tensor]]

# The header has room to grow, for ranks of two versions of this package must be able to compare theirs: unequal sizes
# abort gloo instead of telling anybody what is wrong.
_HEADER_SLOTS = 32


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

    def agree(self, spec: Spec, device: torch.device) -> None:
        """Raise on every rank alike, naming the fields, unless all ranks have this spec."""
        digests = spec.digests
        numbers = [int.from_bytes(digest[:8], "big") >> 1 for digest in digests.values()]
        header = torch.tensor(numbers + [0] * (_HEADER_SLOTS - len(numbers)), dtype=torch.int64, device=device)
        highest = self._reduce(torch.stack([header, -header]), dist.ReduceOp.MAX)
        unequal = (highest[0] != -highest[1]).tolist()
        names = [name for name, differs in zip(digests, unequal, strict=False) if differs]
        if any(unequal):
            raise SpecMismatchError(
                f"Expected every rank to have the same spec but they differ in {', '.join(names) or 'the version'}; "
                f"this rank has { {name: spec.fields[name] for name in names} }. Build the metric with the same "
                "arguments on every rank."
            )

    def sum(self, counts: Tensor) -> Tensor:
        """Return the sum of all ranks' ``counts``, the same on every rank. ``counts`` is left alone."""
        return self._reduce(counts, dist.ReduceOp.SUM)

    def _reduce(self, tensor: Tensor, operation: Any) -> Tensor:
        if self.gather is not None:
            gathered = torch.stack([part.to(tensor.device) for part in self.gather(tensor, group=self.group)])
            return gathered.amax(0) if operation == dist.ReduceOp.MAX else gathered.sum(0)
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
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, operation, group=self.group)
        return total
