"""torchmetrics' Metric on top of a release."""

from torchmetrics_fed.metrics.collection import federated_collection, representative
from torchmetrics_fed.metrics.counts import (
    CountsMetric,
    all_or_nothing,
    evaluation_of,
    one_per_release,
    terms_of,
)
from torchmetrics_fed.metrics.curves import (
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedCalibration,
    FederatedDET,
    FederatedPrecisionRecallCurve,
    FederatedPrecisionRecallGain,
    FederatedROC,
)
from torchmetrics_fed.metrics.definition import Definition
from torchmetrics_fed.metrics.metric import FederatedMetric
from torchmetrics_fed.metrics.operating import (
    FederatedConfusionMatrix,
    FederatedOperatingPoint,
    FederatedPrecisionAtFixedRecall,
    FederatedRecallAtFixedPrecision,
    FederatedSensitivityAtSpecificity,
    FederatedSpecificityAtSensitivity,
)
from torchmetrics_fed.metrics.scalars import (
    FederatedBrierScore,
    FederatedCalibrationError,
    FederatedEER,
    FederatedHingeLoss,
    FederatedLogAUC,
    FederatedLogLoss,
    FederatedScalar,
    FederatedScoreAtThreshold,
)
from torchmetrics_fed.metrics.twins import federated

__all__ = [
    "CountsMetric",
    "Definition",
    "FederatedAUROC",
    "FederatedAveragePrecision",
    "FederatedBrierScore",
    "FederatedCalibration",
    "FederatedCalibrationError",
    "FederatedConfusionMatrix",
    "FederatedDET",
    "FederatedEER",
    "FederatedHingeLoss",
    "FederatedLogAUC",
    "FederatedLogLoss",
    "FederatedMetric",
    "FederatedOperatingPoint",
    "FederatedPrecisionAtFixedRecall",
    "FederatedPrecisionRecallCurve",
    "FederatedPrecisionRecallGain",
    "FederatedROC",
    "FederatedRecallAtFixedPrecision",
    "FederatedScalar",
    "FederatedScoreAtThreshold",
    "FederatedSensitivityAtSpecificity",
    "FederatedSpecificityAtSensitivity",
    "all_or_nothing",
    "evaluation_of",
    "federated",
    "federated_collection",
    "one_per_release",
    "representative",
    "terms_of",
]
