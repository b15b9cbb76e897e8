"""Traffic: how many bytes a client sends for one message of a release."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.privacy import CentralDP
from torchmetrics_fed.release import Share
from torchmetrics_fed.spec import Spec
from torchmetrics_fed.sync.secure_sum import SecureSumClient, SecureSumConfig, SecureSumServer
from torchmetrics_fed.sync.secure_sum.config import MOST_CLIENTS

__all__ = ["bytes_per_client"]

_ROUND, _NAME = "round-1", "{:020d}"


def bytes_per_client(spec: Spec, clients: int) -> int:
    """Return how many bytes one client sends for one message of a release, with names of 20 letters.

    That is the share's size; where shares are hidden all that a client sends in the secure sum, unsigned and without
    dropouts; with ``CentralDP`` a rank's raw counts.

    Example:
        >>> from torchmetrics_fed import FederatedROC, LocalDP
        >>> from torchmetrics_fed.traffic import bytes_per_client
        >>> bytes_per_client(FederatedROC(privacy=LocalDP(1.0)).spec, clients=20)
        70052
    """
    if isinstance(spec.privacy, CentralDP):
        return 8 * spec.classes * spec.rows * spec.grid.bins
    if not spec.hides_shares:
        return len(bytes(Share(spec, torch.zeros(spec.shape, dtype=spec.dtype), _ROUND, _NAME.format(0))))
    if not 3 <= clients <= MOST_CLIENTS:
        raise InputError(
            f"Expected 3 to {MOST_CLIENTS} clients of one secure sum but got {clients}. Use LocalDP, or "
            "`trusted_aggregator=True` where whoever sums may see single shares."
        )
    few, more = _sum_bytes(3), _sum_bytes(4)  # keys and boxes for every other client: each adds the same
    return few + (clients - 3) * (more - few) + 8 * math.prod(spec.shape)


@lru_cache(maxsize=2)
def _sum_bytes(clients: int) -> int:
    """Return what a client sends in a secure sum of so many, but for its cells: a real one is run."""
    config = SecureSumConfig(_ROUND, b"spec", 1, 3)
    server = SecureSumServer(config)
    members = {_NAME.format(number): SecureSumClient(_NAME.format(number), config) for number in range(clients)}
    sent = dict.fromkeys(members, -8)  # the only cell

    def send(name: str, message: bytes) -> None:
        sent[name] += len(message)
        server.receive(name, message)

    for name, client in members.items():
        send(name, client.advertise())
    keys = server.keys()
    for name, client in members.items():
        send(name, client.share_keys(keys))
    boxes = server.ciphertexts()
    for name, client in members.items():
        send(name, client.mask(boxes[name], lambda: np.zeros(1, dtype=np.int64)))
    request = server.request()
    for name, client in members.items():
        send(name, client.unmask(request))
    return max(sent.values())
