"""Coordinator: the aggregator's side of one release.

It asks, receives, sums and finishes; a transport carries.

These rules hold for every coordinator:

- A client is a sender that the transport has authenticated. Each sender is summed at most once for
  each query. Share ids stop replays of the same bytes; only an authenticated sender stops invented
  clients.
- The second query is asked of the clients whose first share was summed.
- A sum of fewer than ``min_clients`` shares is never closed, so nothing is opened.
- A query that was sent is recorded. A coordinator that goes on from its bytes asks the same query,
  and does not compute it again.
- A call that raises changes nothing. The states, and the calls that are allowed in each, are the
  table in :mod:`torchmetrics_fed.exchange.states`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from torchmetrics_fed.aggregation.secure import SecureAggregationConfig, SecureAggregationServer
from torchmetrics_fed.aggregation.secure.config import MOST_CLIENTS
from torchmetrics_fed.errors import (
    DuplicateClientError,
    InputError,
    ReleaseError,
    RoundMismatchError,
)
from torchmetrics_fed.exchange.plans import Plan, finished_release, next_query
from torchmetrics_fed.exchange.states import COORDINATOR_MOVES, Asking, moved
from torchmetrics_fed.release import Query, Release, ReleaseFlag, Share, Spec, Sum
from torchmetrics_fed.release.flags import NO_FLAGS
from torchmetrics_fed.release.share import ID_BYTES
from torchmetrics_fed.release.sum import Adder
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind, Reader, frame, pack_block, pack_text


class Agreed(Protocol):
    """What a coordinator must know: metrics and :class:`Terms` have it."""

    @property
    def spec(self) -> Spec: ...

    @property
    def plan(self) -> Plan: ...


class Coordinator:
    """Makes one release, over any transport and with as many queries as its plan takes.

    Send ``query`` to the clients, hand their replies to :meth:`receive`, call :meth:`advance`,
    until there is no further ``query``. For secure aggregation, ``config`` starts the server, and
    :meth:`accept` takes its sum.

    Args:
        metric: built like the clients'; anything with ``spec`` and ``plan``. It is not changed.
        round: the name of the round, which no other release has.
        can_ask_again: whether clients can be asked a second time.
        previous: the release before this one, for ``plan="carry_over"``, or its first sum if it was
            not finished.
        min_clients: the fewest clients of a sum; under privacy at least the setting's own.
        max_examples: the most examples that one client can have; a client that claims more is
            refused.
        threshold: the number of clients that must stay to the end of a secure aggregation, as in
            :class:`SecureAggregationConfig`; more than two thirds if not given. With fewer, a round
            survives more dropouts, and the margin against clients that work with the aggregator is
            smaller.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import Coordinator, FederatedROC, LocalDP
        >>> clients = {name: FederatedROC(privacy=LocalDP(epsilon=1.0)) for name in ("ann", "ben")}
        >>> for metric in clients.values():
        ...     metric.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
        >>> coordinator = Coordinator(FederatedROC(privacy=LocalDP(epsilon=1.0)), round="3")
        >>> while (query := coordinator.query) is not None:
        ...     for name, metric in clients.items():
        ...         coordinator.receive(name, bytes(metric.share(round="3", query=query)))
        ...     coordinator.advance()
        >>> len(coordinator.release.queries), coordinator.release.shares
        (2, 2)
    """

    def __init__(
        self,
        metric: Agreed,
        *,
        round: str,
        can_ask_again: bool = True,
        previous: Release | Sum | None = None,
        min_clients: int = 1,
        max_examples: int | None = None,
        threshold: int | None = None,
    ) -> None:
        self.spec = metric.spec
        self.plan = metric.plan
        self.round = round
        self.plan.check(self.spec)
        pack_text(round)  # raises for a name that no message can hold
        if self.spec.privacy.noise_drawn_by == "sum":
            raise InputError(
                "Expected clients that add noise but got CentralDP, whose noise one trusted party "
                "adds to the sum. Use LocalDP or DistributedDP, or call `compute` where all the "
                "data is."
            )
        self._can_ask_again = can_ask_again
        self._previous = previous
        self._min_clients = max(min_clients, self.spec.clients_needed)
        self._max_examples = max_examples
        self._threshold = threshold
        self.query: Query | None = None
        """The query that the clients are asked now; None once the release is complete."""
        self.sums: tuple[Sum, ...] = ()
        """The sums of the queries that are closed."""
        self.senders: frozenset[str] | None = None
        """The clients that the query is asked of: those whose share was summed before; None for
        all clients."""
        self._ask()

    @property
    def state(self) -> Asking:
        """How far the coordinator has come."""
        if self.query is None:
            return Asking.RELEASED
        return Asking.COLLECTING

    @property
    def received(self) -> int:
        """How many clients have answered the query."""
        return len(self._answered)

    @property
    def clients_needed(self) -> int:
        """The fewest clients of a sum. With fewer, nothing is opened."""
        if self.spec.hides_shares:
            return self.config.min_clients
        return self._min_clients

    @property
    def config(self) -> SecureAggregationConfig:
        """The aggregation of the answers to the present query."""
        return self.config_for()

    def config_for(
        self, signed: bool = False, threshold: int | None = None
    ) -> SecureAggregationConfig:
        """Return the configuration of the aggregation of replies to the present query.

        Args:
            signed: whether keys and survivors are signed.
            threshold: the clients that must stay to the end; the coordinator's own if not given.
        """
        if threshold is None:
            threshold = self._threshold
        query = self._open_query("receive")
        return SecureAggregationConfig.for_query(
            self.spec,
            query,
            f"{self.round}/{len(self.sums) + 1}",
            min_clients=self._min_clients,
            signed=signed,
            threshold=threshold,
        )

    def receive(self, sender: str, data: bytes | Share) -> None:
        """Add a client's share, or the bytes of it, to the sum.

        Args:
            sender: the client's name, as the transport has authenticated it.
            data: the share.
        """
        query = self._open_query("receive")
        self.spec.check_may_travel()
        self._check_sender(sender)
        share = data if isinstance(data, Share) else Share.from_bytes(data, self.spec, query)
        if share.round != self.round:
            raise RoundMismatchError(
                f"Expected a share of round {self.round!r} but client {sender!r} sent one of "
                f"{share.round!r}. Ask that client for the share of this round."
            )
        self._adder.add(share, f"the share of client {sender!r}")
        self._answered.add(sender)

    def accept(self, server: SecureAggregationServer) -> None:
        """Take the sum that secure aggregation has opened, for :meth:`advance`."""
        query = self._open_query("accept")
        expected = self.config_for(server.config.signed, server.config.threshold)
        if server.config != expected:
            raise InputError(
                f"Expected the aggregation {expected} but the server has run {server.config}."
            )
        vector, names = server.sum()
        for name in names:
            self._check_sender(name)
        self._adder.add(Sum.of_vector(self.spec, query, vector, len(names)), "the aggregated sum")
        self._answered.update(names)

    def advance(self) -> None:
        """Close the open query, and ask the next one if the plan has one.

        With too few shares the query stays open.
        """
        self._open_query("advance")
        if self._adder.shares < self._min_clients:
            raise ReleaseError(
                f"Expected shares of at least min_clients={self._min_clients} clients but got "
                f"{self._adder.shares}; nothing is opened. Wait for more clients, or open a new "
                "round."
            )
        self.sums = (*self.sums, self._adder.sum)
        self.senders = frozenset(self._answered)
        self._ask()

    @property
    def release(self) -> Release:
        """The release, once no query is left."""
        moved(COORDINATOR_MOVES, self.state, "release")
        return finished_release(self.plan, self.sums, self._previous, self.round)

    @property
    def partial(self) -> Release | None:
        """What was paid for, where the release was broken off after its first query.

        It has the flag ``PARTIAL``. Its curves are coarse, and where the query adds up classes or
        groups, none is read for a class or a group. None before the first sum and once the release
        is complete.
        """
        if not self.sums or self.query is None:
            return None
        return Release(self.sums, self.round, flags=ReleaseFlag.PARTIAL)

    def to_bytes(self) -> bytes:
        """Return everything, for a later process of the aggregator.

        It holds sums and names of clients.
        """
        sums = list(self.sums)
        if self._adder.shares:
            sums.append(self._adder.sum)
        flags = NO_FLAGS
        for part in sums:
            flags |= part.flags
        return frame(
            Kind.COORDINATOR,
            self.spec.digest,
            pack_text(self.round),
            bytes([flags, len(self.sums), len(sums)]),
            *(part.pack() for part in sums),
            pack_block(b"" if self.query is None else bytes(self.query)),
            _pack_names(self.senders or ()),
            _pack_names(self._answered),
        )

    @classmethod
    def from_bytes(cls, data: bytes, metric: Agreed, **options: Any) -> Coordinator:
        """Return the coordinator that :meth:`to_bytes` was called on.

        It asks the query that was sent, not a new one.

        Args:
            data: its bytes, which hold the round.
            metric: the metric that it was made with.
            options: the other arguments that it was made with.
        """
        reader = Reader(data, Kind.COORDINATOR)
        if reader.take(DIGEST_BYTES) != metric.spec.digest:
            raise reader.error("a coordinator of this metric", "one of another spec")
        coordinator = cls(metric, round=reader.text(empty=True), **options)
        flags = ReleaseFlag.read(reader, allowed=ReleaseFlag.ROWS_SKIPPED)
        closed = reader.number(1)
        count = reader.number(1)
        sums = [Sum.read(reader, metric.spec, flags) for _ in range(count)]
        query = reader.block()
        senders = _read_names(reader, sums[:closed])
        answered = _read_names(reader, sums[closed:])
        reader.end()
        coordinator.sums = tuple(sums[:closed])
        coordinator.query = Query.from_bytes(query) if query else None
        coordinator.senders = frozenset(senders) if closed else None
        if coordinator.query is not None:
            coordinator._answered = set(answered)
            coordinator._adder = coordinator._new_adder()
            for part in sums[closed:]:
                coordinator._adder.add(part)
        if coordinator.to_bytes() != data or not (query or closed):
            raise reader.error("the one encoding of a coordinator", "another")
        return coordinator

    def _ask(self) -> None:
        """Begin the next query, if there is one."""
        self.query = next_query(
            self.plan,
            self.sums,
            spec=self.spec,
            can_ask_again=self._can_ask_again,
            previous=self._previous,
        )
        self._answered: set[str] = set()
        self._adder = self._new_adder()

    def _new_adder(self) -> Adder:
        query = self.query or self.sums[-1].query
        return Adder(self.spec, query, self._max_examples)

    def _open_query(self, event: str) -> Query:
        moved(COORDINATOR_MOVES, self.state, event)
        assert self.query is not None
        return self.query

    def _check_sender(self, sender: str) -> None:
        if not isinstance(sender, str) or not sender:
            raise InputError(
                f"Expected argument `sender` to be the client's name but got {sender!r}."
            )
        pack_text(sender)
        if sender in self._answered:
            raise DuplicateClientError(
                f"Expected every client once but {sender!r} has answered this query. Keep its "
                "first share."
            )
        if self.senders is not None and sender not in self.senders:
            raise ReleaseError(
                f"Expected answers of those whose first share was summed but {sender!r} is not "
                "among them. It takes part in the next round."
            )


def _pack_names(names: Iterable[str]) -> bytes:
    ordered = sorted(names)
    return len(ordered).to_bytes(4, "little") + b"".join(map(pack_text, ordered))


def _read_names(reader: Reader, sums: list[Sum]) -> list[str]:
    """Return the names of the clients in the last sum, and refuse more than it can hold."""
    count = reader.number(4)
    limit = 0
    if sums:
        limit = max(len(sums[-1].ids) // ID_BYTES, MOST_CLIENTS)
    if count > limit:
        raise reader.error(f"at most {limit} names", f"{count}")
    return [reader.text() for _ in range(count)]
