"""FederatedEvaluationMixin: a strategy whose evaluation rounds end in one release, by the secure sum if need be."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import FederatedMetricError, ReleaseError, SecureSumError
from torchmetrics_fed.integrations.flower.aggregation import scalars, sum_of_shares
from torchmetrics_fed.integrations.flower.records import RECORD, Asked
from torchmetrics_fed.metrics import FederatedCurve, representative
from torchmetrics_fed.reconstruct import Plan
from torchmetrics_fed.release import Release
from torchmetrics_fed.spec import Spec
from torchmetrics_fed.sync import secure_sum_config
from torchmetrics_fed.sync.secure_sum import SecureSumServer

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
    with fewer than ``min_clients`` of them it is not, a warning says so and the training goes on. With
    ``plan="two_round"`` the clients are asked to evaluate a second time, on leaves planned from the first sum; with
    ``plan="carry_over"`` the leaves are planned from the release of the round before.

    Args:
        args: the strategy's own.
        metric: made as on the clients; it is not updated.
        stage_timeout: seconds to wait for each stage of the secure sum that asks for no evaluation.
        evaluation_timeout: seconds to wait for the second evaluation of two.
        verification_keys: by node id, the clients' public keys; sums are signed if given.
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
        metric: FederatedCurve | MetricCollection,
        stage_timeout: float = 60.0,
        evaluation_timeout: float = 3600.0,
        verification_keys: Mapping[str, bytes] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.metric = representative(metric)
        if self.metric.spec.hides_shares:
            secure_sum_config(self.metric.spec, "a round")  # raises now rather than after the first training
        self.stage_timeout = stage_timeout
        self.evaluation_timeout = evaluation_timeout
        self.verification_keys = verification_keys
        self.releases: dict[int, Release] = {}
        """By server round, the release of every round that had one, for curves, pictures and reports."""
        self._open: _Sum | None = None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Exchange keys with the sampled clients, if shares are hidden, and return the messages that evaluate."""
        messages = list(super().configure_evaluate(server_round, arrays, config, grid))
        if not messages:
            return []
        previous = self.releases[max(self.releases)] if self.metric.plan == "carry_over" and self.releases else None
        plan = None if previous is None else Plan.from_release(previous)
        spec = self.metric.spec if plan is None else self.metric.spec.planned(plan.tree, plan.portion)
        self._open = _Sum(self, grid, messages, spec, plan, f"{grid.run.run_id}/{server_round}/{secrets.token_hex(8)}")
        return self._open.begin()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Open the sum, make the second one if the plan has two, and return the scalars beside the other metrics."""
        replies = list(replies)
        metrics: MetricRecord | None = super().aggregate_evaluate(server_round, replies)
        if self._open is None:
            return metrics
        try:
            release = self._open.end(replies)
            if self.metric.plan == "two_round":
                second = self._open.followed_by(Plan.from_release(release))
                release = second.end(second.exchange(second.begin(), self.evaluation_timeout), release)
            metrics = MetricRecord() if metrics is None else metrics
            metrics.update(scalars(release))
            self.releases[server_round] = release
        except FederatedMetricError as error:
            _log.warning("torchmetrics-fed: no curve of round %s. %s", server_round, error)
        finally:
            self._open = None
        return metrics


class _Sum:
    """One sum over the clients of some messages."""

    def __init__(
        self,
        strategy: FederatedEvaluationMixin,
        grid: Grid,
        messages: list[Message],
        spec: Spec,
        plan: Plan | None,
        round_: str,
    ) -> None:
        self._strategy, self._grid, self._messages, self._spec, self._round = strategy, grid, messages, spec, round_
        self._plan = b"" if plan is None else bytes(plan)
        self._server: SecureSumServer | None = None

    def followed_by(self, plan: Plan) -> _Sum:
        """Return the sum of the second message, over the same clients."""
        spec = self._spec.planned(plan.tree, plan.portion)
        return _Sum(self._strategy, self._grid, self._messages, spec, plan, f"{self._round}/second")

    def begin(self) -> list[Message]:
        """Return the messages that ask for an evaluation; if shares are hidden, to those who have exchanged keys."""
        if not self._spec.hides_shares:
            return [self._evaluating(message, b"") for message in self._messages]
        keys = self._strategy.verification_keys
        self._server = SecureSumServer(secure_sum_config(self._spec, self._round, signed=keys is not None), keys)
        try:
            nodes = [message.metadata.dst_node_id for message in self._messages]
            self._ask("advertise", dict.fromkeys(nodes, b""))
            self._ask("share_keys", dict.fromkeys(nodes, self._server.keys()))
            boxes = self._server.ciphertexts()
        except SecureSumError as error:
            _log.warning("torchmetrics-fed: the secure sum did not begin, so nobody is asked to evaluate. %s", error)
            return []
        named = ((message, boxes.get(str(message.metadata.dst_node_id))) for message in self._messages)
        return [self._evaluating(message, box) for message, box in named if box is not None]

    def end(self, replies: list[Message], pilot: Release | None = None) -> Release:
        """Return the release of the replies."""
        contents = [reply.content for reply in replies if reply.has_content()]
        if self._server is None:
            return sum_of_shares(self._spec, contents, pilot)
        server = self._server
        self._receive(replies, "masked")
        survivors = [reply.metadata.src_node_id for reply in replies if reply.has_content()]
        if server.config.signed:
            self._ask("sign", dict.fromkeys(survivors, server.survivors()))
        self._ask("unmask", dict.fromkeys(survivors, server.request()))
        vector, names = server.sum()
        return Release.from_vector(self._spec, vector, len(names), self._round, pilot)

    def exchange(self, messages: list[Message], timeout: float) -> list[Message]:
        """Send messages and return the replies; none if there is nobody to ask."""
        return list(self._grid.send_and_receive(messages, timeout=timeout)) if messages else []

    def _ask(self, stage: str, messages: Mapping[int, bytes]) -> None:
        """Go through one stage of the secure sum with all who are still there."""
        kind = self._messages[0].metadata.message_type  # the action, too: our mod is around that function
        sent = [
            Message(RecordDict({RECORD: self._asked(stage, message).record()}), node, kind)
            for node, message in messages.items()
        ]
        self._receive(self.exchange(sent, self._strategy.stage_timeout), "answer")

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
                _log.warning("torchmetrics-fed: node %s has dropped out of the sum. %s", name, error)

    def _evaluating(self, message: Message, box: bytes) -> Message:
        content = RecordDict({**message.content, RECORD: self._asked("evaluate", box).record()})
        return Message(content, message.metadata.dst_node_id, message.metadata.message_type)

    def _asked(self, stage: str, message: bytes) -> Asked:
        start = b"" if self._server is None else self._server.start()
        return Asked(stage, self._round, message, start, self._plan)
