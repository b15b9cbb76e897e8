"""Stage: one exchange with some nodes, and the log of who answered, who dropped out and why, and who was silent."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable

from flwr.app import ConfigRecord, Message
from flwr.common.constant import ErrorCode

from torchmetrics_fed.errors import FederatedMetricError, ReleaseError
from torchmetrics_fed.integrations.flower.records import RECORD

__all__ = ["Stage"]

_log = logging.getLogger("flwr")
_WITHOUT_MOD = "`evaluation_mod` is not installed there: use `@app.evaluate(mods=[evaluation_mod(metric)])`. Got {}."


class Stage:
    """What was asked of some nodes at the same time.

    Args:
        place: the round and the query, for the log.
        name: the stage.
        messages: what is sent, from now on.
    """

    def __init__(self, place: str, name: str, messages: list[Message]) -> None:
        self._place, self._name, self._messages = f"{place}, {name}", name, messages
        self._start = time.monotonic()
        self.there: list[int] = []
        """Who has replied, be it with an error."""

    def receive(self, replies: Iterable[Message], field: str, take: Callable[[str, bytes], None]) -> list[int]:
        """Hand the answers to ``take``, log what came of the stage, and return those whose answer was taken."""
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in self._messages}
        taken: list[int] = []
        dropped: dict[str, list[int]] = {}
        for reply in replies:
            # an error can come from the SuperLink, whose id it then bears: what it replies to says whose it is
            node = asked.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            try:
                take(str(node), self._answer(reply, field))
                taken.append(node)
            except FederatedMetricError as error:
                dropped.setdefault(str(error), []).append(node)
            if not reply.has_error() or reply.error.code != ErrorCode.NODE_UNAVAILABLE:
                self.there.append(node)
        silent = set(asked.values()).difference(taken, *dropped.values())
        seconds = time.monotonic() - self._start
        said = f"{len(taken)} of {len(asked)} nodes answered in {seconds:.1f} s{_named(taken)}"
        said += f"; silent for {seconds:.1f} s{_named(silent)}" if silent else ""
        _log.log(logging.WARNING if silent or dropped else logging.INFO, "torchmetrics-fed: %s: %s.", self._place, said)
        for why, nodes in dropped.items():
            _log.warning("torchmetrics-fed: %s: dropped out%s. %s", self._place, _named(nodes), why)
        return taken

    def _answer(self, reply: Message, field: str) -> bytes:
        """Return what a reply holds, or raise and say why it holds nothing."""
        if reply.has_error():
            reason = reply.error.reason or f"error {reply.error.code}"
            ours = reply.error.code != ErrorCode.CLIENT_APP_RAISED_EXCEPTION or "torchmetrics_fed" in reason
            reason = re.sub(r"^<class '(?:.*\.)?(\w+)'>:<'(.*)'>$", r"\1: \2", reason, flags=re.DOTALL)
            # only the mod knows this stage; without it the app takes the message for an evaluation, and stumbles
            raise ReleaseError(reason if ours or self._name == "evaluate" else _WITHOUT_MOD.format(reason))
        answer = reply.content.config_records.get(RECORD, ConfigRecord()).get(field)
        if not isinstance(answer, bytes):
            what = f"a reply without {field!r}"
            raise ReleaseError(
                f"Expected `state_record(metric)` under {RECORD!r} but got {what}."
                if self._name == "evaluate"
                else _WITHOUT_MOD.format(what)
            )
        return answer


def _named(nodes: Iterable[int]) -> str:
    return "".join(f"{': ' if not place else ', '}{node}" for place, node in enumerate(sorted(nodes)))
