"""Sum: the shares of one query, added up."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.errors import (
    DuplicateClientError,
    ImpossibleCountsError,
    InputError,
    ReleaseError,
    SpecMismatchError,
    check_int,
)
from torchmetrics_fed.release.arguments import MOST_GROUPS
from torchmetrics_fed.release.checks import MAX_TOTAL, check_counts
from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.share import ID_BYTES, SKIPS_BAD, Answer, Share, pack_cells, read_cells
from torchmetrics_fed.release.spec import Spec
from torchmetrics_fed.release.wire import Reader, pack_block, pack_u16


@dataclass(frozen=True, eq=False, repr=False)
class Sum(Answer):
    """The sum of the shares that answer one query.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC, ScoreGrid
        >>> metric = FederatedROC(grid=ScoreGrid.from_edges([0, 0.5, 1]))
        >>> metric.update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> metric.release().last.leaf
        tensor([[[1, 0],
                 [0, 1]]])
    """

    shares: int = 1
    ids: bytes = b""
    """The sorted ids of the shares, if they were visible, so that sums of sums count none twice."""
    times: int = 1
    """How many draws of a share's noise are in each cell: one, or one for each group that was added up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.shares <= MAX_TOTAL or not 1 <= self.times <= MOST_GROUPS:
            raise InputError(f"Expected `shares` and `times` of at least 1 but got {self.shares!r}, {self.times!r}.")
        if len(self.ids) > ID_BYTES * self.shares or not _are_sorted(self.ids):
            raise InputError(f"Expected argument `ids` to be sorted ids of up to {self.shares} shares but got others.")

    @cached_property
    def overall(self) -> Sum:
        """The same with all groups added up, and their noise with them."""
        if not self.spec.groups:
            return self
        if self.query.pooled:
            return self._part(self.cells, 1)
        return self._part(self.spec.summed(self.cells), len(self.spec.groups))

    def of_group(self, number: int) -> Sum:
        """Return what is known of one group; of everybody where the query was about all of them."""
        if self.query.pooled or not self.spec.groups:
            return self.overall
        return self._part(self.cells.unflatten(0, (-1, self.spec.classes))[number], 1)

    def _part(self, cells: Tensor, times: int) -> Sum:
        query = replace(self.query, pooled=False)
        return replace(self, spec=self.spec.everybody, query=query, cells=cells, times=self.times * times)

    @classmethod
    def of_vector(cls, spec: Spec, query: Query, vector: NDArray[np.int64], shares: int) -> Sum:
        """Return the sum that secure aggregation of ``shares`` vectors has opened."""
        cells = torch.from_numpy(np.array(vector, dtype=np.int64)).reshape(spec.shape(query))
        return cls(spec, query, cells, shares)

    @property
    def names(self) -> list[bytes]:
        return [self.ids[start : start + ID_BYTES] for start in range(0, len(self.ids), ID_BYTES)]

    @cached_property
    def levels(self) -> list[Tensor]:
        """Counts of each level of the tree, ``(classes, rows, size)``, top level first, each counted once.

        Raises :class:`ReleaseError` where fewer shares were summed than their noise is calibrated for.
        """
        if self.shares < self.spec.clients_needed:
            raise ReleaseError(
                f"Expected shares of at least min_clients={self.spec.clients_needed} clients but the sum holds "
                f"{self.shares}: their noise does not add up to epsilon, so it is not opened. Wait for more clients."
            )
        return self.query.tree.split(self.cells)

    @property
    def leaf(self) -> Tensor:
        """Counts on the leaves: ``(classes, rows, leaves)``, row 0 negatives, row 1 positives."""
        return self.levels[-1]

    @cached_property
    def edges(self) -> Tensor:
        """Edges of the leaves, ascending, float64."""
        return self.spec.grid.edges[self.query.tree.places(self.spec.grid.bins)]

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Edges of the leaves as positions among the edges of the grid."""
        return self.query.tree.places(self.spec.grid.bins).numpy()

    @cached_property
    def noise_variance(self) -> float:
        """Variance of the noise that is really in each cell: more than asked for where more clients added some."""
        privacy, noise = self.spec.privacy, self.spec.noise(self.query)
        if privacy is None or noise is None:
            return 0.0
        return noise.variance * privacy.noise_times(self.shares) * self.times

    @property
    def variances(self) -> tuple[float, ...]:
        """Variance of the noise in each level of :attr:`levels`, top level first."""
        return tuple(self.noise_variance / weight**2 for weight in self.query.tree.weights)

    @property
    def digest(self) -> bytes:
        """SHA-256 of query and cells: ranks that carry a sum over agree on it."""
        return hashlib.sha256(self.query.digest + self.cells.cpu().contiguous().numpy().tobytes()).digest()

    def pack(self) -> bytes:
        """Return query, number of shares, draws of noise, ids and cells, for the bytes of a release."""
        how, packed = pack_cells(self)
        numbers = self.shares.to_bytes(8, "little") + pack_u16(self.times)
        return pack_block(bytes(self.query)) + numbers + pack_block(self.ids) + how + pack_block(packed)

    @classmethod
    def read(cls, reader: Reader, spec: Spec) -> Sum:
        query = Query.from_bytes(reader.block())
        spec.check_query(query)
        shares, times, ids, how = reader.number(8), reader.u16(), reader.block(), reader.number(1)
        cells = read_cells(how, reader.view(reader.number(8)), spec, query)
        return cls(spec, query, cells, shares, ids, times, skips_bad=how >= SKIPS_BAD)


class Adder:
    """A sum of answers to one query, as it grows. What is refused was not added."""

    def __init__(self, spec: Spec, query: Query, max_examples: int | None = None) -> None:
        if max_examples is not None:
            check_int("max_examples", max_examples, 1)
        self.spec, self.query, self.shares = spec, query, 0
        self._max_examples, self._cells = max_examples, torch.zeros(0)
        self._ids: set[bytes] = set()
        self._reach, self._times, self._skips_bad = 0, 1, False

    def add(self, part: Share | Sum, sender: str = "a share") -> None:
        """Check and add a share, or a sum of some."""
        if part.spec is not self.spec:
            try:
                self.spec.check(part.spec)
            except SpecMismatchError as error:
                raise SpecMismatchError(f"{error} It is {sender} that differs.") from None
        if part.query != self.query:
            raise ReleaseError(f"Expected answers to one query but {sender} answers another. Ask that client again.")
        shares, ids, times = (part.shares, part.names, part.times) if isinstance(part, Sum) else (1, [part.id], 1)
        if self.shares and times != self._times:
            raise ReleaseError(f"Expected sums with the same noise but {sender} has another. Sum releases with groups.")
        reach = check_counts(part, sender, shares, self._max_examples)
        if self._reach + reach > MAX_TOTAL:
            raise ImpossibleCountsError(f"Expected a sum within 63 bits but with {sender} it is larger. Drop it.")
        if twice := self._ids.intersection(ids):
            raise DuplicateClientError(
                f"Expected every share once but {sender} holds {len(twice)} that came before. Keep one of the two."
            )
        self._cells = self._cells.add_(part.cells.cpu()) if self.shares else part.cells.cpu().clone()
        self._ids.update(ids)
        self._reach, self._times, self._skips_bad = self._reach + reach, times, self._skips_bad or part.skips_bad
        self.shares += shares

    @property
    def sum(self) -> Sum:
        if not self.shares:
            raise ReleaseError("Expected at least one share to sum but got none. Did every client drop out?")
        ids, more = b"".join(sorted(self._ids)), {"skips_bad": self._skips_bad}
        return Sum(self.spec, self.query, self._cells.clone(), self.shares, ids, self._times, **more)


def _are_sorted(ids: bytes) -> bool:
    """Whether these are whole ids in ascending order, each once."""
    if len(ids) % ID_BYTES:
        return False
    high, low = np.frombuffer(ids, dtype=">u8").reshape(-1, 2).T
    return bool(((high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))).all())
