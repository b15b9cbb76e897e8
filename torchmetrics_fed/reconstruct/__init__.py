"""From the leaf counts of a release to the tails of both classes' score distributions."""

from torchmetrics_fed.reconstruct.plan import LEAST_BINS, Plan, PlanName
from torchmetrics_fed.reconstruct.quantile import tree_quantiles
from torchmetrics_fed.reconstruct.tail import Interpolation, Method, Reconstruction, Tails, tails_from_quantiles

__all__ = [
    "LEAST_BINS",
    "Interpolation",
    "Method",
    "Plan",
    "PlanName",
    "Reconstruction",
    "Tails",
    "tails_from_quantiles",
    "tree_quantiles",
]
