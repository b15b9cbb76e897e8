"""ROC and precision-recall curves of data that nobody may pool."""

from torchmetrics_fed import functional
from torchmetrics_fed.errors import FederatedMetricError, InputError, ReleaseError, SpecMismatchError, SyncError
from torchmetrics_fed.grid import ScoreGrid
from torchmetrics_fed.metrics import FederatedCurve, FederatedPrecisionRecallCurve, FederatedROC
from torchmetrics_fed.release import Release, Share
from torchmetrics_fed.spec import Spec
from torchmetrics_fed.tree import Tree

__version__ = "0.1.0"

__all__ = [
    "FederatedCurve",
    "FederatedMetricError",
    "FederatedPrecisionRecallCurve",
    "FederatedROC",
    "InputError",
    "Release",
    "ReleaseError",
    "ScoreGrid",
    "Share",
    "Spec",
    "SpecMismatchError",
    "SyncError",
    "Tree",
    "functional",
]
