"""Spec: everything that all parties agree on before they add up. What is asked of them is a Query."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, get_args

import torch
from torch import Tensor

from torchmetrics_fed.counting import ScoreGrid, Table, Tree
from torchmetrics_fed.errors import (
    InputError,
    ReleaseError,
    SpecMismatchError,
    WireError,
    check_choice,
    check_int,
)
from torchmetrics_fed.privacy import LedgerEntry, Privacy, PrivacyLedger
from torchmetrics_fed.privacy.noise import Noise
from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.wire import text_size
from torchmetrics_fed.typing import MultiClass, Task

SPEC_VERSION = 2
MOST_GROUPS, MOST_PAIRED_BINS = 256, 512
_noise = lru_cache(maxsize=64)(Privacy.noise)  # an aggregator asks for that of every share
MOST_QUERIES = 2
"""The most queries that one release takes, which its delta is charged for."""


@dataclass(frozen=True)
class Spec:
    """What is counted, on which grid, and with which noise it leaves.

    Args:
        classes: length of the class axis: 1 for binary tasks, the number of classes or labels for others.
        privacy: who adds which noise; None for exact counts.
        multi_class: whether the scores of a class are counted for it against the rest (``"ovr"``), or for every true
            class by itself (``"ovo"``), which answers both questions and takes ``classes / 2`` times the room.
        secure: whether exact counts, too, may only travel through secure aggregation (the paper's SA).
        groups: names of the groups, each example in one of them; none if there are no groups.
        models: names of two models that score the same examples, whose pairs of bins are counted; none for one model.
        thresholds: of each of them, the score from which on it calls an example positive: an edge of the grid.

    Example:
        >>> from torchmetrics_fed import ScoreGrid, Spec
        >>> Spec("binary", 1, ScoreGrid()).digest == Spec("binary", 1, ScoreGrid(bins=64)).digest
        False
    """

    task: Task
    classes: int
    grid: ScoreGrid
    privacy: Privacy | None = None
    multi_class: MultiClass = "ovr"
    secure: bool = False
    groups: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()
    rows: int = field(init=False, repr=False, compare=False)
    """Histograms per class, and per group: negatives and positives, or one per true class."""
    epsilon: float = field(init=False, repr=False, compare=False)
    """What a release costs; 0 without privacy."""
    clients_needed: int = field(init=False, repr=False, compare=False)
    """How many shares a sum must hold before it is opened."""
    hides_shares: bool = field(init=False, repr=False, compare=False)
    """Whether shares may only travel through secure aggregation."""
    dtype: torch.dtype = field(init=False, repr=False, compare=False)
    """The dtype of cells: integers, except for the paper's continuous noise."""

    def __post_init__(self) -> None:
        _check_task(self.task, self.classes, self.multi_class)
        if self.privacy is not None and not isinstance(self.privacy, Privacy):
            epsilon = self.privacy if type(self.privacy) in (int, float) else 1.0
            raise InputError(
                "Expected argument `privacy` to be None, DistributedDP, LocalDP or CentralDP but got "
                f"{self.privacy!r}. Name who adds the noise: `CentralDP(epsilon={epsilon})`, `LocalDP(epsilon="
                f"{epsilon})` or `DistributedDP(epsilon={epsilon}, min_clients=8)`."
            )
        if not isinstance(self.secure, bool):
            raise InputError(f"Expected argument `secure` to be a bool but got {self.secure!r}.")
        if not _are_names(self.groups) or len(self.groups) == 1 or len(self.groups) > MOST_GROUPS:
            raise InputError(
                f"Expected argument `groups` to be 2 to {MOST_GROUPS} different names, or their number, but got "
                f"{self.groups!r}."
            )
        if self.models or self.thresholds:
            _check_models(
                self.models, self.thresholds, self.grid, self.task == "binary" and not self.groups
            )
        privacy = self.privacy
        derived = {
            "rows": self.classes if self.multi_class == "ovo" else 2,
            "epsilon": privacy.epsilon if privacy else 0.0,
            "clients_needed": privacy.clients_needed if privacy else 1,
            "hides_shares": self.secure or bool(privacy and privacy.hides_shares),
            "dtype": torch.float64 if privacy and privacy.mechanism == "gamma" else torch.int64,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @cached_property
    def delta(self) -> float:
        """The delta that a release costs, whatever its queries: the samplers' distance from their laws included."""
        most_cells = 2 * math.prod(self.counts_shape)  # no tree has twice as many nodes as leaves
        return self.privacy.charged_delta(most_cells, MOST_QUERIES) if self.privacy else 0.0

    @cached_property
    def all_bins(self) -> Query:
        """The query for every bin at once, which exact counts are asked."""
        return Query((Table if self.models else Tree).flat(self.grid.bins))

    @cached_property
    def everybody(self) -> Spec:
        """The same without groups."""
        return replace(self, groups=()) if self.groups else self

    @property
    def counts_shape(self) -> tuple[int, int, int]:
        """The shape of counts: ``(classes, groups * rows, bins)``; of two models all pairs of bins."""
        return (
            self.classes,
            max(len(self.groups), 1) * self.rows,
            self.grid.bins ** max(len(self.models), 1),
        )

    def empty_counts(self) -> Tensor:
        """Return the counts of no examples."""
        return torch.zeros(self.counts_shape, dtype=torch.int64)

    def by_group(self, counts: Tensor) -> Tensor:
        """Return counts with the groups on the class axis, ``(groups * classes, rows, bins)``, group by group."""
        return torch.flatten(counts.unflatten(1, (-1, self.rows)).transpose(0, 1), 0, 1)

    def summed(self, cells: Tensor) -> Tensor:
        """Return cells ``(groups * classes, ...)`` added up over the groups, ``(classes, ...)``."""
        return torch.sum(cells.unflatten(0, (-1, self.classes)), 0)

    def shape(self, query: Query) -> tuple[int, int, int]:
        """Return the shape of the cells of an answer."""
        groups = 1 if query.pooled else max(len(self.groups), 1)
        return groups * self.classes, self.rows, query.tree.cells

    def noise(self, query: Query) -> Noise | None:
        """Return the noise of one answer, calibrated for the sensitivity of what is counted; None for exact counts."""
        if self.privacy is None:
            return None
        cells = math.prod(self.shape(query))
        return _noise(
            self.privacy, self.task, self.classes, query.tree.weights, cells, query.fraction
        )

    def cells(self, query: Query, counts: Tensor) -> Tensor:
        """Return every level of the tree of ``counts`` side by side, without noise, as :meth:`shape` says."""
        counts = self.by_group(counts)
        return query.tree.joined(query.tree.leaf(self.summed(counts) if query.pooled else counts))

    def noisy_cells(self, query: Query, counts: Tensor) -> Tensor:
        """Return the cells of ``counts`` with one fresh draw of noise. Only for what has been charged."""
        if (noise := self.noise(query)) is None:
            raise InputError("Expected a spec with privacy because without it no noise is added.")
        return self.cells(query, counts.cpu()) + torch.from_numpy(noise.draw(self.shape(query)))

    def answer(self, query: Query, counts: Tensor) -> Tensor:
        """Return the cells of ``counts``: exact, or under privacy with one fresh draw of noise, which was charged."""
        return (
            self.cells(query, counts.cpu())
            if self.privacy is None
            else self.noisy_cells(query, counts)
        )

    def charge(
        self,
        ledger: PrivacyLedger,
        query: Query,
        data: str,
        name: str,
        round: str = "",
        **again: bool,
    ) -> None:
        """Charge a release to the ledger before an answer to one of its queries is drawn, in a session of this name."""
        assert self.privacy is not None
        price = self.epsilon, self.delta, self.privacy.mechanism
        entry = LedgerEntry(data, round or name, *price, spec=self.digest.hex(), session=name)
        noise = self.noise(query)
        assert noise is not None
        ledger.charge(entry, query.digest, query.fraction, law=noise.law, **again)

    def check_query(self, query: Query) -> None:
        """Raise unless the query can be answered from counts of this spec."""
        table = query.tree if isinstance(query.tree, Table) else None
        if (table is None) == bool(self.models) or (
            table and not table.joint and query.fraction == 1
        ):
            raise InputError(
                f"Expected a query for {'two models' if self.models else 'one model'} but got another. A Table asks "
                "for two models' leaves, a joint one unless a second query follows; a Tree asks for one model's."
            )
        if not query.tree.fits(self.grid.bins):
            edges = query.tree.edges
            raise InputError(
                f"Expected a query with leaves of whole bins, of which there are {self.grid.bins}, but "
                f"{query.tree.branching} has {query.tree.leaves} leaves"
                + (f" up to {edges[-1]}." if edges else ".")
            )
        if query.pooled and not self.groups:
            raise InputError(
                "Expected a query that adds up groups only where there are groups. Ask without `pooled`."
            )
        if query.fraction < 1 and self.privacy is None:
            raise InputError(
                "Expected a query for all of it, because exact counts have no epsilon to divide."
            )

    def check_may_travel(self, shares: int = 1) -> None:
        """Raise for what only secure aggregation may carry: a single share, or a sum that its noise does not cover."""
        if self.hides_shares and shares < max(self.clients_needed, 2):
            raise ReleaseError(
                "Expected this to travel through secure aggregation, because by itself it hides next to nothing. Send "
                "`metric.mask(client, ...)` with a SecureAggregationClient, or pass `trusted_aggregator=True` (with "
                "privacy=None leave out `secure=True`) if the aggregator may see it."
            )

    @property
    def fields(self) -> dict[str, Any]:
        """The content in plain JSON values, floats in hexadecimal so that no digit is lost."""
        return {
            "version": SPEC_VERSION,
            "task": self.task,
            "classes": self.classes,
            "multi_class": self.multi_class,
            "secure": self.secure,
            "groups": list(self.groups),
            "models": [
                [name, at.hex()] for name, at in zip(self.models, self.thresholds, strict=True)
            ],
            **self.grid.fields,
            "privacy": self.privacy and self.privacy.fields,
        }

    @cached_property
    def canonical(self) -> bytes:
        """The fields as JSON, one encoding only."""
        return _canonical(self.fields)

    @classmethod
    def from_canonical(cls, data: bytes) -> Spec:
        """Return the spec whose :attr:`canonical` encoding is ``data``, and refuse any other encoding of it."""
        try:
            fields = json.loads(data)
            privacy = fields["privacy"] and Privacy.from_fields(fields["privacy"])
            grid = ScoreGrid.from_fields(fields)
            more = fields["multi_class"], fields["secure"], tuple(fields["groups"])
            models = (
                tuple(name for name, _ in fields["models"]),
                tuple(float.fromhex(at) for _, at in fields["models"]),
            )
            spec = cls(fields["task"], fields["classes"], grid, privacy, *more, *models)
            if spec.canonical == data:
                return spec
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            OverflowError,
        ) as error:
            raise WireError(
                f"Expected the encoding of a spec but got other bytes ({type(error).__name__})."
            ) from None
        raise WireError(
            "Expected the canonical encoding of a spec but got another one. Install one version for all."
        )

    @cached_property
    def digests(self) -> dict[str, bytes]:
        """SHA-256 of each field, so that a party can name what differs without seeing the other's spec."""
        return {
            name: hashlib.sha256(_canonical(value)).digest() for name, value in self.fields.items()
        }

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of everything that is agreed on."""
        return hashlib.sha256(self.canonical).digest()

    def binding(self, query: Query) -> bytes:
        """Return the SHA-256 of spec and query, which binds every answer to both."""
        return hashlib.sha256(self.digest + query.digest).digest()

    def check(self, other: Spec) -> None:
        """Raise and name every field in which ``other`` differs, with both values."""
        mine, theirs = (
            {**each.fields, **(each.fields["privacy"] or {"kind": None})} for each in (self, other)
        )
        for fields in (mine, theirs):
            fields["privacy"] = fields.pop("kind")
        differing = (name for name in mine | theirs if mine.get(name) != theirs.get(name))
        named = [
            f"{name}: expected {_short(mine.get(name))}, got {_short(theirs.get(name))}"
            for name in differing
        ]
        if named:
            raise SpecMismatchError(
                f"Expected one spec for all but {'; '.join(named)}. Build every metric with the same arguments."
            )


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _short(value: Any) -> str:
    text = re.sub(r"-?0x[\da-f.]+p[+-]\d+", lambda found: repr(float.fromhex(found[0])), str(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _check_task(task: Task, classes: int, multi_class: MultiClass) -> None:
    check_choice("task", task, get_args(Task))
    name, least = {
        "binary": ("classes", 1),
        "multiclass": ("num_classes", 2),
        "multilabel": ("num_labels", 1),
    }[task]
    check_int(name, classes, least, which=f' for task="{task}"')
    if task == "binary" and classes != 1:
        raise InputError(
            f'Expected argument `classes` to be 1 for task="binary" but got {classes!r}.'
        )
    if multi_class not in get_args(MultiClass) or (
        multi_class == "ovo" and (task != "multiclass" or classes < 3)
    ):
        raise InputError(
            f"Expected argument `multi_class` to be one of {get_args(MultiClass)}, the latter for three classes or "
            f"more, but got {multi_class!r} for {classes} of task {task!r}."
        )


def _check_models(
    names: tuple[str, ...], at: tuple[float, ...], grid: ScoreGrid, plain: bool
) -> None:
    """Raise unless two models can be compared on this grid; ``plain`` is a binary task without groups."""
    if not plain or grid.bins > MOST_PAIRED_BINS:
        raise InputError(
            f"Expected a binary task without groups on at most {MOST_PAIRED_BINS} bins to compare two models but got "
            f"another, or {grid.bins} bins."
        )
    if not _are_names(names) or len(names) != 2:
        raise InputError(f"Expected argument `models` to be two different names but got {names!r}.")
    if not isinstance(at, tuple) or len(at) != 2 or not set(at) <= set(grid.edges[1:-1].tolist()):
        low, high = grid.score_range
        raise InputError(
            f"Expected argument `thresholds` to be two scores inside [{low}, {high}] but got {at!r}."
        )


def _are_names(names: tuple[str, ...]) -> bool:
    known = isinstance(names, tuple) and all(0 < text_size(name) <= 255 for name in names)
    return known and len(set(names)) == len(names)
