"""FederatedEvaluationMixin: a strategy whose evaluation rounds end in one release, with as many queries as it takes."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torchmetrics import MetricCollection

from torchmetrics_fed.aggregation.secure import SecureAggregationServer
from torchmetrics_fed.errors import FederatedMetricError
from torchmetrics_fed.exchange import Coordinator
from torchmetrics_fed.integrations.flower.aggregation import scalars
from torchmetrics_fed.integrations.flower.records import RECORD, Asked
from torchmetrics_fed.integrations.flower.stages import Stage
from torchmetrics_fed.metrics import FederatedMetric, representative
from torchmetrics_fed.release import Release

if TYPE_CHECKING:
    from flwr.serverapp.strategy import FedAvg as _Strategy
else:
    _Strategy = object  # whichever strategy it is mixed into

__all__ = ["FederatedEvaluationMixin"]

_log = logging.getLogger("flwr")


class FederatedEvaluationMixin(_Strategy):
    """Put before any strategy: ``class Curves(FederatedEvaluationMixin, FedAvg): pass``.

    Every evaluation round makes one release of the clients that the strategy samples. Where the metric hides shares
    their keys are exchanged first, masked shares come with the replies, and the sum is opened by those who are left;
    with fewer than ``min_clients`` of them it is not, a warning says so and the training goes on. Where the plan has a
    second query, those whose first share was summed answer it from the counts that their nodes have kept: the model is
    evaluated once a round.

    Args:
        args: the strategy's own.
        metric: made as on the clients; it is not updated.
        stage_timeout: seconds to wait for each stage that asks for no evaluation.
        verification_keys: by node id, the clients' public keys; aggregations are signed if given.
        kwargs: the strategy's own.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from torchmetrics_fed import DistributedDP, FederatedROC
        >>> from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin
        >>> class Curves(FederatedEvaluationMixin, FedAvg): ...
        >>> metric = FederatedROC(privacy=DistributedDP(epsilon=1.0, min_clients=5))
        >>> strategy = Curves(metric=metric, min_evaluate_nodes=8)
        >>> strategy.releases
        {}
    """

    def __init__(
        self,
        *args: Any,
        metric: FederatedMetric | MetricCollection,
        stage_timeout: float = 60.0,
        verification_keys: Mapping[str, bytes] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.metric = representative(metric)
        first = Coordinator(self.metric, round="a round")  # raises now rather than after the first training
        if self.metric.spec.hides_shares:
            first.config_for(verification_keys is not None)
        self.stage_timeout = stage_timeout
        self.verification_keys = verification_keys
        self.releases: dict[int, Release] = {}
        """By server round, the release of every round that had one, for curves, figures and reports."""
        self._round: _Round | None = None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Exchange keys with the sampled clients, if shares are hidden, and return the messages that evaluate."""
        messages = list(super().configure_evaluate(server_round, arrays, config, grid))
        if not messages:
            return []
        previous = self.releases[max(self.releases)] if self.releases else None
        name = f"{grid.run.run_id}/{server_round}/{secrets.token_hex(8)}"
        coordinator = Coordinator(self.metric, round=name, previous=previous)
        self._round = _Round(self, grid, f"round {server_round}", messages[0].metadata.message_type, coordinator)
        try:
            return self._round.begin({each.metadata.dst_node_id: each.content for each in messages}, "evaluate")
        except FederatedMetricError as error:
            self._break_off(server_round, error)
            return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Sum the answers, ask the second query if the plan has one, and return scalars beside the other metrics."""
        replies = list(replies)
        metrics: MetricRecord | None = super().aggregate_evaluate(server_round, replies)
        if self._round is None:
            return metrics
        try:
            release = self._round.end(replies)
            metrics = MetricRecord() if metrics is None else metrics
            metrics.update(scalars(release))
            self.releases[server_round], self._round = release, None
        except FederatedMetricError as error:
            self._break_off(server_round, error)
        return metrics

    def _break_off(self, server_round: int, error: FederatedMetricError) -> None:
        """Say why a round has no curve, and let its nodes erase what they keep for it."""
        _log.warning("torchmetrics-fed: no curve of round %s. %s", server_round, error)
        assert self._round is not None
        self._round.forget()
        self._round = None


class _Round:
    """Carries the queries of one release to the clients of some messages, and their answers back."""

    def __init__(
        self, strategy: FederatedEvaluationMixin, grid: Grid, place: str, kind: str, coordinator: Coordinator
    ) -> None:
        self._strategy, self._grid, self._place, self._coordinator = strategy, grid, place, coordinator
        self._kind = kind  # the action, too: our mod is around that function
        self._server: SecureAggregationServer | None = None
        self._there: list[int] = []

    def begin(self, contents: Mapping[int, RecordDict], stage: str) -> list[Message]:
        """Return the messages that ask the present query; if shares are hidden, to those who have exchanged keys."""
        boxes = {str(node): b"" for node in contents}
        if self._coordinator.spec.hides_shares:
            keys = self._strategy.verification_keys
            self._server = SecureAggregationServer(self._coordinator.config_for(keys is not None), keys)
            self._ask("advertise", list(contents), b"")
            self._ask("share_keys", self._there, self._server.keys())
            boxes = self._server.ciphertexts()
        return self._open(stage, {int(node): box for node, box in boxes.items()}, contents)

    def end(self, replies: list[Message]) -> Release:
        """Return the release, given the replies to its first query."""
        self._collect(replies)
        while self._coordinator.query is not None:
            nodes = sorted(map(int, self._coordinator.senders or ()))
            self._collect(self._exchanged(self.begin(dict.fromkeys(nodes, RecordDict()), "answer")))
        return self._coordinator.release

    def forget(self) -> None:
        """Let the nodes that were there last erase their notes. Others erase them when they begin something else."""
        query = self._coordinator.query
        if self._server is not None or (query is not None and query.fraction < 1):  # otherwise nothing is kept
            self._exchanged(self._open("forget", dict.fromkeys(self._there, b"")))

    def _collect(self, replies: list[Message]) -> None:
        """Sum the answers to the present query."""
        if self._server is None:
            self._there = self._stage.receive(replies, "share", self._coordinator.receive)
        else:
            self._there = survivors = self._stage.receive(replies, "masked", self._server.receive)
            if self._server.config.signed:
                self._ask("sign", survivors, self._server.survivors())
            self._ask("unmask", survivors, self._server.request())
            self._coordinator.accept(self._server)
        self._coordinator.advance()

    def _ask(self, stage: str, nodes: list[int], message: bytes) -> None:
        """Go through one stage of secure aggregation, and remember who is still there."""
        assert self._server is not None
        replies = self._exchanged(self._open(stage, dict.fromkeys(nodes, message)))
        self._there = self._stage.receive(replies, "answer", self._server.receive)

    def _open(
        self, stage: str, messages: Mapping[int, bytes], contents: Mapping[int, RecordDict] | None = None
    ) -> list[Message]:
        """Return what is sent in a stage, whose time begins now."""
        spec, query = self._coordinator.spec, self._coordinator.query
        start = self._server.start() if self._server else b""
        first = stage == ("advertise" if spec.hides_shares else "evaluate")
        asked = Asked(stage, self._coordinator.round, bytes(query or b""), b"", start, spec.canonical if first else b"")
        sent = [
            Message(
                RecordDict({**(contents or {}).get(node, {}), RECORD: replace(asked, message=message).record()}),
                node,
                self._kind,
            )
            for node, message in messages.items()
        ]
        self._stage = Stage(f"{self._place}, query {len(self._coordinator.sums) + 1}", stage, sent)
        return sent

    def _exchanged(self, messages: list[Message]) -> list[Message]:
        """Send messages and return the replies; none if there is nobody to ask."""
        timeout = self._strategy.stage_timeout
        return list(self._grid.send_and_receive(messages, timeout=timeout)) if messages else []
