"""Client: one client's side of one data set. Counts come in, replies go out.

These rules hold for every client:

- Noise is drawn and the ledger is charged here and nowhere else: for ranks, for shares, for secure aggregation, for
  simulated federations. :func:`draw_noise` is the only function of the package that calls the samplers.
- A release is charged before the first draw, once, for its whole epsilon.
- A draw leaves its client once, towards one sum. Where shares are visible, the same query gets the same bytes. Where
  shares are hidden, data enters one aggregation in each round; a retry is a new round, charged again. Hidden exact
  counts, of which there is no fresh draw, enter one aggregation.
- Whether a release is used again is decided by the client, never by what was counted: a release that is drawn again
  exactly when the data changed would show that it did.
- Counts are handed in with each call and never held. A client remembers them as a salted digest only, so that it can
  refuse a copy of the metric that has gone on counting.
- One thread at a time: every call that draws holds the client's lock.

The states of a client, and what may happen in each, are the table in :mod:`torchmetrics_fed.exchange.states`.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Iterator
from copy import copy
from itertools import islice
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
from torchmetrics_fed.exchange.queries import make_release, plan_label
from torchmetrics_fed.exchange.states import CLIENT_MOVES, State, moved
from torchmetrics_fed.exchange.terms import Terms
from torchmetrics_fed.privacy import LedgerEntry
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.samplers import drawn
from torchmetrics_fed.release import Query, Release, Share, Spec, Sum, rice
from torchmetrics_fed.release.share import ID_BYTES
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind, Reader, frame, pack_text

NAME_BITS = 62
"""Bits of a client's random name."""

_CHANGED = len(State)
_STATUSES = [*(state.value for state in State), "has counted other data since the release"]

_BLOCK_CELLS = 1 << 18
"""Cells of noise that are drawn at a time for the clients of a simulation."""


def draw_noise(law: Law, shape: tuple[int, ...]) -> Tensor:
    """Return a fresh draw of one share's noise: integers, but for the paper's continuous noise."""
    return torch.from_numpy(drawn(law, shape))


def noisy_cells(spec: Spec, query: Query, counts: Tensor) -> Tensor:
    """Return the cells of ``counts`` with one fresh draw of a share's noise. The release must have been charged."""
    law = spec.noise(query).law
    if law is None:
        raise ReleaseError("Cannot draw noise: the counts of this spec are exact.")
    return spec.cells(query, counts.cpu()) + draw_noise(law, spec.shape(query))


def reply_cells(spec: Spec, query: Query, counts: Tensor) -> Tensor:
    """Return the cells of a reply: exact, or with one fresh draw of noise, which was charged."""
    if spec.privacy.charges:
        return noisy_cells(spec, query, counts)
    return spec.cells(query, counts.cpu())


