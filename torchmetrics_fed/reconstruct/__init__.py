"""From a release to histograms, and to the tails of both classes' score distributions."""

from torchmetrics_fed.reconstruct.placement import LEAST_BINS
from torchmetrics_fed.reconstruct.tail import (
    Interpolation,
    Method,
    Reconstruction,
    Tails,
    tails_from_quantiles,
    tree_quantiles,
)

__all__ = ["LEAST_BINS", "Interpolation", "Method", "Reconstruction", "Tails", "tails_from_quantiles", "tree_quantiles"]
