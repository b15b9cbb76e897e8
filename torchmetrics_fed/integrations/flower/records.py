"""Records: what the server asks for in its message, what of a metric goes into the reply, and what is read there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from torchmetrics import MetricCollection

from torchmetrics_fed.aggregation.secure import SecureAggregationClient
from torchmetrics_fed.errors import FederatedMetricError, InputError, ReleaseError
from torchmetrics_fed.exchange.queries import check_one_query
from torchmetrics_fed.exchange.stages import Asked
from torchmetrics_fed.metrics import FederatedMetric, representative
from torchmetrics_fed.release import Query

RECORD = "torchmetrics-fed"
"""The key of our record in the content of a message."""


def asked(content: RecordDict) -> Asked | None:
    """Return what a message asks for; None if it is not from our strategy."""
    record = content.config_records.get(RECORD)
    return None if record is None else Asked.of(record)


@dataclass
class Evaluation:
    """The evaluation that a client is in: where :func:`state_record` finds what the server has asked for."""

    metric: FederatedMetric
    """The metric that the mod has agreed on with the server, with the node's ledger."""
    asked: Asked | None
    """None for a strategy without our mix-in."""
    client: SecureAggregationClient | None = None
    kept: bytes | None = None
    """The session after the answer, for a second query."""

    def admit(self, metric: FederatedMetric) -> None:
        """Raise unless it is the metric that was agreed on; its releases are charged to the node's ledger."""
        self.metric.spec.check(metric.spec)
        if metric.ledger.path is None:
            metric.charge_to(self.metric.ledger)
        mine, theirs = (self.metric.ledger.path, self.metric.data), (metric.ledger.path, metric.data)
        if metric.spec.privacy is not None and mine != theirs:
            raise InputError(
                "Expected one ledger and name of the data in `evaluation_mod` and in the evaluation but they differ. "
                "Build both metrics by one function."
            )

    def answer(self, metric: FederatedMetric, asked: Asked) -> ConfigRecord:
        """Return the answer of a metric that was admitted, and keep its session where there may be a second query."""
        if self.kept is not None:
            raise ReleaseError("Expected one share in each reply but a second was asked for. Call `state_record` once.")
        record = answer_record(metric, asked, self.client)
        self.kept = metric.suspend() if Query.from_bytes(asked.query).fraction < 1 else b""
        return record


current: ContextVar[Evaluation | None] = ContextVar("current", default=None)


def answer_record(metric: FederatedMetric, asked: Asked, client: SecureAggregationClient | None) -> ConfigRecord:
    """Return a metric's answer to what was asked: its share, or masked for secure aggregation."""
    stage = "share" if client is None else "mask"  # Flower's own stages say whether it takes an evaluation
    return ConfigRecord({"answer": replace(asked, stage=stage).answered_by(client, metric)})


def state_record(metric: FederatedMetric | MetricCollection, message: Message | None = None) -> ConfigRecord:
    """Return this client's share as a record, for the content of the reply to an EVALUATE message.

    Where shares may only travel through secure aggregation, it is masked; that takes :func:`evaluation_mod` on the
    client and :class:`FederatedEvaluationMixin` on the server, and an error says so if they are missing. A private
    metric needs a ledger with a budget because the server decides how often it asks; without the mod, with a path, too.

    Args:
        metric: the client's metric, or collection of metrics, updated with its data.
        message: the message that is answered; needed under FederatedEvaluationMixin where there is no mod.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.integrations.flower import state_record
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> list(state_record(metric))
        ['share', 'spec']
    """
    counting = representative(metric)
    evaluation = current.get()
    if evaluation is not None:
        evaluation.admit(counting)
        if evaluation.asked is not None:
            return evaluation.answer(counting, evaluation.asked)
    if counting.spec.hides_shares:
        raise ReleaseError(
            "Expected secure aggregation for this metric's shares but no `evaluation_mod` takes part in one here. Use "
            "`@app.evaluate(mods=[evaluation_mod(metric)])` on the client and a strategy with "
            "FederatedEvaluationMixin on the server, or pass `trusted_aggregator=True` if the server may see each "
            "share."
        )
    counting.check_ledger()
    request = None if message is None else asked(message.content)
    if request is not None:
        request.agreed_query(counting.spec)
        return answer_record(counting, request, None)
    check_one_query(counting.plan)
    return ConfigRecord({"share": bytes(counting.share()), "spec": counting.spec.canonical})


def answers_of(messages: Iterable[Message], replies: Iterable[Message]) -> dict[str, bytes | FederatedMetricError]:
    """Return, by node, the answer in its reply, or an error that says why there is none."""
    asked = {message.metadata.message_id: message for message in messages}
    answers: dict[str, bytes | FederatedMetricError] = {}
    for reply in replies:
        # an error can come from the SuperLink, whose id it then bears: what it replies to says whose it is
        message = asked.get(reply.metadata.reply_to_message_id)
        if message is not None:
            answers[str(message.metadata.dst_node_id)] = _answer(message, reply)
    return answers


def _answer(message: Message, reply: Message) -> bytes | FederatedMetricError:
    got, stranger = "a reply without an answer", True
    if reply.has_error():
        reason, raised = reply.error.reason or "", (ErrorCode.UNKNOWN, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
        stranger = reply.error.code in raised and "torchmetrics_fed.errors" not in reason
        got = _cause(reason) or f"error {reply.error.code}"
    else:
        answer = reply.content.config_records.get(RECORD, ConfigRecord()).get("answer")
        if isinstance(answer, bytes):
            return answer
    if stranger and message.content.config_records[RECORD]["stage"] != "evaluate":
        # only the mod knows the other stages: an app takes them for an evaluation
        use = "use `@app.evaluate(mods=[evaluation_mod(metric)])`"
        got = f"`evaluation_mod` is not installed there: {use}. Got {got}"
    return ReleaseError(got)


def _cause(reason: str) -> str:
    """Return an exception's name and text, without Flower's quotes and, in the simulation, without Ray's traceback."""
    lines = (reason.removesuffix("'>") if reason.startswith("<class") else reason).rstrip().splitlines()
    return re.sub(r"^(?:<class ')?(?:\w+\.)*(\w+)(?:'>:<'|: )", r"\1: ", lines[-1]) if lines else ""