class Client:
    """One evaluation data set at one client: counted, then released once.

    Args:
        terms: the settings that its release is made by.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.spec = terms.spec
        self.state = State.COUNTING
        self.round = ""
        """The round that the last draw was for."""
        self.name = ""
        """A random name, which ranks agree on before the first charge. Only this client may continue its round."""
        self.release: Release | None = None
        self.persons: Persons | None = None
        """The table of the metric that was updated last."""
        self._shares: dict[bytes, Share | None] = {}
        """By the digest of an answered query, the share that was sent; None where it went into secure aggregation."""
        self._salt = secrets.token_bytes(16)
        self._seal = b""
        self._lock = threading.RLock()

    def check(self, event: str) -> State:
        """Return the state after an event, or raise if the event is refused now."""
        return moved(CLIENT_MOVES, self.state, event)

    def share(self, counts: Tensor, query: Query, round: str, ranks: Ranks) -> Share:
        """Return this client's reply to a query, its ranks' counts summed first; asked again, the very same."""
        with self._lock:
            self.spec.check_may_travel()
            self._check_answerable(query, round)
            if self.spec.privacy.charges:
                return self._private_share(counts, query, round, ranks)
            return self._exact_share(counts, query, round, ranks)

    def _exact_share(self, counts: Tensor, query: Query, round: str, ranks: Ranks) -> Share:
        ranks.agree(self.spec, {"query": query.digest}, 0, True)
        total = ranks.sum(counts)
        source = self._sealed(total) + query.digest + round.encode()
        cells = self.spec.cells(query, total.cpu()).contiguous()
        return Share(self.spec, query, cells, round, self._agreed_id(source, ranks))

    def _private_share(self, counts: Tensor, query: Query, round: str, ranks: Ranks) -> Share:
        agreement = self._agree(counts, ranks, {"query": query.digest, "round": round.encode()})
        after = self.check("answer")
        if self.state is State.ANSWERED and round != self.round:
            raise ReleaseError(
                f"Expected the round that this client's share was drawn for, {self.round!r}, but got {round!r}: the "
                "same noise in two sums isolates whoever is in one of them. Call `reset` and count the data again for "
                "a fresh draw, which is charged again."
            )
        if query.digest in self._shares:
            sent = self._shares[query.digest]
            if sent is None:
                raise ReleaseError(
                    "Expected a query that was not answered yet. Use the share that was sent."
                )
            return sent
        name = self.name or f"{agreement.proposal:016x}"
        if self.state is State.COUNTING:
            ranks.check_persons(self.spec.privacy.examples_per_person)
        self._charge(query, round, name, ranks)
        cells = self._drawn_once(query, counts, ranks)
        mark = self._agreed_id(secrets.token_bytes(16), ranks)
        share = Share(self.spec, query, cells, round, mark)
        self._remember(query, share, name, round)
        self._keep(after, counts)
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
        """Return this client's reply, masked for one aggregation. It is charged and drawn when all else is checked."""
        with self._lock:
            self._check_answerable(query, round)
            client.config.check_agreed(self.spec, query, client.config.signed)
            return client.mask(boxes, lambda: self._vector(counts, query, round, alone))

    def _vector(self, counts: Tensor, query: Query, round: str, alone: Alone) -> NDArray[np.int64]:
        """Return the fresh draw that enters one aggregation, as one row of integers."""
        charges = self.spec.privacy.charges
        agreement = self._agree(counts, alone, {})
        after = self.check("answer")
        is_retry = charges and self.state is State.ANSWERED and round != self.round
        entered = query.digest in self._shares or (bool(self._shares) and not charges)
        if entered and not is_retry:
            raise ReleaseError(
                f"Expected one aggregation of this data in round {round!r} but it has entered one before: two sums "
                "with the same noise, over other clients, give a client away. A retry is a new round, charged "
                "again."
            )
        name = self.name
        if is_retry or not name:
            name = f"{agreement.proposal:016x}"
        if charges:
            self._charge(query, round, name, alone)
        if is_retry:
            self._shares = {}
        cells = self._drawn_once(query, counts, alone)
        self._remember(query, None, name, round)
        self._keep(after, counts)
        return np.asarray(cells.reshape(-1).numpy())

    def publish(
        self, counts: Tensor, previous: Release | None, any_data: bool, ranks: Ranks
    ) -> Release:
        """Return the release of this data: the one there is, or the sum of all ranks' fresh shares."""
        with self._lock:
            return self._published(counts, previous, any_data, ranks)

    def _published(
        self, counts: Tensor, previous: Release | None, any_data: bool, ranks: Ranks
    ) -> Release:
        plan = self.terms.plan
        carried = b""
        if previous is not None and plan == "carry_over":
            carried = previous.last.digest
        settings = {"plan": plan_label(plan), "previous release": carried}
        agreement = self._agree(counts, ranks, settings, any_data)
        after = self.check("publish")
        if self.release is not None:
            return self.release
        if not agreement.any_data:
            raise ReleaseError(
                "Expected data but nothing was counted on any rank; nothing was charged. Call `update`."
            )
        if ranks.size < self.spec.clients_needed:
            raise ReleaseError(
                f"Expected at least min_clients={self.spec.clients_needed} ranks to sum their noise but got "
                f"{ranks.size}; nothing was sent. Where each client is a process of its own, use a Coordinator."
            )
        drawn_for_the_sum = self.spec.privacy.noise_drawn_by == "sum"
        if drawn_for_the_sum:  # else the ranks are clients, each with persons of its own
            ranks.check_persons(self.spec.privacy.examples_per_person)
        name = f"{agreement.proposal:016x}"

        def answer(query: Query) -> Sum:
            query = ranks.query_from_first(query, self.spec.grid.bins)
            self._charge(query, "", name, ranks)
            if drawn_for_the_sum:
                return Sum(self.spec, query, self._drawn_once(query, counts, ranks), ranks.size)
            cells = noisy_cells(self.spec, query, counts).to(counts.device)
            if self.spec.hides_shares:
                total = ranks.hidden_sum(cells, self.spec.binding(query) + name.encode())
            else:
                total = ranks.sum(cells)
            return Sum(self.spec, query, total.cpu(), ranks.size)

        self.release = make_release(plan, self.spec, answer, previous=previous)
        self.name = name
        self._keep(after, counts)
        return self.release

    def check_unchanged(self, counts: Tensor) -> None:
        """Raise if ``counts`` are not those that were released."""
        if self._changed(counts):
            raise ReleaseError(
                "Expected the data that was released but this copy of the metric has counted something else since. Its "
                "data belongs to a client whose data was released: call `reset` on the copy before it counts data of "
                "its own."
            )

    def to_bytes(self, counts: Tensor) -> bytes:
        """Return the client and the raw counts, for this node's own store between two queries of a round."""
        if self.state is not State.ANSWERED:
            raise ReleaseError(
                f"Expected a client between two queries but this one {self.state.value}."
            )
        how, packed = rice.pack(counts.cpu().contiguous().numpy().reshape(-1))
        head = [
            self.spec.digest,
            pack_text(self.name),
            pack_text(self.round),
            bytes([len(self._shares)]),
        ]
        return frame(Kind.CLIENT, *head, *self._shares, bytes([how]), packed)

    @classmethod
    def from_bytes(cls, note: bytes, terms: Terms) -> tuple[Client, Tensor]:
        """Return the client that :meth:`to_bytes` wrote, and its counts. What was answered is not answered again."""
        reader = Reader(note, Kind.CLIENT)
        if reader.take(DIGEST_BYTES) != terms.spec.digest:
            raise reader.error("a client of this metric", "one of another spec")
        client = cls(terms)
        client.name = reader.text()
        client.round = reader.text(empty=True)
        digests = reader.rows(reader.number(1), DIGEST_BYTES)
        client._shares = dict.fromkeys(digests)
        if not digests or len(client._shares) < len(digests):
            raise reader.error("queries that were answered, each once", "others")
        shape = terms.spec.counts_shape
        how = reader.number(1)
        integers = rice.unpack(how, reader.rest, int(np.prod(shape)))
        counts = torch.from_numpy(integers).reshape(shape)
        client._keep(State.ANSWERED, counts)
        return client, counts

    def without_counts(self, empty: Tensor) -> Client:
        """Return this client for a metric that has left its counts behind."""
        twin = copy(self)
        twin.persons = None
        twin._keep(self.state, empty)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def _agree(
        self, counts: Tensor, ranks: Ranks, settings: dict[str, bytes], any_data: bool = True
    ) -> Agreement:
        """Return what ranks know, with a name for this attempt, once all are at the same point."""
        status = list(State).index(self.state)
        if self._changed(counts):
            status = _CHANGED
        agreement = ranks.agree(self.spec, settings, status, any_data)
        lowest, highest = agreement.statuses
        if lowest != highest:
            raise ReleaseError(
                f"Expected all ranks at the same point but one {_STATUSES[lowest]} and one {_STATUSES[highest]}; this "
                f"rank {_STATUSES[status]}. Call `reset` on every rank or on none."
            )
        self.check_unchanged(counts)
        return agreement

    def _charge(self, query: Query, round: str, name: str, ranks: Ranks) -> None:
        """Charge the release on every rank before any rank draws. What fails later has been paid for.

        Each attempt has a name, so that no second draw is taken for the first; ranks that share a file write one entry.
        """
        refusal = None
        try:
            charge(self.terms, query, name, round, again=ranks.size > 1)
        except LedgerError as error:
            refusal = error
        if ranks.any(refusal is not None):
            elsewhere = "Expected every rank's ledger to allow this release but one refused; nothing was drawn."
            raise refusal or ReleaseError(elsewhere)

    def _drawn_once(self, query: Query, counts: Tensor, ranks: Ranks) -> Tensor:
        """Return the cells of all ranks' counts with one draw of noise, the same on every rank."""
        total = ranks.sum_to_first(counts)
        cells = torch.zeros(self.spec.shape(query), dtype=self.spec.dtype)
        if ranks.is_first:
            cells = reply_cells(self.spec, query, total)
        return ranks.from_first(cells).cpu()

    def _agreed_id(self, source: bytes, ranks: Ranks) -> bytes:
        """The first rank's id for a share: exact counts that are sent again are the same share."""
        mark = hashlib.sha256(source).digest()[:ID_BYTES]
        sent = ranks.from_first(torch.frombuffer(bytearray(mark), dtype=torch.uint8))
        return bytes(sent.cpu().numpy())

    def _remember(self, query: Query, share: Share | None, name: str, round: str) -> None:
        self.name = name
        self.round = round
        self._shares[query.digest] = share

    def _keep(self, state: State, counts: Tensor) -> None:
        self.state = state
        self._seal = self._sealed(counts)

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


