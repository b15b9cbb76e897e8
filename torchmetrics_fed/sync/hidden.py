"""The sum over ranks that a spec asks for: plain, or hiding each rank's part."""

from __future__ import annotations

import math

from torch import Tensor

from torchmetrics_fed.spec import Spec
from torchmetrics_fed.sync.distributed import Ranks
from torchmetrics_fed.sync.secure_sum import SecureSumConfig, masked_sum

__all__ = ["hidden_sum", "secure_sum_config"]


def secure_sum_config(
    spec: Spec, round_id: str, min_clients: int | None = None, signed: bool = False, threshold: int | None = None
) -> SecureSumConfig:
    """Return what all parties of a secure sum of shares of this spec agree on.

    Args:
        spec: what is summed.
        round_id: the name of the sum, which is never used again.
        min_clients: a sum of fewer is not opened; that of the spec's privacy if not given.
        signed: whether keys and survivors are signed, which protects from a server that lies.
        threshold: how many clients must answer to open the sum; more than two thirds if not given.

    Example:
        >>> from torchmetrics_fed import DistributedDP, FederatedROC, secure_sum_config
        >>> spec = FederatedROC(privacy=DistributedDP(epsilon=1.0, min_clients=8)).spec
        >>> secure_sum_config(spec, "round-1").min_clients
        8
    """
    needed = spec.privacy.shares_needed if spec.privacy else 3
    colluding = getattr(spec.privacy, "max_colluding", 1)
    return SecureSumConfig(
        round_id, spec.fingerprint, math.prod(spec.shape), min_clients or needed, colluding, threshold, signed
    )


def hidden_sum(ranks: Ranks, spec: Spec, cells: Tensor, attempt: str) -> Tensor:
    """Return the sum of all ranks' ``cells``, the same on every rank.

    Where the spec hides shares each rank's part travels under masks, with keys made for this sum alone.

    Args:
        ranks: who sums together.
        spec: what is summed; every rank has shown that it has this one.
        cells: this rank's part, int64.
        attempt: the name of this sum, the same on every rank and never used before.
    """
    if not spec.hides_shares or ranks.size == 1:
        return ranks.sum(cells)
    view = spec.fingerprint + attempt.encode()
    return masked_sum(cells, ranks.rank, view, ranks.exchange, ranks.sum)
