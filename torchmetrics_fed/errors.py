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
    "SecureSumError",
    "SpecMismatchError",
    "SyncError",
    "WireError",
]


class FederatedMetricError(Exception):
    """Everything this package raises on purpose."""


class InputError(FederatedMetricError, ValueError):
    """Arguments, scores or targets that cannot be used. Nothing was counted."""


class SpecMismatchError(FederatedMetricError, ValueError):
    """Two parties that want to add up do not agree on what they count."""


class SyncError(FederatedMetricError, RuntimeError):
    """The ranks could not be summed. The local state is as it was."""


class ReleaseError(FederatedMetricError, RuntimeError):
    """A call that does not fit the state of the release."""


class LedgerError(FederatedMetricError, RuntimeError):
    """The ledger cannot vouch for a spend. No noise may be drawn."""


class BudgetExceededError(LedgerError):
    """A release that the budget does not cover. Nothing was spent."""


class LedgerConflictError(LedgerError):
    """A release that the ledger already holds, with other amounts or where a new one was asked for."""


class LedgerFileError(LedgerError):
    """A ledger file that cannot be read, locked or written, or that is not what was written to it."""


class DuplicateClientError(ReleaseError):
    """A client that is in the sum already."""


class RoundMismatchError(ReleaseError):
    """A share of another round than the one that is summed."""


class ImpossibleCountsError(ReleaseError):
    """Counts that no data of the agreed size can have. They were not added."""


class SecureSumError(FederatedMetricError, RuntimeError):
    """A message or a call that the secure sum refuses. Nothing was sent or opened because of it.

    Its text never holds a secret, a share or a vector: it may reach the server.
    """


class WireError(FederatedMetricError, ValueError):
    """Bytes that are no share or release, or something that has no bytes."""
