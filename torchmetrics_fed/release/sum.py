"""Sum: the shares of one query, added up.

These rules hold for every sum:

- All shares have one spec and one query. A share is in a sum once: sums keep the ids of the shares,
  as far as they were visible, so that sums of sums count no share twice.
- A sum of fewer shares than their noise is calibrated for is not opened: it has no levels, no bytes
  and no pickle. It can be added to other sums in the process that made it.
- Sums are exact integers. A part that could make a sum overflow is refused.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

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
from torchmetrics_fed.release.checks import MAX_TOTAL, check_counts
from torchmetrics_fed.release.flags import NO_FLAGS, ReleaseFlag
from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.share import ID_BYTES, QueryCells, Share, pack_cells, read_cells
from torchmetrics_fed.release.spec import MOST_GROUPS, Spec
from torchmetrics_fed.release.wire import Reader, pack_block
from torchmetrics_fed.typing import Floats


@dataclass(frozen=True, eq=False, repr=False)
class Sum(QueryCells):
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
    """The number of shares."""
    ids: bytes = b""
    """The sorted ids of the shares, one after the other; empty if the shares were hidden."""
    times: int = 1
    """The draws of a share's noise in each cell: 1, or 1 for each group that was added up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.shares <= MAX_TOTAL or not 1 <= self.times <= MOST_GROUPS:
            raise InputError(
                "Expected arguments `shares` and `times` to be at least 1 but got "
                f"{self.shares!r}, {self.times!r}."
            )
        if len(self.ids) > ID_BYTES * self.shares or not _are_sorted(self.ids):
            raise InputError(
                f"Expected argument `ids` to be sorted ids of up to {self.shares} shares but got "
                "others."
            )

    @classmethod
    def of_vector(cls, spec: Spec, query: Query, vector: NDArray[np.int64], shares: int) -> Sum:
        """Return the sum of ``shares`` vectors that secure aggregation has opened."""
        cells = torch.from_numpy(np.array(vector, dtype=np.int64))
        return cls(spec, query, cells.reshape(spec.shape(query)), shares)

    @cached_property
    def overall(self) -> Sum:
        """The sum over all groups. It holds the noise of every group."""
        if not self.spec.groups:
            return self
        groups, classes = self.spec.histograms(self.query)
        cells = self.cells.unflatten(0, (groups, classes))
        return self._without_groups(cells.sum(0), noises=groups)

    def of_group(self, number: int) -> Sum:
        """Return the sum of one group; of all groups if the query does not tell them apart."""
        if self.query.pools_groups or not self.spec.groups:
            return self.overall
        groups, classes = self.spec.histograms(self.query)
        cells = self.cells.unflatten(0, (groups, classes))
        return self._without_groups(cells[number], noises=1)

    def _without_groups(self, cells: Tensor, *, noises: int) -> Sum:
        return replace(
            self,
            spec=self.spec.everybody,
            query=replace(self.query, pools_groups=False),
            cells=cells,
            times=self.times * noises,
        )

    @property
    def names(self) -> list[bytes]:
        """The ids of the shares, each by itself."""
        starts = range(0, len(self.ids), ID_BYTES)
        return [self.ids[start : start + ID_BYTES] for start in starts]

    @cached_property
    def levels(self) -> list[Tensor]:
        """Counts on each level of the tree, ``(classes, rows, nodes)``, the top level first.

        Every example is counted once, whatever the weights of the query. Raises
        :class:`ReleaseError` for fewer shares than their noise is calibrated for.
        """
        self.check_opened()
        return self.spec.levels(self.query, self.cells)

    def check_opened(self) -> None:
        """Raise for fewer shares than their noise is calibrated for: such a sum is not read."""
        if self.shares < self.spec.clients_needed:
            raise ReleaseError(
                f"Expected shares of at least min_clients={self.spec.clients_needed} clients but "
                f"the sum holds {self.shares}: their noise does not add up to epsilon, so it is "
                "not opened. Wait for more clients. To add a part elsewhere, send `bytes` of its "
                "shares."
            )

    def __getstate__(self) -> dict[str, Any]:
        self.check_opened()
        return super().__getstate__()

    @property
    def leaf(self) -> Tensor:
        """Counts on the leaves: ``(classes, rows, leaves)``, row 0 negatives, row 1 positives."""
        return self.levels[-1]

    @cached_property
    def edges(self) -> Tensor:
        """Edges of the leaves, ascending, float64."""
        return self.spec.grid.edges[self.places]

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Edges of the leaves as positions among the edges of the grid."""
        return self.query.tree.places(self.spec.grid.bins).numpy()

    @cached_property
    def noise_variance(self) -> float:
        """Variance of the noise in each cell. More clients than needed add more noise."""
        drawn = self.spec.privacy.noise_times(self.shares) * self.times
        return self.spec.noise(self.query).variance * drawn

    @property
    def weights(self) -> list[NDArray[np.int64]]:
        """How many times the cells of each level count an example, the top level first."""
        return self.spec.weights(self.query)

    @property
    def variances(self) -> list[Floats]:
        """Variance of the noise in each level of :attr:`levels`, the top level first.

        They broadcast to the counts of a class, ``(rows, nodes)``; of one-vs-one counts, to those
        of all classes.
        """
        return [self.noise_variance / weights**2 for weights in self.weights]

    @property
    def whole_epsilon(self) -> float:
        r"""The epsilon that a release spends on a positive, with as much noise as there is here.

        A two-sided geometric noise of variance :math:`v = 1 / (2 \sinh^2(\varepsilon / 2))` hides a
        change of 1 with :math:`\varepsilon = 2 \operatorname{arsinh} \sqrt{1 / (2 v)}`, and a
        positive that is counted w times with w of it.
        """
        cell_epsilon = 2 * math.asinh(math.sqrt(0.5 / self.noise_variance))
        weight_of_positive = sum(max(level.positives) for level in self.query.weights)
        precision = self.spec.privacy.precision_of(self.query.fraction)
        return cell_epsilon * weight_of_positive / precision

    @property
    def digest(self) -> bytes:
        """SHA-256 of query and cells. Ranks that carry a sum over compare it."""
        cells = self.cells.cpu().contiguous().numpy().tobytes()
        return hashlib.sha256(self.query.digest + cells).digest()

    def pack(self) -> bytes:
        """Return query, number of shares, draws of noise, ids and cells, for a release's bytes."""
        encoding, packed = pack_cells(self)
        parts = [
            pack_block(bytes(self.query)),
            self.shares.to_bytes(8, "little"),
            self.times.to_bytes(2, "little"),
            pack_block(self.ids),
            encoding,
            pack_block(packed),
        ]
        return b"".join(parts)

    @classmethod
    def read(cls, reader: Reader, spec: Spec, flags: ReleaseFlag = NO_FLAGS) -> Sum:
        """Return the next sum of a message. ``flags`` are the flags of the message."""
        query = Query.from_bytes(reader.block())
        spec.check_query(query)
        shares = reader.number(8)
        times = reader.number(2)
        ids = reader.block()
        encoding = reader.number(1)
        packed = reader.view(reader.number(8))
        return cls(
            spec,
            query,
            read_cells(encoding, packed, spec, query),
            shares=shares,
            ids=ids,
            times=times,
            skips_bad=ReleaseFlag.ROWS_SKIPPED in flags,
        )


