"""Node: a client that survives its process.

Every message may find a new process of the node: after a crash, or because the trainer starts one
for each message. So a node keeps a note about each round in its own store, and these rules hold,
whatever the transport:

- A reply is noted on disk before it leaves.
- A draw is made from one note. Immediately before it, the note is compared with the one that was
  read and swapped for an empty one. So no two processes draw from the same note, and a node that is
  killed between the swap and the reply has dropped out of the round: the noise was paid for and is
  lost.
- Every other stage reads its note, replies, and writes the next note in one transaction. A node
  that is killed there goes on.
- Rounds live side by side. A note belongs to one spec and one round, and is touched by no other.
- Between the two queries of a round the note holds the client with its raw counts. It is erased
  when the last query is answered, when a draw is refused, on :meth:`Node.forget`, and by the first
  process that opens the store a day later.
- That a round was begun is never erased: a round that is over is never begun again.

A note goes through these states, from left to right. A round of two queries does so twice::

    (none) --ADVERTISE, SHARE_KEYS--> keys --MASK--> (empty) --noted--> keys, counts --UNMASK-->
    (none) --JOIN--> joined --SHARE--> (empty) --noted--> counts

Without counts, after the last query, the round is over.

**Before anybody pays.** In the first stage of a round, ``ADVERTISE`` or ``JOIN``, a node says
whether it can take part in the whole release: it compares the spec, reserves the price in its
ledger, and writes its note. A node that cannot do one of them refuses, when nobody has drawn. Its
refusal depends on nothing in the data. The reservation ends with the first draw, on
:meth:`Node.forget`, or undrawn after ``RESERVED_SECONDS``, at no cost.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from torchmetrics_fed.aggregation.secure import SecureAggregationClient
from torchmetrics_fed.aggregation.secure.states import ClientState
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import (
    FederatedMetricError,
    LedgerError,
    ReleaseError,
    SecureAggregationError,
    WireError,
)
from torchmetrics_fed.exchange.client import Evaluation
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.exchange.terms import Terms
from torchmetrics_fed.privacy.store import Notes, Store
from torchmetrics_fed.release import Query
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind, Reader, frame, pack_block

DATA_REFUSED = (
    "The data of this client cannot be released. Its own log says why; nothing of it is said here "
    "because that would depend on the data."
)
"""The one text towards others for every refusal that depends on data."""

RESERVED_SECONDS = 60 * 60
"""How long a node that has joined a release keeps its price free, in seconds. The first draw
follows within minutes, and longer only where an evaluation takes longer. A reservation that has
expired can be charged like any release, if the budget is still there."""

_log = logging.getLogger("torchmetrics_fed")


class Node:
    """Replies to requests about one client's data, in as many processes as it takes.

    Args:
        name: the client's name.
        terms: what it has agreed to, and the ledger that is charged.
        store: for notes, which hold secrets, and between two queries raw counts. With a store in
            memory, a node whose process ends has dropped out.
        signing_key: as in :class:`SecureAggregationClient`, with ``verification_keys``, where
            aggregations are signed.
        verification_keys: by client, public keys.
        repeats: whether the last request, sent again, gets the very same reply again. A transport
            whose messages carry more than the reply cannot repeat them.
    """

    def __init__(
        self,
        name: str,
        terms: Terms,
        store: Store,
        *,
        signing_key: bytes | None = None,
        verification_keys: Mapping[str, bytes] | None = None,
        repeats: bool = True,
    ) -> None:
        self._name = name
        self._terms = terms
        self._store = store
        self._signing_key = signing_key
        self._verification_keys = verification_keys
        self._repeats = repeats

    def reply(self, request: Request, evaluation: Evaluation | None = None) -> bytes:
        """Return the reply to a request.

        Args:
            request: what the coordinator asks.
            evaluation: the client's data, or None where it was handed over already: the second
                query is answered from the counts in the note.
        """
        with self.replying(request) as pending:
            return pending.make(evaluation)

    @contextmanager
    def replying(self, request: Request) -> Iterator[PendingReply]:
        """Check a request, let the caller make the reply, and note it when the block ends well.

        A transport that runs the user's evaluation between request and reply uses it: no
        transaction spans the block.
        """
        query = request.agreed_query(self._terms.spec)
        self._check_stage(request)
        with self._notes() as notes:
            content = notes.read(request.round)
        pending = PendingReply(self, request, query=query, content=content)
        is_noted = False
        try:
            yield pending
            pending.finish()
            is_noted = True
        finally:
            if not is_noted:
                pending.give_back()

    def forget(self, round: str) -> None:
        """Erase the note about a round. That it was begun stays: no round is answered again.

        A reservation that was not drawn is given back. Between two queries the second will never
        be answered, so the ledger is charged what was drawn; see :meth:`PrivacyLedger.settle`.
        """
        with self._notes() as notes:
            content = notes.read(round)
            notes.erase(round)
        if content is None:
            return
        if _is_between_queries(content) and self._charges(round):
            self._terms.ledger.settle(self._terms.entry(round))
        else:
            self._cancel(round)

    def _charges(self, round: str) -> bool:
        """Whether a release of this round is charged by its name."""
        return self._terms.spec.privacy.charges and bool(round)

    def _reserve(self, round: str) -> None:
        """Keep the price of the release free. Raises if the budget does not cover it."""
        if self._charges(round):
            self._terms.ledger.reserve(self._terms.entry(round), RESERVED_SECONDS)

    def _cancel(self, round: str) -> None:
        """Give back the reservation of a release that was not drawn."""
        if self._charges(round):
            self._terms.ledger.cancel(self._terms.entry(round))

    @contextmanager
    def _notes(self) -> Iterator[Notes]:
        """The notes of this spec, in one transaction of the store."""
        with self._store.transaction() as tables:
            yield Notes(tables, self._terms.spec.digest)

    def _check_stage(self, request: Request) -> None:
        """Raise for a stage of secure aggregation where shares are visible, and vice versa."""
        hides_shares = self._terms.spec.hides_shares
        if hides_shares != request.stage.is_secure:
            journey = "are sent as they are"
            if hides_shares:
                journey = "travel through secure aggregation"
            raise ReleaseError(
                f"Expected another stage than {request.stage} because shares {journey} here. Build "
                "every metric with the same arguments."
            )


class PendingReply:
    """A reply in the making.

    Args:
        node: the node that replies.
        request: the request.
        query: its query, which the client agrees to.
        content: the note about the round as it was read; None if the round was never begun, empty
            if it is over.
    """

    def __init__(
        self, node: Node, request: Request, *, query: Query, content: bytes | None
    ) -> None:
        self._node = node
        self._request = request
        self._query = query
        self._content = content
        self._mark = request.digest
        if content == b"":
            raise ReleaseError(
                f"Round {request.round!r} is over for this client: every query was answered, or "
                "the client was interrupted or left. It stays out of this round; a retry is a new "
                "round."
            )
        self._note = _Note() if content is None else _Note.from_bytes(content)
        self._next_note: _Note | None = None
        self._has_reserved = False
        self.is_repeated = node._repeats and self._note.mark == self._mark
        """Whether the reply is the last one, made again."""
        self._aggregation: SecureAggregationClient | None = None
        if not self.is_repeated and request.stage.is_secure:
            self._aggregation = self._begun_aggregation()

    def make(self, evaluation: Evaluation | None = None) -> bytes:
        """Return the reply. Where data is asked for, this draws, and charges the release."""
        if self.is_repeated:
            return self._note.reply
        try:
            if self._request.stage.asks_data:
                return self._draw(evaluation)
            return self._exchange()
        except FederatedMetricError as error:
            raise for_others(error) from None

    def finish(self) -> None:
        """Note the reply that was drawn."""
        if self._next_note is not None:
            with self._node._notes() as notes:
                self._write(notes, self._next_note)

    def give_back(self) -> None:
        """Give back the reservation after a failure: this client has dropped out of the round."""
        if self._has_reserved or self._request.stage.asks_data:
            with suppress(LedgerError):  # a ledger that cannot be written lets it expire
                self._node._cancel(self._request.round)

    def _exchange(self) -> bytes:
        """Return the reply of a stage without data, noted in the same transaction."""
        if self._request.stage.asks_first and self._note.fraction_left == 1:
            self._node._reserve(self._request.round)
            self._has_reserved = True
        with self._node._notes() as notes:
            self._check_unchanged(notes)
            reply = self._request.reply(self._aggregation)
            self._write(notes, self._noted(reply))
        return reply

    def _draw(self, evaluation: Evaluation | None) -> bytes:
        """Return the reply of a stage that draws. It is noted by :meth:`finish`."""
        if self._next_note is not None:
            raise ReleaseError(
                "Expected one share in each reply but a second was asked for. Make the reply once."
            )
        if evaluation is None and not self._note.counts:
            raise ReleaseError(
                f"Cannot reply: this client holds no data of round {self._request.round!r}. A "
                "retry is a new round."
            )
        if self._note.fraction_left <= 0:
            raise ReleaseError(
                f"Every query of round {self._request.round!r} has been answered. A retry is a new "
                "round."
            )
        with self._node._notes() as notes:
            self._check_unchanged(notes)
            notes.write(self._request.round, b"")
        if self._note.counts:
            evaluation = Evaluation.resumed(self._note.counts, self._node._terms)
        assert evaluation is not None
        evaluation.client.adopt(self._node._terms)
        reply = self._request.reply(self._aggregation, evaluation)
        fraction_left = max(self._note.fraction_left - self._query.fraction, 0.0)
        self._next_note = replace(
            self._noted(reply),
            fraction_left=fraction_left,
            counts=evaluation.suspended() if fraction_left > 0 else b"",
        )
        return reply

    def _noted(self, reply: bytes) -> _Note:
        """Return the note about the round after this reply, with the data as it was."""
        request = self._request
        note = self._note
        if self._aggregation is not None:
            note = replace(note, aggregation=self._aggregation.to_bytes())
        if request.stage is Stage.ADVERTISE:
            note = replace(note, begun=note.begun + _digest(request.start))
        if self._node._repeats:
            note = replace(note, mark=self._mark, reply=reply)
        return note

    def _write(self, notes: Notes, note: _Note) -> None:
        """Write a note. An empty one says that the round is over."""
        has_drawn = note.fraction_left < 1
        holds_nothing = has_drawn and not (note.reply or note.aggregation or note.counts)
        notes.write(self._request.round, b"" if holds_nothing else note.to_bytes())

    def _check_unchanged(self, notes: Notes) -> None:
        """Raise if another process has replied since the note was read."""
        if notes.read(self._request.round) != self._content:
            raise ReleaseError(
                f"Another process of this client has gone on with round {self._request.round!r}. "
                "It stays out of this round; a retry is a new round."
            )

    def _begun_aggregation(self) -> SecureAggregationClient:
        """Return this client's side of secure aggregation: a new one, or the one in the note."""
        node = self._node
        request = self._request
        signing_key = node._signing_key
        verification_keys = node._verification_keys
        config = request.agreed_config(node._terms.spec, signed=signing_key is not None)
        if request.stage is Stage.ADVERTISE:
            if _digest(request.start) in self._note.begun_aggregations:
                raise SecureAggregationError(
                    f"This client has begun the aggregation {config.round_id!r} before. A retry is "
                    "a new round."
                )
            return SecureAggregationClient(node._name, config, signing_key, verification_keys)
        if not self._note.aggregation:
            raise SecureAggregationError(
                "Expected an aggregation that this client has begun but it has no notes about "
                f"{config.round_id!r}: it did not begin it, or its notes were not kept between "
                "messages. It stays out of this round."
            )
        client = SecureAggregationClient.from_bytes(
            self._note.aggregation, config, signing_key, verification_keys
        )
        if client.client_id != node._name:
            raise SecureAggregationError(
                "Expected an aggregation that this client has begun but got another."
            )
        if request.stage is Stage.MASK and client.state is not ClientState.SHARED:
            raise SecureAggregationError(
                f"Expected a client that is SHARED but this one is {client.state.name}: each stage "
                "is gone through once, in order."
            )
        return client


