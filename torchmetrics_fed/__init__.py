"""ROC and precision-recall curves of data that nobody may pool."""

from torchmetrics_fed import functional
from torchmetrics_fed.errors import (
    BudgetExceededError,
    FederatedMetricError,
    InputError,
    LedgerConflictError,
    LedgerError,
    LedgerFileError,
    ReleaseError,
    SpecMismatchError,
    SyncError,
)
from torchmetrics_fed.grid import ScoreGrid
from torchmetrics_fed.metrics import (
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedCalibration,
    FederatedCurve,
    FederatedDET,
    FederatedPrecisionRecallCurve,
    FederatedPrecisionRecallGain,
    FederatedROC,
    federated_collection,
)
from torchmetrics_fed.privacy import CentralDP, DistributedDP, LedgerEntry, LocalDP, Privacy, PrivacyLedger
from torchmetrics_fed.release import Release, Share
from torchmetrics_fed.report import EvaluationReport, evaluation_report
from torchmetrics_fed.spec import Spec
from torchmetrics_fed.tree import Tree

__version__ = "0.1.0"

__all__ = [
    "BudgetExceededError",
    "CentralDP",
    "DistributedDP",
    "EvaluationReport",
    "FederatedAUROC",
    "FederatedAveragePrecision",
    "FederatedCalibration",
    "FederatedCurve",
    "FederatedDET",
    "FederatedMetricError",
    "FederatedPrecisionRecallCurve",
    "FederatedPrecisionRecallGain",
    "FederatedROC",
    "InputError",
    "LedgerConflictError",
    "LedgerEntry",
    "LedgerError",
    "LedgerFileError",
    "LocalDP",
    "Privacy",
    "PrivacyLedger",
    "Release",
    "ReleaseError",
    "ScoreGrid",
    "Share",
    "Spec",
    "SpecMismatchError",
    "SyncError",
    "Tree",
    "evaluation_report",
    "federated_collection",
    "functional",
]
