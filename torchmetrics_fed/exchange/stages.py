"""Stages: a release asked of clients by requests and replies, one stage after the other, over any transport."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol, TypeAlias

from torchmetrics_fed.aggregation.secure import SecureAggregationServer
from torchmetrics_fed.errors import FederatedMetricError, ReleaseError
from torchmetrics_fed.exchange.coordinator import Coordinator
from torchmetrics_fed.release import Release

__all__ = ["Asked", "Log", "Send", "ask_release"]


@dataclass(frozen=True)
class Asked:
    """What a client is asked in one stage."""

    stage: str
    """``share``, or of secure aggregation ``advertise``, ``share_keys``, ``mask`` and ``unmask``."""
    round: str
    query: bytes
    """The query that this stage is about."""
    message: bytes = b""
    """Secure aggregation's own message for this stage."""
    start: bytes = b""
    """The configuration of secure aggregation."""


Send: TypeAlias = Callable[[Mapping[str, Asked]], Mapping[str, bytes | FederatedMetricError]]
"""Asks clients, by name, and returns what they answered, or why they did not. Who was silent is left out."""


class Log(Protocol):
    """Where the stages are noted: a logger, for instance."""

    def info(self, message: str, /) -> Any:
        """Note what went well."""

    def warning(self, message: str, /) -> Any:
        """Note who has dropped out."""


def ask_release(coordinator: Coordinator, clients: Iterable[str], send: Send, log: Log) -> Release:
    """Return the release of some clients' data, whatever number of queries it takes.

    Whoever is silent or refused in a stage is named in the log and has dropped out of that query. Raises, and opens
    nothing, where too few are left.

    Args:
        coordinator: of a release that nobody was asked for yet, or only others.
        clients: their names, as the transport has authenticated them.
        send: the transport.
        log: where every stage is noted.
    """
    stages, there = _Stages(coordinator, send, log), sorted(clients)
    while coordinator.query is not None:
        if coordinator.spec.hides_shares:
            coordinator.accept(stages.masked(there))
        else:
            stages.ask("share", dict.fromkeys(there, b""), coordinator.receive)
        coordinator.advance()
        there = sorted(coordinator.senders or ())
    return coordinator.release


@dataclass(frozen=True)
class _Stages:
    coordinator: Coordinator
    send: Send
    log: Log

    def masked(self, clients: list[str]) -> SecureAggregationServer:
        """Return the server of an aggregation that those who are left have opened."""
        server = SecureAggregationServer(self.coordinator.config)
        there = self.ask("advertise", dict.fromkeys(clients, b""), server.receive, server.start())
        there = self.ask("share_keys", dict.fromkeys(there, server.keys()), server.receive, server.start())
        boxes = {name: box for name, box in server.ciphertexts().items() if name in there}
        there = self.ask("mask", boxes, server.receive, server.start())
        self.ask("unmask", dict.fromkeys(there, server.request()), server.receive, server.start())
        return server

    def ask(
        self, stage: str, messages: Mapping[str, bytes], take: Callable[[str, bytes], None], start: bytes = b""
    ) -> list[str]:
        """Go through one stage and return who is left."""
        round, query, begun = self.coordinator.round, self.coordinator.query, monotonic()
        assert query is not None
        answers = self.send({name: Asked(stage, round, bytes(query), sent, start) for name, sent in messages.items()})
        seconds, left = monotonic() - begun, []
        for name in messages:
            answer = answers.get(name, ReleaseError(f"It was silent for {seconds:.0f} s."))
            try:
                if isinstance(answer, FederatedMetricError):
                    raise answer
                take(name, answer)
                left.append(name)
            except FederatedMetricError as error:
                self.log.warning(f"{round}: {name} has dropped out in stage {stage}. {error}")
        self.log.info(f"{round}: {len(left)} of {len(messages)} answered in stage {stage}, after {seconds:.1f} s.")
        if not left:
            raise ReleaseError(f"Expected answers in stage {stage} but nobody gave one. The log says why, by name.")
        return left