def for_others(error: FederatedMetricError) -> FederatedMetricError:
    """Return the error as others may hear it: the text of one about the data stays here."""
    if not error.depends_on_data:
        return error
    _log.warning("torchmetrics-fed: this client refused because of its data. %s", error)
    return ReleaseError(DATA_REFUSED)


def _is_between_queries(content: bytes) -> bool:
    """Whether a note is of a round with a query that was answered and one that was not."""
    try:
        return bool(content) and bool(_Note.from_bytes(content).counts)
    except WireError:  # a damaged note says nothing, and the charge stays as it is
        return False


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@dataclass(frozen=True, repr=False)
class _Note:
    """What a node knows about one round, all of it secret.

    Args:
        fraction_left: the fraction of epsilon that queries may still spend.
        mark: the digest of the last request, where replies are repeated.
        reply: the reply to it.
        aggregation: the progress of secure aggregation.
        begun: the digests of all aggregations that were begun, one after the other.
        counts: between two queries, the client with its raw counts.
    """

    fraction_left: float = 1.0
    mark: bytes = b""
    reply: bytes = b""
    aggregation: bytes = b""
    begun: bytes = b""
    counts: bytes = b""

    @property
    def begun_aggregations(self) -> set[bytes]:
        """The digests of all aggregations that were begun."""
        starts = range(0, len(self.begun), DIGEST_BYTES)
        return {self.begun[start : start + DIGEST_BYTES] for start in starts}

    def to_bytes(self) -> bytes:
        return frame(
            Kind.NOTES,
            pack_block(self.fraction_left.hex().encode()),
            pack_block(self.mark),
            pack_block(self.reply),
            pack_block(self.aggregation),
            pack_block(self.begun),
            pack_block(self.counts),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> _Note:
        reader = Reader(data, Kind.NOTES)
        encoded = reader.block()
        try:
            fraction_left = float.fromhex(encoded.decode())
        except (ValueError, OverflowError):
            fraction_left = -1.0
        if not 0 <= fraction_left <= 1:
            raise reader.error("a fraction of epsilon", "other bytes")
        note = cls(
            fraction_left=fraction_left,
            mark=reader.block(),
            reply=reader.block(),
            aggregation=reader.block(),
            begun=reader.block(),
            counts=reader.block(),
        )
        reader.end()
        return note
