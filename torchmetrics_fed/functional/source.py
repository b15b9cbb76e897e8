"""The source of a number: a release, histograms, or counts with the edges of their leaves.

Every function of this package reads its source here. Counts alone do not say which scores they
count: read on even leaves, the counts of a two-sided grid give a wrong calibration error and wrong
thresholds, and nothing would tell. So counts without edges are refused.
"""

from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.reconstruct.histograms import Edges, Histograms, Readable
from torchmetrics_fed.reconstruct.histograms import read as read_histograms


def read(
    source: Readable, edges: Edges = None, reconstruction: Reconstruction | None = None
) -> Histograms:
    """Return the histograms of a release, or of leaf counts ``(..., 2, leaves)`` with their edges.

    Args:
        source: the release or the counts. Histograms are returned as they are.
        edges: the ascending edges of leaf counts. A release has its own edges.
        reconstruction: how counts and tails are read, :class:`Aligned` if not given.

    Example:
        >>> import torch
        >>> counts = torch.tensor([[3, 1], [1, 3]])
        >>> read(counts, edges=torch.tensor([0, 0.5, 1])).tails.tail[1]
        tensor([0.0000, 0.7500, 1.0000], dtype=torch.float64)
    """
    if not isinstance(source, Tensor):
        return read_histograms(source, edges, reconstruction)
    if edges is None:
        raise InputError(
            f"Expected counts with the edges of their leaves but got counts {tuple(source.shape)} "
            "alone. Pass the release itself, `metric.release()`, or "
            "`functional.read(counts, edges=metric.spec.grid.edges)`."
        )
    leaves = source.shape[-1]
    if edges.shape != (leaves + 1,):
        raise InputError(
            f"Expected argument `edges` to hold {leaves + 1} numbers for {leaves} leaves but got "
            f"shape {tuple(edges.shape)}. Pass `metric.spec.grid.edges`."
        )
    return read_histograms(source, edges.double(), reconstruction)
