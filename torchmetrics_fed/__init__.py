"""Global ROC and precision-recall curves for federated learning, with differential privacy."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from torchmetrics_fed.version import VERSION as _VERSION

if _TYPE_CHECKING:
    from torchmetrics_fed import functional, paper
    from torchmetrics_fed.aggregation.secure import (
        SecureAggregationClient,
        SecureAggregationConfig,
        SecureAggregationServer,
    )
    from torchmetrics_fed.comparison import FederatedModelComparison
    from torchmetrics_fed.counting import ScoreGrid
    from torchmetrics_fed.errors import (
        BudgetExceededError,
        FederatedMetricError,
        InputError,
        ReleaseError,
    )
    from torchmetrics_fed.exchange import Coordinator
    from torchmetrics_fed.metrics import (
        FederatedAUROC,
        FederatedAveragePrecision,
        FederatedBrierScore,
        FederatedCalibration,
        FederatedCalibrationError,
        FederatedConfusionMatrix,
        FederatedDET,
        FederatedEER,
        FederatedHingeLoss,
        FederatedLogAUC,
        FederatedLogLoss,
        FederatedMetric,
        FederatedPrecisionAtFixedRecall,
        FederatedPrecisionRecallCurve,
        FederatedPrecisionRecallGain,
        FederatedRecallAtFixedPrecision,
        FederatedROC,
        FederatedScoreAtThreshold,
        FederatedSensitivityAtSpecificity,
        FederatedSpecificityAtSensitivity,
        federated,
        federated_collection,
    )
    from torchmetrics_fed.privacy import CentralDP, DistributedDP, LocalDP, Privacy, PrivacyLedger
    from torchmetrics_fed.reconstruct import Reconstruction
    from torchmetrics_fed.release import Query, Release, Share, Spec
    from torchmetrics_fed.report import EvaluationReport, evaluation_report

__version__ = _VERSION

__all__ = [
    "BudgetExceededError",
    "CentralDP",
    "Coordinator",
    "DistributedDP",
    "EvaluationReport",
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
    "FederatedMetricError",
    "FederatedModelComparison",
    "FederatedPrecisionAtFixedRecall",
    "FederatedPrecisionRecallCurve",
    "FederatedPrecisionRecallGain",
    "FederatedROC",
    "FederatedRecallAtFixedPrecision",
    "FederatedScoreAtThreshold",
    "FederatedSensitivityAtSpecificity",
    "FederatedSpecificityAtSensitivity",
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
    "federated",
    "federated_collection",
    "functional",
    "paper",
]

# The module of each public name. A name is imported when it is first asked for: protocol and
# command line need not load torchmetrics, and `torchmetrics-fed --help` need not load torch.
_HOMES = {
    "BudgetExceededError": "errors",
    "FederatedMetricError": "errors",
    "InputError": "errors",
    "ReleaseError": "errors",
    "ScoreGrid": "counting",
    "CentralDP": "privacy",
    "DistributedDP": "privacy",
    "LocalDP": "privacy",
    "Privacy": "privacy",
    "PrivacyLedger": "privacy",
    "Query": "release",
    "Release": "release",
    "Share": "release",
    "Spec": "release",
    "SecureAggregationClient": "aggregation.secure",
    "SecureAggregationConfig": "aggregation.secure",
    "SecureAggregationServer": "aggregation.secure",
    "Reconstruction": "reconstruct",
    "Coordinator": "exchange",
    "FederatedAUROC": "metrics",
    "FederatedAveragePrecision": "metrics",
    "FederatedCalibration": "metrics",
    "FederatedDET": "metrics",
    "FederatedMetric": "metrics",
    "FederatedModelComparison": "comparison",
    "FederatedPrecisionRecallCurve": "metrics",
    "FederatedPrecisionRecallGain": "metrics",
    "FederatedROC": "metrics",
    "FederatedBrierScore": "metrics",
    "FederatedCalibrationError": "metrics",
    "FederatedConfusionMatrix": "metrics",
    "FederatedEER": "metrics",
    "FederatedHingeLoss": "metrics",
    "FederatedLogAUC": "metrics",
    "FederatedLogLoss": "metrics",
    "FederatedPrecisionAtFixedRecall": "metrics",
    "FederatedRecallAtFixedPrecision": "metrics",
    "FederatedScoreAtThreshold": "metrics",
    "FederatedSensitivityAtSpecificity": "metrics",
    "FederatedSpecificityAtSensitivity": "metrics",
    "federated": "metrics",
    "federated_collection": "metrics",
    "EvaluationReport": "report",
    "evaluation_report": "report",
}

if not _TYPE_CHECKING:

    def __getattr__(name: str) -> _Any:
        if name in ("functional", "paper"):
            return _import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return [*__all__, "__version__"]
