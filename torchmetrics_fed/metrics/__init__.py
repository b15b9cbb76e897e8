"""torchmetrics' Metric on top of a release."""

from torchmetrics_fed.metrics.auroc import FederatedAUROC
from torchmetrics_fed.metrics.average_precision import FederatedAveragePrecision
from torchmetrics_fed.metrics.base import FederatedMetric
from torchmetrics_fed.metrics.calibration import FederatedCalibration
from torchmetrics_fed.metrics.collection import areas, federated_collection, representative
from torchmetrics_fed.metrics.comparison import FederatedModelComparison
from torchmetrics_fed.metrics.det import FederatedDET
from torchmetrics_fed.metrics.families import AreaMetric, CurveMetric
from torchmetrics_fed.metrics.gain import FederatedPrecisionRecallGain
from torchmetrics_fed.metrics.precision_recall import FederatedPrecisionRecallCurve
from torchmetrics_fed.metrics.roc import FederatedROC

__all__ = [
    "AreaMetric",
    "CurveMetric",
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
