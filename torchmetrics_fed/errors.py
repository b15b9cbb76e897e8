"""Typed errors. Each message says what was expected, what came, and what to do."""

__all__ = [
    "BudgetExceededError",
    "DuplicateClientError",
    "FederatedMetricError",
    "ImpossibleCountsError",
    "InputError",
    "LedgerConflictError",
    "LedgerError",
    "LedgerFileError",
    "ReleaseError",
    "RoundMismatchError",
    "SecureAggregationError",
    "SpecMismatchError",
    "SyncError",
    "WireError",
]


class FederatedMetricError(Exception):
    """Everything this package raises on purpose.

    Example:
        >>> from torchmetrics_fed import FederatedMetricError, FederatedROC
        >>> try:
        ...     FederatedROC(quantiles=0)
        ... except FederatedMetricError as error:
        ...     print(type(error).__name__)
        InputError
    """


class InputError(FederatedMetricError, ValueError):
    """Arguments, scores or targets that cannot be used. Nothing was counted.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> FederatedROC().update(torch.tensor([1.5]), torch.tensor([1]))
        Traceback (most recent call last):
        torchmetrics_fed.errors.InputError: ...
    """


class SpecMismatchError(FederatedMetricError, ValueError):
    """Two parties that want to add up do not agree on what they count.

    Example:
        >>> from torchmetrics_fed import FederatedROC, Release
        >>> Release.sum([FederatedROC().share(), FederatedROC(quantiles=64).share()])
        Traceback (most recent call last):
        torchmetrics_fed.errors.SpecMismatchError: Expected one spec for all but bins: expected 4096, got 256...
    """


class SyncError(FederatedMetricError, RuntimeError):
    """The ranks could not be summed. The local state is as it was.

    Example:
        >>> from torchmetrics_fed import FederatedMetricError
        >>> from torchmetrics_fed.errors import SyncError
        >>> issubclass(SyncError, FederatedMetricError)  # it takes several ranks to see one
        True
    """


class ReleaseError(FederatedMetricError, RuntimeError):
    """A call that does not fit the state of the release.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> FederatedROC(privacy=CentralDP(epsilon=1.0)).share()
        Traceback (most recent call last):
        torchmetrics_fed.errors.ReleaseError: Expected DistributedDP or LocalDP for shares but got CentralDP...
    """


class LedgerError(FederatedMetricError, RuntimeError):
    """The ledger cannot confirm a charge. No noise may be drawn.

    Example:
        >>> from torchmetrics_fed.errors import LedgerError
        >>> from torchmetrics_fed import PrivacyLedger
        >>> try:
        ...     PrivacyLedger(budget=1.0).spend("validation", round=1, epsilon=1.5)
        ... except LedgerError as error:
        ...     print(type(error).__name__)
        BudgetExceededError
    """


class BudgetExceededError(LedgerError):
    """A release that the budget does not cover. Nothing was spent.

    Example:
        >>> from torchmetrics_fed import PrivacyLedger
        >>> PrivacyLedger(budget=1.0).spend("validation", round=1, epsilon=1.5)
        Traceback (most recent call last):
        torchmetrics_fed.errors.BudgetExceededError: ...
    """


class LedgerConflictError(LedgerError):
    """A release that the ledger already holds, with other amounts or where a new one was asked for.

    Example:
        >>> from torchmetrics_fed import PrivacyLedger
        >>> ledger = PrivacyLedger()
        >>> entry = ledger.spend("validation", round=1, epsilon=0.5)
        >>> ledger.spend("validation", round=1, epsilon=0.7)
        Traceback (most recent call last):
        torchmetrics_fed.errors.LedgerConflictError: Expected a new round but data 'validation', round '1' was spent...
    """


class LedgerFileError(LedgerError):
    """A ledger file that cannot be read, locked or written, or that is not what was written to it.

    Example:
        >>> from torchmetrics_fed import PrivacyLedger
        >>> PrivacyLedger(path="/no/such/folder/ledger")
        Traceback (most recent call last):
        torchmetrics_fed.errors.LedgerFileError: ...
    """


class DuplicateClientError(ReleaseError):
    """A client, or a share, that is in the sum already.

    Example:
        >>> from torchmetrics_fed import FederatedROC, Release
        >>> share = FederatedROC().share()
        >>> Release.sum([share, share])
        Traceback (most recent call last):
        torchmetrics_fed.errors.DuplicateClientError: Expected every share once but share 1...
    """


class RoundMismatchError(ReleaseError):
    """A share of another round than the one that is summed.

    Example:
        >>> from torchmetrics_fed import FederatedROC, Release
        >>> metric = FederatedROC()
        >>> Release.sum([metric.share(round="monday"), metric.share(round="tuesday")])
        Traceback (most recent call last):
        torchmetrics_fed.errors.RoundMismatchError: Expected shares of one round, 'monday', but share 1...
    """


class ImpossibleCountsError(ReleaseError):
    """Counts that no data of the agreed size can have. They were not added.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC, Release
        >>> metric = FederatedROC()
        >>> metric.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
        >>> Release.sum([metric.share()], max_examples=100)
        Traceback (most recent call last):
        torchmetrics_fed.errors.ImpossibleCountsError: ...
    """


class SecureAggregationError(FederatedMetricError, RuntimeError):
    """A message or a call that secure aggregation refuses. Nothing was sent or opened because of it.

    Its text never holds a secret, a share or a vector: it may reach the server.

    Example:
        >>> from torchmetrics_fed import SecureAggregationConfig, SecureAggregationServer
        >>> SecureAggregationServer(SecureAggregationConfig("round 1", b"spec", cells=2, min_clients=3)).keys()
        Traceback (most recent call last):
        torchmetrics_fed.errors.SecureAggregationError: ...
    """


class WireError(FederatedMetricError, ValueError):
    """Bytes that are not what they should be, or something that has no bytes.

    Example:
        >>> from torchmetrics_fed import Release
        >>> Release.from_bytes(b"no release")
        Traceback (most recent call last):
        torchmetrics_fed.errors.WireError: ...
    """
