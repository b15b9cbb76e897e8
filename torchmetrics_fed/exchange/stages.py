"""Stages: a release asked of clients by requests and replies, one stage after the other, over any transport."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from logging import INFO, WARNING, Logger
from time import monotonic
from typing import Any, TypeAlias

from torchmetrics_fed.aggregation.secure import (
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
)
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import (
    FederatedMetricError,
    InputError,
    ReleaseError,
    SecureAggregationError,
)
from torchmetrics_fed.exchange.coordinator import Coordinator
from torchmetrics_fed.release import Query, Release, Spec
from torchmetrics_fed.release.wire import Kind, Reader, frame, pack_block, pack_text


@dataclass(frozen=True)
class Asked:
    """What a client is asked in one stage of a release."""

    stage: Stage
    round: str
    query: bytes
    message: bytes = b""
    """Secure aggregation's own message for this stage, and its configuration: ``start``."""
    start: bytes = b""
    spec: bytes = b""
    """The aggregator's spec, in the first stage of a query, so that a client can name what differs."""

    @property
    def fields(self) -> dict[str, int | str | bytes]:
        """The content in plain values, for a transport that carries them by name."""
        return {
            "stage": self.stage.value,
            "round": self.round,
            "query": self.query,
            "message": self.message,
            "start": self.start,
            "spec": self.spec,
        }

    @classmethod
    def from_fields(cls, request: Mapping[str, Any]) -> Asked:
        """Return what a request holds, field by field."""
        round = request.get("round")
        blocks: list[Any] = [request.get(name) for name in _BLOCKS]
        if not isinstance(round, str) or not all(isinstance(block, bytes) for block in blocks):
            raise InputError(
                f"Expected {['stage', 'round', *_BLOCKS]} in a request but got {list(request)}. "
                "Update both sides."
            )
        query, message, start, spec = blocks
        return cls(
            stage=Stage.of(request.get("stage")),
            round=round,
            query=query,
            message=message,
            start=start,
            spec=spec,
        )

    def agreed_query(self, own: Spec) -> Query:
        """Return the query if this client's spec is the aggregator's, which is the expected one, and admits it."""
        if self.spec:
            Spec.from_canonical(self.spec).check(own)
        query = Query.from_bytes(self.query)
        own.check_query(query)
        return query

    def agreed_config(self, own: Spec, signed: bool = False) -> SecureAggregationConfig:
        """Return the aggregation's configuration if it is what this client agreed to, as its own spec says."""
        config = SecureAggregationConfig.from_bytes(self.start)
        config.check_agreed(own, Query.from_bytes(self.query), signed)
        if not config.round_id.startswith(f"{self.round}/"):
            raise SecureAggregationError(
                f"Expected an aggregation of round {self.round!r} but got {config.round_id!r}. Update both sides."
            )
        return config

    def answered_by(self, client: SecureAggregationClient | None, metric: Any = None) -> bytes:
        """Return a client's reply. Its metric draws and charges in ``SHARE`` and ``MASK`` alone.

        ``client`` is its side of secure aggregation, in every stage but ``SHARE``.
        """
        if self.stage.asks_data and metric is None:
            raise ReleaseError(
                "Expected a question about data that is held here but there is none any more."
            )
        if self.stage is Stage.SHARE:
            return _share(self, metric)
        if client is None:
            raise SecureAggregationError(
                f"Cannot answer stage {self.stage}: this client has not begun an aggregation."
            )
        return _HANDLERS[self.stage](self, client, metric)

    def to_bytes(self) -> bytes:
        blocks = map(pack_block, (self.query, self.message, self.start, self.spec))
        return frame(Kind.ASKED, bytes([self.stage.value]), pack_text(self.round), *blocks)

    @classmethod
    def from_bytes(cls, data: bytes) -> Asked:
        reader = Reader(data, Kind.ASKED)
        stage = Stage.of(reader.number(1))
        round = reader.text(empty=True)
        query, message, start, spec = (reader.block() for _ in range(4))
        reader.end()
        return cls(
            stage=stage,
            round=round,
            query=query,
            message=message,
            start=start,
            spec=spec,
        )


_BLOCKS = ("query", "message", "start", "spec")


def _share(asked: Asked, metric: Any) -> bytes:
    return bytes(metric.share(round=asked.round, query=Query.from_bytes(asked.query)))


def _advertise(asked: Asked, client: SecureAggregationClient, metric: Any) -> bytes:
    return client.advertise()


def _share_keys(asked: Asked, client: SecureAggregationClient, metric: Any) -> bytes:
    return client.share_keys(asked.message)


