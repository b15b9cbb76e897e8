"""Node: a client's side of the stages. It notes every answer before that leaves, and gives no second one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchmetrics_fed.aggregation.secure import SecureAggregationClient
from torchmetrics_fed.errors import ReleaseError, SecureAggregationError
from torchmetrics_fed.exchange.stages import Asked
from torchmetrics_fed.privacy.store import Store
from torchmetrics_fed.release import Spec
from torchmetrics_fed.release.wire import Kind, Reader, frame, pack_block


class Node:
    """Answers what a client is asked, in as many processes as it takes.

    To read the notes, answer and note is one transaction. So a process that is killed in it has answered nothing and
    the next one goes on, no two processes go on from one note, and what was answered last is answered again in the very
    same bytes. Only between a charge and its note is a kill a dropout: the ledger knows the draw, and nobody has it.

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
        self._name, self._spec, self._store, self._keys = (
            name,
            spec,
            store,
            (signing_key, verification_keys),
        )
        self._metric: Any = None
        self.left = 1.0
        """The fraction of epsilon that queries may still spend, by the notes that were read last."""

    def answer(self, asked: Asked, metric: Any) -> bytes:
        """Return the answer to one stage. One that is refused changes nothing; one that is not erases other rounds.

        The metric is a FederatedMetric with the data, or None where that is used up. Where there are counts of this
        round in the notes, it continues with those.
        """
        mark = hashlib.sha256(asked.to_bytes()).digest()
        with self._store.transaction() as tables:
            found = tables.execute(
                "SELECT content FROM notes WHERE name = ?", (asked.round,)
            ).fetchone()
            if found == (b"",):
                raise ReleaseError(
                    f"Expected a round that this client is in but it has finished or left {asked.round!r}, or begun "
                    "another since. A retry is a new round."
                )
            notes = _Notes.from_bytes(found[0]) if found else _Notes()
            if notes.mark != mark:
                notes.answer, notes.mark = self._answered(asked, notes, metric), mark
                tables.execute("UPDATE notes SET content = x''")
                tables.execute(
                    "INSERT OR REPLACE INTO notes VALUES (?, ?)", (asked.round, notes.to_bytes())
                )
        self.left = notes.left
        return notes.answer

    def forget(self, round: str) -> None:
        """Erase what was kept for a round. That it was begun stays: no round is answered again."""
        with self._store.transaction() as tables:
            tables.execute("UPDATE notes SET content = x'' WHERE name = ?", (round,))

    def _answered(self, asked: Asked, notes: _Notes, metric: Any) -> bytes:
        """Return a fresh answer, and note what comes of it."""
        query, client = asked.agreed_query(self._spec), None
        if asked.stage != "share":
            config = asked.agreed_config(self._spec, self._keys[0] is not None)
            if asked.stage == "advertise":
                client = SecureAggregationClient(self._name, config, *self._keys)
            elif notes.client:
                client = SecureAggregationClient.from_bytes(notes.client, config, *self._keys)
            if client is None or client.client_id != self._name:
                raise SecureAggregationError(
                    "Expected an aggregation that this client has begun but got another."
                )
        if (asked.asks_data or asked.stage == "advertise") and query.fraction > notes.left:
            raise ReleaseError(
                f"Expected a query that the data is left for in round {asked.round!r} but it has been answered from. A "
                "retry is a new round."
            )
        if not asked.asks_data:
            answer = asked.answered_by(client)
        else:
            if metric is not None and notes.session and metric is not self._metric:
                metric.resume(notes.session)
            answer = asked.answered_by(client, metric)
            notes.left -= query.fraction if self._spec.privacy.charges else 1.0
            self._metric = metric if notes.left > 0 else None
            notes.session = metric.suspend() if notes.left > 0 else b""
        notes.client = client.to_bytes() if client is not None else b""
        return answer


@dataclass(repr=False)
class _Notes:
    """What a node knows of one round, all of it secret."""

    left: float = 1.0
    mark: bytes = b""
    """The digest of what was answered last."""
    answer: bytes = b""
    client: bytes = b""
    """The progress of secure aggregation."""
    session: bytes = b""
    """Between two queries, the session with its counts."""

    def to_bytes(self) -> bytes:
        blocks = self.left.hex().encode(), self.mark, self.answer, self.client, self.session
        return frame(Kind.NOTES, *map(pack_block, blocks))

    @classmethod
    def from_bytes(cls, data: bytes) -> _Notes:
        reader = Reader(data, Kind.NOTES)
        left, *blocks = (reader.block() for _ in range(5))
        reader.end()
        return cls(float.fromhex(left.decode()), *blocks)
