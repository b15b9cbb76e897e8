"""Before anything is spent: the error to expect of every plan, advice, and bytes on the wire."""

from torchmetrics_fed.planning.advice import advise, bytes_per_client
from torchmetrics_fed.planning.expected import (
    ExpectedError,
    ReferenceScores,
    expected_area_error,
    expected_sampling_error,
)

__all__ = [
    "ExpectedError",
    "ReferenceScores",
    "advise",
    "bytes_per_client",
    "expected_area_error",
    "expected_sampling_error",
]
