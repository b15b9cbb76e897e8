"""Chunks: the parts of a batch that are counted one after the other, and stay in cache."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

CHUNK = 32_768
"""The number of scores in a chunk, or one example.

Tensors of at most this size never enter torch's OpenMP pool, which a busy neighbour can slow down a
hundredfold.
"""


class Chunk(NamedTuple):
    """Some scores of a batch, as ``(n, columns)``, or ``(n,)`` for one column."""

    scores: Tensor
    labels: Tensor
    """``(n,)``, or for multi-label tasks ``(n, columns)``."""
    weight: Tensor | None
    """``(n,)``."""


class Chunks:
    """A batch that can be gone through again and again, in chunks.

    Args:
        scores: ``(N, columns, ...)``, or ``(N,)``.
        labels: of the same shape, or without the columns.
        weight: of each example, ``(N, ...)``.
        size: the number of scores in a chunk; None for the whole batch in one.
    """

    def __init__(
        self, scores: Tensor, labels: Tensor, weight: Tensor | None, size: int | None
    ) -> None:
        self.scores = scores
        self.labels = labels
        self.weight = weight
        self.size = scores.numel()
        if size is not None:
            self.size = min(size, self.size)

    @property
    def several(self) -> bool:
        """Whether there is more than one chunk."""
        return self.scores.numel() > self.size

    def __iter__(self) -> Iterator[Chunk]:
        if not self.several:
            yield _chunk(self.scores, self.labels, self.weight)
        elif self.scores.ndim == 1:
            yield from self._runs()
        else:
            yield from self._blocks()

    def _runs(self) -> Iterator[Chunk]:
        """Yield the chunks of one column."""
        for start in range(0, len(self.scores), self.size):
            run = slice(start, start + self.size)
            weight = None if self.weight is None else self.weight[run]
            yield Chunk(self.scores[run], self.labels[run], weight)

    def _blocks(self) -> Iterator[Chunk]:
        """Yield the chunks of several columns: some examples, or some positions of one."""
        scores = self.scores.flatten(2) if self.scores.ndim > 2 else self.scores[..., None]
        examples, columns, positions = scores.shape
        per_example = (examples, positions)
        has_columns = self.labels.numel() == scores.numel()
        labels = self.labels.reshape(scores.shape if has_columns else per_example)
        weights = None if self.weight is None else self.weight.reshape(per_example)
        height = max(self.size // (columns * positions), 1)
        width = min(max(self.size // columns, 1), positions)
        for first_example in range(0, examples, height):
            for first_position in range(0, positions, width):
                rows = slice(first_example, first_example + height)
                part = slice(first_position, first_position + width)
                weight = None if weights is None else weights[rows, part]
                yield _chunk(scores[rows, :, part], labels[rows, ..., part], weight)


def _chunk(scores: Tensor, labels: Tensor, weight: Tensor | None) -> Chunk:
    """Return scores ``(n, columns, ...)`` as ``(n, columns)``, with their labels and weights."""
    if scores.ndim <= 2:
        return Chunk(scores, labels, weight)
    has_columns = labels.ndim == scores.ndim
    columns = scores.shape[1]
    labels = labels.movedim(1, -1).reshape(-1, columns) if has_columns else labels.reshape(-1)
    weight = None if weight is None else weight.reshape(-1)
    return Chunk(scores.movedim(1, -1).reshape(-1, columns), labels, weight)
