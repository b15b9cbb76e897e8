"""Ranks: agreement and sums over a torch.distributed process group, or in this process alone.

These rules hold for all calls:

- Every rank makes the same calls in the same order. A rank without data takes part, too.
- Ranks compare their settings before they sum. A difference raises the same error on every rank.
- Raw counts travel in sums only, never from one rank to another. A gather function that the caller
  passes is the exception: every rank then receives the tensors of all ranks.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from torchmetrics_fed.aggregation.group_key import agreed_key
from torchmetrics_fed.aggregation.secure.mask import masked_sum
from torchmetrics_fed.counting.persons import DIGEST_BYTES, Persons, check_together
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
"""torchmetrics' ``dist_sync_fn``: ``gather(tensor, group=group)`` returns every rank's tensor."""

_HEADER_SLOTS = 40
"""Integers in the header that ranks compare. It has room to grow: ranks of two versions of this
package must be able to compare headers, and unequal sizes abort gloo without an explanation."""

_DIGEST_SLOTS = 8
"""Integers of the header that hold the digest of all settings, 4 bytes each."""

_TOKEN_BYTES = 16
"""Bytes of the random token by which a rank finds its place in a gather function's result."""


class Agreement(NamedTuple):
    """What all ranks know after they compared their settings; the same on every rank."""

    statuses: tuple[int, int]
    """The lowest and the highest status of a rank."""
    proposal: int
    """The largest of the ranks' random numbers."""
    any_data: bool
    """Whether any rank has data."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of a process group that sum together.

    Args:
        device: the device on which the backend wants tensors.
        group: the process group; all ranks if None.
        gather: the function that moves all tensors, if given. Otherwise ``all_reduce`` moves them,
            which shows no rank the counts of another rank.
        refused: the number of this rank's examples that could not be counted. While a rank has any,
            the ranks agree on nothing.
        persons: this rank's table of persons; None if it has counted without ids.
    """

    device: torch.device
    group: Any = None
    gather: Gather | None = None
    refused: int = 0
    persons: Persons | None = None

    def agree(
        self, spec: Spec, settings: Mapping[str, bytes], status: int, any_data: bool
    ) -> Agreement:
        """Compare specs and settings over all ranks. Raises on every rank if they differ.

        Args:
            spec: the spec of this rank.
            settings: other settings of this rank, by their name.
            status: a number of this rank that may differ between ranks.
            any_data: whether this rank has data.
        """
        digests = _digests(spec, settings)
        compared = _compared_numbers(digests)
        facts = [self.refused, status, secrets.randbits(62), int(any_data)]
        padding = [0] * (_HEADER_SLOTS - len(compared) - len(facts))
        header = torch.tensor(
            [*compared, *padding, *facts],
            dtype=torch.int64,
            device=self.device,
        )
        # One reduction gives both ends: the lowest value is minus the highest negated one.
        extremes = self._reduce(torch.stack([header, -header]), dist.ReduceOp.MAX)
        highest = extremes[0].tolist()
        lowest = (-extremes[1]).tolist()
        differs = [low != high for low, high in zip(lowest, highest, strict=True)]
        if any(differs[: -len(facts)]):
            marks_differ = zip(digests, differs[_DIGEST_SLOTS:], strict=False)
            names = [name for name, mark_differs in marks_differ if mark_differs]
            raise _mismatch(names, spec, settings)
        most_refused, highest_status, proposal, any_rank_has_data = highest[-len(facts) :]
        lowest_status = lowest[-len(facts) + 1]
        if most_refused > 0:
            refused = torch.tensor([self.refused], device=self.device)
            total_refused = self._reduce(refused, dist.ReduceOp.SUM)
            self.check_counted(spec, int(total_refused))
        return Agreement(
            statuses=(lowest_status, highest_status),
            proposal=proposal,
            any_data=bool(any_rank_has_data),
        )

    @staticmethod
    def check_counted(spec: Spec, refused: int) -> None:
        """Raise if examples could not be counted. Under privacy the error does not say how many."""
        if not refused:
            return
        number = "some" if spec.privacy.charges else str(refused)
        raise about_data(
            InputError(
                "Expected every example to have a score on the grid and a known label but "
                f"{number} could not be counted; nothing was released. Find the batch with "
                "`validate_args=True`, then `reset` and count the data again."
            )
        )

    def check_persons(self, bound: int) -> None:
        """Raise on all ranks if a person has more than ``bound`` examples on them together.

        The ranks are one client. They compare keyed digests of their persons, under a key that they
        agree on for this comparison and forget.
        """
        if self.size == 1:
            return
        kinds = {kind.strip() for kind in self.exchange(self._kind_of_counting.ljust(8))}
        if b"with ids" not in kinds:
            return
        if self.persons is None or b"without" in kinds:
            raise ReleaseError(
                "Expected `persons` on every rank or on none but only some have given them; "
                "nothing was charged. Pass ids to every `update`, then `reset` and count the data "
                "again."
            )
        digests = self.persons.digests(agreed_key(self.rank, self.exchange))
        check_together(self._exchange_tables(digests), bound)

    @property
    def _kind_of_counting(self) -> bytes:
        """Whether this rank has counted with ids, without ids, or nothing."""
        if self.persons is None:
            return b"without"
        if self.persons.batches:
            return b"with ids"
        return b"nothing"

    def _exchange_tables(self, table: dict[bytes, int]) -> list[dict[bytes, int]]:
        """Return the tables of all ranks: the examples of each person, by digest."""
        rows = [digest + examples.to_bytes(8, "little") for digest, examples in table.items()]
        sizes = [
            int.from_bytes(size, "little")
            for size in self.exchange(len(rows).to_bytes(8, "little"))
        ]
        row_bytes = DIGEST_BYTES + 8
        payload = b"".join(rows).ljust(1 + max(sizes) * row_bytes)
        tables = []
        for size, rank_payload in zip(sizes, self.exchange(payload), strict=True):
            rank_table = {}
            for start in range(0, size * row_bytes, row_bytes):
                row = rank_payload[start : start + row_bytes]
                rank_table[row[:DIGEST_BYTES]] = int.from_bytes(row[DIGEST_BYTES:], "little")
            tables.append(rank_table)
        return tables

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank; the same on every rank."""
        number = torch.tensor([int(flag)], device=self.device)
        return bool(self._reduce(number, dist.ReduceOp.MAX))

    @property
    def size(self) -> int:
        """The number of ranks."""
        if self.gather is not None:
            return len(self.gather(torch.zeros(1, dtype=torch.int64), group=self.group))
        self._check_member()
        return dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        """The number of this rank in its group."""
        if self.gather is not None:
            # A gather function knows no ranks. The place of this rank's token is its number.
            token = secrets.token_bytes(_TOKEN_BYTES)
            return self.exchange(token).index(token)
        self._check_member()
        return dist.get_rank(self.group)

    @property
    def is_first(self) -> bool:
        """Whether this is the first rank of the group, which draws where one draw serves all."""
        return self.rank == 0

    def exchange(self, payload: bytes) -> list[bytes]:
        """Return every rank's payload in the order of the ranks. All payloads have one length."""
        tensor = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        if self.gather is not None:
            gathered = list(self.gather(tensor, group=self.group))
        else:
            gathered = [torch.empty_like(tensor) for _ in range(self.size)]
            with _explained():
                dist.all_gather(gathered, tensor, group=self.group)
        return [received.cpu().numpy().tobytes() for received in gathered]

    def sum(self, counts: Tensor) -> Tensor:
        """Return the sum of all ranks' ``counts``, the same on every rank."""
        return self._reduce(counts, dist.ReduceOp.SUM)

    def sum_to_first(self, counts: Tensor) -> Tensor:
        """Return the sum of all ranks' ``counts`` on the first rank. Other ranks get no result."""
        if self.gather is not None:
            return self.sum(counts)
        return self._collective(dist.reduce, counts, self._first_rank())

    def from_first(self, tensor: Tensor) -> Tensor:
        """Return the first rank's tensor on every rank."""
        tensor = tensor.to(self.device)
        if self.gather is not None:
            return self.gather(tensor, group=self.group)[0]
        return self._collective(dist.broadcast, tensor, self._first_rank())

    def query_from_first(self, query: Query, bins: int) -> Query:
        """Return the first rank's query on every rank.

        All ranks have placed the query by the same sums, but floats differ between machines.
        """
        encoded = pack_block(bytes(query))
        # The longest query has an edge for each bin, and two weights for each node of all levels.
        buffer = torch.zeros(1024 + 24 * (bins + 1), dtype=torch.uint8)
        buffer[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        received = bytes(self.from_first(buffer).cpu().numpy())
        length = int.from_bytes(received[:8], "little")
        return Query.from_bytes(received[8 : 8 + length])

    def hidden_sum(self, cells: Tensor, view: bytes) -> Tensor:
        """Return the sum of all ranks' ``cells``. Each rank's cells travel under fresh masks.

        Args:
            cells: the cells of this rank.
            view: the description of the sum by this rank. It must be the same on every rank, and
                never used before.
        """
        return masked_sum(cells, self.rank, view, self.exchange, self.sum)

    def _reduce(self, tensor: Tensor, operation: Any) -> Tensor:
        """Return the sum or the maximum over all ranks. ``tensor`` is not changed."""
        if self.gather is None:
            return self._collective(dist.all_reduce, tensor, operation)
        gathered = [part.to(tensor.device) for part in self.gather(tensor, group=self.group)]
        if len(gathered) == 1:
            return gathered[0]
        if operation == dist.ReduceOp.MAX:
            return torch.stack(gathered).amax(0)
        return torch.stack(gathered).sum(0)

    def _collective(self, call: Callable[..., Any], tensor: Tensor, option: Any) -> Tensor:
        """Return a copy of ``tensor`` after a collective call on the copy."""
        self._check_member()
        copy = tensor.clone(memory_format=torch.contiguous_format)
        with _explained():
            call(copy, option, group=self.group)
        return copy

    def _first_rank(self) -> int:
        """Return the number of the group's first rank among all ranks."""
        self._check_member()
        if self.group is None:
            return 0
        return dist.get_global_rank(self.group, 0)

    def _check_member(self) -> None:
        """Raise unless this process belongs to the group."""
        if not (dist.is_available() and dist.is_initialized()):
            raise SyncError(
                "Expected torch.distributed to be initialized because `distributed_available_fn` "
                "says so, but it is not. Call init_process_group, or pass `dist_sync_fn` to move "
                "the counts another way."
            )
        if dist.get_rank(self.group) < 0:
            raise SyncError(
                "Expected this rank to belong to the metric's `process_group` but it does not. "
                "Compute only on the group's ranks."
            )


def _only_this(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Gather over one rank."""
    return [tensor]


@dataclass(frozen=True)
class Alone(Ranks):
    """This process as a federation of one rank, without any collective."""

    gather: Gather | None = _only_this

    def query_from_first(self, query: Query, bins: int) -> Query:
        """Return the query: there is no other rank."""
        return query


def _digests(spec: Spec, settings: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the digest of each field of the spec and of each setting, by name."""
    digests = dict(spec.digests)
    for name, value in settings.items():
        digests[name] = hashlib.sha256(value).digest()
    return digests


def _compared_numbers(digests: Mapping[str, bytes]) -> list[int]:
    """Return the integers that must be equal on all ranks: a digest of all, and a mark of each."""
    digest = hashlib.sha256(b"".join(digests.values())).digest()
    words = [digest[4 * slot : 4 * slot + 4] for slot in range(_DIGEST_SLOTS)]
    numbers = [int.from_bytes(word, "big") for word in words]
    marks = [int.from_bytes(mark[:8], "big") >> 1 for mark in digests.values()]
    return numbers + marks


def _mismatch(names: list[str], spec: Spec, settings: Mapping[str, bytes]) -> SpecMismatchError:
    """Return the error for settings that differ between ranks, with the values of this rank."""
    values = {name: spec.fields.get(name, settings.get(name)) for name in names}
    difference = ", ".join(names) or "the version"
    return SpecMismatchError(
        f"Expected every rank to have the same spec but they differ in {difference}; this rank "
        f"has {values}. Build the metric with the same arguments on every rank."
    )


@contextmanager
def _explained() -> Iterator[None]:
    """Turn the error of a broken collective into a SyncError that says what to do."""
    try:
        yield
    except RuntimeError as error:
        raise SyncError(
            "Expected every rank to take part in the sum but one is gone or did not answer before "
            "the group's timeout; nothing was released. Start the group again, and call `reset` "
            "before counting the data again."
        ) from error
