"""ScoreGrid: the fixed public bins of the scores.

A bin is closed on the left and open on the right, the last one closed on both sides, as in :func:`numpy.histogram`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchmetrics_fed.counting.binary import Kernel, Rules
from torchmetrics_fed.counting.columns import ColumnKernel
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.typing import Normalization, Task

__all__ = ["MOST_BINS", "ScoreGrid"]

MOST_BINS = 1 << 24


@dataclass(frozen=True)
class ScoreGrid:
    """The bins of the score range, the same for every client.

    Args:
        bins: number of bins, a power of two (any number with ``score_edges``).
        score_range: lowest and highest score there can be.
        score_edges: sorted edges instead of even ones, where the support of the scores is known (k-nearest
            neighbours, trees). Put the edges *between* the values, so that each value has its own bin.

    Example:
        >>> from torchmetrics_fed import ScoreGrid
        >>> ScoreGrid(bins=4).edges
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
        >>> ScoreGrid.even(quantiles=1024).bins
        4096
    """

    bins: int = 4096
    score_range: tuple[float, float] = (0.0, 1.0)
    score_edges: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.score_edges is None and (self.bins < 2 or self.bins & (self.bins - 1)):
            raise InputError(f"Expected argument `bins` to be a power of two, at least 2, but got {self.bins}.")
        low, high = self.score_range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(
                f"Expected `score_range` to be finite (low, high), low < high, but got {self.score_range}."
            )
        # without the edges themselves: a claim of many bins must cost nothing
        if self.score_edges is None and (high - low) / self.bins < 2 * math.ulp(max(abs(low), abs(high))):
            raise InputError(
                f"Expected {self.bins} bins that float64 can tell apart over {self.score_range}; use a wider "
                "`score_range` or fewer `quantiles`."
            )

    @classmethod
    def even(cls, quantiles: int = 1024, score_range: tuple[float, float] = (0.0, 1.0)) -> ScoreGrid:
        """Return the paper's bins for Q quantiles: :math:`2^h` of them, :math:`h = \\lceil \\log_2 Q \\rceil + 2`."""
        if isinstance(quantiles, bool) or not isinstance(quantiles, int) or not 2 <= quantiles <= 2**22:
            raise InputError(f"Expected argument `quantiles` to be an int from 2 to 2**22 but got {quantiles!r}.")
        if len(tuple(score_range)) != 2:
            raise InputError(f"Expected argument `score_range` to be (low, high) but got {score_range!r}.")
        low, high = score_range
        return cls(bins=1 << (quantiles - 1).bit_length() + 2, score_range=(float(low), float(high)))

    @classmethod
    def from_edges(cls, edges: Sequence[float] | Tensor) -> ScoreGrid:
        """Return the grid with exactly these edges.

        Example:
            >>> from torchmetrics_fed import ScoreGrid
            >>> ScoreGrid.from_edges([-0.1, 0.1, 0.5, 0.9, 1.1]).bins  # scores are 0, 0.2, 0.6 or 1
            4
        """
        values = torch.as_tensor(edges, dtype=torch.float64).flatten().tolist()
        ascending = all(a < b for a, b in pairwise(values))
        if len(values) < 3 or not ascending or not all(map(math.isfinite, values)):
            raise InputError(
                "Expected argument `edges` to be at least three finite, strictly increasing numbers but got "
                f"{len(values)} of them, {'increasing' if ascending else 'not increasing'}."
            )
        return cls(bins=len(values) - 1, score_range=(values[0], values[-1]), score_edges=tuple(values))

    @cached_property
    def edges(self) -> Tensor:
        """The ``bins + 1`` edges, ascending, float64."""
        if self.score_edges is not None:
            return torch.tensor(self.score_edges, dtype=torch.float64)
        low, high = self.score_range
        step = torch.arange(self.bins + 1, dtype=torch.float64) / self.bins
        edges = low + (high - low) * step
        edges[-1] = high  # low + (high - low) may round past it
        return edges

    @property
    def fields(self) -> dict[str, Any]:
        """Everything two parties must agree on, in plain JSON values, floats in hexadecimal."""
        return {
            "bins": self.bins,
            "score_range": [float(end).hex() for end in self.score_range],
            "score_edges": self.score_edges and [float(edge).hex() for edge in self.score_edges],
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ScoreGrid:
        """Return the grid with these :attr:`fields`."""
        if fields["score_edges"] is not None:
            return cls.from_edges([float.fromhex(edge) for edge in fields["score_edges"]])
        low, high = map(float.fromhex, fields["score_range"])
        if not isinstance(fields["bins"], int) or fields["bins"] > MOST_BINS:
            raise InputError(f"Expected a grid of up to {MOST_BINS} bins but got {fields['bins']!r}.")
        return cls(fields["bins"], (low, high))

    def empty(self, classes: int = 1, rows: int = 2) -> Tensor:
        """Return the counts of no examples: int64 ``(classes, rows, bins)``, row 0 negatives, row 1 positives."""
        return torch.zeros(classes, rows, self.bins, dtype=torch.int64)

    def add(
        self,
        counts: Tensor,
        preds: Tensor,
        target: Tensor,
        normalization: Normalization | None = None,
        ignore_index: int | None = None,
        validate: bool = True,
        task: Task = "binary",
        private: bool = False,
    ) -> Tensor:
        """Add a batch to ``counts`` and return it. A batch that is refused leaves ``counts`` as it was.

        Args:
            counts: int64 ``(classes, rows, bins)``; changed in place where that can be done.
            preds: scores of any floating dtype: any shape for binary tasks, ``(N, classes, ...)`` for others.
            target: 0 or 1 for each score, or for multi-class tasks the class of each of N (bool or any int), or
                ``ignore_index``.
            normalization: ``"sigmoid"`` or ``"softmax"`` if ``preds`` are logits.
            ignore_index: target value of the examples to leave out, whatever their score.
            validate: whether to check the values; off, what comes of bad ones is undefined.
            task: what the targets are.
            private: whether errors must not show values of the data.

        Example:
            >>> import torch
            >>> from torchmetrics_fed import ScoreGrid
            >>> grid = ScoreGrid(bins=4)
            >>> grid.add(grid.empty(), torch.tensor([0.1, 0.6, 0.7, 1.0]), torch.tensor([0, 0, 1, 1]))
            tensor([[[1, 0, 1, 0],
                     [0, 0, 1, 1]]])
        """
        kernel = self._kernel if task == "binary" else self._column_kernel
        return kernel.add(counts, preds, target, Rules(task, normalization, ignore_index, validate, private))

    @cached_property
    def _kernel(self) -> Kernel:
        return Kernel(self.bins, self.score_range, self.edges, self.score_edges is None)

    @cached_property
    def _column_kernel(self) -> ColumnKernel:
        return ColumnKernel(self.bins, self.score_range, self.edges, self.score_edges is None)
