"""The client's side: evaluation_mod around ``@app.evaluate``, state_record in it, and the guard of what leaves."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from torchmetrics import MetricCollection

from torchmetrics_fed.aggregation.secure import SecureAggregationClient
from torchmetrics_fed.aggregation.secure.states import ClientState
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import InputError, ReleaseError, SecureAggregationError
from torchmetrics_fed.exchange.queries import check_one_query
from torchmetrics_fed.exchange.stages import Asked
from torchmetrics_fed.integrations.flower.node import Node, session_of
from torchmetrics_fed.metrics import FederatedMetric, representative
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.release import Query

RECORD = "torchmetrics-fed"
"""The key of our record in the content of a message."""
EVALUATE = "evaluate"
"""A bool beside the fields of a request: whether the app evaluates to answer the query. Otherwise
the node answers from the counts that it has kept."""
FORGET = "forget"
"""The key of a round that is over, in a record that asks for nothing else."""
_log = logging.getLogger("flwr")


def evaluation_mod(
    metric: FederatedMetric | MetricCollection,
    *,
    publish: Iterable[str] = (),
    weight: str = "num-examples",
    folder: str | Path | None = None,
    signing_key: bytes | None = None,
    verification_keys: Mapping[str, bytes] | None = None,
) -> Mod:
    """Return the mod for ``@app.evaluate(mods=[...])`` that answers :class:`FederatedEvaluationMixin`'s messages.

    It answers the second query of a round from the counts that the node has kept, without a second evaluation. Every
    answer is noted on disk before it leaves, so that a crash cannot make it answer twice. Under privacy, and where
    counts are hidden, the weight leaves as 1 and other metrics stay here unless ``publish`` names them.

    Args:
        metric: made as in the evaluation, and not updated. A private one needs a ledger with a budget because the
            server decides how often it asks. Without a path it is kept in the node's folder.
        publish: names of metrics that may leave as they are, although they are made from raw data.
        weight: the strategy's ``weighted_by_key``.
        folder: where nodes keep notes and ledgers, each in a folder of its own that only its user may read, named by
            the ``partition-id`` in its configuration; below Flower's home if not given.
        signing_key: this node's long-term Ed25519 private key, for aggregations that are signed.
        verification_keys: by node id, the public keys of all nodes, from elsewhere than the server.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> from torchmetrics_fed import DistributedDP, FederatedROC, PrivacyLedger
        >>> privacy, app = DistributedDP(epsilon=1.0, min_clients=5), ClientApp()
        >>> @app.evaluate(mods=[evaluation_mod(FederatedROC(privacy=privacy, ledger=PrivacyLedger(budget=3.0)))])
        ... def evaluate(message, context): ...
    """
    common = representative(metric)
    ledger, terms = common.ledger, {}
    if common.spec.privacy.charges and ledger.path is None and ledger.budget is not None:
        # only its terms: Flower's simulation pickles this mod, and a ledger in memory must not be copied
        terms = {"budget": ledger.budget, "delta": ledger.delta, "composition": ledger.composition}
        common = deepcopy(common)
        common.charge_to(PrivacyLedger())
    else:
        common.check_ledger()
    keys, published = (signing_key, verification_keys), frozenset(publish)
    protected = common.spec.privacy.charges or common.spec.hides_shares

    def guard(reply: Message) -> Message:
        return _guarded(reply, published, weight) if protected else reply

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        record = message.content.config_records.get(RECORD)
        if record is None and not common.spec.privacy.charges:
            return guard(call_next(message, context))
        node = Node(context, folder, common.spec)
        if record is not None and isinstance(over := record.get(FORGET), str):
            node.forget(over)
            return _reply(message, ConfigRecord(), weight)
        request = _asked(message)
        agreed = node.charged(common, terms)
        if request is None:
            return guard(_evaluated(_Evaluation(agreed, None), message, context, call_next))
        request.agreed_query(agreed.spec)

        def answered(client: SecureAggregationClient | None) -> Message:
            if not _evaluates(message):
                own = deepcopy(agreed)
                own.resume(node.take(session_of(request.round)))
                return _reply(message, _answer_record(own, request, client), weight)
            evaluation = _Evaluation(agreed, request, client)
            reply = _evaluated(evaluation, message, context, call_next)
            if evaluation.kept is None:
                raise SecureAggregationError(
                    f"Expected the reply to hold `state_record(metric)` under {RECORD!r} but it was not asked for one."
                )
            node.keep(session_of(request.round), evaluation.kept)
            return guard(reply)

        if agreed.spec.hides_shares == (request.stage is Stage.SHARE):
            how = "hidden" if agreed.spec.hides_shares else "sent as they are"
            raise SecureAggregationError(
                f"Expected another stage than {request.stage} because shares are {how} here."
            )
        if not agreed.spec.hides_shares:
            node.claim(request.round, agreed.ledger.path)
            return answered(None)
        config = request.agreed_config(agreed.spec, signing_key is not None)
        if request.stage is Stage.ADVERTISE:
            node.claim(request.round, agreed.ledger.path)
            node.begin(config.round_id)
            client = SecureAggregationClient(str(context.node_id), config, *keys)
        else:
            client = SecureAggregationClient.from_bytes(node.take(config.round_id), config, *keys)
        if request.stage is Stage.MASK:
            if client.state is not ClientState.SHARED:
                # a message that comes again must not undo what was answered
                node.keep(config.round_id, client.to_bytes())
                raise SecureAggregationError(
                    f"Expected a client that is SHARED but this one is {client.state.name}: each stage is gone "
                    "through once, in order."
                )
            try:
                reply = answered(client)
            except BaseException:
                client.purge()
                raise
            node.keep(
                config.round_id, client.to_bytes()
            )  # noted before the reply leaves this function
            return reply
        try:
            answer = request.answered_by(client)
        finally:  # one that is refused leaves the client where it was
            node.keep(config.round_id, client.to_bytes())
        return _reply(message, ConfigRecord({"answer": answer}), weight)

    return mod


def _evaluated(
    evaluation: _Evaluation, message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    token = _current.set(evaluation)
    try:
        return call_next(message, context)
    finally:
        _current.reset(token)


def _reply(message: Message, record: ConfigRecord, weight: str) -> Message:
    # Flower's strategies want one MetricRecord with a weight in every reply
    return Message(
        RecordDict({RECORD: record, "metrics": MetricRecord({weight: 1})}), reply_to=message
    )


def _guarded(reply: Message, published: frozenset[str], weight: str) -> Message:
    """Keep back metrics that would leave as they are, beside counts that do not."""
    for record in reply.content.metric_records.values() if reply.has_content() else ():
        kept_back = [name for name in record if name not in published and name != weight]
        for name in kept_back:
            del record[name]
        if kept_back:
            _log.warning(
                "torchmetrics-fed: kept back %s, made from raw data and not protected as the counts are. Name them in "
                "`publish` if they may leave.",
                ", ".join(kept_back),
            )
        if weight in record:
            record[weight] = 1
    return reply


def state_record(
    metric: FederatedMetric | MetricCollection, message: Message | None = None
) -> ConfigRecord:
    """Return this client's share as a record, for the content of the reply to an EVALUATE message.

    Where shares may only travel through secure aggregation, it is masked, by :func:`evaluation_mod`. A private metric
    needs a ledger with a budget; without the mod, with a path, too.

    Args:
        metric: updated with the client's data.
        message: the message that is answered; needed under FederatedEvaluationMixin where there is no mod.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> list(state_record(metric))
        ['share', 'spec']
    """
    counting = representative(metric)
    evaluation = _current.get()
    if evaluation is not None and (record := evaluation.answer(counting)) is not None:
        return record
    if counting.spec.hides_shares:
        raise ReleaseError(
            "Expected secure aggregation for this metric's shares but no `evaluation_mod` takes part in one here. Use "
            "`@app.evaluate(mods=[evaluation_mod(metric)])` on the client and a strategy with "
            "FederatedEvaluationMixin on the server, or pass `trusted_aggregator=True` if the server may see each "
            "share."
        )
    counting.check_ledger()
    request = None if message is None else _asked(message)
    if request is not None:
        request.agreed_query(counting.spec)
        return _answer_record(counting, request, None)
    check_one_query(counting.plan)
    return ConfigRecord({"share": bytes(counting.share()), "spec": counting.spec.canonical})


@dataclass
class _Evaluation:
    """The evaluation that a client is in: where :func:`state_record` finds what the server has asked for."""

    metric: FederatedMetric  # that the mod has agreed on with the server, with the node's ledger
    asked: Asked | None  # None for a strategy without our mix-in
    client: SecureAggregationClient | None = None
    kept: bytes | None = None  # the client after the answer, for a second query

    def answer(self, metric: FederatedMetric) -> ConfigRecord | None:
        """Return what was asked for, and keep the client where there may be a second query.

        Raises unless it is the metric that was agreed on; its releases are charged to the node's ledger.
        """
        self.metric.spec.check(metric.spec)
        if metric.ledger.path is None:
            metric.charge_to(self.metric.ledger)
        mine, theirs = (
            (self.metric.ledger.path, self.metric.data),
            (metric.ledger.path, metric.data),
        )
        if metric.spec.privacy.charges and mine != theirs:
            raise InputError(
                "Expected one ledger and name of the data in `evaluation_mod` and in the evaluation but they differ. "
                "Build both metrics by one function."
            )
        if self.asked is None:
            return None
        if self.kept is not None:
            raise ReleaseError(
                "Expected one share in each reply but a second was asked for. Call `state_record` once."
            )
        record = _answer_record(metric, self.asked, self.client)
        self.kept = metric.suspend() if Query.from_bytes(self.asked.query).fraction < 1 else b""
        return record


_current: ContextVar[_Evaluation | None] = ContextVar("current", default=None)


def _answer_record(
    metric: FederatedMetric, asked: Asked, client: SecureAggregationClient | None
) -> ConfigRecord:
    return ConfigRecord({"answer": asked.answered_by(client, metric)})


def _asked(message: Message) -> Asked | None:
    """Return what a message asks for; None if it is not from our strategy."""
    record = message.content.config_records.get(RECORD)
    return None if record is None else Asked.from_fields(record)


def _evaluates(message: Message) -> bool:
    evaluates = message.content.config_records[RECORD].get(EVALUATE)
    if not isinstance(evaluates, bool):
        raise InputError(
            f"Expected {EVALUATE!r} to be a bool in a request but got {evaluates!r}. Update both "
            "sides."
        )
    return evaluates
