"""Traffic: how many bytes a client sends to answer one query."""

from __future__ import annotations

import math

import torch

from torchmetrics_fed.aggregation.secure import SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.config import MOST_CLIENTS
from torchmetrics_fed.aggregation.secure.keys import KEY_BYTES
from torchmetrics_fed.aggregation.secure.roster import Advertisement, row_sizes
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.privacy import CentralDP
from torchmetrics_fed.release import Query, Share, Spec
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind

_ROUND = "round-1"


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
        [544, 17824]
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
    config = SecureAggregationConfig(_ROUND, b"spec", math.prod(spec.shape(query)), min_clients=3)
    sent = len(Advertisement(20 * "x", bytes(KEY_BYTES), bytes(KEY_BYTES)).to_bytes(config))
    for kind in (Kind.KEY_SHARES, Kind.MASKED, Kind.ANSWER):
        head = config.frame(kind, bytes(DIGEST_BYTES), bytes(2))
        sent += len(head) + sum(row_sizes(kind, config, clients, clients))
    return sent
