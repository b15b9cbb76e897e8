"""Session: one evaluation data set at one client. What was drawn of it, for whom, at what charge.

The ways out of a client are here and nowhere else: :meth:`Session.share` where shares may be seen, :meth:`Session.mask`
through secure aggregation, :meth:`Session.publish` over ranks. Each agrees with the other ranks, charges the ledger,
draws once, and remembers. Counts are handed in, and never held.
"""

from __future__ import annotations

import hashlib
import secrets
from copy import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.aggregation import Alone, Ranks
from torchmetrics_fed.aggregation.ranks import Agreement
from torchmetrics_fed.aggregation.secure import SecureAggregationClient
from torchmetrics_fed.counting.persons import Persons
from torchmetrics_fed.errors import LedgerError, ReleaseError
from torchmetrics_fed.exchange.queries import Plan, make_release, plan_label
from torchmetrics_fed.exchange.states import SESSION_MOVES, State, moved
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.release import Query, Release, Share, Spec, Sum, rice
from torchmetrics_fed.release.share import ID_BYTES
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind, Reader, frame, pack_text

_CHANGED = len(State)
_STATUSES = [*(state.value for state in State), "has counted other data since the release"]


class Session:
    """The life of one body of data: counted, then released once.

    Whether a release is used again is decided by the session, never by what was counted: a release that is drawn again
    exactly when the data changed would show that it did. What was counted is only remembered as a salted digest, to
    refuse a copy of the metric that has gone on counting.
    """

    def __init__(self, spec: Spec, ledger: PrivacyLedger, data: str) -> None:
        self.spec, self.ledger, self.data = spec, ledger, data
        self.state, self.round = State.COUNTING, ""
        self.name = ""
        """A random name, which ranks agree on before the first charge; only this session may continue its round."""
        self.release: Release | None = None
        self.persons: Persons | None = None
        """The table of the metric that was updated last."""
        self.charged = True
        """Whether its release is of data that was counted here, rather than given."""
        self._answered: dict[bytes, Share | None] = {}
        """By the query's digest, the share that was sent; None if it went into secure aggregation."""
        self._salt, self._seal = secrets.token_bytes(16), b""

    @classmethod
    def of_release(
        cls, release: Release, ledger: PrivacyLedger, data: str, empty: Tensor
    ) -> Session:
        """Return the session of a metric that reads a release and has no counts."""
        session = cls(release.spec, ledger, data)
        session._keep(State.RELEASED, empty)
        session.release, session.charged = release, False
        return session

    def check(self, event: str) -> State:
        return moved(SESSION_MOVES, self.state, event)

    def share(self, counts: Tensor, query: Query, round: str, ranks: Ranks) -> Share:
        """Return this client's answer to a query, its ranks' counts summed first; asked again, the very same."""
        self.spec.check_may_travel()
        self._check_answerable(query, round)
        if not self.spec.privacy.charges:
            ranks.agree(self.spec, {"query": query.digest}, 0, True)
            total = ranks.sum(counts)
            mark = self._agreed_id(self._sealed(total) + query.digest + round.encode(), ranks)
            return Share(
                self.spec, query, self.spec.cells(query, total.cpu()).contiguous(), round, mark
            )
        heard = self._agree(counts, ranks, {"query": query.digest, "round": round.encode()})
        after = self.check("answer")
        if self.state is State.ANSWERED and round != self.round:
            raise ReleaseError(
                f"Expected the round that this client's share was drawn for, {self.round!r}, but got {round!r}: the "
                "same noise in two sums isolates whoever is in one of them. Call `reset` and count the data again for "
                "a fresh draw, which is charged again."
            )
        if query.digest in self._answered:
            if (known := self._answered[query.digest]) is None:
                raise ReleaseError(
                    "Expected a query that was not answered yet. Use the share that was sent."
                )
            return known
        name = self.name or f"{heard.proposal:016x}"
        if self.state is State.COUNTING:
            ranks.check_persons(self.spec.privacy.examples_per_person)
        self._charge(query, round, name, ranks)
        cells = self._drawn_once(query, counts, ranks)
        share = Share(
            self.spec, query, cells, round, self._agreed_id(secrets.token_bytes(16), ranks)
        )
        self._remember(query, share, name, round, after, counts)
        return share

    def mask(
        self,
        counts: Tensor,
        client: SecureAggregationClient,
        boxes: bytes,
        query: Query,
        round: str,
        alone: Alone,
    ) -> bytes:
        """Return this client's answer, masked for one aggregation. It is charged and drawn when all else is checked.

        A second aggregation of the same round gets an error, whatever its name. Another round is a fresh draw and a new
        charge; exact counts, of which there is no fresh draw, enter one aggregation only.
        """
        self._check_answerable(query, round)
        client.config.check_agreed(self.spec, query, client.config.signed)

        def vector() -> NDArray[np.int64]:
            heard = self._agree(counts, alone, {})
            after = self.check("answer")
            afresh = (
                self.state is State.ANSWERED and round != self.round and self.spec.privacy.charges
            )
            if not afresh and (
                query.digest in self._answered or (self._answered and not self.spec.privacy.charges)
            ):
                raise ReleaseError(
                    f"Expected one aggregation of this data in round {round!r} but it has entered one before: two sums "
                    "with the same noise, over other clients, give a client away. A retry is a new round, charged "
                    "again."
                )
            name = f"{heard.proposal:016x}" if afresh or not self.name else self.name
            if self.spec.privacy.charges:
                self._charge(query, round, name, alone)
            if afresh:
                self._answered = {}
            cells = self._drawn_once(query, counts, alone)
            self._remember(query, None, name, round, after, counts)
            return np.asarray(cells.reshape(-1).numpy())

        return client.mask(boxes, vector)

    def publish(
        self, counts: Tensor, plan: Plan, previous: Release | None, any_data: bool, ranks: Ranks
    ) -> Release:
        """Return the release of this data: the one there is, or the sum of all ranks' fresh shares."""
        carried = previous.last.digest if previous is not None and plan == "carry_over" else b""
        heard = self._agree(
            counts, ranks, {"plan": plan_label(plan), "previous release": carried}, any_data
        )
        after = self.check("publish")
        if self.release is not None:
            return self.release
        if not heard.any_data:
            raise ReleaseError(
                "Expected data but nothing was counted on any rank; nothing was charged. Call `update`."
            )
        if ranks.size < self.spec.clients_needed:
            raise ReleaseError(
                f"Expected at least min_clients={self.spec.clients_needed} ranks to sum their noise but got "
                f"{ranks.size}; nothing was sent. Where each client is a process of its own, use a Coordinator."
            )
        if (
            self.spec.privacy.noise_drawn_by == "sum"
        ):  # other ranks are clients, each with persons of its own
            ranks.check_persons(self.spec.privacy.examples_per_person)
        name = f"{heard.proposal:016x}"

        def answer(query: Query) -> Sum:
            query = ranks.query_from_first(query, self.spec.grid.bins)
            self._charge(query, "", name, ranks)
            if self.spec.privacy.noise_drawn_by == "sum":
                return Sum(self.spec, query, self._drawn_once(query, counts, ranks), ranks.size)
            cells = self.spec.noisy_cells(query, counts).to(counts.device)
            view = self.spec.binding(query) + name.encode()
            total = ranks.hidden_sum(cells, view) if self.spec.hides_shares else ranks.sum(cells)
            return Sum(self.spec, query, total.cpu(), ranks.size)

        release = make_release(plan, self.spec, answer, previous=previous)
        self.release, self.name = release, name
        self._keep(after, counts)
        return release

    def check_unchanged(self, counts: Tensor) -> None:
        """Raise if ``counts`` are not those that were released."""
        if self._changed(counts):
            raise ReleaseError(
                "Expected the data that was released but this copy of the metric has counted something else since. Its "
                "data belongs to a session that is over: call `reset` on the copy before it counts data of its own."
            )

    def to_bytes(self, counts: Tensor) -> bytes:
        """Return the session and the raw counts, for this node's own store between two queries of a round."""
        if self.state is not State.ANSWERED:
            raise ReleaseError(
                f"Expected a session between two queries but this one {self.state.value}."
            )
        how, packed = rice.pack(counts.cpu().contiguous().numpy().reshape(-1))
        head = (
            self.spec.digest,
            pack_text(self.name),
            pack_text(self.round),
            bytes([len(self._answered)]),
        )
        return frame(Kind.SESSION, *head, *self._answered, bytes([how]), packed)

    @classmethod
    def from_bytes(
        cls, note: bytes, spec: Spec, ledger: PrivacyLedger, data: str
    ) -> tuple[Session, Tensor]:
        """Return the session that :meth:`to_bytes` wrote, and its counts. What was answered is not answered again."""
        reader = Reader(note, Kind.SESSION)
        if reader.take(DIGEST_BYTES) != spec.digest:
            raise reader.error("a session of this metric", "one of another spec")
        session, shape = cls(spec, ledger, data), spec.counts_shape
        session.name, session.round = reader.text(), reader.text(empty=True)
        digests = reader.rows(reader.number(1), DIGEST_BYTES)
        session._answered = dict.fromkeys(digests)
        if not digests or len(session._answered) < len(digests):
            raise reader.error("queries that were answered, each once", "others")
        counts = torch.from_numpy(
            rice.unpack(reader.number(1), reader.rest, int(np.prod(shape)))
        ).reshape(shape)
        session._keep(State.ANSWERED, counts)
        return session, counts

    def without_counts(self, empty: Tensor) -> Session:
        """Return this session for a metric that has left its counts behind."""
        twin = copy(self)
        twin.persons = None
        twin._keep(self.state, empty)
        return twin

    def _agree(
        self, counts: Tensor, ranks: Ranks, settings: dict[str, bytes], any_data: bool = True
    ) -> Agreement:
        """Return what ranks know, with a name for this attempt, once all are at the same point."""
        status = _CHANGED if self._changed(counts) else list(State).index(self.state)
        heard = ranks.agree(self.spec, settings, status, any_data)
        lowest, highest = heard.statuses
        if lowest != highest:
            raise ReleaseError(
                f"Expected all ranks at the same point of the session but one {_STATUSES[lowest]} and one "
                f"{_STATUSES[highest]}; this rank {_STATUSES[status]}. Call `reset` on every rank or on none."
            )
        self.check_unchanged(counts)
        return heard

    def _charge(self, query: Query, round: str, name: str, ranks: Ranks) -> None:
        """Charge the release on every rank before any rank draws. What fails later has been paid for.

        Each attempt has a name, so that no second draw is taken for the first; ranks that share a file write one entry.
        """
        refusal = None
        try:
            self.spec.charge(self.ledger, query, self.data, name, round, again=ranks.size > 1)
        except LedgerError as error:
            refusal = error
        if ranks.any(refusal is not None):
            other = "Expected every rank's ledger to allow this release but one refused; nothing was drawn."
            raise refusal or ReleaseError(other)

    def _drawn_once(self, query: Query, counts: Tensor, ranks: Ranks) -> Tensor:
        """Return the cells of all ranks' counts with one draw of noise, the same on every rank."""
        total = ranks.sum_to_first(counts)
        empty = torch.zeros(self.spec.shape(query), dtype=self.spec.dtype)
        cells = self.spec.answer(query, total) if ranks.is_first else empty
        return ranks.from_first(cells).cpu()

    def _agreed_id(self, source: bytes, ranks: Ranks) -> bytes:
        """The first rank's id for a share: exact counts that are sent again are the same share."""
        mark = hashlib.sha256(source).digest()[:ID_BYTES]
        return bytes(
            ranks.from_first(torch.frombuffer(bytearray(mark), dtype=torch.uint8)).cpu().numpy()
        )

    def _remember(
        self, query: Query, share: Share | None, name: str, round: str, state: State, counts: Tensor
    ) -> None:
        self.name, self.round, self._answered[query.digest] = name, round, share
        self._keep(state, counts)

    def _keep(self, state: State, counts: Tensor) -> None:
        self.state, self._seal = state, self._sealed(counts)

    def _changed(self, counts: Tensor) -> bool:
        return self.state is not State.COUNTING and self._seal != self._sealed(counts)

    def _sealed(self, counts: Tensor) -> bytes:
        seal = hashlib.sha256(self._salt)
        seal.update(counts.cpu().contiguous().numpy().reshape(-1).data)  # not a copy of them
        return seal.digest()

    def _check_answerable(self, query: Query, round: str) -> None:
        if self.spec.privacy.noise_drawn_by == "sum":
            raise ReleaseError(
                "Expected DistributedDP or LocalDP for shares but got CentralDP, whose noise one trusted party adds to "
                "the sum: what a client sends would be raw. Call `compute` where all the data is."
            )
        self.spec.check_query(query)
        pack_text(round)  # raises for a name that no message can hold, before anything is charged


class Sessions:
    """Where metrics that count the same data meet: they join one session, and a reset closes it.

    A copy made before there is data begins a session of its own. One that holds data shares the session, and so the one
    release there will be, but not what comes after its reset. ``previous`` may place the leaves of the next release.
    """

    def __init__(self, open: Session | None = None, previous: Release | None = None) -> None:
        self.open, self.previous = open, previous

    def join(self, spec: Spec, ledger: PrivacyLedger, data: str) -> Session:
        self.open = self.open or Session(spec, ledger, data)
        return self.open

    def close(self, session: Session | None) -> None:
        """End ``session`` if it is the open one: what is counted next is other data."""
        if session is not None and session.release is not None and session.charged:
            self.previous = session.release
        if session is None or session is self.open:
            self.open = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Sessions:
        twin: Sessions = memo.setdefault(id(self), Sessions(self.open, self.previous))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # metrics carry their session themselves, and leave their counts behind
        return Sessions, (None, self.previous)
