"""Typed errors. Each message says what was expected, what came, and what to do."""

import math
from collections.abc import Sequence

__all__ = [
    "BudgetExceededError",
    "DuplicateClientError",
    "FederatedMetricError",
    "ImpossibleCountsError",
    "InputError",
]
__all__ += [
    "LedgerConflictError",
    "LedgerError",
    "LedgerFileError",
    "ReleaseError",
    "RoundMismatchError",
]
__all__ += ["SecureAggregationError", "SpecMismatchError", "SyncError", "WireError"]


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

    depends_on_data: bool = False
    """Whether it was raised because of the data. Its text then stays on the client: others hear that the client
    refused, and not why."""


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
    """Two parties that want to add up do not agree on what they count."""


class SyncError(FederatedMetricError, RuntimeError):
    """The ranks could not be summed. The local state is as it was."""


class ReleaseError(FederatedMetricError, RuntimeError):
    """A call that does not fit the state of the release.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> FederatedROC(privacy=CentralDP(epsilon=1.0)).share()
        Traceback (most recent call last):
        torchmetrics_fed.errors.ReleaseError: Expected DistributedDP or LocalDP for shares but got CentralDP...
    """


class LedgerError(FederatedMetricError, RuntimeError):
    """The ledger cannot confirm a charge. No noise may be drawn."""


class BudgetExceededError(LedgerError):
    """A release that the budget does not cover. Nothing was spent.

    Example:
        >>> from torchmetrics_fed import PrivacyLedger
        >>> PrivacyLedger(budget=1.0).spend("validation", round=1, epsilon=1.5)
        Traceback (most recent call last):
        torchmetrics_fed.errors.BudgetExceededError: ...
    """


class LedgerConflictError(LedgerError):
    """A release that the ledger already holds, with other amounts or where a new one was asked for."""


class LedgerFileError(LedgerError):
    """A ledger file that cannot be read, locked or written, or that is not what was written to it."""


class DuplicateClientError(ReleaseError):
    """A client, or a share, that is in the sum already."""


class RoundMismatchError(ReleaseError):
    """A share of another round than the one that is summed."""


class ImpossibleCountsError(ReleaseError):
    """Counts that no data of the agreed size can have. They were not added."""


class SecureAggregationError(FederatedMetricError, RuntimeError):
    """A message or a call that secure aggregation refuses. Nothing was sent or opened because of it.

    Its text never holds a secret, a share or a vector: it may reach the server."""


class WireError(FederatedMetricError, ValueError):
    """Bytes that are not what they should be, or something that has no bytes."""


def about_data(error: FederatedMetricError) -> FederatedMetricError:
    """Return the error, marked as one that depends on the data."""
    error.depends_on_data = True
    return error


def check_int(
    name: str, value: object, least: int, most: float = math.inf, which: str = ""
) -> None:
    """Raise unless an argument is an int within these bounds; ``which`` says more of what is expected."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise InputError(
            f"Expected argument `{name}` to be an int {bounds}{which} but got {value!r}."
        )


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise unless an argument is one of these."""
    if value not in choices:
        raise InputError(f"Expected argument `{name}` to be one of {choices} but got {value!r}.")
