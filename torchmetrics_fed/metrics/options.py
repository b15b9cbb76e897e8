"""Options: the keyword arguments that all metrics share, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.exchange import PlanArgument
from torchmetrics_fed.privacy import Privacy, PrivacyLedger
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.typing import (
    Average,
    GridName,
    Groups,
    MultiClass,
    Normalization,
    Validation,
)


class TorchmetricsOptions(TypedDict, total=False):
    """torchmetrics' own keyword arguments of every metric."""

    compute_on_cpu: bool
    dist_sync_on_step: bool
    process_group: Any
    dist_sync_fn: Callable[..., Any] | None
    distributed_available_fn: Callable[..., bool] | None
    sync_on_compute: bool
    compute_with_cache: bool


class CollectionOptions(TorchmetricsOptions, total=False):
    """Keyword arguments that all metrics of a :func:`federated_collection` share."""

    num_classes: int | None
    num_labels: int | None
    average: Average | Literal["default"] | None
    multi_class: MultiClass
    quantiles: int
    grid: GridName | ScoreGrid
    normalization: Normalization | None
    ignore_index: int | None
    groups: Groups
    labels: Sequence[str]
    labels_per_example: int | None
    sums_to_one: bool | None
    privacy: Privacy | None
    secure: bool
    plan: PlanArgument
    reconstruction: Reconstruction | None
    data: str
    validate_args: Validation


class MetricOptions(CollectionOptions, total=False):
    """Keyword arguments of every curve and area; :class:`FederatedMetric` says what each means."""

    ledger: PrivacyLedger | None
    confidence: float | None
