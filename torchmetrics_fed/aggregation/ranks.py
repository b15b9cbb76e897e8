"""Ranks: agreement and sums over a torch.distributed process group, or over this process alone."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from torchmetrics_fed.aggregation.secure.mask import masked_sum
from torchmetrics_fed.counting.numbering import BLOCK, encrypted, encryptor
from torchmetrics_fed.counting.persons import Persons
from torchmetrics_fed.errors import (
    InputError,
    ReleaseError,
    SpecMismatchError,
    SyncError,
    about_data,
)
from torchmetrics_fed.release import Query, Spec
from torchmetrics_fed.release.wire import pack_block

Gather = Callable[..., Sequence[Tensor]]

# The header has room to grow because ranks of two versions of this package must be able to compare theirs: unequal
# sizes abort gloo instead of saying what is wrong.
_HEADER_SLOTS = 40
_DIGEST_SLOTS = 8


class Agreement(NamedTuple):
    """What the ranks know of each other: the lowest and highest status, the largest proposal, if any has data."""

    statuses: tuple[int, int]
    proposal: int
    any_data: bool


@dataclass(frozen=True)
class Ranks:
    """The ranks of a process group that sum together; all ranks if it is None. The backend wants tensors on ``device``.

    Args:
        gather: torchmetrics' ``dist_sync_fn``: ``gather(tensor, group=group)`` returns every rank's tensor. Where one
            is given everything goes through it, else through ``all_reduce``, which shows no rank another one's counts.
        refused: how many of this rank's examples could not be counted. Ranks agree on nothing while one has any.
        persons: this rank's table, or None if it has counted without ids.
    """

    device: torch.device
    group: Any = None
    gather: Gather | None = None
    refused: int = 0
    persons: Persons | None = None

    def agree(
        self, spec: Spec, settings: Mapping[str, bytes], status: int, any_data: bool
    ) -> Agreement:
        """Compare specs, and settings by name; raise on every rank alike, naming what differs. Statuses may differ."""
        marks = spec.digests | {
            name: hashlib.sha256(value).digest() for name, value in settings.items()
        }
        whole = hashlib.sha256(b"".join(marks.values())).digest()
        numbers = [
            int.from_bytes(whole[4 * slot : 4 * slot + 4], "big") for slot in range(_DIGEST_SLOTS)
        ]
        numbers += [int.from_bytes(mark[:8], "big") >> 1 for mark in marks.values()]
        own = self.refused, status, secrets.randbits(62), int(any_data)
        room = [0] * (_HEADER_SLOTS - len(numbers) - len(own))
        header = torch.tensor([*numbers, *room, *own], dtype=torch.int64, device=self.device)
        highest = self._reduce(torch.stack([header, -header]), dist.ReduceOp.MAX)
        unequal = (highest[0] != -highest[1])[: -len(own)].tolist()
        if any(unequal):
            names = [
                name
                for name, differs in zip(marks, unequal[_DIGEST_SLOTS:], strict=False)
                if differs
            ]
            mine = {name: spec.fields.get(name, settings.get(name)) for name in names}
            raise SpecMismatchError(
                f"Expected every rank to have the same spec but they differ in {', '.join(names) or 'the version'}; "
                f"this rank has {mine}. Build the metric with the same arguments on every rank."
            )
        if highest[0, -len(own)] > 0:
            every = self._reduce(
                torch.tensor([self.refused], device=self.device), dist.ReduceOp.SUM
            )
            self.check_counted(spec, int(every))
        statuses = int(-highest[1, -3]), int(highest[0, -3])
        return Agreement(statuses, int(highest[0, -2]), bool(highest[0, -1]))

    @staticmethod
    def check_counted(spec: Spec, refused: int) -> None:
        """Raise if examples could not be counted. Under privacy nobody hears how many."""
        if refused:
            some = "some could not" if spec.privacy.charges else f"{refused} could not"
            raise about_data(
                InputError(
                    f"Expected every example to have a score on the grid and a known label but {some} be counted; "
                    "nothing was released. Find the batch with `validate_args=True`, then `reset` and count the data "
                    "again."
                )
            )

    def check_persons(self, most: int) -> None:
        """Raise on all ranks, which are one client, if somebody has more than ``most`` examples on them together."""
        if self.size == 1:
            return
        # whether this rank has counted with ids, without, or nothing
        own = (
            b"without"
            if self.persons is None
            else b"with ids"
            if self.persons.batches
            else b"nothing"
        )
        everywhere = {kind.strip() for kind in self.exchange(own.ljust(8))}
        if b"with ids" not in everywhere:
            return
        if self.persons is None or b"without" in everywhere:
            raise ReleaseError(
                "Expected `persons` on every rank or on none but only some have given them; nothing was charged. Pass "
                "ids to every `update`, then `reset` and count the data again."
            )
        # one key for all, so that one person has one hash; it is made for this and forgotten
        key = self.from_first(torch.tensor(list(secrets.token_bytes(BLOCK)), dtype=torch.uint8))
        blocks, examples = self.persons.known()
        own = (
            encrypted(encryptor(bytes(key.tolist())), blocks).tobytes()
            + examples.astype(np.int64).tobytes()
        )
        sizes = [
            int.from_bytes(size, "little")
            for size in self.exchange(len(blocks).to_bytes(8, "little"))
        ]
        everybody = Persons(most)
        for size, part in zip(
            sizes, self.exchange(own.ljust(1 + max(sizes) * (BLOCK + 8))), strict=True
        ):
            hashes = np.frombuffer(part, np.uint8, size * BLOCK).reshape(size, BLOCK)
            everybody.add(hashes, np.frombuffer(part, np.int64, size, size * BLOCK))

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on any rank; the same answer on all."""
        return bool(self._reduce(torch.tensor([int(flag)], device=self.device), dist.ReduceOp.MAX))

    @property
    def size(self) -> int:
        if self.gather is not None:
            return len(self.gather(torch.zeros(1, dtype=torch.int64), group=self.group))
        self._check_member()
        return dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        if self.gather is None:
            self._check_member()
            return dist.get_rank(self.group)
        own = secrets.token_bytes(
            16
        )  # a gather function knows no ranks: this one is where its own token is
        return self.exchange(own).index(own)

    @property
    def is_first(self) -> bool:
        """Whether this is the first rank of the group, which draws where one draw serves all."""
        return self.rank == 0

    def exchange(self, payload: bytes) -> list[bytes]:
        """Return every rank's payload, all of one length, in the order of the ranks."""
        own = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        if self.gather is not None:
            parts = list(self.gather(own, group=self.group))
        else:
            parts = [torch.empty_like(own) for _ in range(self.size)]
            with _explained():
                dist.all_gather(parts, own, group=self.group)
        return [part.cpu().numpy().tobytes() for part in parts]

    def sum(self, counts: Tensor) -> Tensor:
        """Return the sum of all ranks' ``counts``, the same on every rank. ``counts`` is left alone."""
        return self._reduce(counts, dist.ReduceOp.SUM)

    def sum_to_first(self, counts: Tensor) -> Tensor:
        """Return the sum of all ranks' ``counts`` on the first rank; what other ranks get is of no use."""
        if self.gather is not None:
            return self.sum(counts)
        return self._collective(dist.reduce, counts, first=True)

    def from_first(self, tensor: Tensor) -> Tensor:
        """Return the first rank's tensor on every rank."""
        tensor = tensor.to(self.device)
        if self.gather is not None:
            return self.gather(tensor, group=self.group)[0]
        return self._collective(dist.broadcast, tensor, first=True)

    def query_from_first(self, query: Query, bins: int) -> Query:
        """Return the first rank's query: all have placed it by the same sums, but floats may differ by machine."""
        encoded = pack_block(bytes(query))
        # for the longest query: an edge for each bin, and two weights for each node of all levels
        room = torch.zeros(1024 + 24 * (bins + 1), dtype=torch.uint8)
        room[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        received = bytes(self.from_first(room).cpu().numpy())
        return Query.from_bytes(received[8 : 8 + int.from_bytes(received[:8], "little")])

    def hidden_sum(self, cells: Tensor, view: bytes) -> Tensor:
        """Return the sum of all ranks' ``cells``; each rank's part travels under masks, with keys for this sum alone.

        ``view`` is what this rank believes the sum is of; never used before, the same on every rank.
        """
        return masked_sum(cells, self.rank, view, self.exchange, self.sum)

    def _reduce(self, tensor: Tensor, operation: Any) -> Tensor:
        if self.gather is not None:
            parts = [part.to(tensor.device) for part in self.gather(tensor, group=self.group)]
            if len(parts) == 1:
                return parts[0]
            return (
                torch.stack(parts).amax(0)
                if operation == dist.ReduceOp.MAX
                else torch.stack(parts).sum(0)
            )
        return self._collective(dist.all_reduce, tensor, operation)

    def _collective(
        self, call: Callable[..., Any], tensor: Tensor, *options: Any, first: bool = False
    ) -> Tensor:
        """Return a copy of ``tensor`` after a collective call on it, from or to the first rank if so."""
        self._check_member()
        if first:
            options = (0 if self.group is None else dist.get_global_rank(self.group, 0),)
        copy = tensor.clone(memory_format=torch.contiguous_format)
        with _explained():
            call(copy, *options, group=self.group)
        return copy

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


@dataclass(frozen=True)
class Alone(Ranks):
    """This process, as a federation of one: what ranks do together, without any collective."""

    gather: Gather | None = lambda tensor, group: [tensor]

    def query_from_first(self, query: Query, bins: int) -> Query:
        return query


@contextmanager
def _explained() -> Iterator[None]:
    """Say of a broken collective what it means here."""
    try:
        yield
    except RuntimeError as error:
        raise SyncError(
            "Expected every rank to take part in the sum but one is gone or did not answer before the group's timeout; "
            "nothing was released. Start the group again, and call `reset` before counting the data again."
        ) from error
