"""torchmetrics' Metric on top of a sum of counts."""

from torchmetrics_fed.metrics.base import FederatedCurve
from torchmetrics_fed.metrics.collection import federated_collection
from torchmetrics_fed.metrics.precision_recall import FederatedPrecisionRecallCurve
from torchmetrics_fed.metrics.roc import FederatedROC

__all__ = ["FederatedCurve", "FederatedPrecisionRecallCurve", "FederatedROC", "federated_collection"]
