"""The client's side: evaluation_mod, state_record, and the guard of what leaves.

A message of :class:`FederatedEvaluationMixin` carries a
:class:`~torchmetrics_fed.exchange.request.Request`. The mod hands it to the node's
:class:`~torchmetrics_fed.exchange.node.Node`. Where data is asked for the first time, the app
evaluates in between: the mod begins the reply, the app's function counts and calls
:func:`state_record`, which draws, and the mod notes the reply when the function has returned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from torchmetrics import MetricCollection

from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import (
    FederatedMetricError,
    InputError,
    ReleaseError,
    SecureAggregationError,
    SpecMismatchError,
)
from torchmetrics_fed.exchange import Terms
from torchmetrics_fed.exchange.node import Node, PendingReply, for_others
from torchmetrics_fed.exchange.plans import check_one_query
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.integrations.flower.home import NodeHome
from torchmetrics_fed.metrics import CountsMetric, evaluation_of, representative, terms_of
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.privacy.budget import Budget

RECORD = "torchmetrics-fed"
"""The key of our record in the content of a message."""
EVALUATE = "evaluate"
"""A bool beside the fields of a request: whether the app evaluates to answer the query. Otherwise
the node answers from the counts that it has kept."""
FORGET = "forget"
"""The key of a round that is over, in a record that asks for nothing else."""

_log = logging.getLogger("flwr")


def evaluation_mod(
    metric: CountsMetric | MetricCollection,
    *,
    publish: Iterable[str] = (),
    weight: str = "num-examples",
    folder: str | Path | None = None,
    signing_key: bytes | None = None,
    verification_keys: Mapping[str, bytes] | None = None,
) -> Mod:
    """Return the mod that answers :class:`FederatedEvaluationMixin`'s messages.

    It answers the second query of a round from the counts that the node has kept, without a second
    evaluation. Every reply is noted on disk before it leaves, so that a crash cannot make it answer
    twice. Under privacy, and where counts are hidden, the weight leaves as 1 and other metrics stay
    here unless ``publish`` names them.

    Args:
        metric: made as in the evaluation, and not updated. A private one needs a ledger with a
            budget because the server decides how often it asks. Without a path it is kept in the
            node's folder.
        publish: names of metrics that may leave as they are, although they are made from raw data.
        weight: the strategy's ``weighted_by_key``.
        folder: where nodes keep notes and ledgers, each in a folder of its own that only its user
            may read, named by the ``partition-id`` in its configuration; below Flower's home if not
            given.
        signing_key: this node's long-term Ed25519 private key, for aggregations that are signed.
        verification_keys: by node id, the public keys of all nodes, from elsewhere than the server.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> from torchmetrics_fed import DistributedDP, FederatedROC, PrivacyLedger
        >>> app = ClientApp()
        >>> privacy = DistributedDP(epsilon=1.0, min_clients=5)
        >>> metric = FederatedROC(privacy=privacy, ledger=PrivacyLedger(budget=3.0))
        >>> @app.evaluate(mods=[evaluation_mod(metric)])
        ... def evaluate(message, context): ...
    """
    terms = terms_of(representative(metric))
    ledger = terms.ledger
    node_budget = None
    if terms.spec.privacy.charges and ledger.path is None and ledger.budget is not None:
        # Flower's simulation pickles this mod, and a ledger in memory must not be copied: only its
        # budget travels.
        node_budget = Budget(ledger.budget, ledger.delta, ledger.composition)
        terms = replace(terms, ledger=PrivacyLedger())
    else:
        terms.check_ledger()
    return _EvaluationMod(
        terms=terms,
        node_budget=node_budget,
        publish=frozenset(publish),
        weight=weight,
        folder=folder,
        signing_key=signing_key,
        verification_keys=verification_keys,
    )


@dataclass(frozen=True, repr=False)
class _EvaluationMod:
    """The mod: what :func:`evaluation_mod` was given, and one call for each message.

    Args:
        terms: what this node agrees to.
        node_budget: the budget of a ledger that is kept in the node's folder; None if the terms
            have their own.
    """

    terms: Terms
    node_budget: Budget | None
    publish: frozenset[str]
    weight: str
    folder: str | Path | None
    signing_key: bytes | None
    verification_keys: Mapping[str, bytes] | None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        record = message.content.config_records.get(RECORD)
        if record is None and not self.terms.spec.privacy.charges:
            return self.guarded(call_next(message, context))
        home = NodeHome(context, self.folder)
        terms = home.terms(self.terms, self.node_budget)
        if record is None:  # a strategy without our mix-in
            evaluation = _Evaluation(terms, None)
            return self.guarded(evaluation.run(message, context, call_next))
        node = Node(
            str(context.node_id),
            terms,
            home.notes,
            signing_key=self.signing_key,
            verification_keys=self.verification_keys,
            repeats=False,
        )
        round_over = record.get(FORGET)
        if isinstance(round_over, str):
            node.forget(round_over)
            return self.reply(message, ConfigRecord())
        request = Request.from_fields(record)
        request.agreed_query(terms.spec)
        if request.stage.begins_query:
            home.claim(request.round, terms.ledger)
        call = _Call(self, message, context, call_next, node=node, terms=terms, request=request)
        return _HANDLERS[request.stage](call)

    def reply(self, message: Message, record: ConfigRecord) -> Message:
        """Return a reply without an evaluation.

        Flower's strategies want one MetricRecord with a weight in each.
        """
        metrics = MetricRecord({self.weight: 1})
        return Message(RecordDict({RECORD: record, "metrics": metrics}), reply_to=message)

    def guarded(self, reply: Message) -> Message:
        """Return the app's reply without metrics that are less protected than the counts."""
        spec = self.terms.spec
        is_protected = spec.privacy.charges or spec.hides_shares
        if not is_protected or not reply.has_content():
            return reply
        for record in reply.content.metric_records.values():
            kept_back = [name for name in record if name not in self.publish | {self.weight}]
            for name in kept_back:
                del record[name]
            if kept_back:
                _log.warning(
                    "torchmetrics-fed: kept back %s, made from raw data and not protected as the "
                    "counts are. Name them in `publish` if they may leave.",
                    ", ".join(kept_back),
                )
            if self.weight in record:
                record[self.weight] = 1
        return reply


