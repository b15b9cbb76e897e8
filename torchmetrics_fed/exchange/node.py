"""Node: a client's side of the stages. It notes every answer before that leaves, and gives no second one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchmetrics_fed.aggregation.secure import SecureAggregationClient
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import ReleaseError, SecureAggregationError
from torchmetrics_fed.exchange.stages import Asked
from torchmetrics_fed.privacy.store import Notes, Store
from torchmetrics_fed.release import Spec
from torchmetrics_fed.release.wire import Kind, Reader, frame, pack_block


class Node:
    """Answers what a client is asked, in as many processes as it takes.

    To read the notes, answer and note is one transaction. So a process that is killed in it has answered nothing and
    the next one goes on, no two processes go on from one note, and what was answered last is answered again in the very
    same bytes. A crash after the charge and before the note counts as a dropout: the noise was
    paid for and is lost.

    A note belongs to one spec and one round. It is erased by :meth:`forget`, or by the first
    process that opens the store a day after it was written.

    Args:
        name: the client's.
        spec: what it has agreed to.
        store: for notes, which hold secrets, and between two queries raw counts. In memory, a process that ends has
            dropped out.
        signing_key: as in :class:`SecureAggregationClient`, with ``verification_keys``, where aggregations are signed.
    """

    def __init__(
        self,
        name: str,
        spec: Spec,
        store: Store,
        signing_key: bytes | None = None,
        verification_keys: Mapping[str, bytes] | None = None,
    ) -> None:
        self._name = name
        self._spec = spec
        self._store = store
        self._signing_key = signing_key
        self._verification_keys = verification_keys
        self._round = ""
        self._metric: Any = None
        """The metric that holds the client of the round above, between two queries."""
        self.left = 1.0
        """The fraction of epsilon that queries may still spend, by the notes that were read last."""

    def answer(self, asked: Asked, metric: Any) -> bytes:
        """Return the reply to one stage. A request that is refused changes nothing.

        Rounds live side by side: each has a note of its own. The metric is a FederatedMetric with
        the data, or None where that is used up. Where there are counts of this round in the note,
        it continues with those.
        """
        mark = hashlib.sha256(asked.to_bytes()).digest()
        with self._store.transaction() as tables:
            notes = Notes(tables, self._spec.digest)
            kept = notes.read(asked.round)
            if kept == b"":
                raise ReleaseError(
                    "Expected a round that this client is in but it has finished or left "
                    f"{asked.round!r}. A retry is a new round."
                )
            note = _Note() if kept is None else _Note.from_bytes(kept)
            if note.mark != mark:
                note.answer = self._answered(asked, note, metric)
                note.mark = mark
                notes.write(asked.round, note.to_bytes())
        self.left = note.left
        return note.answer

    def forget(self, round: str) -> None:
        """Erase what was kept for a round. That it was begun stays: no round is answered again."""
        with self._store.transaction() as tables:
            Notes(tables, self._spec.digest).erase(round)

    def _answered(self, asked: Asked, note: _Note, metric: Any) -> bytes:
        """Return a fresh reply, and note what comes of it."""
        query = asked.agreed_query(self._spec)
        client = None if asked.stage is Stage.SHARE else self._client(asked, note)
        draws_later = asked.stage is Stage.ADVERTISE
        if (asked.stage.asks_data or draws_later) and query.fraction > note.left:
            raise ReleaseError(
                f"Expected a query that the data is left for in round {asked.round!r} but it has been answered from. A "
                "retry is a new round."
            )
        if asked.stage.asks_data:
            answer = self._drawn(asked, note, client, metric)
            note.left -= query.fraction
            self._round = asked.round
            self._metric = metric if note.left > 0 else None
            note.suspended = metric.suspend() if note.left > 0 else b""
        else:
            answer = asked.answered_by(client)
        note.client = client.to_bytes() if client is not None else b""
        return answer

    def _client(self, asked: Asked, note: _Note) -> SecureAggregationClient:
        """Return this client's side of secure aggregation: a new one, or the one in the note."""
        config = asked.agreed_config(self._spec, self._signing_key is not None)
        keys = (self._signing_key, self._verification_keys)
        if asked.stage is Stage.ADVERTISE:
            return SecureAggregationClient(self._name, config, *keys)
        if note.client:
            client = SecureAggregationClient.from_bytes(note.client, config, *keys)
            if client.client_id == self._name:
                return client
        raise SecureAggregationError(
            "Expected an aggregation that this client has begun but got another."
        )

    def _drawn(
        self, asked: Asked, note: _Note, client: SecureAggregationClient | None, metric: Any
    ) -> bytes:
        """Return the reply of a stage that draws, by the client of the round."""
        holds_client = self._metric is metric and self._round == asked.round
        if metric is not None and note.suspended and not holds_client:
            metric.resume(note.suspended)
        return asked.answered_by(client, metric)


@dataclass(repr=False)
class _Note:
    """What a node knows of one round, all of it secret."""

    left: float = 1.0
    mark: bytes = b""
    """The digest of what was answered last."""
    answer: bytes = b""
    client: bytes = b""
    """The progress of secure aggregation."""
    suspended: bytes = b""
    """Between two queries, the client with its counts."""

    def to_bytes(self) -> bytes:
        blocks = self.left.hex().encode(), self.mark, self.answer, self.client, self.suspended
        return frame(Kind.NOTES, *map(pack_block, blocks))

    @classmethod
    def from_bytes(cls, data: bytes) -> _Note:
        reader = Reader(data, Kind.NOTES)
        left, mark, answer, client, suspended = (reader.block() for _ in range(5))
        reader.end()
        try:
            fraction = float.fromhex(left.decode())
        except (ValueError, OverflowError):
            fraction = -1.0
        if not 0 <= fraction <= 1:
            raise reader.error("a fraction of epsilon", "other bytes")
        return cls(
            left=fraction,
            mark=mark,
            answer=answer,
            client=client,
            suspended=suspended,
        )
