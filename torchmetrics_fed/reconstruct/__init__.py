"""From a release to histograms, and to the tails of both classes' score distributions."""

from torchmetrics_fed.reconstruct.histograms import Histograms, read
from torchmetrics_fed.reconstruct.tails import Aligned, Reconstruction, Tails

__all__ = ["Aligned", "Histograms", "Reconstruction", "Tails", "read"]