def _mask(asked: Asked, client: SecureAggregationClient, metric: Any) -> bytes:
    query = Query.from_bytes(asked.query)
    return bytes(metric.mask(client, asked.message, round=asked.round, query=query))


def _sign(asked: Asked, client: SecureAggregationClient, metric: Any) -> bytes:
    return client.sign_survivors(asked.message)


def _unmask(asked: Asked, client: SecureAggregationClient, metric: Any) -> bytes:
    return client.unmask(asked.message)


_HANDLERS: dict[Stage, Callable[[Asked, SecureAggregationClient, Any], bytes]] = {
    Stage.ADVERTISE: _advertise,
    Stage.SHARE_KEYS: _share_keys,
    Stage.MASK: _mask,
    Stage.SIGN: _sign,
    Stage.UNMASK: _unmask,
}
"""How a client replies in each stage of secure aggregation."""


Answers: TypeAlias = Mapping[str, bytes | FederatedMetricError]
"""By client, what it answered, or why it did not. Who was silent is left out."""
Stages: TypeAlias = Generator[dict[str, Asked], Answers, Release]


def release_stages(
    coordinator: Coordinator,
    clients: Iterable[str],
    place: str,
    log: Logger,
    keys: Mapping[str, bytes] | None = None,
) -> Stages:
    """Yield what to ask of whom, stage by stage, take the answers, and return the release of all its queries.

    Clients have the names that the transport has authenticated. Whoever is silent or refuses is named in the log, which
    calls the release ``place``, and has dropped out of the query: the next stage does not ask it. Where too few are
    left this raises, and nothing is opened. With ``keys``, public ones by client, aggregations are signed.
    """
    there, signed = list(clients), keys is not None
    server: SecureAggregationServer | None = None

    def ask(
        stage: Stage, messages: Mapping[str, bytes]
    ) -> Generator[dict[str, Asked], Answers, list[str]]:
        """Go through one stage, log what came of it, and return those whose answer was taken."""
        begun = monotonic()
        start, take = (
            (b"", coordinator.receive) if server is None else (server.start(), server.receive)
        )
        asked = Asked(
            stage=stage,
            round=coordinator.round,
            query=bytes(coordinator.query or b""),
            start=start,
            spec=coordinator.spec.canonical if stage.begins_query else b"",
        )
        answers = yield {
            name: replace(asked, message=message) for name, message in messages.items()
        }
        seconds, taken, dropped = (
            f"{monotonic() - begun:.1f} s",
            list[str](),
            dict[str, list[str]](),
        )
        for name, answer in answers.items():
            try:
                if isinstance(answer, FederatedMetricError):
                    raise answer
                take(name, answer)
                taken.append(name)
            except FederatedMetricError as error:  # noqa: PERF203
                dropped.setdefault(str(error), []).append(name)
        silent = set(messages).difference(answers)
        where = f"torchmetrics-fed: {place}, query {len(coordinator.sums) + 1}, {stage}"
        said = f"{len(taken)} of {len(messages)} answered in {seconds}{_named(taken)}"
        said += f"; silent for {seconds}{_named(silent)}" if silent else ""
        log.log(WARNING if silent or dropped else INFO, "%s: %s.", where, said)
        for why, those in dropped.items():
            log.warning("%s: dropped out%s. %s", where, _named(those), why)
        return taken

    while coordinator.query is not None:
        hides = coordinator.spec.hides_shares
        server = SecureAggregationServer(coordinator.config_for(signed), keys) if hides else None
        if server is None:
            yield from ask(Stage.SHARE, dict.fromkeys(there, b""))
        else:
            there = yield from ask(Stage.ADVERTISE, dict.fromkeys(there, b""))
            yield from ask(Stage.SHARE_KEYS, dict.fromkeys(there, server.keys()))
            there = yield from ask(Stage.MASK, server.ciphertexts())
            if signed:
                there = yield from ask(Stage.SIGN, dict.fromkeys(there, server.survivors()))
            yield from ask(Stage.UNMASK, dict.fromkeys(there, server.request()))
            coordinator.accept(server)
        coordinator.advance()
        there = sorted(coordinator.senders or ())
    return coordinator.release


def ask_release(
    stages: Stages, send: Callable[[Mapping[str, Asked]], Answers], answers: Answers | None = None
) -> Release:
    """Return the release, with each stage carried by ``send``; ``answers`` are to a stage that is out already."""
    while True:
        try:
            asked = next(stages) if answers is None else stages.send(answers)
        except StopIteration as done:
            release: Release = done.value
            return release
        answers = send(asked)


def _named(clients: Iterable[str]) -> str:
    return f": {', '.join(sorted(clients))}" if clients else ""
