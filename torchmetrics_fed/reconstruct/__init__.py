"""From a release to histograms, and to the tails of both classes' score distributions."""

from torchmetrics_fed.reconstruct.tail import (
    Interpolation,
    Method,
    Reconstruction,
    Tails,
    tails_from_quantiles,
)

__all__ = ["Interpolation", "Method", "Reconstruction", "Tails", "tails_from_quantiles"]
