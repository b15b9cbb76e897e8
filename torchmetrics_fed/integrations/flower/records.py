"""Records: what of a metric goes into an EVALUATE reply, and what the server asks for in its message."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import InputError, ReleaseError
from torchmetrics_fed.metrics import FederatedCurve, representative
from torchmetrics_fed.reconstruct import Plan
from torchmetrics_fed.sync.secure_sum import SecureSumClient

__all__ = ["RECORD", "Asked", "Evaluation", "asked", "current", "state_record"]

RECORD = "torchmetrics-fed"
"""The key of our record in the content of a message."""


@dataclass(frozen=True)
class Asked:
    """What the server asks for: a stage of the secure sum, or the evaluation itself."""

    stage: str
    round: str
    message: bytes = b""
    """The secure sum's own message for this stage."""
    start: bytes = b""
    """The configuration of the secure sum."""
    plan: bytes = b""
    """The plan of this message, if it is not the metric's own."""

    def record(self) -> ConfigRecord:
        """Return the record that says it."""
        return ConfigRecord(
            {"stage": self.stage, "round": self.round, "message": self.message, "start": self.start, "plan": self.plan}
        )


@dataclass
class Evaluation:
    """The evaluation that a client is in: where :func:`state_record` finds what the server has asked for."""

    asked: Asked
    client: SecureSumClient | None = None
    answered: bool = False


current: ContextVar[Evaluation | None] = ContextVar("current", default=None)


def asked(content: RecordDict) -> Asked | None:
    """Return what a message asks for; None if it is not from our strategy."""
    record = content.config_records.get(RECORD)
    if record is None:
        return None
    try:
        fields = {name: record[name] for name in ("stage", "round", "message", "start", "plan")}
    except KeyError as error:
        raise InputError(
            f"Expected the record {RECORD!r} to have the field {error} but it has {list(record)}."
        ) from None
    text, rest = (fields["stage"], fields["round"]), (fields["message"], fields["start"], fields["plan"])
    if not all(isinstance(value, str) for value in text) or not all(isinstance(value, bytes) for value in rest):
        raise InputError(f"Expected texts and bytes in the record {RECORD!r} but got others. Update both sides.")
    return Asked(*text, *rest)  # type: ignore[arg-type]


def state_record(metric: FederatedCurve | MetricCollection, message: Message | None = None) -> ConfigRecord:
    """Return this client's share as a record, for the content of the reply to an EVALUATE message.

    Where shares may only travel through the secure sum, it is masked; that takes :func:`evaluation_mod` on the client
    and :class:`FederatedEvaluationMixin` on the server, and an error says so if they are missing.

    Args:
        metric: the client's metric, or collection of metrics, updated with its data.
        message: the message that is answered. With it the share tells round and client, so that the server notices a
            share of another round, or one that it gets twice.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.integrations.flower import state_record
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> list(state_record(metric))
        ['share']
    """
    counting = representative(metric)
    evaluation = current.get()
    if evaluation is None:
        if counting.spec.hides_shares:
            raise ReleaseError(
                "Expected the secure sum for this metric's shares but the message is not part of one. Use "
                "`@app.evaluate(mods=[evaluation_mod(metric)])` on the client and a strategy with "
                "FederatedEvaluationMixin on the server, or say `trusted_aggregator=True` if the server may see each "
                "share."
            )
        return ConfigRecord({"share": bytes(counting.release(*_named(message)))})
    plan = Plan.from_bytes(evaluation.asked.plan) if evaluation.asked.plan else None
    if evaluation.answered:
        raise ReleaseError("Expected one share in each reply but a second was asked for. Call `state_record` once.")
    evaluation.answered = True
    if evaluation.client is None:
        client = str(message.metadata.dst_node_id) if message is not None else ""
        return ConfigRecord({"share": bytes(counting.release(evaluation.asked.round, client=client, plan=plan))})

    def vector() -> NDArray[np.int64]:
        return counting.vector(evaluation.asked.round, plan)

    return ConfigRecord({"masked": evaluation.client.mask(evaluation.asked.message, vector)})


def _named(message: Message | None) -> tuple[str, None, str]:
    """Round, cohort and client for a share without our strategy, as far as the message tells them."""
    if message is None:
        return "", None, ""
    server_round = next((r["server-round"] for r in message.content.config_records.values() if "server-round" in r), "")
    return f"{message.metadata.run_id}/{server_round!s}", None, str(message.metadata.dst_node_id)
