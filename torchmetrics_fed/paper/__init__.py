"""The paper's own method: Xu and Cormode, Federated Computation of ROC and PR Curves.

Quantiles from the binary tree (Algorithm 1), interpolation between them, precision by the
strategies "separate" and "combine", and the bounds of Theorems 4.2 to 4.5.
``FederatedROC(grid="even", reconstruction=paper.Quantiles(1024))`` reads a release as the paper
does.

Two parts of the paper stand in lower packages: :meth:`torchmetrics_fed.counting.Tree.binary` (the
hierarchical histogram of Section 3.2) and ``mechanism="gamma"`` (the continuous distributed noise).
"""

from torchmetrics_fed.paper.bounds import (
    AreaErrorBound,
    area_error_bound_pr,
    area_error_bound_private,
    area_error_bound_roc,
    area_error_bound_summed,
)
from torchmetrics_fed.paper.quantiles import (
    ClassQuantiles,
    Interpolation,
    Quantiles,
    Strategy,
    exact_quantiles,
    quantiles,
    tails_from_quantiles,
)

__all__ = [
    "AreaErrorBound",
    "ClassQuantiles",
    "Interpolation",
    "Quantiles",
    "Strategy",
    "area_error_bound_pr",
    "area_error_bound_private",
    "area_error_bound_roc",
    "area_error_bound_summed",
    "exact_quantiles",
    "quantiles",
    "tails_from_quantiles",
]