def charge(terms: Terms, query: Query, name: str, round: str = "", *, again: bool = False) -> None:
    """Charge a release to the ledger before a reply to one of its queries is drawn, by a client of this name."""
    spec = terms.spec
    entry = LedgerEntry(
        terms.data,
        round or name,
        spec.epsilon,
        spec.delta,
        spec.privacy.mechanism,
        spec=spec.digest.hex(),
        client=name,
    )
    law = spec.noise(query).law
    terms.ledger.charge(entry, query.digest, query.fraction, law=law, again=again)


class Cohort:
    """All clients of a simulated federation, in one process. A person is at one client: one charge is for all of them.

    Args:
        terms: the settings that the release is made by.
        round: the name of the release in the ledger; a random name if empty.
    """

    def __init__(self, terms: Terms, round: str = "") -> None:
        self.terms = terms
        self.spec = terms.spec
        self._round = round
        self._name = f"{secrets.randbits(NAME_BITS):016x}"  # no other draw is taken for this one

    def charge(self, query: Query) -> None:
        """Charge the release, before a reply to this query is drawn. Exact counts cost nothing."""
        if self.spec.privacy.charges:
            charge(self.terms, query, self._name, self._round)

    def share(self, query: Query, counts: Tensor) -> Sum:
        """Return one client's reply, as a sum of one share. The query must have been charged."""
        return Sum(self.spec, query, reply_cells(self.spec, query, counts).contiguous())

    def sum(self, query: Query, counts: Tensor, clients: int, draws: Iterator[int]) -> Sum:
        """Return the sum of the replies of ``clients`` clients whose counts are added up, with one draw for each.

        ``draws`` are as many numbers as noise is drawn, for a caller that shows how far it has come.
        """
        self.charge(query)
        cells = self.spec.cells(query, counts).to(self.spec.dtype)
        law = self.spec.noise(query).law
        if law is not None:
            shape = self.spec.shape(query)
            block = max(_BLOCK_CELLS // cells.numel(), 1)  # of several draws, which is faster
            while shares := sum(1 for _ in islice(draws, block)):
                cells += draw_noise(law, (shares, *shape)).sum(0)
        return Sum(self.spec, query, cells, clients)


class SharedClient:
    """The client that metrics of the same data have in common. The first update begins it, and a reset closes it.

    A copy that is made before there is data begins a client of its own. A copy that holds data shares the client, and
    so the one release there will be, but not what comes after its reset. ``previous`` may place the leaves of the next
    release.
    """

    def __init__(self, client: Client | None = None, previous: Release | None = None) -> None:
        self.client = client
        self.previous = previous

    def begun(self, terms: Terms) -> Client:
        """Return the client that is open, or a new one."""
        if self.client is None:
            self.client = Client(terms)
        return self.client

    def close(self, client: Client | None) -> None:
        """End ``client`` if it is the open one: what is counted next is other data."""
        if client is not None and client.release is not None:
            self.previous = client.release
        if client is None or client is self.client:
            self.client = None

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedClient:
        twin: SharedClient = memo.setdefault(id(self), SharedClient(self.client, self.previous))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # metrics carry their client themselves, and leave their counts behind
        return SharedClient, (None, self.previous)
