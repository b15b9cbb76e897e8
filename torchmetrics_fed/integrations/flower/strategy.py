"""FederatedEvaluationMixin: a strategy whose evaluation rounds end in one release, with as many queries as it takes."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torchmetrics import MetricCollection

from torchmetrics_fed.aggregation.secure import SecureAggregationServer
from torchmetrics_fed.errors import FederatedMetricError, ReleaseError, SecureAggregationError
from torchmetrics_fed.exchange import Coordinator
from torchmetrics_fed.integrations.flower.aggregation import receive_shares, scalars
from torchmetrics_fed.integrations.flower.records import RECORD, Asked
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
        self._round = _Round(self, grid, messages, Coordinator(self.metric, round=name, previous=previous))
        return self._round.begin(messages, "evaluate")

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
            self.releases[server_round] = release
        except FederatedMetricError as error:
            _log.warning("torchmetrics-fed: no curve of round %s. %s", server_round, error)
        finally:
            self._round = None
        return metrics


class _Round:
    """Carries the queries of one release to the clients of some messages, and their answers back."""

    def __init__(
        self, strategy: FederatedEvaluationMixin, grid: Grid, messages: list[Message], coordinator: Coordinator
    ) -> None:
        self._strategy, self._grid, self._coordinator = strategy, grid, coordinator
        self._kind = messages[0].metadata.message_type  # the action, too: our mod is around that function
        self._server: SecureAggregationServer | None = None

    def begin(self, messages: list[Message], stage: str) -> list[Message]:
        """Return the messages that ask the present query; if shares are hidden, to those who have exchanged keys."""
        if not self._coordinator.spec.hides_shares:
            return [self._asking(message, stage, b"") for message in messages]
        keys = self._strategy.verification_keys
        self._server = SecureAggregationServer(self._coordinator.config_for(keys is not None), keys)
        try:
            nodes = [message.metadata.dst_node_id for message in messages]
            self._ask("advertise", dict.fromkeys(nodes, b""))
            self._ask("share_keys", dict.fromkeys(nodes, self._server.keys()))
            boxes = self._server.ciphertexts()
        except SecureAggregationError as error:
            _log.warning("torchmetrics-fed: secure aggregation did not begin, so nobody is asked. %s", error)
            return []
        named = ((message, boxes.get(str(message.metadata.dst_node_id))) for message in messages)
        return [self._asking(message, stage, box) for message, box in named if box is not None]

    def end(self, replies: list[Message]) -> Release:
        """Return the release, given the replies to its first query."""
        self._collect(replies)
        while self._coordinator.query is not None:
            nodes = sorted(map(int, self._coordinator.senders or ()))
            messages = [Message(RecordDict(), node, self._kind) for node in nodes]
            self._collect(self._exchange(self.begin(messages, "answer")))
        return self._coordinator.release

    def _collect(self, replies: list[Message]) -> None:
        """Sum the answers to the present query."""
        there = [reply for reply in replies if reply.has_content()]
        if self._server is None:
            receive_shares(self._coordinator, ((str(reply.metadata.src_node_id), reply.content) for reply in there))
        else:
            server = self._server
            self._receive(replies, "masked")
            survivors = [reply.metadata.src_node_id for reply in there]
            if server.config.signed:
                self._ask("sign", dict.fromkeys(survivors, server.survivors()))
            self._ask("unmask", dict.fromkeys(survivors, server.request()))
            self._coordinator.accept(server)
        self._coordinator.advance()

    def _exchange(self, messages: list[Message]) -> list[Message]:
        """Send messages and return the replies; none if there is nobody to ask."""
        timeout = self._strategy.stage_timeout
        return list(self._grid.send_and_receive(messages, timeout=timeout)) if messages else []

    def _ask(self, stage: str, messages: Mapping[int, bytes]) -> None:
        """Go through one stage of secure aggregation with all who are still there."""
        sent = [
            Message(RecordDict({RECORD: self._asked(stage, message).record()}), node, self._kind)
            for node, message in messages.items()
        ]
        self._receive(self._exchange(sent), "answer")

    def _receive(self, replies: Iterable[Message], field: str) -> None:
        assert self._server is not None
        for reply in replies:
            name = str(reply.metadata.src_node_id)
            try:
                if reply.has_error():
                    raise ReleaseError(reply.error.reason)
                answer = reply.content.config_records[RECORD][field]
                self._server.receive(name, answer if isinstance(answer, bytes) else b"")
            except KeyError:
                _log.warning("torchmetrics-fed: node %s sent no %s; is `evaluation_mod` installed there?", name, field)
            except FederatedMetricError as error:
                _log.warning("torchmetrics-fed: node %s has dropped out of the aggregation. %s", name, error)

    def _asking(self, message: Message, stage: str, box: bytes) -> Message:
        content = RecordDict({**message.content, RECORD: self._asked(stage, box).record()})
        return Message(content, message.metadata.dst_node_id, message.metadata.message_type)

    def _asked(self, stage: str, message: bytes) -> Asked:
        start, query = b"" if self._server is None else self._server.start(), self._coordinator.query
        assert query is not None
        return Asked(stage, self._coordinator.round, bytes(query), message, start)