class Adder:
    """A growing sum of shares of one query. A part that is refused was not added.

    Args:
        spec: the spec of all parts.
        query: the query of all parts.
        max_examples: the most examples that one client can have; unlimited if not given.
    """

    def __init__(self, spec: Spec, query: Query, max_examples: int | None = None) -> None:
        if max_examples is not None:
            check_int("max_examples", max_examples, 1)
        self.spec = spec
        self.query = query
        self.shares = 0
        """The number of shares that were added."""
        self._max_examples = max_examples
        self._cells = torch.zeros(0)
        self._cells_are_shared = True
        """Whether a part, or a sum that was returned, has the same tensor."""
        self._ids: set[bytes] = set()
        self._magnitude = 0
        """The largest magnitude that a cell of the sum can have."""
        self._times = 1
        self._skips_bad = False

    def add(self, part: Share | Sum, sender: str = "a share") -> None:
        """Check and add a share, or a sum of shares. Errors name the sender."""
        self._check_agreed(part, sender)
        if isinstance(part, Sum):
            shares = part.shares
            ids = part.names
            times = part.times
        else:
            shares = 1
            ids = [part.id]
            times = 1
        if self.shares and times != self._times:
            raise ReleaseError(
                f"Expected sums with the same noise but {sender} has another. Sum releases with "
                "groups."
            )
        magnitude = check_counts(part, sender, shares, self._max_examples)
        if self._magnitude + magnitude > MAX_TOTAL:
            raise ImpossibleCountsError(
                f"Expected a sum within 63 bits but with {sender} it is larger. Drop it."
            )
        repeated = self._ids.intersection(ids)
        if repeated:
            raise DuplicateClientError(
                f"Expected every share once but {sender} holds {len(repeated)} that came before. "
                "Keep one of the two."
            )
        self._add_cells(part.cells.cpu())
        self._ids.update(ids)
        self._magnitude += magnitude
        self._times = times
        self._skips_bad = self._skips_bad or part.skips_bad
        self.shares += shares

    def _check_agreed(self, part: Share | Sum, sender: str) -> None:
        """Raise unless the part has the spec and the query of this sum."""
        if part.spec is not self.spec:
            try:
                self.spec.check(part.spec)
            except SpecMismatchError as error:
                raise SpecMismatchError(f"{error} It is {sender} that differs.") from None
        if part.query != self.query:
            raise ReleaseError(
                f"Expected answers to one query but {sender} answers another. Ask that client "
                "again."
            )

    def _add_cells(self, cells: Tensor) -> None:
        """Add in place, unless a part or a returned sum has the same tensor."""
        if not self.shares:
            self._cells = cells
        elif self._cells_are_shared:
            self._cells = self._cells + cells
            self._cells_are_shared = False
        else:
            self._cells += cells

    @property
    def sum(self) -> Sum:
        """The sum so far. Parts that are added later do not change it."""
        if not self.shares:
            raise ReleaseError(
                "Expected at least one share to sum but got none. Did every client drop out?"
            )
        self._cells_are_shared = True
        return Sum(
            self.spec,
            self.query,
            self._cells,
            self.shares,
            ids=b"".join(sorted(self._ids)),
            times=self._times,
            skips_bad=self._skips_bad,
        )


def _are_sorted(ids: bytes) -> bool:
    """Return whether these are whole ids in ascending order, each once."""
    if len(ids) % ID_BYTES:
        return False
    high, low = np.frombuffer(ids, dtype=">u8").reshape(-1, 2).T
    is_higher = high[1:] > high[:-1]
    is_equal = high[1:] == high[:-1]
    is_lower_half_higher = low[1:] > low[:-1]
    return bool((is_higher | (is_equal & is_lower_half_higher)).all())
