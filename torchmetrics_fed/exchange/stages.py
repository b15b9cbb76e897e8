"""Stages: a release asked of clients by requests and replies, one stage after the other, over any transport."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

from torchmetrics_fed.aggregation.secure import SecureAggregationServer
from torchmetrics_fed.errors import FederatedMetricError, ReleaseError
from torchmetrics_fed.exchange.coordinator import Coordinator
from torchmetrics_fed.release import Release

__all__ = ["Asked", "Send", "ask_release"]

_log = logging.getLogger("torchmetrics_fed")


@dataclass(frozen=True)
class Asked:
    """What a client is asked in one stage: ``share``, or ``advertise``, ``share_keys``, ``mask`` and ``unmask``."""

    stage: str
    round: str
    query: bytes
    message: bytes = b""
    """Secure aggregation's own message for this stage."""
    start: bytes = b""
    """The configuration of secure aggregation."""


Send: TypeAlias = Callable[[Mapping[str, Asked]], Mapping[str, bytes | FederatedMetricError]]
"""Asks clients, by name, and returns what they answered, or why they did not. Who was silent is left out."""


def ask_release(coordinator: Coordinator, clients: Iterable[str], send: Send) -> Release:
    """Return the release of some clients' data, by their authenticated names, whatever number of queries it takes.

    Whoever is silent or refuses is named in the log and has dropped out of that query. Where too few are left this
    raises, and nothing is opened.
    """

    def ask(
        stage: str, messages: Mapping[str, bytes], take: Callable[[str, bytes], None], start: bytes = b""
    ) -> list[str]:
        assert coordinator.query is not None
        query, round, begun = bytes(coordinator.query), coordinator.round, monotonic()
        answers = send({name: Asked(stage, round, query, message, start) for name, message in messages.items()})
        seconds, left = monotonic() - begun, []
        where = f"stage {stage} of query {len(coordinator.sums) + 1}"
        for name in messages:
            answer = answers.get(name, ReleaseError(f"It was silent for {seconds:.0f} s."))
            try:
                if isinstance(answer, FederatedMetricError):
                    raise answer
                take(name, answer)
                left.append(name)
            except FederatedMetricError as error:
                _log.warning("%s: %s has dropped out in %s. %s", round, name, where, error)
        _log.info("%s: %d of %d answered in %s, after %.1f s.", round, len(left), len(messages), where, seconds)
        if not left:
            raise ReleaseError(f"Expected answers in {where} but nobody gave one. The log says why, by name.")
        return left

    there = sorted(clients)
    while coordinator.query is not None:
        if coordinator.spec.hides_shares:
            server = SecureAggregationServer(coordinator.config)
            then = server.receive, server.start()
            there = ask("advertise", dict.fromkeys(there, b""), *then)
            ask("share_keys", dict.fromkeys(there, server.keys()), *then)
            there = ask("mask", server.ciphertexts(), *then)
            ask("unmask", dict.fromkeys(there, server.request()), *then)
            coordinator.accept(server)
        else:
            ask("share", dict.fromkeys(there, b""), coordinator.receive)
        coordinator.advance()
        there = sorted(coordinator.senders or ())
    return coordinator.release
