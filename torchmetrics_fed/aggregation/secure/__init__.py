"""Secure aggregation of Bonawitz et al. (2017), without I/O.

A server learns the sum of the clients' integer vectors, and no single vector.
"""

from torchmetrics_fed.aggregation.secure.client import SecureAggregationClient
from torchmetrics_fed.aggregation.secure.config import SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.keys import new_signing_keys
from torchmetrics_fed.aggregation.secure.server import SecureAggregationServer

__all__ = [
    "SecureAggregationClient",
    "SecureAggregationConfig",
    "SecureAggregationServer",
    "new_signing_keys",
]
