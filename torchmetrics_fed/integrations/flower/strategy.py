"""The server's side: aggregate_fn for one query, FederatedEvaluationMixin for two."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import (
    DuplicateClientError,
    FederatedMetricError,
    InputError,
    ReleaseError,
)
from torchmetrics_fed.exchange import Coordinator
from torchmetrics_fed.exchange.plans import check_one_query
from torchmetrics_fed.exchange.stages import (
    BrokenOffError,
    Replies,
    Requests,
    ask_release,
    release_stages,
)
from torchmetrics_fed.integrations.flower.client import EVALUATE, FORGET, RECORD
from torchmetrics_fed.integrations.flower.run import planned_remark, trends
from torchmetrics_fed.metrics import CountsMetric, representative, terms_of
from torchmetrics_fed.metrics.history import History
from torchmetrics_fed.release import Release, Share, Spec
from torchmetrics_fed.report.scalars import release_scalars

if TYPE_CHECKING:
    from flwr.serverapp.strategy import FedAvg as _Strategy
else:
    _Strategy = object  # whichever strategy it is mixed into

AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]
_log = logging.getLogger("flwr")


def aggregate_fn(
    metric: CountsMetric | MetricCollection, inner: AggregateMetrics | None = None
) -> Aggregation:
    """Return the function for ``FedAvg(evaluate_metrics_aggr_fn=...)``.

    Args:
        metric: made as on the clients; it is not updated.
        inner: aggregates the clients' other metrics; Flower's weighted mean if not given.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from torchmetrics_fed import FederatedROC
        >>> curves = aggregate_fn(FederatedROC())
        >>> strategy = FedAvg(evaluate_metrics_aggr_fn=curves)
        >>> curves.releases
        []
    """
    return Aggregation(metric, inner)


class Aggregation:
    """Sums the shares of each round's replies. It cannot ask again, so a release takes one query.

    Flower gives it neither names nor failures: every record counts as one client, and a share that
    came before, in this round or an earlier one, is left out.
    """

    def __init__(
        self, metric: CountsMetric | MetricCollection, inner: AggregateMetrics | None
    ) -> None:
        self.terms = terms_of(representative(metric))
        check_one_query(self.terms.plan)
        self.inner = inner or aggregate_metricrecords
        self._summed_shares: set[bytes] = set()
        """The ids of all shares that were summed, in any round."""
        self.releases: list[Release] = []
        """The release of every round that had one, for curves, figures and reports."""

    def __call__(self, records: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        """Return the clients' other metrics, aggregated, and the release's scalars beside them."""
        self._warn_of_weights(records, weighted_by_key)
        metrics = self.inner(records, weighted_by_key)
        coordinator = Coordinator(self.terms, round="", can_ask_again=False)
        for number, record in enumerate(records):
            share_record = record.config_records.get(RECORD, ConfigRecord())
            self._receive(coordinator, f"reply {number}", share_record)
        try:
            coordinator.advance()
            metrics.update(_scalars(coordinator.release))
            self._summed_shares.update(coordinator.release.last.names)
            self.releases.append(coordinator.release)
        except FederatedMetricError as error:
            _log.warning("torchmetrics-fed: no curve of this round. %s", error)
        return metrics

    def _warn_of_weights(self, records: list[RecordDict], weighted_by_key: str) -> None:
        """Warn if private clients send the true number of their examples."""
        weights = {
            str(values.get(weighted_by_key))
            for record in records
            for values in record.metric_records.values()
        }
        if self.terms.spec.privacy.charges and len(weights) > 1:
            _log.warning(
                "torchmetrics-fed: clients send their true %r, which epsilon does not cover. Send "
                "1, or use `evaluation_mod` on the client, which does.",
                weighted_by_key,
            )

    def _receive(self, coordinator: Coordinator, sender: str, record: ConfigRecord) -> None:
        """Hand over the share in a reply.

        A share that cannot be added, or came before, is logged and left out.
        """
        data = record.get("share")
        spec = record.get("spec")
        try:
            if isinstance(spec, bytes) and spec != coordinator.spec.canonical:
                # names the fields that differ, with both values
                coordinator.spec.check(Spec.from_canonical(spec))
            encoded = data if isinstance(data, bytes) else b""
            share = Share.from_bytes(encoded, coordinator.spec, coordinator.query)
            if share.id in self._summed_shares:
                raise DuplicateClientError(
                    "Expected a share of this round but it was sent in an earlier one."
                )
            coordinator.receive(sender, share)
        except FederatedMetricError as error:
            subject = "a share" if data else "a reply without `state_record(metric)`"
            _log.warning("torchmetrics-fed: left out %s (%s). %s", subject, sender, error)


def _scalars(release: Release) -> dict[str, float]:
    """Return the scalars of a release by names in Flower's style.

    Raises with fewer shares than ``min_clients``.
    """
    scalars = release_scalars(release)
    return {f"federated-{name}".replace("_", "-"): value for name, value in scalars.items()}


class FederatedEvaluationMixin(_Strategy):
    """Put before any strategy: ``class Curves(FederatedEvaluationMixin, FedAvg): pass``.

    Every evaluation round makes one release of the clients that the strategy samples. Where the
    metric hides shares, the clients exchange keys first, and the remaining clients open the sum;
    with fewer than ``min_clients`` there is a warning, and the training goes on. A second query is
    answered from the counts that nodes have kept: the model is evaluated once a round.

    Args:
        args: the strategy's own, as are ``kwargs``.
        metric: made as on the clients; it is not updated.
        stage_timeout: seconds to wait for each stage that asks for no evaluation.
        verification_keys: by node id, the clients' public keys; aggregations are signed if given.
        trend: whether every number is also logged as ``federated-auroc-trend``, smoothed over the
            rounds so far, which costs no privacy. ``history.trend("federated-auroc")`` has all
            rounds, with intervals.
        threshold: the number of clients that must stay to the end of an aggregation; more than two
            thirds if not given. Fewer survive more dropouts, and leave less of a margin against
            clients that work with the server.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from torchmetrics_fed import DistributedDP, FederatedROC
        >>> class Curves(FederatedEvaluationMixin, FedAvg): ...
        >>> metric = FederatedROC(privacy=DistributedDP(epsilon=1.0, min_clients=5))
        >>> Curves(metric=metric, min_evaluate_nodes=8).releases
        {}
    """

    def __init__(
        self,
        *args: Any,
        metric: CountsMetric | MetricCollection,
        stage_timeout: float = 60.0,
        verification_keys: Mapping[str, bytes] | None = None,
        trend: bool = False,
        threshold: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.terms = terms_of(representative(metric))
        # raises now rather than after the first training
        coordinator = Coordinator(self.terms, round="a round", threshold=threshold)
        if self.terms.spec.hides_shares:
            coordinator.config_for(verification_keys is not None)
        _check_sampled(self, coordinator.clients_needed)
        self.threshold = threshold
        self.stage_timeout = stage_timeout
        self.verification_keys = verification_keys
        self.releases: dict[int, Release] = {}
        """By server round, the release of every round that had one, for curves, figures and
        reports."""
        self.trend = trend
        self.history = History()
        """The logged values of all rounds so far."""
        self.partial_releases: dict[int, Release] = {}
        """By server round, the partial release of every round that was broken off after its first
        query: coarse, and marked as partial."""
        self._round: _Round | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        *args: Any,
        **kwargs: Any,
    ) -> Result:
        """Run the rounds as the strategy does, after a look at what they would spend."""
        remark = planned_remark(self.terms, num_rounds)
        if remark:
            _log.warning("torchmetrics-fed: %s", remark)
        return super().start(grid, initial_arrays, num_rounds, *args, **kwargs)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Exchange keys, if shares are hidden, and return the messages that evaluate."""
        messages = list(super().configure_evaluate(server_round, arrays, config, grid))
        if not messages:
            return []
        previous = None
        if self.releases:
            previous = self.releases[max(self.releases)]
        name = f"{grid.run.run_id}/{server_round}/{secrets.token_hex(8)}"
        coordinator = Coordinator(
            self.terms, round=name, previous=previous, threshold=self.threshold
        )
        self._round = _Round(
            coordinator,
            messages,
            grid=grid,
            place=f"round {server_round}",
            timeout=self.stage_timeout,
            keys=self.verification_keys,
        )
        try:
            return self._round.begin()
        except FederatedMetricError as error:
            self._break_off(server_round, error)
            return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Sum the answers, ask the second query, and return scalars beside the other metrics."""
        replies = list(replies)
        metrics: MetricRecord | None = super().aggregate_evaluate(server_round, replies)
        if self._round is None:
            return metrics
        try:
            release = self._round.end(replies)
            if metrics is None:
                metrics = MetricRecord()
            scalars = _scalars(release)
            metrics.update(scalars)
            if self.trend:
                metrics.update(trends(self.history, release, scalars))
            self.releases[server_round] = release
            self._round = None
        except FederatedMetricError as error:
            self._break_off(server_round, error)
        return metrics

    def _break_off(self, server_round: int, error: FederatedMetricError) -> None:
        """Log why a round has no curve, and let its nodes erase their notes about it."""
        _log.warning("torchmetrics-fed: no curve of round %s. %s", server_round, error)
        if isinstance(error, BrokenOffError):
            self.partial_releases[server_round] = error.release
        assert self._round is not None
        self._round.forget()
        self._round = None


def _check_sampled(strategy: Any, needed: int) -> None:
    """Raise if the strategy may sample fewer nodes than a release needs.

    It waits for ``min_available_nodes``, and samples a fraction of the nodes that are there.
    Strategies without these arguments are checked when a round begins.
    """
    fraction = getattr(strategy, "fraction_evaluate", None)
    available = getattr(strategy, "min_available_nodes", None)
    fewest = getattr(strategy, "min_evaluate_nodes", None)
    if fraction is None or available is None or fewest is None or fraction == 0:
        return
    sampled = max(int(available * fraction), fewest)
    if sampled < needed:
        raise InputError(
            f"Expected a strategy that samples at least {needed} nodes, as the metric needs for a "
            f"release, but got fraction_evaluate={fraction}, min_available_nodes={available} and "
            f"min_evaluate_nodes={fewest}, which may sample {sampled}. Pass "
            f"`min_evaluate_nodes={needed}` and `min_available_nodes={needed}` or more."
        )


class _Round:
    """Carries the stages of one release to the nodes of an evaluation, and their replies back.

    Args:
        coordinator: the aggregator's side of the release.
        messages: the strategy's messages, one for each node that it has sampled.
        grid: Flower's way to the nodes.
        place: what the log calls the round.
        timeout: seconds to wait for each stage that asks for no evaluation.
        keys: by node, public keys; aggregations are signed if given.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        messages: list[Message],
        *,
        grid: Grid,
        place: str,
        timeout: float,
        keys: Mapping[str, bytes] | None,
    ) -> None:
        self._coordinator = coordinator
        self._grid = grid
        self._timeout = timeout
        # the action is in it, too: our mod is around the function of that action
        self._message_type = messages[0].metadata.message_type
        self._contents = {
            str(message.metadata.dst_node_id): message.content for message in messages
        }
        self._stages = release_stages(coordinator, self._contents, place=place, log=_log, keys=keys)
        self._sent_messages = messages
        """The messages of the stage that is under way."""
        self._nodes_there: list[str] = []
        """The nodes that replied in the last stage."""

    def begin(self) -> list[Message]:
        """Return the messages that evaluate.

        Where shares are hidden, to the nodes that have exchanged keys.
        """
        requests = next(self._stages)
        while any(not request.stage.asks_data for request in requests.values()):
            requests = self._stages.send(self._carry(requests))
        return self._messages(requests)

    def end(self, replies: list[Message]) -> Release:
        """Return the release, given the replies to the messages that evaluate."""
        return ask_release(self._stages, self._carry, self._answers(replies))

    def forget(self) -> None:
        """Let nodes erase their notes, and give back what they have not drawn.

        Nodes that replied last are waited for. The others of the first sum get the message if they
        come back; otherwise they erase their notes after a day.
        """
        spec = self._coordinator.spec
        if not (spec.hides_shares or spec.privacy.charges):
            return
        silent = (self._coordinator.senders or frozenset()).difference(self._nodes_there)
        if silent:
            self._grid.push_messages(self._forget_messages(sorted(silent)))
        if self._nodes_there:
            messages = self._forget_messages(self._nodes_there)
            self._grid.send_and_receive(messages, timeout=self._timeout)

    def _forget_messages(self, nodes: Iterable[str]) -> list[Message]:
        record = ConfigRecord({FORGET: self._coordinator.round})
        return [self._message(node, RecordDict({RECORD: record})) for node in nodes]

    def _carry(self, requests: Requests) -> Replies:
        messages = self._messages(requests)
        return self._answers(self._grid.send_and_receive(messages, timeout=self._timeout))

    def _messages(self, requests: Requests) -> list[Message]:
        """Return the messages of a stage.

        A node evaluates for the first query, and has kept counts for the second.
        """
        self._sent_messages = []
        for node, request in requests.items():
            evaluates = request.stage.asks_data and not self._coordinator.sums
            content = RecordDict()
            if evaluates:
                content = RecordDict({**self._contents[node]})
            content[RECORD] = ConfigRecord({**request.fields, EVALUATE: evaluates})
            self._sent_messages.append(self._message(node, content))
        return self._sent_messages

    def _message(self, node: str, content: RecordDict) -> Message:
        return Message(content, int(node), self._message_type)

    def _answers(self, replies: Iterable[Message]) -> Replies:
        """Return, by node, the answer in its reply, or an error that says why there is none."""
        by_id = {message.metadata.message_id: message for message in self._sent_messages}
        answers: dict[str, bytes | FederatedMetricError] = {}
        for reply in replies:
            # An error can come from the SuperLink and then has its id: the message that it replies
            # to names the node.
            message = by_id.get(reply.metadata.reply_to_message_id)
            if message is not None:
                answers[str(message.metadata.dst_node_id)] = _answer(message, reply)
        self._nodes_there = [node for node, answer in answers.items() if isinstance(answer, bytes)]
        return answers


