"""Typed errors. Each message says what was expected, what came, and what to do."""

__all__ = [
    "BudgetExceededError",
    "FederatedMetricError",
    "InputError",
    "LedgerConflictError",
    "LedgerError",
    "LedgerFileError",
    "ReleaseError",
    "SpecMismatchError",
    "SyncError",
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
