"""The errors that this package raises on purpose, and checks of arguments that raise them.

Every error of the package is a :class:`FederatedMetricError`. Its message says what was expected,
what was found and what to do next. An error about the data is marked by :func:`about_data`, so
that its message does not leave the client.
"""

import math
from collections.abc import Sequence

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
    """The base class of all errors that this package raises on purpose.

    Example:
        >>> from torchmetrics_fed import FederatedMetricError, FederatedROC
        >>> try:
        ...     FederatedROC(quantiles=0)
        ... except FederatedMetricError as error:
        ...     print(type(error).__name__)
        InputError
    """

    depends_on_data: bool = False
    """Whether the data caused the error. If so, its message stays on the client: other parties
    learn that the client refused, but not why."""


class InputError(FederatedMetricError, ValueError):
    """An argument, a score or a target that cannot be used. Nothing was counted.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> FederatedROC().update(torch.tensor([1.5]), torch.tensor([1]))
        Traceback (most recent call last):
        torchmetrics_fed.errors.InputError: ...
    """


class SpecMismatchError(FederatedMetricError, ValueError):
    """Two parties whose counts are to be added do not agree on what they count."""


class SyncError(FederatedMetricError, RuntimeError):
    """The counts of the ranks could not be summed. The local state is unchanged."""


class ReleaseError(FederatedMetricError, RuntimeError):
    """A call that does not fit the state of the release.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> FederatedROC(privacy=CentralDP(epsilon=1.0)).share()
        Traceback (most recent call last):
        torchmetrics_fed.errors.ReleaseError: ...
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
    """A release that the ledger already holds: at another price, or where a new one is needed."""


class LedgerFileError(LedgerError):
    """A ledger file that cannot be read, locked or written, or whose content was changed."""


class DuplicateClientError(ReleaseError):
    """A client or a share that is already in the sum."""


class RoundMismatchError(ReleaseError):
    """A share that belongs to another round than the sum."""


class ImpossibleCountsError(ReleaseError):
    """Counts that no data of the agreed size can have. They were not added."""


class SecureAggregationError(FederatedMetricError, RuntimeError):
    """A message or a call that secure aggregation refuses. It caused nothing to be sent or opened.

    The message of this error never holds a secret, a share or a vector: it may reach the server.
    """


class WireError(FederatedMetricError, ValueError):
    """Bytes that cannot be decoded, or an object that cannot be encoded."""


def about_data(error: FederatedMetricError) -> FederatedMetricError:
    """Mark an error as one that the data caused, and return it."""
    error.depends_on_data = True
    return error


def check_int(
    name: str,
    value: object,
    minimum: int,
    maximum: float = math.inf,
    which: str = "",
) -> None:
    """Raise unless an argument is an int within its bounds.

    Args:
        name: the name of the argument.
        value: its value.
        minimum: the smallest int that is allowed.
        maximum: the largest int that is allowed.
        which: further words of the message, after the bounds.
    """
    if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
        return
    bounds = f"from {minimum} to {maximum}"
    if maximum == math.inf:
        bounds = f"of at least {minimum}"
    raise InputError(f"Expected argument `{name}` to be an int {bounds}{which} but got {value!r}.")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise unless the value of an argument is one of the choices."""
    if value not in choices:
        raise InputError(f"Expected argument `{name}` to be one of {choices} but got {value!r}.")
