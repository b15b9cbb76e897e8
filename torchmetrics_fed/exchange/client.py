"""Client: one client's side of one data set. Counts come in, replies go out.

These rules hold for every client:

- Noise is drawn and the ledger is charged here and nowhere else: for ranks, for shares, for secure
  aggregation, for simulated federations. :func:`draw_noise` is the only function of the package
  that calls the samplers.
- A release is charged before the first draw, once, for its whole epsilon.
- A draw leaves its client once, towards one sum. Where shares are visible, the same query gets the
  same bytes. Where shares are hidden, data enters one aggregation in each round; a retry is a new
  round, charged again. Hidden exact counts, of which there is no fresh draw, enter one aggregation.
- Whether a release is used again is decided by the client, never by the counts: a release that is
  drawn again exactly when the data changed would show that it did.
- Counts are handed in with each call and never held. A client remembers them as a salted digest
  only, so that it can refuse a copy of the metric that has gone on counting.
- One thread at a time: every call that draws holds the client's lock.

The states of a client, and the events that are allowed in each, are the table in
:mod:`torchmetrics_fed.exchange.states`.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from copy import copy
from dataclasses import dataclass
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
from torchmetrics_fed.exchange.plans import make_release
from torchmetrics_fed.exchange.states import CLIENT_MOVES, State, moved
from torchmetrics_fed.exchange.terms import Terms
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.samplers import drawn
from torchmetrics_fed.release import Query, Release, Share, Spec, Sum, rice
from torchmetrics_fed.release.share import ID_BYTES
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind, Reader, frame, pack_text

NAME_BITS = 62
"""Bits of a client's random name."""

_CHANGED = len(State)
"""The status of a client whose metric has counted other data since the release."""

_STATUSES = [*(state.value for state in State), "has counted other data since the release"]
"""What ranks say of themselves where they are not at the same point."""


def draw_noise(law: Law, shape: tuple[int, ...]) -> Tensor:
    """Return a fresh draw of one share's noise: integers, but for the paper's continuous noise."""
    return torch.from_numpy(drawn(law, shape))


def noisy_cells(spec: Spec, query: Query, counts: Tensor) -> Tensor:
    """Return the cells of ``counts`` with one fresh draw of a share's noise.

    The release must have been charged.
    """
    law = spec.noise(query).law
    if law is None:
        raise ReleaseError("Cannot draw noise: the counts of this spec are exact.")
    return spec.cells(query, counts.cpu()) + draw_noise(law, spec.shape(query))


def reply_cells(spec: Spec, query: Query, counts: Tensor) -> Tensor:
    """Return the cells of a reply: exact, or with one fresh draw of noise, which was charged."""
    if spec.privacy.charges:
        return noisy_cells(spec, query, counts)
    return spec.cells(query, counts.cpu())


