"""aggregate_fn: shares in EVALUATE replies become one release, and its scalars a MetricRecord."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import FederatedMetricError, InputError, ReleaseError
from torchmetrics_fed.integrations.flower.records import RECORD
from torchmetrics_fed.metrics import FederatedAUROC, FederatedAveragePrecision, FederatedCurve, representative
from torchmetrics_fed.release import Release, Share
from torchmetrics_fed.spec import Spec

__all__ = ["AggregateMetrics", "Aggregation", "aggregate_fn", "scalars", "sum_of_shares"]

AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]

_log = logging.getLogger("flwr")


def aggregate_fn(metric: FederatedCurve | MetricCollection, inner: AggregateMetrics | None = None) -> Aggregation:
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
    """Sums the shares of each round's replies. Flower does not tell it who failed, so it counts shares itself.

    Args:
        metric: made as on the clients.
        inner: aggregates the clients' other metrics.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.integrations.flower import aggregate_fn
        >>> type(aggregate_fn(FederatedROC())).__name__
        'Aggregation'
    """

    def __init__(self, metric: FederatedCurve | MetricCollection, inner: AggregateMetrics | None = None) -> None:
        self.metric = representative(metric)
        if self.metric.spec.portion < 1:
            raise InputError(
                'Expected a plan of one message but got plan="two_round", whose first message alone is a pilot. Use a '
                "strategy with FederatedEvaluationMixin, or leave `plan` out."
            )
        self.inner = inner or aggregate_metricrecords
        self.releases: list[Release] = []
        """The release of every round that had one, for curves, pictures and reports."""

    def __call__(self, records: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        """Return the clients' other metrics as ``inner`` aggregates them, and the release's scalars beside them."""
        warn_of_weights(self.metric.spec, records, weighted_by_key)
        metrics = self.inner(records, weighted_by_key)
        try:
            release = sum_of_shares(self.metric.spec, records)
            metrics.update(scalars(release))
            self.releases.append(release)
        except ReleaseError as error:
            _log.warning("torchmetrics-fed: no curve of this round. %s", error)
        return metrics


def sum_of_shares(spec: Spec, records: list[RecordDict], pilot: Release | None = None) -> Release:
    """Return the release of all shares that can be read, of the round that most of them name; others are logged.

    Args:
        spec: what they must be shares of.
        records: the contents of the replies.
        pilot: the release of the first message, if these are shares of the second.
    """
    shares = []
    for record in records:
        sent = record.config_records.get(RECORD, ConfigRecord()).get("share")
        try:
            shares.append(Share.from_bytes(sent if isinstance(sent, bytes) else b"", spec))
        except FederatedMetricError as error:
            _log.warning("torchmetrics-fed: left out %s. %s", "a share" if sent else "a reply without a share", error)
    named = Counter(share.round for share in shares).most_common(1)
    total: Release | None = None
    for share in shares:
        parts: list[Share | Release] = [share] if total is None else [total, share]
        try:
            total = Release.sum(parts, round=named[0][0])
        except FederatedMetricError as error:
            _log.warning("torchmetrics-fed: left out a share. %s", error)
    if total is None:
        raise ReleaseError("Expected at least one share but got none.")
    return Release.sum([total], pilot=pilot)


def scalars(release: Release) -> dict[str, float]:
    """Return what is logged of a release: AUROC and average precision, the mean over classes where there are several.

    Raises :class:`ReleaseError` where there are fewer shares than ``min_clients``.
    """
    if release.spec.multi_class == "ovo":
        return {"federated-auroc": float(FederatedAUROC.from_release(release).compute())}
    return {
        "federated-auroc": float(FederatedAUROC.from_release(release).compute()),
        "federated-average-precision": float(FederatedAveragePrecision.from_release(release).compute()),
    }


def warn_of_weights(spec: Spec, records: list[RecordDict], weighted_by_key: str) -> None:
    """Warn where clients of a private metric tell how many examples they have."""
    told = {str(values.get(weighted_by_key)) for record in records for values in record.metric_records.values()}
    if spec.privacy is not None and len(told) > 1:
        _log.warning(
            "torchmetrics-fed: clients send their true %r, which epsilon does not cover. Send 1, or use "
            "`evaluation_mod` on the client, which does.",
            weighted_by_key,
        )
