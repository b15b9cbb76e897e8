"""Typed errors. Each message says what was expected, what came, and what to do."""

__all__ = ["FederatedMetricError", "InputError", "ReleaseError", "SpecMismatchError", "SyncError"]


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
