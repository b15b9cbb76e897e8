"""ScoreGrid: the fixed public bins of the scores.

A bin is closed on the left and open on the right, the last one closed on both sides, as in :func:`numpy.histogram`.
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

from torchmetrics_fed.counting.binning import (
    Binning,
    EvenBinning,
    TwoSidedBinning,
    smooth_edges,
    two_sided_edges,
)
from torchmetrics_fed.counting.kernel import Kernel
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.typing import Floats

GridKind = Literal["two_sided", "even", "custom"]

MOST_BINS = 1 << 24
_FEWEST_TWO_SIDED = 4
"""Two bins of a two-sided grid hold exactly 0 and exactly 1, and two are between them."""
_MOST_TWO_SIDED = 1 << 22
"""Beyond these, edges near 1 are no longer exact."""
_MOST_BY_TABLE = 1 << 16
"""Beyond these, a table of cells is larger than it is worth."""
# How much of the coordinate of a two-sided grid goes by the logarithm of the distance from the ends, down to this one.
_BY_OCTAVES, _NEAREST = 0.05, 2.0**-42


@dataclass(frozen=True)
class ScoreGrid(Kernel):
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
        >>> ScoreGrid(bins=2).add(ScoreGrid(bins=2).empty(), torch.tensor([0.1, 0.6, 1.0]), torch.tensor([0, 0, 1]))
        tensor([[[1, 1],
                 [0, 1]]])
    """

    bins: int = 4096
    score_range: tuple[float, float] = (0.0, 1.0)
    score_edges: tuple[float, ...] | None = None
    kind: GridKind = "even"

    def __post_init__(self) -> None:
        if self.kind not in get_args(GridKind) or (self.kind == "custom") != (
            self.score_edges is not None
        ):
            raise InputError(
                f"Expected argument `kind` to be one of {get_args(GridKind)}, the last one with `score_edges`, but got "
                f"{self.kind!r}."
            )
        if self.kind != "custom" and (self.bins < 2 or self.bins & (self.bins - 1)):
            raise InputError(
                f"Expected argument `bins` to be a power of two, at least 2, but got {self.bins}."
            )
        low, high = self.score_range
        few_or_many = not _FEWEST_TWO_SIDED <= self.bins <= _MOST_TWO_SIDED
        if self.kind == "two_sided" and ((low, high) != (0.0, 1.0) or few_or_many):
            raise InputError(
                f"Expected a two-sided grid to have {_FEWEST_TWO_SIDED} to {_MOST_TWO_SIDED} bins on [0, 1] but got "
                f"{self.bins} on [{low}, {high}]. Use ScoreGrid.even(quantiles, score_range)."
            )
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(
                f"Expected `score_range` to be finite (low, high), low < high, but got {low}, {high}."
            )
        # without the edges themselves: a claim of many bins must cost nothing
        if self.kind == "even" and (high - low) / self.bins < 2 * math.ulp(
            max(abs(low), abs(high))
        ):
            raise InputError(
                f"Expected {self.bins} bins that float64 can tell apart over {self.score_range}; use a wider "
                "`score_range` or fewer `quantiles`."
            )

    @classmethod
    def two_sided(cls, quantiles: int = 1024) -> ScoreGrid:
        """Return bins on [0, 1] that narrow towards both ends, as many as :meth:`even` has.

        Confident networks and rare events have their scores there: with 4,096 bins the last ones begin at a distance of
        2^-41 from 0 and from 1. The first bin holds scores of exactly 0, the last one scores of exactly 1.
        """
        return cls(bins=_bins_for(quantiles), kind="two_sided")

    @classmethod
    def even(
        cls, quantiles: int = 1024, score_range: tuple[float, float] = (0.0, 1.0)
    ) -> ScoreGrid:
        """Return the paper's bins for Q quantiles: :math:`2^h` of them, :math:`h = \\lceil \\log_2 Q \\rceil + 2`."""
        if len(tuple(score_range)) != 2:
            raise InputError(
                f"Expected argument `score_range` to be (low, high) but got {score_range!r}."
            )
        low, high = score_range
        return cls(bins=_bins_for(quantiles), score_range=(float(low), float(high)))

    @classmethod
    def from_edges(cls, edges: Sequence[float] | Tensor) -> ScoreGrid:
        """Return the grid with exactly these edges, for scores of which you know what values they can have.

        Put the edges *between* the values (of k-nearest neighbours, of trees), so that each value has its own bin:
        ``[-0.1, 0.1, 0.5, 0.9, 1.1]`` where scores are 0, 0.2, 0.6 or 1.
        """
        values = torch.as_tensor(edges, dtype=torch.float64, device="cpu").flatten().tolist()
        ascending = all(a < b for a, b in pairwise(values))
        if len(values) < 3 or not ascending or not all(map(math.isfinite, values)):
            raise InputError(
                "Expected argument `edges` to be at least three finite, strictly increasing numbers but got "
                f"{len(values)} of them, {'increasing' if ascending else 'not increasing'}."
            )
        return cls(len(values) - 1, (values[0], values[-1]), tuple(values), "custom")

    def __reduce__(self) -> Any:
        return type(self), (self.bins, self.score_range, self.score_edges, self.kind)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @cached_property
    def edges(self) -> Tensor:
        """The ``bins + 1`` edges, ascending, float64.

        Those of a two-sided grid are 0, the smallest number above 0, ..., 1, and the next number above 1.
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
        """The edges as if no bin were for exactly 0 or exactly 1: those that leaves are placed by."""
        return smooth_edges(self.bins) if self.kind == "two_sided" else self._edges

    @cached_property
    def coordinate(self) -> Floats:
        r"""The grid's own coordinate at every edge, ascending from 0 to 1: wide where scores crowd.

        With x the place in the range, :math:`u = \sqrt x / (\sqrt x + \sqrt{1-x})`, wide at both ends. A two-sided grid
        sees further, so a twentieth of its coordinate is the logit of the score.
        """
        x = np.arange(self.bins + 1) / self.bins
        if self.kind == "two_sided":
            x = self.smooth_edges
        low, high = np.sqrt(x), np.sqrt(1 - x)
        u: Floats = low / (low + high)
        if self.kind == "two_sided":
            near, far = np.maximum(x, _NEAREST), np.maximum(1 - x, _NEAREST)
            logit = np.log(near / far)
            u = (1 - _BY_OCTAVES) * u + _BY_OCTAVES * (logit - logit[0]) / (logit[-1] - logit[0])
        u.setflags(write=False)
        return u

    @property
    def fields(self) -> dict[str, Any]:
        """Everything two parties must agree on, in plain JSON values, floats in hexadecimal."""
        return {
            "grid": self.kind,
            "bins": self.bins,
            "score_range": [float(end).hex() for end in self.score_range],
            "score_edges": self.score_edges and [float(edge).hex() for edge in self.score_edges],
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ScoreGrid:
        if fields["score_edges"] is not None:
            return cls.from_edges([float.fromhex(edge) for edge in fields["score_edges"]])
        low, high = map(float.fromhex, fields["score_range"])
        if not isinstance(fields["bins"], int) or fields["bins"] > MOST_BINS:
            raise InputError(
                f"Expected a grid of up to {MOST_BINS} bins but got {fields['bins']!r}."
            )
        return cls(fields["bins"], (low, high), kind=fields["grid"])

    def empty(self, classes: int = 1, rows: int = 2) -> Tensor:
        """Return the counts of no examples: int64 ``(classes, rows, bins)``, row 0 negatives, row 1 positives."""
        return torch.zeros(classes, rows, self.bins, dtype=torch.int64)

    @cached_property
    def binning(self) -> Binning:
        """What finds the bin of a score."""
        if self.kind == "two_sided" and self.bins <= _MOST_BY_TABLE:
            return TwoSidedBinning(self.bins)
        powers = self.kind == "even" and self.score_range == (0.0, 1.0)
        kind = EvenBinning if powers else Binning
        return kind(self._edges, self.score_range)


def _bins_for(quantiles: int) -> int:
    if isinstance(quantiles, bool) or not isinstance(quantiles, int) or not 2 <= quantiles <= 2**22:
        raise InputError(
            f"Expected argument `quantiles` to be an int from 2 to 2**22 but got {quantiles!r}."
        )
    return 1 << (quantiles - 1).bit_length() + 2
