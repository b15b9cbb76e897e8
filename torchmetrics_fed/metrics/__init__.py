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

__all__ = [
    "CountsMetric",
    "Definition",
    "FederatedAUROC",
    "FederatedAveragePrecision",
    "FederatedCalibration",
    "FederatedDET",
    "FederatedMetric",
    "FederatedPrecisionRecallCurve",
    "FederatedPrecisionRecallGain",
    "FederatedROC",
    "all_or_nothing",
    "evaluation_of",
    "federated_collection",
    "one_per_release",
    "representative",
    "terms_of",
]
