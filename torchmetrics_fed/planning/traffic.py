"""Traffic: how many bytes a client sends to answer one query."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

from torchmetrics_fed.aggregation.secure import (
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
)
from torchmetrics_fed.aggregation.secure.config import MOST_CLIENTS
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.privacy import CentralDP
from torchmetrics_fed.release import Query, Share, Spec

_ROUND, _NAME = "round-1", "{:020d}"


def bytes_per_client(spec: Spec, query: Query, clients: int) -> int:
    """Return how many bytes one client sends to answer one query, with names of 20 letters.

    That is the share's size; where shares are hidden all that a client sends in secure aggregation, unsigned and
    without dropouts; with ``CentralDP`` a rank's raw counts.

    Example:
        >>> from torchmetrics_fed import FederatedROC, LocalDP
        >>> from torchmetrics_fed.exchange import next_query
        >>> from torchmetrics_fed.planning import bytes_per_client
        >>> spec = FederatedROC(privacy=LocalDP(1.0)).spec
        >>> [bytes_per_client(spec, next_query(plan, (), spec=spec), clients=20) for plan in ("adaptive", "single")]
        [528, 17808]
    """
    if isinstance(spec.privacy, CentralDP):
        return 8 * math.prod(spec.counts_shape)
    if not spec.hides_shares:
        return len(bytes(Share(spec, query, torch.zeros(spec.shape(query), dtype=spec.dtype), _ROUND)))
    if not 3 <= clients <= MOST_CLIENTS:
        raise InputError(
            f"Expected 3 to {MOST_CLIENTS} clients of one secure aggregation but got {clients}. Use LocalDP, or "
            "`trusted_aggregator=True` where the aggregator may see single shares."
        )
    few, more = _protocol_bytes(3), _protocol_bytes(4)  # keys and boxes for every other client: each adds the same
    return few + (clients - 3) * (more - few) + 8 * math.prod(spec.shape(query))


@lru_cache(maxsize=2)
def _protocol_bytes(clients: int) -> int:
    """Return what a client sends in a secure aggregation, except for its cells: a real one is run."""
    config = SecureAggregationConfig(_ROUND, b"spec", 1, 3)
    server = SecureAggregationServer(config)
    members = {_NAME.format(number): SecureAggregationClient(_NAME.format(number), config) for number in range(clients)}
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
