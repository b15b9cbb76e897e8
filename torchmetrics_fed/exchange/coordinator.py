"""Coordinator: the aggregator's side of one release. It asks, receives, sums, and finishes; carrying is for others."""

from __future__ import annotations

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

    Send ``query`` to the clients, hand over what comes back with :meth:`receive`, call :meth:`advance`, until there is
    no further ``query``. For secure aggregation, ``config`` starts the server, and :meth:`accept` takes its sum.

    A client is a sender that the transport has authenticated: whoever can invent senders can invent clients. The second
    query is asked of those whose first share was summed, :attr:`senders`.

    Args:
        metric: one built like the clients'; anything with ``spec`` and ``plan``. It is not changed.
        round: the name of the round, which no other release has.
        can_ask_again: whether clients can be asked a second time.
        previous: the release before this one, for ``plan="carry_over"``, or the first sum of one that was not finished.
        min_clients: fewer are not summed; under privacy at least its own.
        max_examples: the most examples that one client can have; whoever claims more is refused.

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
    ) -> None:
        self.spec = metric.spec
        self.plan = metric.plan
        self.round = round
        self.plan.check(self.spec)
        pack_text(round)  # raises for a name that no message can hold
        if self.spec.privacy.noise_drawn_by == "sum":
            raise InputError(
                "Expected clients that add noise but got CentralDP, whose noise one trusted party adds to the sum. Use "
                "LocalDP or DistributedDP, or call `compute` where all the data is."
            )
        self._can_ask_again, self._previous = can_ask_again, previous
        self._needed, self._max_examples = max(min_clients, self.spec.clients_needed), max_examples
        self.query: Query | None = None
        """What the clients are asked now; None once the release is complete."""
        self.sums: tuple[Sum, ...] = ()
        """The sums of the queries that are closed."""
        self.senders: frozenset[str] | None = None
        """Whom the query is asked of: those whose share was summed before; None for everybody."""
        self._ask()

    @property
    def state(self) -> Asking:
        """How far it has come."""
        return Asking.RELEASED if self.query is None else Asking.COLLECTING

    @property
    def received(self) -> int:
        """How many clients have answered the query."""
        return len(self._heard)

    @property
    def config(self) -> SecureAggregationConfig:
        """The aggregation of the answers to the present query."""
        return self.config_for()

    def config_for(
        self, signed: bool = False, threshold: int | None = None
    ) -> SecureAggregationConfig:
        """Return the aggregation of the answers to the present query, as :class:`SecureAggregationConfig` takes it."""
        query, name = self._asked("receive"), f"{self.round}/{len(self.sums) + 1}"
        options: dict[str, Any] = {
            "min_clients": self._needed,
            "signed": signed,
            "threshold": threshold,
        }
        return SecureAggregationConfig.for_query(self.spec, query, name, **options)

    def receive(self, sender: str, data: bytes | Share) -> None:
        """Add a client's share, or the bytes of it, to the sum. One that raises changes nothing.

        The sender is the client's name, as the transport has authenticated it. Each is summed at most once.
        """
        query = self._asked("receive")
        self.spec.check_may_travel()
        self._check_sender(sender)
        share = data if isinstance(data, Share) else Share.from_bytes(data, self.spec, query)
        if share.round != self.round:
            raise RoundMismatchError(
                f"Expected a share of round {self.round!r} but client {sender!r} sent one of {share.round!r}. Ask that "
                "client for the share of this round."
            )
        self._adder.add(share, f"the share of client {sender!r}")
        self._heard.add(sender)

    def accept(self, server: SecureAggregationServer) -> None:
        """Take the sum that secure aggregation has opened, for :meth:`advance`."""
        query = self._asked("accept")
        expected = self.config_for(server.config.signed, server.config.threshold)
        if server.config != expected:
            raise InputError(
                f"Expected the aggregation {expected} but the server has run {server.config}."
            )
        vector, names = server.sum()
        for name in names:
            self._check_sender(name)
        self._adder.add(Sum.of_vector(self.spec, query, vector, len(names)), "the aggregated sum")
        self._heard.update(names)

    def advance(self) -> None:
        """Close the query that is open, and ask the next one if the plan has it. With too few shares it stays open."""
        self._asked("advance")
        if self._adder.shares < self._needed:
            raise ReleaseError(
                f"Expected shares of at least min_clients={self._needed} clients but got {self._adder.shares}; nothing "
                "is opened. Wait for more clients, or open a new round."
            )
        self.sums, self.senders = (*self.sums, self._adder.sum), frozenset(self._heard)
        self._ask()

    @property
    def release(self) -> Release:
        """The release, once no query is left."""
        moved(COORDINATOR_MOVES, self.state, "release")
        return finished_release(self.plan, self.sums, self._previous, self.round)

    def to_bytes(self) -> bytes:
        """Return everything, for a later process of the aggregator. It holds sums and names of clients."""
        sums = [*self.sums, *([self._adder.sum] if self._adder.shares else [])]
        flags = NO_FLAGS
        for part in sums:
            flags |= part.flags
        parts = [self.spec.digest, pack_text(self.round), bytes([flags, len(self.sums), len(sums)])]
        parts += [each.pack() for each in sums]
        parts.append(pack_block(b"" if self.query is None else bytes(self.query)))
        for names in (sorted(self.senders or ()), sorted(self._heard)):
            parts += [len(names).to_bytes(4, "little"), *map(pack_text, names)]
        return frame(Kind.COORDINATOR, *parts)

    @classmethod
    def from_bytes(cls, data: bytes, metric: Agreed, **options: Any) -> Coordinator:
        """Return the coordinator that :meth:`to_bytes` was called on; the query that was sent is asked, not a new one.

        Metric and options are those that it was made with; the round is in the bytes.
        """
        reader = Reader(data, Kind.COORDINATOR)
        if reader.take(DIGEST_BYTES) != metric.spec.digest:
            raise reader.error("a coordinator of this metric", "one of another spec")
        coordinator = cls(metric, round=reader.text(empty=True), **options)
        flags = ReleaseFlag.read(reader, allowed=ReleaseFlag.ROWS_SKIPPED)
        finished, count = reader.number(1), reader.number(1)
        sums = [Sum.read(reader, metric.spec, flags) for _ in range(count)]
        asked = reader.block()
        allowed = _read_names(reader, sums[:finished])
        senders = _read_names(reader, sums[finished:])
        reader.end()
        coordinator.sums = tuple(sums[:finished])
        coordinator.query = Query.from_bytes(asked) if asked else None
        coordinator.senders = frozenset(allowed) if finished else None
        if coordinator.query is not None:
            coordinator._adder, coordinator._heard = coordinator._adding(), set(senders)
            for part in sums[finished:]:
                coordinator._adder.add(part)
        if coordinator.to_bytes() != data or not (asked or finished):
            raise reader.error("the one encoding of a coordinator", "another")
        return coordinator

    def _ask(self) -> None:
        again, previous = self._can_ask_again, self._previous
        self.query = next_query(
            self.plan, self.sums, spec=self.spec, can_ask_again=again, previous=previous
        )
        self._heard: set[str] = set()
        self._adder = self._adding()

    def _adding(self) -> Adder:
        return Adder(self.spec, self.query or self.sums[-1].query, self._max_examples)

    def _asked(self, event: str) -> Query:
        moved(COORDINATOR_MOVES, self.state, event)
        assert self.query is not None
        return self.query

    def _check_sender(self, sender: str) -> None:
        if not isinstance(sender, str) or not sender:
            raise InputError(
                f"Expected argument `sender` to be the client's name but got {sender!r}."
            )
        pack_text(sender)
        if sender in self._heard:
            raise DuplicateClientError(
                f"Expected every client once but {sender!r} has answered. Keep its first share."
            )
        if self.senders is not None and sender not in self.senders:
            raise ReleaseError(
                f"Expected answers of those whose first share was summed but {sender!r} is not among them. It takes "
                "part in the next round."
            )


def _read_names(reader: Reader, sums: list[Sum]) -> list[str]:
    """Return the names of the clients in the last of ``sums``: as many as there are ids in it, or as can be hidden."""
    count = reader.number(4)
    most = max(len(sums[-1].ids) // ID_BYTES, MOST_CLIENTS) if sums else 0
    if count > most:
        raise reader.error(f"at most {most} names", f"{count}")
    return [reader.text() for _ in range(count)]
