"""What nodes have answered to some messages, or why they did not."""

from __future__ import annotations

import re
from collections.abc import Iterable

from flwr.app import ConfigRecord, Message
from flwr.common.constant import ErrorCode

from torchmetrics_fed.errors import FederatedMetricError, ReleaseError
from torchmetrics_fed.integrations.flower.records import RECORD

__all__ = ["answers_of"]


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
