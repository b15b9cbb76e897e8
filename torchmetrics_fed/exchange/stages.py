"""Stages: a release asked of clients by requests and replies, over any transport."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from logging import INFO, WARNING, Logger
from time import monotonic
from typing import TypeAlias

from torchmetrics_fed.aggregation.secure import SecureAggregationServer
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import FederatedMetricError, ReleaseError, WireError
from torchmetrics_fed.exchange.coordinator import Coordinator
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.release import Release

Requests: TypeAlias = dict[str, Request]
"""By client, what it is asked in a stage."""

Replies: TypeAlias = Mapping[str, bytes | FederatedMetricError]
"""By client, its reply, or the error that says why there is none. A silent client is left out."""

Stages: TypeAlias = Generator[Requests, Replies, Release]
"""Yields the requests of one stage after the other, takes the replies, and returns the release."""


class BrokenOffError(ReleaseError):
    """A release that was broken off after its first query, with what was paid for.

    Args:
        message: why it was broken off.
        release: the partial release: coarse, and flagged as partial.
    """

    def __init__(self, message: str, release: Release) -> None:
        super().__init__(message)
        self.release = release

    def __reduce__(self) -> tuple[type[BrokenOffError], tuple[str, Release]]:
        return type(self), (str(self), self.release)


def release_stages(
    coordinator: Coordinator,
    clients: Iterable[str],
    *,
    place: str,
    log: Logger,
    keys: Mapping[str, bytes] | None = None,
) -> Stages:
    """Return the stages of a release: requests out, replies in, and the release at the end.

    In its first reply a client says whether it can take part in the whole release, before anybody
    pays: in ``ADVERTISE`` where shares are hidden, in ``JOIN`` where private shares are visible.
    The release begins only with the clients that can, and only if there are enough of them.

    A client that is silent or refuses has dropped out of the query: it is named in the log, and the
    next stage does not ask it. Where too few clients are left this raises, and nothing is opened.
    After the first query it raises a :class:`BrokenOffError`, which has the partial release.

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
        """Go through all stages. A release that breaks off offers what was paid for."""
        try:
            return (yield from self._queries(clients))
        except FederatedMetricError as error:
            release = self._coordinator.partial
            if release is None:
                raise
            raise BrokenOffError(
                f"{error} The first query was summed: `error.release` is the partial release.",
                release,
            ) from error

    def _queries(self, clients: list[str]) -> Stages:
        """Go through the stages of every query."""
        coordinator = self._coordinator
        if self._asks_first:
            clients = yield from self._join(clients)
        while coordinator.query is not None:
            if coordinator.spec.hides_shares:
                yield from self._aggregate(clients)
            else:
                yield from self._ask(Stage.SHARE, dict.fromkeys(clients, b""), None)
            coordinator.advance()
            clients = sorted(coordinator.senders or ())
        return coordinator.release

    @property
    def _asks_first(self) -> bool:
        """Whether the release begins with the stage ``JOIN``: nobody may pay for nothing.

        Hidden shares begin with ``ADVERTISE``, and exact counts cost nothing.
        """
        spec = self._coordinator.spec
        has_begun = bool(self._coordinator.sums) or self._coordinator.received > 0
        return spec.privacy.charges and not spec.hides_shares and not has_begun

    def _join(self, clients: list[str]) -> Generator[Requests, Replies, list[str]]:
        """Return the clients that can take part in the whole release, if they are enough."""
        joined = yield from self._ask(Stage.JOIN, dict.fromkeys(clients, b""), None)
        needed = self._coordinator.clients_needed
        if len(joined) < needed:
            raise ReleaseError(
                f"Expected at least {needed} clients that can take part but got {len(joined)} of "
                f"{len(clients)}, so the release never began and nobody has paid. The log says "
                "why. Wait for more clients, or start a new round."
            )
        return joined

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
        receive = self._receiver(request, server)
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

    def _receiver(
        self, request: Request, server: SecureAggregationServer | None
    ) -> Callable[[str, bytes], None]:
        """Return the function that takes a client's reply in this stage."""
        if server is not None:
            return server.receive
        if request.stage is Stage.JOIN:
            return partial(_check_joined, request.digest)
        return self._coordinator.receive

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
        query = "" if stage is Stage.JOIN else f"query {len(self._coordinator.sums) + 1}, "
        where = f"torchmetrics-fed: {self._place}, {query}{stage}"
        outcome = f"{len(received)} of {requests} answered in {seconds:.1f} s{_named(received)}"
        if silent:
            outcome += f"; silent for {seconds:.1f} s{_named(silent)}"
        level = WARNING if silent or dropped else INFO
        self._log.log(level, "%s: %s.", where, outcome)
        for reason, names in dropped.items():
            self._log.warning("%s: dropped out%s. %s", where, _named(names), reason)


def _check_joined(digest: bytes, client: str, reply: bytes) -> None:
    """Raise unless a client has joined the release that it was asked about."""
    if reply != digest:
        raise WireError(
            f"Expected client {client!r} to reply with the digest of the request but got other "
            "bytes. Update both sides."
        )


def _named(clients: Iterable[str]) -> str:
    names = sorted(clients)
    return f": {', '.join(names)}" if names else ""
