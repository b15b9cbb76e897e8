"""From the leaf counts of a release to the tails of both classes' score distributions."""

from torchmetrics_fed.reconstruct.quantile import tree_quantiles
from torchmetrics_fed.reconstruct.tail import Interpolation, Method, Reconstruction, Tails, tails_from_quantiles

__all__ = ["Interpolation", "Method", "Reconstruction", "Tails", "tails_from_quantiles", "tree_quantiles"]
