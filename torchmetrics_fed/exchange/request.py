"""Request: what a client is asked in one stage of a release, and how a client replies to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchmetrics_fed.aggregation.secure import SecureAggregationClient, SecureAggregationConfig
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import InputError, ReleaseError, SecureAggregationError
from torchmetrics_fed.exchange.client import Evaluation
from torchmetrics_fed.release import Query, Spec
from torchmetrics_fed.release.wire import Kind, Reader, frame, pack_block, pack_text

_BLOCKS = ("query", "message", "start", "spec")
"""The fields of a request that are bytes."""


@dataclass(frozen=True)
class Request:
    """What a client is asked in one stage of a release.

    Args:
        stage: the stage.
        round: the name of the round.
        query: the query, in bytes.
        message: secure aggregation's own message for this stage.
        start: secure aggregation's configuration, in bytes.
        spec: the aggregator's spec, in the first stage of a release and of a query, so that a
            client can name what differs.
    """

    stage: Stage
    round: str
    query: bytes
    message: bytes = b""
    start: bytes = b""
    spec: bytes = b""

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
    def from_fields(cls, fields: Mapping[str, Any]) -> Request:
        """Return the request with these fields."""
        round = fields.get("round")
        blocks: dict[str, Any] = {name: fields.get(name) for name in _BLOCKS}
        are_bytes = all(isinstance(block, bytes) for block in blocks.values())
        if not isinstance(round, str) or not are_bytes:
            raise InputError(
                f"Expected {['stage', 'round', *_BLOCKS]} in a request but got {list(fields)}. "
                "Update both sides."
            )
        return cls(stage=Stage.of(fields.get("stage")), round=round, **blocks)

    def to_bytes(self) -> bytes:
        """Return the one encoding of this request."""
        return frame(
            Kind.STAGE_REQUEST,
            bytes([self.stage.value]),
            pack_text(self.round),
            pack_block(self.query),
            pack_block(self.message),
            pack_block(self.start),
            pack_block(self.spec),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Request:
        """Return the request that :meth:`to_bytes` encoded."""
        reader = Reader(data, Kind.STAGE_REQUEST)
        request = cls(
            stage=Stage.of(reader.number(1)),
            round=reader.text(empty=True),
            query=reader.block(),
            message=reader.block(),
            start=reader.block(),
            spec=reader.block(),
        )
        reader.end()
        return request

    @property
    def digest(self) -> bytes:
        """The digest of the request: what a client replies that joins a release."""
        return hashlib.sha256(self.to_bytes()).digest()

    def agreed_query(self, spec: Spec) -> Query:
        """Return the query if the client's spec is the aggregator's and admits it, or raise."""
        if self.spec:
            Spec.from_canonical(self.spec).check(spec)
        query = Query.from_bytes(self.query)
        spec.check_query(query)
        return query

    def agreed_config(self, spec: Spec, *, signed: bool) -> SecureAggregationConfig:
        """Return the aggregation's configuration if it is what the client's spec says, or raise."""
        config = SecureAggregationConfig.from_bytes(self.start)
        config.check_agreed(spec, Query.from_bytes(self.query), signed)
        if not config.round_id.startswith(f"{self.round}/"):
            raise SecureAggregationError(
                f"Expected an aggregation of round {self.round!r} but got {config.round_id!r}. "
                "Update both sides."
            )
        return config

    def reply(
        self, aggregation: SecureAggregationClient | None, evaluation: Evaluation | None = None
    ) -> bytes:
        """Return a client's reply. Noise is drawn and charged in ``SHARE`` and ``MASK`` alone.

        Args:
            aggregation: the client's side of secure aggregation, in its stages.
            evaluation: the client's data, in ``SHARE`` and ``MASK``.
        """
        if self.stage.asks_data and evaluation is None:
            raise ReleaseError("Cannot reply: this client holds no data of the round any more.")
        if self.stage.is_secure and aggregation is None:
            raise SecureAggregationError(
                f"Cannot reply in stage {self.stage}: this client has not begun an aggregation."
            )
        return _HANDLERS[self.stage](self, aggregation, evaluation)


def _join(request: Request, aggregation: Any, evaluation: Any) -> bytes:
    return request.digest


def _share(request: Request, aggregation: Any, evaluation: Evaluation) -> bytes:
    return bytes(evaluation.share(Query.from_bytes(request.query), round=request.round))


def _advertise(request: Request, aggregation: SecureAggregationClient, evaluation: Any) -> bytes:
    return aggregation.advertise()


def _share_keys(request: Request, aggregation: SecureAggregationClient, evaluation: Any) -> bytes:
    return aggregation.share_keys(request.message)


def _mask(request: Request, aggregation: SecureAggregationClient, evaluation: Evaluation) -> bytes:
    return evaluation.mask(
        Query.from_bytes(request.query),
        aggregation=aggregation,
        boxes=request.message,
        round=request.round,
    )


def _sign(request: Request, aggregation: SecureAggregationClient, evaluation: Any) -> bytes:
    return aggregation.sign_survivors(request.message)


def _unmask(request: Request, aggregation: SecureAggregationClient, evaluation: Any) -> bytes:
    return aggregation.unmask(request.message)


_HANDLERS: dict[Stage, Callable[[Request, Any, Any], bytes]] = {
    Stage.JOIN: _join,
    Stage.SHARE: _share,
    Stage.ADVERTISE: _advertise,
    Stage.SHARE_KEYS: _share_keys,
    Stage.MASK: _mask,
    Stage.SIGN: _sign,
    Stage.UNMASK: _unmask,
}
"""How a client replies in each stage."""
