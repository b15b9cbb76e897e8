"""torchmetrics' Metric on top of a release."""

from torchmetrics_fed.metrics.areas import AreaMetric
from torchmetrics_fed.metrics.collection import areas, federated_collection, representative
from torchmetrics_fed.metrics.comparison import FederatedModelComparison
from torchmetrics_fed.metrics.curves import (
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedCalibration,
    FederatedDET,
    FederatedPrecisionRecallCurve,
    FederatedPrecisionRecallGain,
    FederatedROC,
)
from torchmetrics_fed.metrics.metric import FederatedMetric

__all__ = [
    "AreaMetric",
    "FederatedAUROC",
    "FederatedAveragePrecision",
    "FederatedCalibration",
    "FederatedDET",
    "FederatedMetric",
    "FederatedModelComparison",
    "FederatedPrecisionRecallCurve",
    "FederatedPrecisionRecallGain",
    "FederatedROC",
    "areas",
    "federated_collection",
    "representative",
]
