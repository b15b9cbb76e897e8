"""evaluation_mod: the client's side of the secure sum around ``@app.evaluate``, and the guard of what leaves it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import InputError, SecureSumError
from torchmetrics_fed.integrations.flower.node import Node
from torchmetrics_fed.integrations.flower.records import RECORD, Asked, Evaluation, asked, current
from torchmetrics_fed.metrics import FederatedCurve, representative
from torchmetrics_fed.reconstruct import Plan
from torchmetrics_fed.spec import Spec
from torchmetrics_fed.sync import secure_sum_config
from torchmetrics_fed.sync.secure_sum import SecureSumClient, SecureSumConfig, Stage

__all__ = ["evaluation_mod"]

_log = logging.getLogger("flwr")


def evaluation_mod(
    metric: FederatedCurve | MetricCollection,
    *,
    publish: Iterable[str] = (),
    weight: str = "num-examples",
    folder: str | Path | None = None,
    signing_key: bytes | None = None,
    verification_keys: Mapping[str, bytes] | None = None,
) -> Mod:
    """Return the mod for ``@app.evaluate(mods=[...])`` that answers :class:`FederatedEvaluationMixin`'s messages.

    It takes part in sums of what ``metric`` says and in no others, hands the server's plan and the keys of the sum to
    :func:`state_record`, and notes every answer on disk before it leaves, so that a crash cannot make it answer twice.
    Under privacy, the weight leaves as 1 and other metrics stay here unless ``publish`` names them.

    Args:
        metric: made as in the evaluation; it is not updated.
        publish: names of metrics that may leave as they are, although they are made from raw data.
        weight: the strategy's ``weighted_by_key``.
        folder: where the node keeps its notes; below Flower's home if not given. Only this node's user may read it.
        signing_key: this node's long-term Ed25519 private key, for sums that are signed.
        verification_keys: by node id, the public keys of all nodes, from elsewhere than the server.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> from torchmetrics_fed import DistributedDP, FederatedROC
        >>> from torchmetrics_fed.integrations.flower import evaluation_mod
        >>> app = ClientApp()
        >>> guard = evaluation_mod(FederatedROC(privacy=DistributedDP(epsilon=1.0, min_clients=5)))
        >>> @app.evaluate(mods=[guard])
        ... def evaluate(message, context): ...
    """
    spec, guard = representative(metric).spec, _Guard(frozenset(publish), weight)
    keys = signing_key, verification_keys

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        request = asked(message.content)
        if request is None:
            return guard(call_next(message, context), spec)
        _check_portion(spec, request)
        name = str(message.metadata.dst_node_id)
        if not spec.hides_shares:
            return _evaluated(Evaluation(request), message, context, call_next, spec, guard)
        node = Node(_home(folder) / f"{message.metadata.run_id}-{name}", request.round)
        config = _agreed_config(spec, request, keys)
        with node.locked():
            if request.stage == "advertise":
                node.begin()
                client = SecureSumClient(name, config, *keys)
                return _answer(message, node, client, weight, client.advertise)
            client = SecureSumClient.from_bytes(node.state(), config, *keys)
            if request.stage == "evaluate":
                if client.stage is not Stage.SHARED:  # a message that comes again must not undo what was answered
                    raise SecureSumError(
                        f"Expected a client that is SHARED but this one is {client.stage.name}: each stage is gone "
                        "through once, in order."
                    )
                evaluation = Evaluation(request, client)
                try:
                    return _evaluated(evaluation, message, context, call_next, spec, guard)
                except BaseException:
                    client.purge()
                    raise
                finally:  # noted before the reply leaves this function
                    node.keep(client.to_bytes())
            take = {"share_keys": client.share_keys, "sign": client.sign_survivors, "unmask": client.unmask}
            if request.stage not in take:
                raise InputError(f"Expected a stage of the secure sum but got {request.stage!r}. Update both sides.")
            return _answer(message, node, client, weight, lambda: take[request.stage](request.message))

    return mod


def _evaluated(
    evaluation: Evaluation,
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    spec: Spec,
    guard: _Guard,
) -> Message:
    """Run the app's evaluation, in which `state_record` finds what was asked for."""
    token = current.set(evaluation)
    try:
        reply = call_next(message, context)
    finally:
        current.reset(token)
    if not evaluation.answered:
        raise SecureSumError(
            f"Expected the reply to hold `state_record(metric)` under {RECORD!r} but it was not asked for one."
        )
    return guard(reply, spec)


def _answer(message: Message, node: Node, client: SecureSumClient, weight: str, take: Callable[[], bytes]) -> Message:
    answer = take()
    node.keep(client.to_bytes())
    # Flower's strategies want one MetricRecord with a weight in every reply
    content = RecordDict({RECORD: ConfigRecord({"answer": answer}), "metrics": MetricRecord({weight: 1})})
    return Message(content, reply_to=message)


@dataclass(frozen=True)
class _Guard:
    """Keeps back, under privacy, metrics that would leave without noise."""

    published: frozenset[str]
    weight: str

    def __call__(self, reply: Message, spec: Spec) -> Message:
        if spec.privacy is None or not reply.has_content():
            return reply
        for record in reply.content.metric_records.values():
            kept_back = [name for name in record if name not in self.published and name != self.weight]
            for name in kept_back:
                del record[name]
            if kept_back:
                _log.warning(
                    "torchmetrics-fed: kept back %s, made from raw data without noise. Name them in `publish` if they "
                    "may leave.",
                    ", ".join(kept_back),
                )
            if self.weight in record:
                record[self.weight] = 1
        return reply


def _check_portion(spec: Spec, request: Asked) -> None:
    """Raise if the message asks for more of epsilon than the metric's own first message leaves."""
    portion = Plan.from_bytes(request.plan).portion if request.plan else 0.0
    left = 1 - spec.portion if spec.portion < 1 else 1.0
    if portion > left:
        raise SecureSumError(
            f"Expected a plan that spends at most {left} of epsilon but the server asks for {portion}. Build the "
            "metric with the same arguments on both sides."
        )


def _agreed_config(
    spec: Spec, request: Asked, keys: tuple[bytes | None, Mapping[str, bytes] | None]
) -> SecureSumConfig:
    """Return the sum's configuration if it asks for what this client agreed to, which its own metric says."""
    plan = Plan.from_bytes(request.plan) if request.plan else None
    own = spec if plan is None else spec.planned(plan.tree, plan.portion)
    config = SecureSumConfig.from_bytes(request.start)
    signed = keys[0] is not None
    expected = secure_sum_config(own, request.round, config.min_clients, signed, config.threshold)
    needed = spec.privacy.shares_needed if spec.privacy else 3
    if config != expected or config.min_clients < needed:
        raise SecureSumError(
            f"Expected a {'signed ' * signed}sum of {expected.cells} cells of spec {own.fingerprint.hex()} and at "
            f"least {needed} clients but the server asks for {config}. Build the metric with the same arguments on "
            "both sides."
        )
    return config


def _home(folder: str | Path | None) -> Path:
    return Path(folder) if folder else Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr")) / RECORD
