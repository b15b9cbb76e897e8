"""Stage: one exchange with some nodes, and the log of who answered, who dropped out and why, and who was silent."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message
from flwr.common.constant import ErrorCode

from torchmetrics_fed.errors import FederatedMetricError, ReleaseError
from torchmetrics_fed.integrations.flower.records import RECORD

__all__ = ["Stage"]

_log = logging.getLogger("flwr")


@dataclass
class Stage:
    """What was asked of some nodes at the same time, with a place for the log: the round and the query."""

    place: str
    name: str
    messages: list[Message]
    start: float = field(default_factory=time.monotonic)

    def receive(self, replies: Iterable[Message], key: str, take: Callable[[str, bytes], None]) -> list[int]:
        """Hand the answers to ``take``, log what came of the stage, and return those whose answer was taken."""
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in self.messages}
        taken: list[int] = []
        dropped: dict[str, list[int]] = {}
        for reply in replies:
            # an error can come from the SuperLink, whose id it then bears: what it replies to says whose it is
            node = asked.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            try:
                take(str(node), self._answer(reply, key))
                taken.append(node)
            except FederatedMetricError as error:
                dropped.setdefault(str(error), []).append(node)
        nodes = {message.metadata.dst_node_id for message in self.messages}
        silent = nodes.difference(taken, *dropped.values())
        place, seconds = f"torchmetrics-fed: {self.place}, {self.name}", f"{time.monotonic() - self.start:.1f} s"
        said = f"{len(taken)} of {len(nodes)} nodes answered in {seconds}{_named(taken)}"
        said += f"; silent for {seconds}{_named(silent)}" if silent else ""
        _log.log(logging.WARNING if silent or dropped else logging.INFO, "%s: %s.", place, said)
        for why, those in dropped.items():
            _log.warning("%s: dropped out%s. %s", place, _named(those), why)
        return taken

    def _answer(self, reply: Message, key: str) -> bytes:
        """Return what a reply holds, or raise and say why it holds nothing."""
        got, stranger = f"a reply without {key!r}", True
        if reply.has_error():
            reason, raised = reply.error.reason or "", (ErrorCode.UNKNOWN, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
            stranger = reply.error.code in raised and "torchmetrics_fed.errors" not in reason
            got = _cause(reason) or f"error {reply.error.code}"
        else:
            answer = reply.content.config_records.get(RECORD, ConfigRecord()).get(key)
            if isinstance(answer, bytes):
                return answer
        if stranger and self.name != "evaluate":  # only the mod knows this stage: an app takes it for an evaluation
            got = (
                "`evaluation_mod` is not installed there: use `@app.evaluate(mods=[evaluation_mod(metric)])`. Got "
                + got
            )
        raise ReleaseError(got)


def _cause(reason: str) -> str:
    """Return an exception's name and text, without Flower's quotes and, in the simulation, without Ray's traceback."""
    lines = (reason.removesuffix("'>") if reason.startswith("<class") else reason).rstrip().splitlines()
    return re.sub(r"^(?:<class ')?(?:\w+\.)*(\w+)(?:'>:<'|: )", r"\1: ", lines[-1]) if lines else ""


def _named(nodes: Iterable[int]) -> str:
    return f": {', '.join(map(str, sorted(nodes)))}" if nodes else ""
