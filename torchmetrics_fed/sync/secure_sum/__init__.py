"""The secure sum of Bonawitz et al. (2017): a server learns the sum of integer vectors, and no vector. No I/O."""

from torchmetrics_fed.errors import SecureSumError
from torchmetrics_fed.sync.secure_sum.client import SecureSumClient
from torchmetrics_fed.sync.secure_sum.config import SecureSumConfig
from torchmetrics_fed.sync.secure_sum.keys import SigningKeys, new_signing_keys
from torchmetrics_fed.sync.secure_sum.progress import Stage
from torchmetrics_fed.sync.secure_sum.ranks import masked_sum
from torchmetrics_fed.sync.secure_sum.server import SecureSumServer

__all__ = [
    "SecureSumClient",
    "SecureSumConfig",
    "SecureSumError",
    "SecureSumServer",
    "SigningKeys",
    "Stage",
    "masked_sum",
    "new_signing_keys",
]
