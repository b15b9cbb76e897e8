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
from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.share import Share
from torchmetrics_fed.release.spec import Spec
from torchmetrics_fed.release.sums import Adder, Sum
from torchmetrics_fed.release.wire import (
    DIGEST_BYTES,
    Kind,
    Reader,
    frame,
    kind_of,
    pack_block,
    pack_text,
)


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """What a federation, or the ranks of a job, have published together: every query, and the sum of its answers.

    Args:
        sums: one for each query, in the order in which they were asked.
        round: the round that it was made for.
        prior: of the release before, the last sum, where the plan carries it over: it is read as data, too.

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
        spent = sum(each.query.fraction for each in self.sums)
        if spent != 1:
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
        return cls((adder.sum,), round or "")

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

    @cached_property
    def overall(self) -> Release:
        """The release of everybody: itself, or without its groups."""
        if not self.spec.groups:
            return self
        return Release(
            tuple(each.overall for each in self.sums), self.round, self.prior and self.prior.overall
        )

    @cached_property
    def by_group(self) -> dict[str, Release]:
        """The release of each group, by its name; empty where there are no groups."""
        return {
            name: Release(
                tuple(each.of_group(number) for each in self.sums), self.round, around=self.overall
            )
            for number, name in enumerate(self.spec.groups)
        }

    def __repr__(self) -> str:
        noise = f", {self.spec.privacy}" if self.spec.privacy.charges else ""
        queries = f"{len(self.sums)} quer{'y' if len(self.sums) == 1 else 'ies'}"
        return f"Release({self.spec.task}, {queries}, {self.shares} shares, spec {self.spec.digest.hex()[:16]}{noise})"

    def __getstate__(self) -> dict[str, Any]:
        self._check_may_travel()
        return dict(self.__dict__)

    def _check_may_travel(self) -> tuple[Sum, ...]:
        """Return the sums and the prior, if each of them may leave."""
        every = (*self.sums, *([] if self.prior is None else [self.prior]))
        for each in every:
            self.spec.check_may_travel(each.shares)
        return every

    def __bytes__(self) -> bytes:
        """Spec, round, every query with its sum, and the prior's: whoever reads it needs nothing else."""
        every = self._check_may_travel()
        if self.around is not None:
            raise ReleaseError(
                "Expected a whole release but this is one group's part of it, which is read together with the others. "
                "Save the whole, and ask it for `by_group`."
            )
        counts = bytes([len(self.sums), self.prior is not None])
        head = self.spec.digest, pack_block(self.spec.canonical), pack_text(self.round), counts
        return frame(Kind.RELEASE, *head, *(each.pack() for each in every))

    @classmethod
    def from_bytes(cls, data: bytes) -> Release:
        """Return the release in ``data``.

        How many shares are in it is the word of whoever summed them: read releases of trusted parties only.
        """
        reader = Reader(data, Kind.RELEASE)
        digest, spec = reader.take(DIGEST_BYTES), Spec.from_canonical(reader.block())
        if digest != spec.digest:
            raise reader.error("the digest of its spec", "another")
        round_, count, prior = reader.text(empty=True), reader.number(1), reader.number(1)
        if prior > 1:
            raise reader.error("at most one prior", f"{prior}")
        try:
            sums = [Sum.read(reader, spec) for _ in range(count + prior)]
            release = cls(tuple(sums[:count]), round_, sums[count] if prior else None)
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
        lines = [*(f"query: {_asked(query)}" for query in release.queries), *_agreed(release.spec)]
    elif kind is Kind.QUERY:
        lines = [_asked(Query.from_bytes(data))]
    elif kind is Kind.SHARE and agreed is not None:
        share = Share.from_bytes(data, *agreed)
        text += f", round {share.round!r}, one of this study"
        lines = [*_agreed(share.spec)]
    elif kind is Kind.SHARE:
        text += "; it names no spec: pass --study to check it"
    return "\n  ".join([text, *lines])


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
