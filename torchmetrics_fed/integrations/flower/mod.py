"""evaluation_mod: the client's side of a release around ``@app.evaluate``, and the guard of what leaves it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from torchmetrics import MetricCollection

from torchmetrics_fed.aggregation.secure import SecureAggregationClient
from torchmetrics_fed.aggregation.secure.states import Stage
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.integrations.flower.node import Node
from torchmetrics_fed.integrations.flower.records import RECORD, Evaluation, answer_record, asked, current
from torchmetrics_fed.metrics import FederatedMetric, representative
from torchmetrics_fed.privacy import PrivacyLedger

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

    It takes part in releases of what ``metric`` says and in no others, hands the server's query and the keys of secure
    aggregation to :func:`state_record`, and answers the second query of a round from the counts that the node has kept,
    without a second evaluation. Every answer is noted on disk before it leaves, so that a crash cannot make it answer
    twice. Under privacy, and where counts are hidden, the weight leaves as 1 and other metrics stay here unless
    ``publish`` names them.

    Args:
        metric: made as in the evaluation, with the same ledger; it is not updated. A private one needs a ledger with a
            budget because the server decides how often it asks. Without a path it is kept in the node's folder.
        publish: names of metrics that may leave as they are, although they are made from raw data.
        weight: the strategy's ``weighted_by_key``.
        folder: where nodes keep notes and ledgers, each in a folder of its own, named by the ``partition-id`` in its
            configuration, that only the node's user may read; below Flower's home if not given.
        signing_key: this node's long-term Ed25519 private key, for aggregations that are signed.
        verification_keys: by node id, the public keys of all nodes, from elsewhere than the server.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> from torchmetrics_fed import DistributedDP, FederatedROC, PrivacyLedger
        >>> from torchmetrics_fed.integrations.flower import evaluation_mod
        >>> ledger = PrivacyLedger(budget=3.0)
        >>> guard = evaluation_mod(FederatedROC(privacy=DistributedDP(epsilon=1.0, min_clients=5), ledger=ledger))
        >>> app = ClientApp()
        >>> @app.evaluate(mods=[guard])
        ... def evaluate(message, context): ...
    """
    common = representative(metric)
    ledger, terms = common.ledger, {}
    if common.spec.privacy is not None and ledger.path is None and ledger.budget is not None:
        # only its terms: Flower's simulation pickles this mod, and a ledger in memory must not be copied
        terms = {"budget": ledger.budget, "delta": ledger.delta, "composition": ledger.composition}
        common = deepcopy(common)
        common.charge_to(PrivacyLedger())
    else:
        common.check_ledger()
    keys, published = (signing_key, verification_keys), frozenset(publish)
    protected = common.spec.privacy is not None or common.spec.hides_shares

    def guard(reply: Message) -> Message:
        return _guarded(reply, published, weight) if protected else reply

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        request = asked(message.content)
        if request is None and common.spec.privacy is None:
            return guard(call_next(message, context))
        node = Node(context, folder)
        if request is not None and request.stage == "forget":
            node.forget(request.round)
            return _reply(message, ConfigRecord(), weight)
        agreed = node.charged(common, terms)
        if request is None:
            return guard(_evaluated(Evaluation(agreed, None), message, context, call_next))
        request.agreed_query(agreed.spec)

        def answered(client: SecureAggregationClient | None) -> Message:
            if request.stage == "answer":
                own = deepcopy(agreed)
                own.resume(node.take_session(request.round))
                return _reply(message, answer_record(own, request, client), weight)
            node.keep_session(request.round)  # what an earlier round has left is erased
            evaluation = Evaluation(agreed, request, client)
            reply = _evaluated(evaluation, message, context, call_next)
            if evaluation.kept is None:
                raise SecureAggregationError(
                    f"Expected the reply to hold `state_record(metric)` under {RECORD!r} but it was not asked for one."
                )
            node.keep_session(request.round, evaluation.kept)
            return guard(reply)

        if not agreed.spec.hides_shares:
            node.claim(request.round, agreed.ledger.path)
            return answered(None)
        config = request.agreed_config(agreed.spec, signing_key is not None)
        if request.stage == "advertise":
            node.claim(request.round, agreed.ledger.path)
            node.begin(request.round, config.round_id)
            client = SecureAggregationClient(str(context.node_id), config, *keys)
        else:
            client = SecureAggregationClient.from_bytes(node.take(config.round_id), config, *keys)
        if request.stage in ("evaluate", "answer"):
            if client.stage is not Stage.SHARED:  # a message that comes again must not undo what was answered
                node.keep(config.round_id, client.to_bytes())
                raise SecureAggregationError(
                    f"Expected a client that is SHARED but this one is {client.stage.name}: each stage is gone "
                    "through once, in order."
                )
            try:
                reply = answered(client)
            except BaseException:
                client.purge()
                raise
            node.keep(config.round_id, client.to_bytes())  # noted before the reply leaves this function
            return reply
        try:
            answer = request.answered_by(client)
        finally:  # one that is refused leaves the client where it was
            node.keep(config.round_id, client.to_bytes())
        return _reply(message, ConfigRecord({"answer": answer}), weight)

    return mod


def _evaluated(evaluation: Evaluation, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Run the app's evaluation, in which `state_record` finds what was asked for."""
    token = current.set(evaluation)
    try:
        return call_next(message, context)
    finally:
        current.reset(token)


def _reply(message: Message, record: ConfigRecord, weight: str) -> Message:
    # Flower's strategies want one MetricRecord with a weight in every reply
    return Message(RecordDict({RECORD: record, "metrics": MetricRecord({weight: 1})}), reply_to=message)


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
