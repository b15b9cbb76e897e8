"""torchmetrics' Metric on top of a release."""

from torchmetrics_fed.metrics.base import FederatedMetric
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
from torchmetrics_fed.metrics.families import AreaMetric, CurveMetric

__all__ = [
    "AreaMetric",
    "CurveMetric",
    "FederatedMetric",
    "areas",
    "federated_collection",
    "representative",
]
__all__ += [
    "FederatedAUROC",
    "FederatedAveragePrecision",
    "FederatedPrecisionRecallCurve",
    "FederatedROC",
]
__all__ += [
    "FederatedCalibration",
    "FederatedDET",
    "FederatedModelComparison",
    "FederatedPrecisionRecallGain",
]
