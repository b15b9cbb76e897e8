"""ROC and precision-recall curves of data that nobody may pool."""

from torchmetrics_fed import functional
from torchmetrics_fed.errors import (
    BudgetExceededError,
    DuplicateClientError,
    FederatedMetricError,
    ImpossibleCountsError,
    InputError,
    LedgerConflictError,
    LedgerError,
    LedgerFileError,
    ReleaseError,
    RoundMismatchError,
    SecureSumError,
    SpecMismatchError,
    SyncError,
    WireError,
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
from torchmetrics_fed.reconstruct import Plan
from torchmetrics_fed.release import Release, Share
from torchmetrics_fed.report import EvaluationReport, evaluation_report
from torchmetrics_fed.spec import Spec
from torchmetrics_fed.sync import secure_sum_config
from torchmetrics_fed.sync.secure_sum import SecureSumClient, SecureSumConfig, SecureSumServer
from torchmetrics_fed.tree import Tree

__version__ = "0.1.0"

__all__ = [
    "BudgetExceededError",
    "CentralDP",
    "DistributedDP",
    "DuplicateClientError",
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
    "ImpossibleCountsError",
    "InputError",
    "LedgerConflictError",
    "LedgerEntry",
    "LedgerError",
    "LedgerFileError",
    "LocalDP",
    "Plan",
    "Privacy",
    "PrivacyLedger",
    "Release",
    "ReleaseError",
    "RoundMismatchError",
    "ScoreGrid",
    "SecureSumClient",
    "SecureSumConfig",
    "SecureSumError",
    "SecureSumServer",
    "Share",
    "Spec",
    "SpecMismatchError",
    "SyncError",
    "Tree",
    "WireError",
    "evaluation_report",
    "federated_collection",
    "functional",
    "secure_sum_config",
]
