"""Sum: the shares of one query, added up; and which cells a client with a given number of examples can have sent."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
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
from torchmetrics_fed.release.flags import NO_FLAGS, ReleaseFlag
from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.share import (
    ID_BYTES,
    Answer,
    Share,
    pack_cells,
    read_cells,
)
from torchmetrics_fed.release.spec import MOST_GROUPS, Spec
from torchmetrics_fed.release.wire import Reader, pack_block

MAX_TOTAL = 2**63 - 1
"""What int64 holds; no sum may leave it."""
_FALSE_ALARM = 1e-9


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
            raise InputError(
                f"Expected `shares` and `times` of at least 1 but got {self.shares!r}, {self.times!r}."
            )
        if len(self.ids) > ID_BYTES * self.shares or not _are_sorted(self.ids):
            raise InputError(
                f"Expected argument `ids` to be sorted ids of up to {self.shares} shares but got others."
            )

    @cached_property
    def overall(self) -> Sum:
        """The same with all groups added up, and their noise with them."""
        if not self.spec.groups:
            return self
        groups, classes = self.spec.histograms(self.query)
        return self._part(self.cells.unflatten(0, (groups, classes)).sum(0), groups)

    def of_group(self, number: int) -> Sum:
        """Return what is known of one group; of everybody where the query was about all of them."""
        if self.query.pools_groups or not self.spec.groups:
            return self.overall
        shape = self.spec.histograms(self.query)
        return self._part(self.cells.unflatten(0, shape)[number], 1)

    def _part(self, cells: Tensor, times: int) -> Sum:
        query = replace(self.query, pools_groups=False)
        return replace(
            self, spec=self.spec.everybody, query=query, cells=cells, times=self.times * times
        )

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
        self.check_opened()
        return self.spec.levels(self.query, self.cells)

    def check_opened(self) -> None:
        """Raise where fewer shares were summed than their noise is calibrated for: nobody may read such a sum."""
        if self.shares < self.spec.clients_needed:
            raise ReleaseError(
                f"Expected shares of at least min_clients={self.spec.clients_needed} clients but the sum holds "
                f"{self.shares}: their noise does not add up to epsilon, so it is not opened. Wait for more clients. "
                "To add a part elsewhere, send `bytes` of its shares."
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
        """Variance of the noise that is really in each cell: more than asked for where more clients added some."""
        drawn = self.spec.privacy.noise_times(self.shares) * self.times
        return self.spec.noise(self.query).variance * drawn

    @property
    def variances(self) -> tuple[float, ...]:
        """Variance of the noise in each level of :attr:`levels`, top level first."""
        return tuple(self.noise_variance / weight**2 for weight in self.query.level_weights)

    @property
    def whole_epsilon(self) -> float:
        """The epsilon of a whole release whose cells would have as much noise as these really have."""
        cell_epsilon = 2 * math.asinh(math.sqrt(0.5 / self.noise_variance))
        return cell_epsilon * sum(self.query.level_weights) / self.query.fraction

    @property
    def digest(self) -> bytes:
        """SHA-256 of query and cells: ranks that carry a sum over agree on it."""
        return hashlib.sha256(
            self.query.digest + self.cells.cpu().contiguous().numpy().tobytes()
        ).digest()

    def pack(self) -> bytes:
        """Return query, number of shares, draws of noise, ids and cells, for the bytes of a release."""
        how, packed = pack_cells(self)
        numbers = self.shares.to_bytes(8, "little") + self.times.to_bytes(2, "little")
        return (
            pack_block(bytes(self.query))
            + numbers
            + pack_block(self.ids)
            + how
            + pack_block(packed)
        )

    @classmethod
    def read(cls, reader: Reader, spec: Spec, flags: ReleaseFlag = NO_FLAGS) -> Sum:
        """Return the sum that comes next. What the message around it says of all sums is in its ``flags``."""
        query = Query.from_bytes(reader.block())
        spec.check_query(query)
        shares = reader.number(8)
        times = reader.number(2)
        ids = reader.block()
        how = reader.number(1)
        cells = read_cells(how, reader.view(reader.number(8)), spec, query)
        skips_bad = ReleaseFlag.ROWS_SKIPPED in flags
        return cls(spec, query, cells, shares, ids, times, skips_bad=skips_bad)


class Adder:
    """A sum of answers to one query, as it grows. What is refused was not added."""

    def __init__(self, spec: Spec, query: Query, max_examples: int | None = None) -> None:
        if max_examples is not None:
            check_int("max_examples", max_examples, 1)
        self.spec, self.query, self.shares = spec, query, 0
        self._max_examples, self._cells = max_examples, torch.zeros(0)
        self._cells_are_shared = True
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
            raise ReleaseError(
                f"Expected answers to one query but {sender} answers another. Ask that client again."
            )
        shares, ids, times = (
            (part.shares, part.names, part.times) if isinstance(part, Sum) else (1, [part.id], 1)
        )
        if self.shares and times != self._times:
            raise ReleaseError(
                f"Expected sums with the same noise but {sender} has another. Sum releases with groups."
            )
        reach = check_counts(part, sender, shares, self._max_examples)
        if self._reach + reach > MAX_TOTAL:
            raise ImpossibleCountsError(
                f"Expected a sum within 63 bits but with {sender} it is larger. Drop it."
            )
        if twice := self._ids.intersection(ids):
            raise DuplicateClientError(
                f"Expected every share once but {sender} holds {len(twice)} that came before. Keep one of the two."
            )
        self._add_cells(part.cells.cpu())
        self._ids.update(ids)
        self._reach, self._times, self._skips_bad = (
            self._reach + reach,
            times,
            self._skips_bad or part.skips_bad,
        )
        self.shares += shares

    def _add_cells(self, cells: Tensor) -> None:
        """Add in place, except where the tensor is also that of a part or of a sum that was handed out."""
        if not self.shares:
            self._cells = cells
        elif self._cells_are_shared:
            self._cells = self._cells + cells
            self._cells_are_shared = False
        else:
            self._cells += cells

    @property
    def sum(self) -> Sum:
        """The sum so far. What is added later does not change it."""
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
    """Whether these are whole ids in ascending order, each once."""
    if len(ids) % ID_BYTES:
        return False
    high, low = np.frombuffer(ids, dtype=">u8").reshape(-1, 2).T
    return bool(((high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))).all())


def check_counts(
    answer: Answer, sender: str, shares: int = 1, max_examples: int | None = None
) -> int:
    """Return the largest magnitude of a cell, or raise if data cannot have such cells. No count is shown.

    Exact cells must not be negative, the levels of their tree must agree, and so must the classes on how many examples
    there were. With ``max_examples`` no class may hold more, on no level. Noisy cells and the totals of noisy levels
    may pass 0 and the bound by a tail of their noise, such that at most one honest share in 1e9 would be refused.
    ``shares`` is the number of shares that were summed in the answer; errors name the sender.
    """
    cells = answer.cells
    lowest, highest = (
        float(end) if cells.is_floating_point() else int(end) for end in torch.aminmax(cells)
    )
    reach = max(-lowest, highest)
    if not reach * cells.numel() <= MAX_TOTAL:  # nor is it where a float is not a number
        raise ImpossibleCountsError(
            f"Expected cells whose sum fits into 63 bits but {sender} has larger ones, perhaps damaged. Drop it."
        )
    if not answer.spec.privacy.charges:
        _check_exact(answer, lowest >= 0, sender)
    if max_examples is not None:
        _check_bound(answer, sender, shares, max_examples)
    return math.ceil(reach)


def _check_exact(answer: Answer, counts: bool, sender: str) -> None:
    spec, tree = answer.spec, answer.query.tree
    if not counts:
        raise ImpossibleCountsError(
            f"Expected exact counts of at least 0 but {sender} has negative ones. Drop it."
        )
    leaf = answer.cells[..., -tree.leaves :]
    if len(tree.sizes) > 1 and not torch.equal(tree.joined(leaf), answer.cells):
        raise ImpossibleCountsError(
            f"Expected levels that agree but the leaves of {sender} add up to others. Drop it."
        )
    if spec.task != "multiclass":
        return
    # every example is in each class's histograms, as a positive of one, in each group by itself
    rows = leaf.sum(-1).unflatten(0, (-1, spec.classes))
    every = rows.sum(-1)
    agree = (
        rows == rows[:, :1]
        if spec.multi_class == "ovo"
        else every == rows[..., 1].sum(1, keepdim=True)
    )
    if not bool(agree.all()):
        raise ImpossibleCountsError(
            f"Expected classes that agree on their examples but {sender} has others. Drop it."
        )


def _check_bound(answer: Answer, sender: str, shares: int, max_examples: int) -> None:
    """Raise where a cell, or a class on a level, holds more examples than clients can have."""
    spec = answer.spec
    query = answer.query
    _, classes = spec.histograms(query)
    most = max_examples * shares
    if query.pools_classes:
        most *= spec.classes
    levels = spec.levels(query, answer.cells)
    checks = 2 * (answer.cells.numel() + classes * len(levels))
    for level, weights in zip(levels, query.weights, strict=True):
        of_class = level.unflatten(0, (-1, classes)).transpose(0, 1).flatten(1)
        for values, noises in ((level, 1), (of_class.sum(1), of_class.shape[1])):
            slack = 0.0
            if spec.privacy.charges:
                variance = spec.noise(query).variance
                times = noises * shares / spec.privacy.calibrated_for
                tail = noise_tail(variance, times, _FALSE_ALARM / checks)
                slack = tail / min(*weights.negatives, *weights.positives)
            lowest, highest = (end.item() for end in torch.aminmax(values))
            if lowest < -slack or highest > most + slack:
                margin = f" (and {slack:.0f} more or less because of noise)" if slack else ""
                raise ImpossibleCountsError(
                    f"Expected 0 to max_examples={max_examples} examples a client{margin} but {sender}, of {shares} "
                    f"share{'s' * (shares > 1)}, is outside. Drop it, or allow more if clients can have more."
                )


@lru_cache(maxsize=256)
def noise_tail(variance: float, weight: float, probability: float) -> float:
    r"""Return what the sum of ``weight`` noises of this variance exceeds with at most this probability.

    Chernoff's bound for the two-sided geometric law, :math:`\log E e^{tX} = -\log(1 - v (\cosh t - 1))`, which at
    the same variance bounds those of Skellam, the discrete Gaussian and Laplace; a weight below 1 is a part of the
    noise, as a share has. Any :math:`t` gives a bound; the best of a grid is taken.
    """
    u = 1 / (1 + np.exp(-np.linspace(-30, 30, 481)))
    t = 2 * np.arcsinh(np.sqrt(u / (2 * variance)))  # u = v (cosh t - 1)
    return float(((weight * -np.log1p(-u) - math.log(probability)) / t).min())
