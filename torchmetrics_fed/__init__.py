"""Global ROC and precision-recall curves for federated learning, with optional differential privacy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchmetrics_fed.version import VERSION

if TYPE_CHECKING:
    from torchmetrics_fed import functional
    from torchmetrics_fed.aggregation.secure.client import SecureAggregationClient
    from torchmetrics_fed.aggregation.secure.config import SecureAggregationConfig
    from torchmetrics_fed.aggregation.secure.server import SecureAggregationServer
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

__version__ = VERSION

__all__ = ["BudgetExceededError", "FederatedMetricError", "InputError", "ReleaseError"]
__all__ += [
    "CentralDP",
    "DistributedDP",
    "LocalDP",
    "Privacy",
    "PrivacyLedger",
    "Reconstruction",
    "ScoreGrid",
]
__all__ += ["Coordinator", "Query", "Release", "Share", "Spec"]
__all__ += ["SecureAggregationClient", "SecureAggregationConfig", "SecureAggregationServer"]
__all__ += [
    "FederatedAUROC",
    "FederatedAveragePrecision",
    "FederatedCalibration",
    "FederatedDET",
    "FederatedMetric",
]
__all__ += [
    "FederatedModelComparison",
    "FederatedPrecisionRecallCurve",
    "FederatedPrecisionRecallGain",
    "FederatedROC",
]
__all__ += ["EvaluationReport", "evaluation_report", "federated_collection", "functional"]

# Where the public names are. They are imported when the first of them is asked for: `torchmetrics-fed --help` asks for
# none, and torch with torchmetrics takes seconds.
_FROM = (
    "errors",
    "counting",
    "privacy",
    "aggregation.secure",
    "release",
    "reconstruct",
    "exchange",
    "metrics",
    "report",
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for home in _FROM:
            found = vars(import_module(f"{__name__}.{home}"))
            globals().update({public: found[public] for public in __all__ if public in found})
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
