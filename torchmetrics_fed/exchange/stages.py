"""Stages: a release asked of clients by requests and replies, over any transport."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from logging import INFO, WARNING, Logger
from time import monotonic
from typing import TypeAlias

from torchmetrics_fed.aggregation.secure import SecureAggregationServer
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import FederatedMetricError
from torchmetrics_fed.exchange.coordinator import Coordinator
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.release import Release

Requests: TypeAlias = dict[str, Request]
"""By client, what it is asked in a stage."""

Replies: TypeAlias = Mapping[str, bytes | FederatedMetricError]
"""By client, its reply, or the error that says why there is none. A silent client is left out."""

Stages: TypeAlias = Generator[Requests, Replies, Release]
"""Yields the requests of one stage after the other, takes the replies, and returns the release."""


def release_stages(
    coordinator: Coordinator,
    clients: Iterable[str],
    *,
    place: str,
    log: Logger,
    keys: Mapping[str, bytes] | None = None,
) -> Stages:
    """Return the stages of a release: requests out, replies in, and the release at the end.

    A client that is silent or refuses has dropped out of the query: it is named in the log, and the
    next stage does not ask it. Where too few clients are left this raises, and nothing is opened.

    Args:
        coordinator: the aggregator's side of the release.
        clients: names that the transport has authenticated.
        place: what the log calls the release.
        log: the log.
        keys: by client, public keys; aggregations are signed if given.
    """
    return _ReleaseStages(coordinator, place=place, log=log, keys=keys).run(list(clients))


def ask_release(
    stages: Stages,
    send: Callable[[Requests], Replies],
    replies: Replies | None = None,
) -> Release:
    """Return the release, with each stage carried by ``send``.

    Args:
        stages: the stages of the release.
        send: carries the requests of a stage, and returns the replies.
        replies: the replies to a stage whose requests have been sent already.
    """
    while True:
        try:
            requests = next(stages) if replies is None else stages.send(replies)
        except StopIteration as done:
            release: Release = done.value
            return release
        replies = send(requests)


class _ReleaseStages:
    """The stages of one release."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        place: str,
        log: Logger,
        keys: Mapping[str, bytes] | None,
    ) -> None:
        self._coordinator = coordinator
        self._place = place
        self._log = log
        self._keys = keys

    def run(self, clients: list[str]) -> Stages:
        """Go through the stages of every query."""
        coordinator = self._coordinator
        while coordinator.query is not None:
            if coordinator.spec.hides_shares:
                yield from self._aggregate(clients)
            else:
                yield from self._ask(Stage.SHARE, dict.fromkeys(clients, b""), None)
            coordinator.advance()
            clients = sorted(coordinator.senders or ())
        return coordinator.release

    def _aggregate(self, clients: list[str]) -> Generator[Requests, Replies, None]:
        """Go through the stages of secure aggregation, and hand its sum to the coordinator."""
        is_signed = self._keys is not None
        config = self._coordinator.config_for(is_signed)
        server = SecureAggregationServer(config, self._keys)
        advertised = yield from self._ask(Stage.ADVERTISE, dict.fromkeys(clients, b""), server)
        yield from self._ask(Stage.SHARE_KEYS, dict.fromkeys(advertised, server.keys()), server)
        survivors = yield from self._ask(Stage.MASK, server.ciphertexts(), server)
        if is_signed:
            message = server.survivors()
            survivors = yield from self._ask(Stage.SIGN, dict.fromkeys(survivors, message), server)
        yield from self._ask(Stage.UNMASK, dict.fromkeys(survivors, server.request()), server)
        self._coordinator.accept(server)

    def _ask(
        self,
        stage: Stage,
        messages: Mapping[str, bytes],
        server: SecureAggregationServer | None,
    ) -> Generator[Requests, Replies, list[str]]:
        """Go through one stage, log its outcome, and return the clients whose reply was taken."""
        coordinator = self._coordinator
        request = Request(
            stage=stage,
            round=coordinator.round,
            query=bytes(coordinator.query or b""),
            start=b"" if server is None else server.start(),
            spec=coordinator.spec.canonical if stage.begins_query else b"",
        )
        begun = monotonic()
        replies = yield {
            name: replace(request, message=message) for name, message in messages.items()
        }
        seconds = monotonic() - begun
        receive = coordinator.receive if server is None else server.receive
        received: list[str] = []
        dropped: dict[str, list[str]] = {}
        for name, reply in replies.items():
            try:
                if isinstance(reply, FederatedMetricError):
                    raise reply
                receive(name, reply)
                received.append(name)
            except FederatedMetricError as error:  # noqa: PERF203
                dropped.setdefault(str(error), []).append(name)
        silent = set(messages).difference(replies)
        self._log_outcome(
            stage,
            seconds,
            requests=len(messages),
            received=received,
            silent=silent,
            dropped=dropped,
        )
        return received

    def _log_outcome(
        self,
        stage: Stage,
        seconds: float,
        *,
        requests: int,
        received: list[str],
        silent: set[str],
        dropped: Mapping[str, list[str]],
    ) -> None:
        where = f"torchmetrics-fed: {self._place}, query {len(self._coordinator.sums) + 1}, {stage}"
        outcome = f"{len(received)} of {requests} answered in {seconds:.1f} s{_named(received)}"
        if silent:
            outcome += f"; silent for {seconds:.1f} s{_named(silent)}"
        level = WARNING if silent or dropped else INFO
        self._log.log(level, "%s: %s.", where, outcome)
        for reason, names in dropped.items():
            self._log.warning("%s: dropped out%s. %s", where, _named(names), reason)


def _named(clients: Iterable[str]) -> str:
    names = sorted(clients)
    return f": {', '.join(names)}" if names else ""
