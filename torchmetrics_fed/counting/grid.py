"""ScoreGrid: the fixed public bins of the score range.

Invariants:

- A grid is a frozen value, the same for every client. It does not depend on any data.
- A bin is closed on the left and open on the right; the last bin is closed on both sides, as in
  :func:`numpy.histogram`. Every score in the range is in exactly one bin.
- A grid that another party describes costs nothing to check: edges are computed at first use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from torchmetrics_fed.counting.batch import add_batch, add_pairs, empty_counts
from torchmetrics_fed.counting.binning import Binning, EvenBinning, TwoSidedBinning
from torchmetrics_fed.counting.edges import smooth_edges, two_sided_edges
from torchmetrics_fed.counting.validation import Rules
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.typing import Floats

GridKind = Literal["two_sided", "even", "custom"]

MOST_BINS = 1 << 24
"""The largest number of bins of a grid that another party describes."""

MOST_QUANTILES = 1 << 22
"""The largest number of quantiles that a grid is made for."""

FEWEST_TWO_SIDED_BINS = 4
"""The smallest two-sided grid: two bins for exactly 0 and exactly 1, and two bins between them."""

MOST_TWO_SIDED_BINS = 1 << 22
"""The largest two-sided grid: beyond it, edges near 1 are no longer exact in float64."""

PLAIN_RULES = Rules()
"""A binary batch of scores and labels, nothing left out, everything checked."""

LOGIT_PART = 0.05
"""The part of the coordinate of a two-sided grid that is the logit of the score."""

NEAREST_DISTANCE = 2.0**-42
"""The smallest distance from 0 or 1 that the logit of the coordinate tells apart."""


@dataclass(frozen=True)
class ScoreGrid:
    """The bins of the score range, the same for every client.

    Make one with :meth:`two_sided`, :meth:`even` or :meth:`from_edges`.

    Args:
        bins: number of bins, a power of two (any number with ``score_edges``).
        score_range: lowest and highest score there can be.
        score_edges: the edges of a custom grid.
        kind: ``"two_sided"``, ``"even"``, or ``"custom"`` with ``score_edges``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import ScoreGrid
        >>> ScoreGrid(bins=4).edges
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
        >>> ScoreGrid.two_sided(quantiles=1024).bins, ScoreGrid.even(quantiles=1024).bins
        (4096, 4096)
        >>> grid = ScoreGrid(bins=2)
        >>> grid.add(grid.empty(), torch.tensor([0.1, 0.6, 1.0]), torch.tensor([0, 0, 1]))
        tensor([[[1, 1],
                 [0, 1]]])
    """

    bins: int = 4096
    score_range: tuple[float, float] = (0.0, 1.0)
    score_edges: tuple[float, ...] | None = None
    kind: GridKind = "even"

    def __post_init__(self) -> None:
        has_edges = self.score_edges is not None
        if self.kind not in get_args(GridKind) or (self.kind == "custom") != has_edges:
            raise InputError(
                f"Expected argument `kind` to be one of {get_args(GridKind)}, the last one with "
                f"`score_edges`, but got {self.kind!r}."
            )
        if self.kind != "custom":
            self._check_bins()
        if self.kind == "two_sided":
            self._check_two_sided()
        low, high = self.score_range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(
                "Expected `score_range` to be finite (low, high), low < high, but got "
                f"{low}, {high}."
            )
        if self.kind == "even":
            self._check_resolution()

    def _check_bins(self) -> None:
        is_power_of_two = self.bins & (self.bins - 1) == 0
        if self.bins < 2 or not is_power_of_two:
            raise InputError(
                f"Expected argument `bins` to be a power of two, at least 2, but got {self.bins}."
            )

    def _check_two_sided(self) -> None:
        low, high = self.score_range
        is_unit_range = (low, high) == (0.0, 1.0)
        if not is_unit_range or not FEWEST_TWO_SIDED_BINS <= self.bins <= MOST_TWO_SIDED_BINS:
            raise InputError(
                f"Expected a two-sided grid to have {FEWEST_TWO_SIDED_BINS} to "
                f"{MOST_TWO_SIDED_BINS} bins on [0, 1] but got {self.bins} on [{low}, {high}]. Use "
                "ScoreGrid.even(quantiles, score_range)."
            )

    def _check_resolution(self) -> None:
        """Raise if float64 cannot tell the edges apart. No edges are computed for it."""
        low, high = self.score_range
        width = (high - low) / self.bins
        if width < 2 * math.ulp(max(abs(low), abs(high))):
            raise InputError(
                f"Expected {self.bins} bins that float64 can tell apart over {self.score_range}; "
                "use a wider `score_range` or fewer `quantiles`."
            )

    @classmethod
    def two_sided(cls, quantiles: int = 1024) -> ScoreGrid:
        """Return a grid on [0, 1] whose bins narrow towards both ends.

        It has as many bins as :meth:`even`.
        Confident networks and rare events have their scores near the ends: with 4,096 bins the last
        bins begin at a distance of 2^-41 from 0 and from 1. The first bin holds scores of exactly
        0, the last bin scores of exactly 1.
        """
        return cls(bins=_bins_for(quantiles), kind="two_sided")

    @classmethod
    def even(
        cls, quantiles: int = 1024, score_range: tuple[float, float] = (0.0, 1.0)
    ) -> ScoreGrid:
        r"""Return the paper's grid for Q quantiles.

        It has :math:`2^h` equal bins, :math:`h = \lceil \log_2 Q \rceil + 2`.
        """
        if len(tuple(score_range)) != 2:
            raise InputError(
                f"Expected argument `score_range` to be (low, high) but got {score_range!r}."
            )
        low, high = score_range
        return cls(bins=_bins_for(quantiles), score_range=(float(low), float(high)))

    @classmethod
    def from_edges(cls, edges: Sequence[float] | Tensor) -> ScoreGrid:
        """Return the grid with exactly these edges, for scores with few known values.

        Put the edges *between* the values (of k-nearest neighbours, of trees), so that each value
        has its own bin: ``[-0.1, 0.1, 0.5, 0.9, 1.1]`` if the scores are 0, 0.2, 0.6 or 1.
        """
        values = torch.as_tensor(edges, dtype=torch.float64, device="cpu").flatten().tolist()
        is_increasing = all(low < high for low, high in pairwise(values))
        is_finite = all(math.isfinite(value) for value in values)
        if len(values) < 3 or not is_increasing or not is_finite:
            order = "increasing" if is_increasing else "not increasing"
            raise InputError(
                "Expected argument `edges` to be at least three finite, strictly increasing "
                f"numbers but got {len(values)} of them, {order}."
            )
        return cls(
            bins=len(values) - 1,
            score_range=(values[0], values[-1]),
            score_edges=tuple(values),
            kind="custom",
        )

    @property
    def holds_probabilities(self) -> bool:
        """Whether the bins are of scores from 0 to 1."""
        return self.score_range == (0.0, 1.0)

    def __reduce__(self) -> Any:
        return type(self), (self.bins, self.score_range, self.score_edges, self.kind)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @cached_property
    def edges(self) -> Tensor:
        """The ``bins + 1`` edges, ascending, float64.

        The edges of a two-sided grid are 0, the smallest number above 0, ..., 1, and the next
        number above 1.
        """
        return torch.from_numpy(self._edges.copy())

    @cached_property
    def _edges(self) -> Floats:
        if self.kind == "two_sided":
            return two_sided_edges(self.bins)
        if self.score_edges is not None:
            return np.asarray(self.score_edges)
        low, high = self.score_range
        edges: Floats = low + (high - low) * (np.arange(self.bins + 1) / self.bins)
        edges[-1] = high  # low + (high - low) may round past it
        return edges

    @property
    def smooth_edges(self) -> Floats:
        """The edges by which leaves are placed: no bin is only for exactly 0 or exactly 1."""
        if self.kind == "two_sided":
            return smooth_edges(self.bins)
        return self._edges

    @cached_property
    def coordinate(self) -> Floats:
        r"""The coordinate of the grid at every edge, from 0 to 1: wide where scores crowd.

        With x the place in the range, it is :math:`u = \sqrt x / (\sqrt x + \sqrt{1-x})`, which is
        wide at both ends. A two-sided grid has finer bins there, so a twentieth of its coordinate
        is the logit of the score, :math:`\ln(x / (1 - x))`, scaled to [0, 1].
        """
        x = np.arange(self.bins + 1) / self.bins
        if self.kind == "two_sided":
            x = self.smooth_edges
        root_below = np.sqrt(x)
        root_above = np.sqrt(1 - x)
        u: Floats = root_below / (root_below + root_above)
        if self.kind == "two_sided":
            below = np.maximum(x, NEAREST_DISTANCE)
            above = np.maximum(1 - x, NEAREST_DISTANCE)
            logit = np.log(below / above)
            logit_range = logit[-1] - logit[0]
            u = (1 - LOGIT_PART) * u + LOGIT_PART * (logit - logit[0]) / logit_range
        u.setflags(write=False)
        return u

    @property
    def fields(self) -> dict[str, Any]:
        """Everything two parties must agree on, in plain JSON values, floats in hexadecimal."""
        edges = None
        if self.score_edges is not None:
            edges = [float(edge).hex() for edge in self.score_edges]
        return {
            "grid": self.kind,
            "bins": self.bins,
            "score_range": [float(end).hex() for end in self.score_range],
            "score_edges": edges,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ScoreGrid:
        """Return the grid whose :attr:`fields` these are."""
        if fields["score_edges"] is not None:
            return cls.from_edges([float.fromhex(edge) for edge in fields["score_edges"]])
        low, high = map(float.fromhex, fields["score_range"])
        bins = fields["bins"]
        if not isinstance(bins, int) or bins > MOST_BINS:
            raise InputError(f"Expected a grid of up to {MOST_BINS} bins but got {bins!r}.")
        return cls(bins=bins, score_range=(low, high), kind=fields["grid"])

    def empty(self, classes: int = 1, rows: int = 2) -> Tensor:
        """Return the counts of no examples: int64 ``(classes, rows, bins)``.

        Of two rows, row 0 counts negatives and row 1 positives.
        """
        return empty_counts(classes, rows, self.bins)

    def add(
        self,
        counts: Tensor,
        preds: Tensor,
        target: Tensor,
        rules: Rules = PLAIN_RULES,
        refused: Tensor | None = None,
        weight: Tensor | None = None,
        group: Tensor | None = None,
    ) -> Tensor:
        """Add a batch to ``counts`` and return them. A batch that is refused changes nothing.

        Args:
            counts: int64 ``(classes, groups * rows, bins)``; changed in place where that can be
                done.
            preds: scores, and ``target`` their labels, as :meth:`FederatedMetric.update` takes
                them.
            target: see ``preds``.
            rules: how the batch is read.
            refused: int64, one number on the device of ``counts``. If given, examples that cannot
                be counted are added to it, and no device is waited for. Otherwise they raise.
            weight: integers, how often each example counts; once if not given.
            group: integers, the group of each example, where there are several.
        """
        return add_batch(
            counts,
            preds,
            target,
            binning=self.binning,
            rules=rules,
            refused=refused,
            weight=weight,
            group=group,
        )

    def add_pairs(
        self,
        counts: Tensor,
        models: tuple[Tensor, Tensor],
        target: Tensor,
        rules: Rules = PLAIN_RULES,
        refused: Tensor | None = None,
    ) -> Tensor:
        """Add the scores of two models for the same examples to ``counts``, and return them.

        They have passed :func:`check_pairs`. The counts are ``(1, 2, bins * bins)``: the first
        model's bin times ``bins``, plus the second model's bin.
        """
        return add_pairs(counts, models, target, binning=self.binning, rules=rules, refused=refused)

    @cached_property
    def binning(self) -> Binning:
        """The function that finds the bin of a score."""
        if self.kind == "two_sided":
            return TwoSidedBinning(self.bins)
        if self.kind == "even" and self.score_range == (0.0, 1.0):
            return EvenBinning(self._edges, self.score_range)
        return Binning(self._edges, self.score_range)


def _bins_for(quantiles: int) -> int:
    is_int = isinstance(quantiles, int) and not isinstance(quantiles, bool)
    if not is_int or not 2 <= quantiles <= MOST_QUANTILES:
        raise InputError(
            f"Expected argument `quantiles` to be an int from 2 to 2**22 but got {quantiles!r}."
        )
    return 1 << (quantiles - 1).bit_length() + 2