def charge_release(
    terms: Terms, query: Query, *, client: str, round: str, shared_by_ranks: bool = False
) -> None:
    """Charge a release to the ledger, before a reply to one of its queries is drawn.

    Args:
        terms: the settings of the release.
        query: the query that is about to be answered.
        client: the random name of the client that draws.
        round: the name of the round; the client's name stands for it if empty.
        shared_by_ranks: whether several ranks may write the same entry.
    """
    law = terms.spec.noise(query).law
    terms.ledger.charge(
        terms.entry(round or client, client),
        query.digest,
        query.fraction,
        law=law,
        may_be_recorded=shared_by_ranks,
    )


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
        """A random name, which ranks agree on before the first charge. Only this client may
        continue its round."""
        self.release: Release | None = None
        self.persons: Persons | None = None
        """The table of the metric that was updated last."""
        self._shares: dict[bytes, Share | None] = {}
        """By the digest of an answered query, the share that was sent; None where it went into
        secure aggregation."""
        self._salt = secrets.token_bytes(16)
        self._seal = b""
        """The salted digest of the counts at the last draw."""
        self._lock = threading.RLock()

    def check(self, event: str) -> State:
        """Return the state after an event, or raise if the event is refused now."""
        return moved(CLIENT_MOVES, self.state, event)

    def adopt(self, terms: Terms) -> None:
        """Charge this client's releases as ``terms`` say. Raises where it has drawn by others.

        A node calls it for the client of the metric that a transport hands over: the node's ledger
        is charged, and the metric that was updated is the metric that was agreed on.
        """
        with self._lock:
            terms.spec.check(self.spec)
            if terms.pays_as(self.terms):
                return
            if self.state is not State.COUNTING:
                raise ReleaseError(
                    f"Cannot take part with this data: it {self.state.value}, charged to another "
                    "ledger. Call `reset` and count the data again."
                )
            self.terms = terms

    def share(self, counts: Tensor, query: Query, *, round: str, ranks: Ranks) -> Share:
        """Return this client's reply to a query, its ranks' counts summed first.

        Asked again, the very same.
        """
        with self._lock:
            self.spec.check_may_travel()
            self._check_answerable(query, round)
            if self.spec.privacy.charges:
                return self._private_share(counts, query, round, ranks)
            return self._exact_share(counts, query, round, ranks)

    def _exact_share(self, counts: Tensor, query: Query, round: str, ranks: Ranks) -> Share:
        """Return the share of exact counts. Its id depends on them: asked again, it is the same."""
        ranks.agree(self.spec, {"query": query.digest}, 0, True)
        total = ranks.sum(counts)
        source = self._sealed(total) + query.digest + round.encode()
        cells = self.spec.cells(query, total.cpu()).contiguous()
        return Share(self.spec, query, cells, round, self._agreed_id(source, ranks))

    def _private_share(self, counts: Tensor, query: Query, round: str, ranks: Ranks) -> Share:
        """Return the share that was drawn for the query, or charge and draw it."""
        agreement = self._agree(counts, ranks, {"query": query.digest, "round": round.encode()})
        next_state = self.check("answer")
        if self.state is State.ANSWERED and round != self.round:
            raise ReleaseError(
                f"Expected the round that this client's share was drawn for, {self.round!r}, but "
                f"got {round!r}: the same noise in two sums isolates whoever is in one of them. "
                "Call `reset` and count the data again for a fresh draw, which is charged again."
            )
        if query.digest in self._shares:
            share = self._shares[query.digest]
            if share is None:
                raise ReleaseError(
                    "Expected a query that was not answered yet. Use the share that was sent."
                )
            return share
        name = self.name or f"{agreement.proposal:016x}"
        if self.state is State.COUNTING:
            ranks.check_persons(self.spec.privacy.examples_per_person)
        self._charge(query, round, name, ranks)
        cells = self._drawn_once(query, counts, ranks)
        share_id = self._agreed_id(secrets.token_bytes(16), ranks)
        share = Share(self.spec, query, cells, round, share_id)
        self._remember(query, share, name, round)
        self._enter(next_state, counts)
        return share

    def mask(
        self,
        counts: Tensor,
        query: Query,
        *,
        aggregation: SecureAggregationClient,
        boxes: bytes,
        round: str,
        this_process: Alone,
    ) -> bytes:
        """Return this client's reply, masked for one aggregation.

        It is charged and drawn when all else is checked.
        """
        with self._lock:
            self._check_answerable(query, round)
            aggregation.config.check_agreed(self.spec, query, aggregation.config.signed)
            return aggregation.mask(boxes, lambda: self._vector(counts, query, round, this_process))

    def _vector(
        self, counts: Tensor, query: Query, round: str, this_process: Alone
    ) -> NDArray[np.int64]:
        """Return the fresh draw that enters one aggregation, as one row of integers."""
        charges = self.spec.privacy.charges
        agreement = self._agree(counts, this_process, {})
        next_state = self.check("answer")
        is_retry = charges and self.state is State.ANSWERED and round != self.round
        has_entered = query.digest in self._shares or (bool(self._shares) and not charges)
        if has_entered and not is_retry:
            raise ReleaseError(
                f"Expected one aggregation of this data in round {round!r} but it has entered one "
                "before: two sums with the same noise, over other clients, give a client away. A "
                "retry is a new round, charged again."
            )
        name = self.name
        if is_retry or not name:
            name = f"{agreement.proposal:016x}"
        if charges:
            self._charge(query, round, name, this_process)
        if is_retry:
            self._shares = {}
        cells = self._drawn_once(query, counts, this_process)
        self._remember(query, None, name, round)
        self._enter(next_state, counts)
        return np.asarray(cells.reshape(-1).numpy())

    def publish(
        self, counts: Tensor, *, previous: Release | None, any_data: bool, ranks: Ranks
    ) -> Release:
        """Return the release of this data, or make it: the sum of all ranks' fresh shares."""
        with self._lock:
            return self._published(counts, previous, any_data, ranks)

    def _published(
        self, counts: Tensor, previous: Release | None, any_data: bool, ranks: Ranks
    ) -> Release:
        plan = self.terms.plan
        previous_digest = b""
        if previous is not None and plan.carries_over:
            previous_digest = previous.last.digest
        settings = {"plan": plan.label, "previous release": previous_digest}
        agreement = self._agree(counts, ranks, settings, any_data)
        next_state = self.check("publish")
        if self.release is not None:
            return self.release
        if not agreement.any_data:
            raise ReleaseError(
                "Expected data but nothing was counted on any rank; nothing was charged. Call "
                "`update`."
            )
        if ranks.size < self.spec.clients_needed:
            raise ReleaseError(
                f"Expected at least min_clients={self.spec.clients_needed} ranks to sum their "
                f"noise but got {ranks.size}; nothing was sent. Where each client is a process of "
                "its own, use a Coordinator."
            )
        if self.spec.privacy.noise_drawn_by == "sum":
            # where each rank draws, each is a client with persons of its own
            ranks.check_persons(self.spec.privacy.examples_per_person)
        name = f"{agreement.proposal:016x}"
        self.release = make_release(
            plan,
            self.spec,
            lambda query: self._sum_over_ranks(query, counts, name, ranks),
            previous=previous,
        )
        self.name = name
        self._enter(next_state, counts)
        return self.release

    def _sum_over_ranks(self, query: Query, counts: Tensor, name: str, ranks: Ranks) -> Sum:
        """Return the sum of all ranks' fresh replies to a query, which is charged."""
        query = ranks.query_from_first(query, self.spec.grid.bins)
        self._charge(query, "", name, ranks)
        if self.spec.privacy.noise_drawn_by == "sum":
            return Sum(self.spec, query, self._drawn_once(query, counts, ranks), ranks.size)
        cells = noisy_cells(self.spec, query, counts).to(counts.device)
        if self.spec.hides_shares:
            total = ranks.hidden_sum(cells, self.spec.binding(query) + name.encode())
        else:
            total = ranks.sum(cells)
        return Sum(self.spec, query, total.cpu(), ranks.size)

    def check_unchanged(self, counts: Tensor) -> None:
        """Raise if ``counts`` are not those that were released."""
        if self._changed(counts):
            raise ReleaseError(
                "Expected the data that was released but this copy of the metric has counted "
                "something else since. Its data belongs to a client whose data was released: call "
                "`reset` on the copy before it counts data of its own."
            )

    def to_bytes(self, counts: Tensor) -> bytes:
        """Return the client and its raw counts, for a node's own store between two queries."""
        if self.state is not State.ANSWERED:
            raise ReleaseError(
                f"Expected a client between two queries but this one {self.state.value}."
            )
        encoding, packed = rice.pack(counts.cpu().contiguous().numpy().reshape(-1))
        return frame(
            Kind.CLIENT,
            self.spec.digest,
            pack_text(self.name),
            pack_text(self.round),
            bytes([len(self._shares)]),
            *self._shares,
            bytes([encoding]),
            packed,
        )

    @classmethod
    def from_bytes(cls, note: bytes, terms: Terms) -> tuple[Client, Tensor]:
        """Return the client that :meth:`to_bytes` wrote, and its counts.

        It answers no query a second time.
        """
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
        encoding = reader.number(1)
        integers = rice.unpack(encoding, reader.rest, int(np.prod(shape)))
        counts = torch.from_numpy(integers).reshape(shape)
        client._enter(State.ANSWERED, counts)
        return client, counts

    def without_counts(self, empty: Tensor) -> Client:
        """Return this client for a metric that has left its counts behind."""
        twin = copy(self)
        twin.persons = None
        twin._enter(self.state, empty)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def _agree(
        self, counts: Tensor, ranks: Ranks, settings: dict[str, bytes], any_data: bool = True
    ) -> Agreement:
        """Return the ranks' agreement, with a name for this attempt, or raise where they differ."""
        status = list(State).index(self.state)
        if self._changed(counts):
            status = _CHANGED
        agreement = ranks.agree(self.spec, settings, status, any_data)
        lowest, highest = agreement.statuses
        if lowest != highest:
            raise ReleaseError(
                f"Expected all ranks at the same point but one {_STATUSES[lowest]} and one "
                f"{_STATUSES[highest]}; this rank {_STATUSES[status]}. Call `reset` on every rank "
                "or on none."
            )
        self.check_unchanged(counts)
        return agreement

    def _charge(self, query: Query, round: str, name: str, ranks: Ranks) -> None:
        """Charge the release on every rank before any rank draws.

        A release that fails later has been paid for.

        Each attempt has a name, so that no second draw is taken for the first; ranks that share a
        file write one entry.
        """
        refusal = None
        try:
            charge_release(
                self.terms, query, client=name, round=round, shared_by_ranks=ranks.size > 1
            )
        except LedgerError as error:
            refusal = error
        if ranks.any(refusal is not None):
            raise refusal or ReleaseError(
                "Expected every rank's ledger to allow this release but one refused; nothing was "
                "drawn."
            )

    def _drawn_once(self, query: Query, counts: Tensor, ranks: Ranks) -> Tensor:
        """Return the cells of all ranks' counts with one draw of noise, the same on every rank."""
        total = ranks.sum_to_first(counts)
        cells = torch.zeros(self.spec.shape(query), dtype=self.spec.dtype)
        if ranks.is_first:
            cells = reply_cells(self.spec, query, total)
        return ranks.from_first(cells).cpu()

    def _agreed_id(self, source: bytes, ranks: Ranks) -> bytes:
        """Return the first rank's id for a share; the same exact counts are the same share."""
        share_id = hashlib.sha256(source).digest()[:ID_BYTES]
        agreed = ranks.from_first(torch.frombuffer(bytearray(share_id), dtype=torch.uint8))
        return bytes(agreed.cpu().numpy())

    def _remember(self, query: Query, share: Share | None, name: str, round: str) -> None:
        """Note that a query is answered: by a share, or by a vector in secure aggregation."""
        self.name = name
        self.round = round
        self._shares[query.digest] = share

    def _enter(self, state: State, counts: Tensor) -> None:
        """Go to a state, with the digest of the counts that were drawn from."""
        self.state = state
        self._seal = self._sealed(counts)

    def _changed(self, counts: Tensor) -> bool:
        """Whether these are other counts than those that were drawn from."""
        return self.state is not State.COUNTING and self._seal != self._sealed(counts)

    def _sealed(self, counts: Tensor) -> bytes:
        """Return the salted digest of counts."""
        seal = hashlib.sha256(self._salt)
        seal.update(counts.cpu().contiguous().numpy().reshape(-1).data)  # without a copy
        return seal.digest()

    def _check_answerable(self, query: Query, round: str) -> None:
        """Raise for a query that no client of this spec answers, before anything is charged."""
        if self.spec.privacy.noise_drawn_by == "sum":
            raise ReleaseError(
                "Expected DistributedDP or LocalDP for shares but got CentralDP, whose noise one "
                "trusted party adds to the sum: what a client sends would be raw. Call `compute` "
                "where all the data is."
            )
        self.spec.check_query(query)
        pack_text(round)  # raises for a name that no message can hold


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Evaluated data that a metric hands over for one call: its client, its counts, its ranks.

    Args:
        client: the client that the data belongs to.
        counts: the raw counts of this process.
        ranks: the processes that count for the client together.
    """

    client: Client
    counts: Tensor
    ranks: Ranks

    def share(self, query: Query, *, round: str) -> Share:
        """Return the client's share, its ranks' counts summed first."""
        return self.client.share(self.counts, query, round=round, ranks=self.ranks)

    def mask(
        self, query: Query, *, aggregation: SecureAggregationClient, boxes: bytes, round: str
    ) -> bytes:
        """Return the client's reply, masked for one secure aggregation."""
        if not isinstance(self.ranks, Alone):
            raise ReleaseError(
                "Expected one process for secure aggregation but this client has ranks. Add their "
                "counts up in one metric with `merge_state`, outside of the process group."
            )
        return self.client.mask(
            self.counts,
            query,
            aggregation=aggregation,
            boxes=boxes,
            round=round,
            this_process=self.ranks,
        )

    def suspended(self) -> bytes:
        """Return the client with its raw counts, for a node's own store between two queries."""
        return self.client.to_bytes(self.counts)

    @classmethod
    def resumed(cls, note: bytes, terms: Terms) -> Evaluation:
        """Return the evaluation that :meth:`suspended` wrote."""
        client, counts = Client.from_bytes(note, terms)
        return cls(client, counts, Alone(counts.device))
