"""Two models on the same examples: queries for both, statistics of their difference, the metric."""

from torchmetrics_fed.comparison.metric import FederatedModelComparison
from torchmetrics_fed.comparison.result import ModelComparison, compare_models

__all__ = ["FederatedModelComparison", "ModelComparison", "compare_models"]