@dataclass(frozen=True, repr=False)
class _Call:
    """One message of the mix-in, and everything that answers it."""

    mod: _EvaluationMod
    message: Message
    context: Context
    call_next: ClientAppCallable
    node: Node
    terms: Terms
    request: Request


def _exchange(call: _Call) -> Message:
    """Reply in a stage without data."""
    reply = call.node.reply(call.request)
    return call.mod.reply(call.message, ConfigRecord({"answer": reply}))


def _answer_query(call: _Call) -> Message:
    """Reply in a stage that asks for data, from an evaluation or from kept counts."""
    with call.node.replying(call.request) as pending:
        if not _evaluates(call.message):
            return call.mod.reply(call.message, ConfigRecord({"answer": pending.make()}))
        evaluation = _Evaluation(call.terms, pending)
        reply = evaluation.run(call.message, call.context, call.call_next)
        if not evaluation.has_replied:
            raise SecureAggregationError(
                f"Expected the reply to hold `state_record(metric)` under {RECORD!r} but it was "
                "not asked for one."
            )
        return call.mod.guarded(reply)


_HANDLERS: dict[Stage, Callable[[_Call], Message]] = {
    Stage.JOIN: _exchange,
    Stage.SHARE: _answer_query,
    Stage.ADVERTISE: _exchange,
    Stage.SHARE_KEYS: _exchange,
    Stage.MASK: _answer_query,
    Stage.SIGN: _exchange,
    Stage.UNMASK: _exchange,
}
"""How the mod answers each stage."""


