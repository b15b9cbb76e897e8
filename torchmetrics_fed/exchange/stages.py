"""Stages: a release asked of clients by requests and replies, one stage after the other, over any transport."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from logging import INFO, WARNING, Logger
from time import monotonic
from typing import Any, TypeAlias

from torchmetrics_fed.aggregation.secure import (
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
)
from torchmetrics_fed.errors import (
    FederatedMetricError,
    InputError,
    ReleaseError,
    SecureAggregationError,
)
from torchmetrics_fed.exchange.coordinator import Coordinator
from torchmetrics_fed.release import Query, Release, Spec
from torchmetrics_fed.release.wire import Kind, Reader, frame, pack_block, pack_text

STAGES = "share", "advertise", "share_keys", "mask", "sign", "unmask"
"""In their order. Of one query, the first alone where shares may be seen, and the others where they are hidden."""


@dataclass(frozen=True)
class Asked:
    """What a client is asked in one stage of a release."""

    stage: str
    round: str
    query: bytes
    message: bytes = b""
    """Secure aggregation's own message for this stage, and its configuration: ``start``."""
    start: bytes = b""
    spec: bytes = b""
    """The aggregator's spec, in the first stage of a query, so that a client can name what differs."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Asked:
        """Return what a request holds, field by field."""
        names = [field.name for field in fields(cls)]
        values: list[Any] = [found.get(name) for name in names]
        if not all(map(isinstance, values, [str, str, *[bytes] * 4])):
            raise InputError(
                f"Expected {names} in a request but got {list(found)}. Update both sides."
            )
        return cls(*values)

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
        """Return a client's answer. Its metric draws and charges in ``share`` and ``mask``, nowhere else."""
        if self.asks_data:
            if metric is None:
                raise ReleaseError(
                    "Expected a question about data that is held here but there is none any more."
                )
            query = Query.from_bytes(self.query)
            if client is None or self.stage == "share":
                return bytes(metric.share(round=self.round, query=query))
            return bytes(metric.mask(client, self.message, round=self.round, query=query))
        if client is None or self.stage not in STAGES:
            raise InputError(
                f"Expected a stage of secure aggregation but got {self.stage!r}. Update both sides."
            )
        if self.stage == "advertise":
            return client.advertise()
        take = {
            "share_keys": client.share_keys,
            "sign": client.sign_survivors,
            "unmask": client.unmask,
        }
        return take[self.stage](self.message)

    @property
    def asks_data(self) -> bool:
        return self.stage in ("share", "mask")

    def to_bytes(self) -> bytes:
        blocks = map(pack_block, (self.query, self.message, self.start, self.spec))
        return frame(Kind.ASKED, pack_text(self.stage), pack_text(self.round), *blocks)

    @classmethod
    def from_bytes(cls, data: bytes) -> Asked:
        reader = Reader(data, Kind.ASKED)
        asked = cls(reader.text(), reader.text(empty=True), *(reader.block() for _ in range(4)))
        reader.end()
        return asked


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
        stage: str, messages: Mapping[str, bytes]
    ) -> Generator[dict[str, Asked], Answers, list[str]]:
        """Go through one stage, log what came of it, and return those whose answer was taken."""
        begun, spec = (
            monotonic(),
            coordinator.spec.canonical if stage in ("advertise", "share") else b"",
        )
        start, take = (
            (b"", coordinator.receive) if server is None else (server.start(), server.receive)
        )
        asked = Asked(stage, coordinator.round, bytes(coordinator.query or b""), b"", start, spec)
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
            yield from ask("share", dict.fromkeys(there, b""))
        else:
            there = yield from ask("advertise", dict.fromkeys(there, b""))
            yield from ask("share_keys", dict.fromkeys(there, server.keys()))
            there = yield from ask("mask", server.ciphertexts())
            if signed:
                there = yield from ask("sign", dict.fromkeys(there, server.survivors()))
            yield from ask("unmask", dict.fromkeys(there, server.request()))
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
