"""Secure aggregation of Bonawitz et al. (2017): a server learns the sum of integer vectors, and no vector. No I/O."""

from torchmetrics_fed.aggregation.secure.client import SecureAggregationClient
from torchmetrics_fed.aggregation.secure.collective import masked_sum
from torchmetrics_fed.aggregation.secure.config import SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.keys import SigningKeys, new_signing_keys
from torchmetrics_fed.aggregation.secure.server import SecureAggregationServer
from torchmetrics_fed.aggregation.secure.states import Stage

__all__ = [
    "SecureAggregationClient",
    "SecureAggregationConfig",
    "SecureAggregationServer",
    "SigningKeys",
    "Stage",
    "masked_sum",
    "new_signing_keys",
]
