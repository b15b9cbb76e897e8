"""Responder: a site's side of its releases, in the memory of its job's process from one stage to the next."""

from __future__ import annotations

from copy import deepcopy
from threading import RLock

from torchmetrics_fed.aggregation.secure import SecureAggregationClient, SecureAggregationConfig
from torchmetrics_fed.errors import ReleaseError, SecureAggregationError
from torchmetrics_fed.exchange.stages import Asked
from torchmetrics_fed.metrics import FederatedMetric
from torchmetrics_fed.release import Query

__all__ = ["Responder", "responders"]


class Responder:
    """Holds a site's data of one round and answers what the server asks about it, each query once.

    Nothing is written to disk: a site whose process ends has dropped out, and never answers twice. Its ledger keeps
    what was charged.
    """

    def __init__(self, site: str) -> None:
        self.site, self.guards = site, False
        """Whether data was held whose other numbers must not leave either."""
        self._lock = RLock()
        self.forget()

    def forget(self) -> None:
        """Erase data and secrets."""
        with self._lock:
            self._metric: FederatedMetric | None = None
            self._client: SecureAggregationClient | None = None
            self._round, self._left = "", 1.0

    def hold(self, metric: FederatedMetric, round: str) -> None:
        """Take the data of a round, for the queries to come. What an earlier round has left is erased."""
        with self._lock:
            self.forget()
            # a session from here on, which the copy shares: exact counts, too, enter one sum
            metric.sessions.join(metric.spec, metric.ledger, metric.data)
            self._metric, self._round, self.guards = deepcopy(metric), round, True

    def answer(self, asked: Asked) -> bytes:
        """Return the answer to one stage. Noise is drawn and charged in ``share`` and ``mask``, nowhere else."""
        with self._lock:
            query, metric, client = Query.from_bytes(asked.query), self._metric, self._client
            if asked.stage in ("share_keys", "mask", "unmask"):
                if client is None or client.config.to_bytes() != asked.start:
                    raise SecureAggregationError("Expected an aggregation that this site has begun but got another.")
                if asked.stage != "mask":
                    return (client.unmask if asked.stage == "unmask" else client.share_keys)(asked.message)
            if metric is None or not asked.round.startswith(f"{self._round}/"):
                raise ReleaseError(
                    f"Expected a question about data that this site holds, of {self._round or 'no round'}, but got one "
                    f"about {asked.round!r}. Every query is answered once; the site takes part in the next round."
                )
            if asked.stage == "advertise":
                self._client = SecureAggregationClient(self.site, _agreed(asked, query, metric))
                return self._client.advertise()
            if asked.stage == "mask" and client is not None:
                answer = metric.mask(client, asked.message, round=asked.round, query=query)
            else:
                answer = bytes(metric.share(round=asked.round, query=query))
            self._left -= query.fraction
            if self._left <= 0:  # nothing can be asked of the data any more
                self._metric = None
            return answer


def _agreed(asked: Asked, query: Query, metric: FederatedMetric) -> SecureAggregationConfig:
    """Return the configuration of an aggregation if it asks for what this site's own metric has agreed to."""
    config = SecureAggregationConfig.from_bytes(asked.start)
    config.check_agreed(metric.spec, query, False)
    if not config.round_id.startswith(f"{asked.round}/"):
        raise SecureAggregationError(f"Expected an aggregation of {asked.round!r} but got {config.round_id!r}.")
    return config


responders: dict[str, Responder] = {}
"""By site, those of the jobs in this process: a job's filter and its training script meet here."""
