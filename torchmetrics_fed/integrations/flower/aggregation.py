"""aggregate_fn: shares in EVALUATE replies become one release, and its scalars a MetricRecord."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import DuplicateClientError, FederatedMetricError
from torchmetrics_fed.exchange import Coordinator
from torchmetrics_fed.exchange.queries import check_one_query
from torchmetrics_fed.integrations.flower.records import RECORD
from torchmetrics_fed.metrics import FederatedMetric, areas, representative
from torchmetrics_fed.release import Release, Share, Spec

AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]

_log = logging.getLogger("flwr")


def aggregate_fn(metric: FederatedMetric | MetricCollection, inner: AggregateMetrics | None = None) -> Aggregation:
    """Return the function for ``FedAvg(evaluate_metrics_aggr_fn=...)``.

    Args:
        metric: made as on the clients; it is not updated.
        inner: aggregates the clients' other metrics; Flower's weighted mean if not given.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.integrations.flower import aggregate_fn
        >>> curves = aggregate_fn(FederatedROC())
        >>> strategy = FedAvg(evaluate_metrics_aggr_fn=curves)
        >>> curves.releases
        []
    """
    return Aggregation(metric, inner)


class Aggregation:
    """Sums the shares of each round's replies. It cannot ask again, so a release takes one query.

    Flower gives it one record for each node that replied, and neither names nor failures: every record counts as one
    client, and a share that came before, in this round or an earlier one, is left out.
    """

    def __init__(self, metric: FederatedMetric | MetricCollection, inner: AggregateMetrics | None = None) -> None:
        self.metric = representative(metric)
        check_one_query(self.metric.plan)
        self.inner = inner or aggregate_metricrecords
        self.releases: list[Release] = []
        """The release of every round that had one, for curves, figures and reports."""
        self._seen: set[bytes] = set()

    def __call__(self, records: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        """Return the clients' other metrics as ``inner`` aggregates them, and the release's scalars beside them."""
        warn_of_weights(self.metric.spec, records, weighted_by_key)
        metrics = self.inner(records, weighted_by_key)
        try:
            coordinator = Coordinator(self.metric, round="", can_ask_again=False)
            for number, record in enumerate(records):
                self._receive(coordinator, f"reply {number}", record.config_records.get(RECORD, ConfigRecord()))
            coordinator.advance()
            release = coordinator.release
            metrics.update(scalars(release))
            self._seen.update(release.last.names)
            self.releases.append(release)
        except FederatedMetricError as error:
            _log.warning("torchmetrics-fed: no curve of this round. %s", error)
        return metrics

    def _receive(self, coordinator: Coordinator, sender: str, record: ConfigRecord) -> None:
        """Hand over the share in a reply; what cannot be added, or came before, is logged and left out."""
        sent, spec, query = record.get("share"), record.get("spec"), coordinator.query
        try:
            if isinstance(spec, bytes) and spec != coordinator.spec.canonical:
                coordinator.spec.check(Spec.from_canonical(spec))  # names what differs, with both values
            share = Share.from_bytes(sent if isinstance(sent, bytes) else b"", coordinator.spec, query)
            if share.id in self._seen:
                raise DuplicateClientError("Expected a share of this round but it was sent in an earlier one.")
            coordinator.receive(sender, share)
        except FederatedMetricError as error:
            what = "a share" if sent else "a reply without `state_record(metric)`"
            _log.warning("torchmetrics-fed: left out %s (%s). %s", what, sender, error)


def scalars(release: Release) -> dict[str, float]:
    """Return what is logged of a release, by names in Flower's style; raises with fewer shares than ``min_clients``."""
    return {name.replace("_", "-"): area for name, area in areas(release, "federated_{}").items()}


def warn_of_weights(spec: Spec, records: list[RecordDict], weighted_by_key: str) -> None:
    """Warn where clients of a private metric send how many examples they have."""
    sent = {str(values.get(weighted_by_key)) for record in records for values in record.metric_records.values()}
    if spec.privacy is not None and len(sent) > 1:
        _log.warning(
            "torchmetrics-fed: clients send their true %r, which epsilon does not cover. Send 1, or use "
            "`evaluation_mod` on the client, which does.",
            weighted_by_key,
        )