def _answer(message: Message, reply: Message) -> bytes | FederatedMetricError:
    """Return the answer in a node's reply, or an error that says why there is none."""
    if reply.has_error():
        text = reply.error.reason or ""
        reason = _cause(text) or f"error {reply.error.code}"
        was_raised = reply.error.code in (
            ErrorCode.UNKNOWN,
            ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
        )
        knows_stages = not was_raised or "torchmetrics_fed.errors" in text
    else:
        answer = reply.content.config_records.get(RECORD, ConfigRecord()).get("answer")
        if isinstance(answer, bytes):
            return answer
        reason = "a reply without an answer"
        knows_stages = False
    if not knows_stages and not message.content.config_records[RECORD][EVALUATE]:
        # only the mod knows the other stages: an app takes them for an evaluation
        reason = (
            "`evaluation_mod` is not installed there: use "
            f"`@app.evaluate(mods=[evaluation_mod(metric)])`. Got {reason}"
        )
    return ReleaseError(reason)


def _cause(reason: str) -> str:
    """Return an exception's name and text, without Flower's quotes and Ray's traceback."""
    if reason.startswith("<class"):
        reason = reason.removesuffix("'>")
    lines = reason.rstrip().splitlines()
    if not lines:
        return ""
    return re.sub(r"^(?:<class ')?(?:\w+\.)*(\w+)(?:'>:<'|: )", r"\1: ", lines[-1])
