"""Release: the sums of the shares of all its queries, which a curve is made from; and what bytes are, in words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from torchmetrics_fed.errors import InputError, ReleaseError, RoundMismatchError, WireError
from torchmetrics_fed.release.flags import ALL_FLAGS, NO_FLAGS, ReleaseFlag
from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.share import Share
from torchmetrics_fed.release.spec import Spec
from torchmetrics_fed.release.sum import Adder, Sum
from torchmetrics_fed.release.wire import (
    DIGEST_BYTES,
    Kind,
    Reader,
    kind_of,
    pack_block,
    pack_text,
    sealed_frame,
)


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """What a federation, or the ranks of a job, have published together: every query, and the sum of its answers.

    Args:
        sums: one for each query, in the order in which they were asked.
        round: the round that it was made for.
        prior: of the release before, the last sum, where the plan carries it over: it is read as data, too. So the file
            of this release discloses two evaluations: see :attr:`prior_epsilon`.
        flags: how it was made, as :class:`ReleaseFlag` says. That rows were skipped is taken from the sums.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC, Release, ScoreGrid
        >>> clients = [FederatedROC(grid=ScoreGrid.from_edges([0, 0.25, 0.5, 0.75, 1])) for _ in range(2)]
        >>> clients[0].update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> clients[1].update(torch.tensor([0.4, 0.9]), torch.tensor([1, 0]))
        >>> total = Release.sum(client.share() for client in clients)
        >>> total.shares, total.leaf.sum().item()
        (2, 4)
        >>> FederatedROC.from_release(Release.from_bytes(bytes(total))).compute().tpr
        tensor([0.0000, 0.5000, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
    """

    sums: tuple[Sum, ...]
    round: str = ""
    prior: Sum | None = None
    flags: ReleaseFlag = field(default=NO_FLAGS, kw_only=True)
    around: Release | None = field(default=None, kw_only=True)
    """Of one group's release that of everybody, whose shape it has as far as its own data do not say otherwise."""
    spec: Spec = field(init=False)
    """What all parties agreed on."""
    last: Sum = field(init=False)
    """The sum of the last query, which answers are read from."""
    pilot: Sum | None = field(init=False)
    """The sum of the query that placed the leaves of the last one, if there was one."""
    shares: int = field(init=False)
    """How many shares the last sum holds."""

    def __post_init__(self) -> None:
        if not self.sums:
            raise InputError("Expected a release of at least one query but got none.")
        last, pilot = self.sums[-1], self.sums[-2] if len(self.sums) > 1 else None
        for name, value in (
            ("spec", last.spec),
            ("last", last),
            ("pilot", pilot),
            ("shares", last.shares),
        ):
            object.__setattr__(self, name, value)
        for earlier in (*self.sums[:-1], self.prior):
            if earlier is not None and earlier.spec is not last.spec:
                last.spec.check(earlier.spec)
        if self.prior is not None and not self.spec.privacy.charges:
            raise InputError(
                "Expected no argument `prior` for exact counts: they are never carried over."
            )
        flags = self.flags
        for part in self.sums:
            flags |= part.flags
        object.__setattr__(self, "flags", flags)
        self._check_spent()

    def _check_spent(self) -> None:
        spent = self.spent_fraction
        partial = ReleaseFlag.PARTIAL in self.flags
        if partial and spent >= 1:
            raise ReleaseError(
                f"Expected a partial release to spend a fraction of epsilon but its queries spend {spent} of it. Leave "
                "out the flag PARTIAL."
            )
        if not partial and spent != 1:
            raise ReleaseError(
                f"Expected queries that spend all of epsilon but these spend {spent} of it. Shares of a query "
                "with a fraction below 1 are summed by a Coordinator, which asks for the rest."
            )

    @classmethod
    def exact(cls, spec: Spec, counts: Tensor, shares: int = 1) -> Release:
        """Return the release of exact counts that are the sum of ``shares`` shares."""
        return cls((Sum(spec, spec.all_bins, spec.by_group(counts.cpu()).contiguous(), shares),))

    @classmethod
    def sum(
        cls,
        shares: Iterable[Share | Release],
        *,
        max_examples: int | None = None,
        round: str | None = None,
    ) -> Release:
        """Add shares of one whole query, or releases of part of the clients, one by one, in any order and grouping.

        A release of fewer than ``min_clients`` shares can be added here, in the process that summed it, and nothing
        else: it has no bytes, and no curve is read from it. Between processes such a part goes as the bytes of its
        shares.

        An error names the place in the order, and no argument is changed: after ``total = Release.sum([total, share])``
        has raised, ``total`` is what it was.

        Args:
            max_examples: the most examples that one client can have. What is more, beyond noise, is refused. Sums of n
                shares may have n times as many, so the aggregator of a part has to check it, too.
            round: the round that is open; if not given that of the first share.

        Raises:
            SpecMismatchError: two specs; each differing field is named.
            RoundMismatchError: a share of another round.
            DuplicateClientError: a share that is in the sum already, also as part of a sum.
            ImpossibleCountsError: cells that no data can have.
            ReleaseError: no shares, or shares of a query that spends only a fraction of epsilon.
        """
        if isinstance(shares, Share | Release | bytes) or not isinstance(shares, Iterable):
            raise InputError(
                f"Expected an iterable of Share or Release but got {type(shares).__name__}. Pass a list: "
                "`Release.sum([share])`."
            )
        adder: Adder | None = None
        flags = NO_FLAGS
        for number, share in enumerate(shares):
            if not isinstance(share, Share | Release):
                use = (
                    "Share.from_bytes(data, metric.spec, query)"
                    if isinstance(share, bytes)
                    else "metric.share()"
                )
                raise InputError(
                    f"Expected argument `shares` to hold Share or Release but got {type(share).__name__}. Pass `{use}`."
                )
            part = share if isinstance(share, Share) else share.last
            flags |= share.flags & ~ReleaseFlag.PARTIAL
            if adder is None:
                adder = Adder(part.spec, part.query, max_examples)
                round = share.round if round is None else round
            sender = f"share {number}, counted from 0,"
            if share.round != round:
                raise RoundMismatchError(
                    f"Expected shares of one round, {round!r}, but {sender} is of round {share.round!r}. Ask that "
                    "client for the share of this round."
                )
            adder.add(part, sender)
        if adder is None:
            raise ReleaseError(
                "Expected at least one share to sum but got none. Did every client drop out?"
            )
        return cls((adder.sum,), round or "", flags=flags)

    @property
    def queries(self) -> tuple[Query, ...]:
        """What was asked."""
        return tuple(each.query for each in self.sums)

    @property
    def levels(self) -> list[Tensor]:
        """The levels of the last sum, each counted once."""
        return self.last.levels

    @property
    def leaf(self) -> Tensor:
        """The leaves of the last sum."""
        return self.last.leaf

    @property
    def spent_fraction(self) -> float:
        """The fraction of epsilon that the queries have spent: 1, except for a partial release."""
        return sum(query.fraction for query in self.queries)

    @property
    def prior_epsilon(self) -> float:
        """What the earlier release that the prior is from may have spent; 0 where there is no prior.

        It is the whole epsilon of that release, whatever fraction the query of its last sum has: the pilot has placed
        the leaves of the last sum, so the leaves tell of the pilot. For a person in both evaluations, this release and
        its prior come to ``spec.epsilon + prior_epsilon``.
        """
        return 0.0 if self.prior is None else self.spec.epsilon

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader must know before the numbers, in a few words each."""
        if self.prior is None:
            return self.flags.remarks
        both = self.spec.epsilon + self.prior_epsilon
        return (
            *self.flags.remarks,
            f"with the last sum of an earlier release: up to epsilon {both:g} for a person in both",
        )

    @cached_property
    def overall(self) -> Release:
        """The release of everybody: itself, or without its groups."""
        if not self.spec.groups:
            return self
        return Release(
            tuple(part.overall for part in self.sums),
            self.round,
            self.prior and self.prior.overall,
            flags=self.flags,
        )

    @cached_property
    def by_group(self) -> dict[str, Release]:
        """The release of each group, by its name; empty where there are no groups."""
        if self.last.query.pools_groups:
            raise ReleaseError(
                "Cannot read groups: the last query of this release counts all groups together. Read `release.overall`."
            )
        return {
            name: Release(
                tuple(part.of_group(number) for part in self.sums),
                self.round,
                flags=self.flags,
                around=self.overall,
            )
            for number, name in enumerate(self.spec.groups)
        }

    def __repr__(self) -> str:
        noise = f", {self.spec.privacy}" if self.spec.privacy.charges else ""
        queries = f"{len(self.sums)} quer{'y' if len(self.sums) == 1 else 'ies'}"
        about = f"{queries}, {self.shares} shares, spec {self.spec.digest.hex()[:16]}{noise}"
        return f"Release({', '.join([self.spec.task, about, *self.remarks])})"

    def __getstate__(self) -> dict[str, Any]:
        self._check_may_travel()
        return dict(self.__dict__)

    @property
    def _parts(self) -> tuple[Sum, ...]:
        """The sums, and the prior."""
        return self.sums if self.prior is None else (*self.sums, self.prior)

    def check_opened(self) -> None:
        """Raise unless every sum holds as many shares as its noise is calibrated for."""
        for part in self._parts:
            part.check_opened()

    def _check_may_travel(self) -> None:
        """Raise unless every sum may leave."""
        for part in self._parts:
            self.spec.check_may_travel(part.shares)
        self.check_opened()

    def __bytes__(self) -> bytes:
        """Spec, round, flags, every query with its sum, and the prior's: whoever reads it needs nothing else.

        The bytes end with a checksum, so that a damaged file is refused. It is no signature: whoever changes a file on
        purpose can write the checksum, too. Sign the file, or its SHA-256 in a :class:`PrivacyStatement`.
        """
        self._check_may_travel()
        if self.around is not None:
            raise ReleaseError(
                "Expected a whole release but this is one group's part of it, which is read together with the others. "
                "Save the whole, and ask it for `by_group`."
            )
        head = [
            self.spec.digest,
            pack_block(self.spec.canonical),
            pack_text(self.round),
            bytes([self.flags, len(self.sums), self.prior is not None]),
        ]
        return sealed_frame(Kind.RELEASE, *head, *(part.pack() for part in self._parts))

    @classmethod
    def from_bytes(cls, data: bytes) -> Release:
        """Return the release in ``data``.

        How many shares are in it is the word of whoever summed them, and the checksum finds damage only: read releases
        of trusted parties only.
        """
        reader = Reader(data, Kind.RELEASE, sealed=True)
        digest = reader.take(DIGEST_BYTES)
        spec = Spec.from_canonical(reader.block())
        if digest != spec.digest:
            raise reader.error("the digest of its spec", "another")
        round_ = reader.text(empty=True)
        flags = ReleaseFlag.read(reader, allowed=ALL_FLAGS)
        count = reader.number(1)
        priors = reader.number(1)
        if priors > 1:
            raise reader.error("at most one prior", f"{priors}")
        try:
            sums = tuple(Sum.read(reader, spec, flags) for _ in range(count))
            prior = Sum.read(reader, spec) if priors else None
            release = cls(sums, round_, prior, flags=flags)
            release._check_may_travel()
        except (InputError, ReleaseError) as error:
            raise WireError(f"Expected the bytes of a release that can be read. {error}") from None
        reader.end()
        return release

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bytes to a file, whole or not at all."""
        part = Path(f"{os.fspath(path)}.part")
        part.write_bytes(bytes(self))
        os.replace(part, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Release:
        """Return the release that :meth:`save` wrote."""
        return cls.from_bytes(Path(path).read_bytes())


def no_release(value: object) -> InputError:
    """Return the error for something else where a release is expected, which says how to make one of it."""
    remedies: dict[type, str] = {
        list: "sum(shares)",
        Share: "sum([share])",
        bytes: "from_bytes(data)",
    }
    remedies |= dict.fromkeys((str, os.PathLike), "load(path)")
    use = next(
        (f"Release.{way}" for kind, way in remedies.items() if isinstance(value, kind)),
        "metric.release()",
    )
    return InputError(f"Expected a Release but got {type(value).__name__}. Pass `{use}`.")


def contents(data: bytes, agreed: tuple[Spec, Query] | None = None) -> str:
    """Return what a message is, never the counts in it; a share that is not of the ``agreed`` spec raises."""
    kind = kind_of(data)
    text = f"{kind.name.lower().replace('_', ' ')}, {len(data):,} bytes"
    lines: list[str] = []
    if kind is Kind.RELEASE:
        release = Release.from_bytes(data)
        text += f", round {release.round!r}, {release.shares} share{'s' * (release.shares != 1)}"
        lines = [*_summed(release), *_agreed(release.spec)]
    elif kind is Kind.QUERY:
        lines = [_asked(Query.from_bytes(data))]
    elif kind is Kind.SHARE and agreed is not None:
        share = Share.from_bytes(data, *agreed)
        text += f", round {share.round!r}, one of this study"
        lines = [*_agreed(share.spec)]
    elif kind is Kind.SHARE:
        text += "; it names no spec: pass --study to check it"
    return "\n  ".join([text, *lines])


def _summed(release: Release) -> Iterator[str]:
    for query in release.queries:
        yield f"query: {_asked(query)}"
    if release.prior is not None:
        yield f"prior: {_asked(release.prior.query)}; shares: {release.prior.shares}"
    for remark in release.remarks:
        yield f"note: {remark}"


def _asked(query: Query) -> str:
    tree = query.tree
    return f"{tree.leaves} leaves, levels of {', '.join(map(str, tree.sizes))}, {query.fraction:g} of epsilon"


def _agreed(spec: Spec) -> Iterator[str]:
    groups = f", groups {', '.join(spec.groups)}" if spec.groups else ""
    yield f"task: {spec.task}, {spec.classes} class{'es' * (spec.classes > 1)}{groups}"
    yield f"grid: {spec.grid.bins} {spec.grid.kind} bins on {list(spec.grid.score_range)}"
    privacy = spec.privacy if spec.privacy.charges else "none, exact counts"
    yield f"privacy: {privacy}"
    yield f"spec: {spec.digest.hex()}"