@dataclass(repr=False)
class _Evaluation:
    """The evaluation that a client is in.

    Args:
        terms: what the node agrees to, with its ledger.
        pending: the reply that the server waits for; None for a strategy without our mix-in.
    """

    terms: Terms
    pending: PendingReply | None
    has_replied: bool = False

    def run(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Call the app's function, in which :func:`state_record` finds this evaluation."""
        token = _current.set(self)
        try:
            return call_next(message, context)
        except FederatedMetricError as error:
            raise for_others(error) from None
        finally:
            _current.reset(token)

    def record(self, metric: CountsMetric) -> ConfigRecord:
        """Return the record that was asked for.

        Raises unless it is the metric that was agreed on.
        """
        self._check_agreed(terms_of(metric))
        evaluation = evaluation_of(metric)
        if self.pending is None:
            evaluation.client.adopt(self.terms)
            return _unasked_record(metric, self.terms)
        reply = self.pending.make(evaluation)
        self.has_replied = True
        return ConfigRecord({"answer": reply})

    def _check_agreed(self, terms: Terms) -> None:
        self.terms.spec.check(terms.spec)
        if not terms.spec.privacy.charges:
            return
        has_other_ledger = terms.ledger.path is not None and not self.terms.pays_as(terms)
        if has_other_ledger or self.terms.data != terms.data:
            raise SpecMismatchError(
                "Expected one ledger and name of the data in `evaluation_mod` and in the "
                "evaluation but they differ. Build both metrics by one function."
            )


_current: ContextVar[_Evaluation | None] = ContextVar("current", default=None)
"""The evaluation that this thread is in.

Flower gives the app's function a message and a context, both of which it serialises, and gives a
mod no way to hand it anything else. So the mod leaves the evaluation here, and
:func:`state_record`, called inside the function, finds it. It is set and reset by
:meth:`_Evaluation.run` alone."""


def state_record(
    metric: CountsMetric | MetricCollection, message: Message | None = None
) -> ConfigRecord:
    """Return this client's share as a record, for the content of the reply to an EVALUATE message.

    Where shares may only travel through secure aggregation, it is masked, by
    :func:`evaluation_mod`. A private metric needs a ledger with a budget; without the mod, with a
    path, too.

    Args:
        metric: updated with the client's data.
        message: the message that is answered; needed under FederatedEvaluationMixin where there is
            no mod.

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
    if evaluation is not None:
        return evaluation.record(counting)
    terms = terms_of(counting)
    record = None if message is None else message.content.config_records.get(RECORD)
    if record is None or terms.spec.hides_shares:
        return _unasked_record(counting, terms)
    terms.check_ledger()
    request = Request.from_fields(record)
    request.agreed_query(terms.spec)
    return ConfigRecord({"answer": request.reply(None, evaluation_of(counting))})


def _unasked_record(metric: CountsMetric, terms: Terms) -> ConfigRecord:
    """Return the share that a strategy without our mix-in sums."""
    if terms.spec.hides_shares:
        raise ReleaseError(
            "Expected secure aggregation for this metric's shares but no `evaluation_mod` takes "
            "part in one here. Use `@app.evaluate(mods=[evaluation_mod(metric)])` on the client "
            "and a strategy with FederatedEvaluationMixin on the server, or pass "
            "`trusted_aggregator=True` if the server may see each share."
        )
    terms.check_ledger()
    check_one_query(terms.plan)
    return ConfigRecord({"share": bytes(metric.share()), "spec": terms.spec.canonical})


def _evaluates(message: Message) -> bool:
    evaluates = message.content.config_records[RECORD].get(EVALUATE)
    if not isinstance(evaluates, bool):
        raise InputError(
            f"Expected {EVALUATE!r} to be a bool in a request but got {evaluates!r}. Update both "
            "sides."
        )
    return evaluates
