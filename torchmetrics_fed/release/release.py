"""Release: the sums of the shares of all its queries. Every curve is made from a release.

These rules hold for every release:

- All its sums have one spec. Its queries spend all of epsilon, unless it is flagged as partial.
- Its bytes are complete: a reader needs the spec, the queries and the sums, and nothing else.
- A release of fewer shares than their noise is calibrated for has no bytes, no file and no pickle,
  and no curve is read from it.
- The bytes end with a checksum, so that a damaged file is refused. The checksum is not a signature:
  an attacker who changes a file can write the checksum, too.
- A release with a prior discloses two evaluations, and says so.

:func:`contents` describes the bytes of any message in words.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from torchmetrics_fed.errors import InputError, ReleaseError, RoundMismatchError, WireError
from torchmetrics_fed.markup import html_table
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
    """The result of a federation, or of the ranks of a job: every query, with its sum.

    Args:
        sums: one sum for each query, in the order in which the queries were asked.
        round: the round that the release was made for.
        prior: the last sum of the previous release, where the plan carries it over and reads it as
            data. The file of this release then discloses two evaluations: see
            :attr:`prior_epsilon`.
        flags: how the release was made; see :class:`ReleaseFlag`. The flag for skipped rows is
            taken from the sums.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC, Release, ScoreGrid
        >>> grid = ScoreGrid.from_edges([0, 0.25, 0.5, 0.75, 1])
        >>> clients = [FederatedROC(grid=grid) for _ in range(2)]
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
    """For the release of one group, the release of all groups. The group's curve has its shape as
    far as the group's own data do not say otherwise."""
    spec: Spec = field(init=False)
    """The agreement of all parties."""
    last: Sum = field(init=False)
    """The sum of the last query. Curves are read from it."""
    pilot: Sum | None = field(init=False)
    """The sum of the query that placed the leaves of the last one, if there was one."""
    shares: int = field(init=False)
    """The number of shares in the last sum."""

    def __post_init__(self) -> None:
        if not self.sums:
            raise InputError("Expected a release of at least one query but got none.")
        last = self.sums[-1]
        pilot = None
        if len(self.sums) > 1:
            pilot = self.sums[-2]
        object.__setattr__(self, "spec", last.spec)
        object.__setattr__(self, "last", last)
        object.__setattr__(self, "pilot", pilot)
        object.__setattr__(self, "shares", last.shares)
        for part in self._parts:
            if part.spec is not last.spec:
                last.spec.check(part.spec)
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
                "Expected a partial release to spend a fraction of epsilon but its queries spend "
                f"{spent} of it. Leave out the flag PARTIAL."
            )
        if not partial and spent != 1:
            raise ReleaseError(
                f"Expected queries that spend all of epsilon but these spend {spent} of it. Shares "
                "of a query with a fraction below 1 are summed by a Coordinator, which asks for "
                "the rest."
            )

    @classmethod
    def exact(cls, spec: Spec, counts: Tensor, shares: int = 1) -> Release:
        """Return the release of exact counts that are the sum of ``shares`` shares."""
        cells = spec.by_group(counts.cpu()).contiguous()
        return cls((Sum(spec, spec.all_bins, cells, shares),))

    @classmethod
    def sum(
        cls,
        shares: Iterable[Share | Release],
        *,
        max_examples: int | None = None,
        round: str | None = None,
    ) -> Release:
        """Return the sum of shares of one whole query, or of releases of some of the clients.

        Order and grouping do not matter. The parts are added one by one, and no argument is
        changed: after ``total = Release.sum([total, share])`` has raised, ``total`` is what it was.

        A release of fewer than ``min_clients`` shares can be added here, in the process that summed
        it, and nothing else: it has no bytes, and no curve is read from it. Between processes, send
        the bytes of its shares.

        Args:
            shares: shares and releases, in any order.
            max_examples: the most examples that one client can have. A share with more, beyond its
                noise, is refused. A sum of n shares may have n times as many, so that the
                aggregator of a part has to check it, too.
            round: the round that is open; the round of the first share if not given.

        Raises:
            SpecMismatchError: two specs; each differing field is named.
            RoundMismatchError: a share of another round.
            DuplicateClientError: a share that is in the sum already, also as part of a sum.
            ImpossibleCountsError: cells that no data can have.
            ReleaseError: no shares, or shares of a query that spends only a fraction of epsilon.
        """
        if isinstance(shares, Share | Release | bytes) or not isinstance(shares, Iterable):
            raise InputError(
                f"Expected an iterable of Share or Release but got {type(shares).__name__}. Pass a "
                "list: `Release.sum([share])`."
            )
        adder: Adder | None = None
        flags = NO_FLAGS
        for number, share in enumerate(shares):
            part = _summand(share)
            flags |= share.flags & ~ReleaseFlag.PARTIAL
            if adder is None:
                adder = Adder(part.spec, part.query, max_examples)
            if round is None:
                round = share.round
            sender = f"share {number}, counted from 0,"
            if share.round != round:
                raise RoundMismatchError(
                    f"Expected shares of one round, {round!r}, but {sender} is of round "
                    f"{share.round!r}. Ask that client for the share of this round."
                )
            adder.add(part, sender)
        if adder is None:
            raise ReleaseError(
                "Expected at least one share to sum but got none. Did every client drop out?"
            )
        return cls((adder.sum,), round or "", flags=flags)

    @property
    def queries(self) -> tuple[Query, ...]:
        """The query of each sum."""
        return tuple(part.query for part in self.sums)

    @property
    def levels(self) -> list[Tensor]:
        """Counts on the levels of the last sum."""
        return self.last.levels

    @property
    def leaf(self) -> Tensor:
        """Counts on the leaves of the last sum."""
        return self.last.leaf

    @property
    def spent_fraction(self) -> float:
        """The fraction of epsilon that the queries spend: 1, except for a partial release."""
        return sum(query.fraction for query in self.queries)

    @property
    def prior_epsilon(self) -> float:
        """The epsilon of the previous release that the prior is from; 0 where there is no prior.

        It is the whole epsilon of that release, whatever fraction the query of its last sum has:
        the pilot has placed the leaves of the last sum, so the leaves tell of the pilot. For a
        person in both evaluations, this release and its prior come to
        ``spec.epsilon + prior_epsilon``.
        """
        if self.prior is None:
            return 0.0
        return self.spec.epsilon

    @property
    def remarks(self) -> tuple[str, ...]:
        """Facts that a reader must know before the numbers, in a few words each."""
        if self.prior is None:
            return self.flags.remarks
        total_epsilon = self.spec.epsilon + self.prior_epsilon
        return (
            *self.flags.remarks,
            "with the last sum of an earlier release: up to epsilon "
            f"{total_epsilon:g} for a person in both",
        )

    @cached_property
    def overall(self) -> Release:
        """The release of all groups together; itself where there are no groups."""
        if not self.spec.groups:
            return self
        prior = None
        if self.prior is not None:
            prior = self.prior.overall
        return Release(
            tuple(part.overall for part in self.sums),
            self.round,
            prior,
            flags=self.flags,
        )

    @cached_property
    def by_group(self) -> dict[str, Release]:
        """The release of each group, by its name; empty where there are no groups."""
        if self.last.query.pools_groups:
            raise ReleaseError(
                "Cannot read groups: the last query of this release counts all groups together. "
                "Read `release.overall`."
            )
        return {name: self._of_group(number) for number, name in enumerate(self.spec.groups)}

    def _of_group(self, number: int) -> Release:
        return Release(
            tuple(part.of_group(number) for part in self.sums),
            self.round,
            flags=self.flags,
            around=self.overall,
        )

    def __repr__(self) -> str:
        queries = "1 query" if len(self.sums) == 1 else f"{len(self.sums)} queries"
        parts = [
            self.spec.task,
            queries,
            f"{self.shares} shares",
            f"spec {self.spec.digest.hex()[:16]}",
        ]
        if self.spec.privacy.charges:
            parts.append(str(self.spec.privacy))
        return f"Release({', '.join([*parts, *self.remarks])})"

    def _repr_html_(self) -> str:
        """Return what the release is, for a notebook; never counts."""
        rows = [
            ["task", self.spec.task],
            ["classes", str(self.spec.classes)],
            ["bins", f"{self.spec.grid.bins:,}"],
            ["privacy", str(self.spec.privacy)],
            ["queries", str(len(self.sums))],
            ["shares", str(self.shares)],
            ["spec", self.spec.digest.hex()[:16]],
        ]
        if self.spec.groups:
            rows.insert(2, ["groups", ", ".join(self.spec.groups)])
        rows += [["remark", remark] for remark in self.remarks]
        return html_table(rows, caption="Release")

    def __getstate__(self) -> dict[str, Any]:
        self._check_may_travel()
        return dict(self.__dict__)

    @property
    def _parts(self) -> tuple[Sum, ...]:
        """The sums, and the prior."""
        if self.prior is None:
            return self.sums
        return (*self.sums, self.prior)

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
        """Spec, round, flags, every query with its sum, the prior, and a checksum.

        The checksum finds damage. It is not a signature: sign the file, or its SHA-256 in a
        :class:`PrivacyStatement`.
        """
        self._check_may_travel()
        if self.around is not None:
            raise ReleaseError(
                "Expected a whole release but this is one group's part of it, which is read "
                "together with the others. Save the whole, and ask it for `by_group`."
            )
        has_prior = self.prior is not None
        return sealed_frame(
            Kind.RELEASE,
            self.spec.digest,
            pack_block(self.spec.canonical),
            pack_text(self.round),
            bytes([self.flags, len(self.sums), has_prior]),
            *(part.pack() for part in self._parts),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Release:
        """Return the release in ``data``.

        The number of shares is what the aggregator wrote, and the checksum only finds damage: read
        releases of trusted parties only.
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
            prior = None
            if priors:
                prior = Sum.read(reader, spec)
            release = cls(sums, round_, prior, flags=flags)
            release._check_may_travel()
        except (InputError, ReleaseError) as error:
            raise WireError(f"Expected the bytes of a release that can be read. {error}") from None
        reader.end()
        return release

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bytes to a file, whole or not at all."""
        temporary = Path(f"{os.fspath(path)}.part")
        temporary.write_bytes(bytes(self))
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Release:
        """Return the release that :meth:`save` wrote."""
        return cls.from_bytes(Path(path).read_bytes())


def _summand(share: object) -> Share | Sum:
    """Return the cells that a share, or a release, adds to a sum."""
    if isinstance(share, Share):
        return share
    if isinstance(share, Release):
        return share.last
    remedy = "metric.share()"
    if isinstance(share, bytes):
        remedy = "Share.from_bytes(data, metric.spec, query)"
    raise InputError(
        f"Expected argument `shares` to hold Share or Release but got {type(share).__name__}. Pass "
        f"`{remedy}`."
    )


def no_release(value: object) -> InputError:
    """Return the error for a value that is not a release. It says how to make a release of it."""
    remedy = "metric.release()"
    if isinstance(value, list):
        remedy = "Release.sum(shares)"
    elif isinstance(value, Share):
        remedy = "Release.sum([share])"
    elif isinstance(value, bytes):
        remedy = "Release.from_bytes(data)"
    elif isinstance(value, str | os.PathLike):
        remedy = "Release.load(path)"
    return InputError(f"Expected a Release but got {type(value).__name__}. Pass `{remedy}`.")


def contents(data: bytes, agreed: tuple[Spec, Query] | None = None) -> str:
    """Return a description of a message, without its counts.

    Args:
        data: the message.
        agreed: the spec and the query of a share. A share of another spec or query raises.
    """
    kind = kind_of(data)
    title = f"{kind.name.lower().replace('_', ' ')}, {len(data):,} bytes"
    lines: list[str] = []
    if kind is Kind.RELEASE:
        release = Release.from_bytes(data)
        plural = "s" * (release.shares != 1)
        title += f", round {release.round!r}, {release.shares} share{plural}"
        lines = [*_sum_lines(release), *_spec_lines(release.spec)]
    elif kind is Kind.QUERY:
        lines = [_query_line(Query.from_bytes(data))]
    elif kind is Kind.SHARE and agreed is not None:
        spec, query = agreed
        share = Share.from_bytes(data, spec, query)
        title += f", round {share.round!r}, one of this study"
        lines = [*_spec_lines(share.spec)]
    elif kind is Kind.SHARE:
        title += "; it names no spec: pass --study to check it"
    return "\n  ".join([title, *lines])


def _sum_lines(release: Release) -> Iterator[str]:
    for query in release.queries:
        yield f"query: {_query_line(query)}"
    if release.prior is not None:
        yield f"prior: {_query_line(release.prior.query)}; shares: {release.prior.shares}"
    for remark in release.remarks:
        yield f"note: {remark}"


def _query_line(query: Query) -> str:
    sizes = ", ".join(map(str, query.tree.sizes))
    return f"{query.tree.leaves} leaves, levels of {sizes}, {query.fraction:g} of epsilon"


def _spec_lines(spec: Spec) -> Iterator[str]:
    plural = "es" * (spec.classes > 1)
    groups = ""
    if spec.groups:
        groups = f", groups {', '.join(spec.groups)}"
    yield f"task: {spec.task}, {spec.classes} class{plural}{groups}"
    yield f"grid: {spec.grid.bins} {spec.grid.kind} bins on {list(spec.grid.score_range)}"
    privacy = "none, exact counts"
    if spec.privacy.charges:
        privacy = str(spec.privacy)
    yield f"privacy: {privacy}"
    yield f"spec: {spec.digest.hex()}"
