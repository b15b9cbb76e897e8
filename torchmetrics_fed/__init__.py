"""Global ROC and precision-recall curves for federated learning, with optional differential privacy."""

from torchmetrics_fed import functional
from torchmetrics_fed.aggregation.secure import (
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
)
from torchmetrics_fed.counting import ScoreGrid
from torchmetrics_fed.errors import BudgetExceededError, FederatedMetricError, InputError, ReleaseError
from torchmetrics_fed.exchange import Coordinator
from torchmetrics_fed.metrics import (
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedCalibration,
    FederatedDET,
    FederatedMetric,
    FederatedModelComparison,
    FederatedPrecisionRecallCurve,
    FederatedPrecisionRecallGain,
    FederatedROC,
    federated_collection,
)
from torchmetrics_fed.privacy import CentralDP, DistributedDP, LocalDP, Privacy, PrivacyLedger
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.release import Query, Release, Share, Spec
from torchmetrics_fed.report import EvaluationReport, evaluation_report
from torchmetrics_fed.version import VERSION

__version__ = VERSION

__all__ = [
    "BudgetExceededError",
    "CentralDP",
    "Coordinator",
    "DistributedDP",
    "EvaluationReport",
    "FederatedAUROC",
    "FederatedAveragePrecision",
    "FederatedCalibration",
    "FederatedDET",
    "FederatedMetric",
    "FederatedMetricError",
    "FederatedModelComparison",
    "FederatedPrecisionRecallCurve",
    "FederatedPrecisionRecallGain",
    "FederatedROC",
    "InputError",
    "LocalDP",
    "Privacy",
    "PrivacyLedger",
    "Query",
    "Reconstruction",
    "Release",
    "ReleaseError",
    "ScoreGrid",
    "SecureAggregationClient",
    "SecureAggregationConfig",
    "SecureAggregationServer",
    "Share",
    "Spec",
    "evaluation_report",
    "federated_collection",
    "functional",
]
