"""Spec: everything that all parties agree on before they add up. What is asked of them is a Query.

A spec is a frozen value. Two parties that add up have the same spec, and compare it by a 256-bit digest of its one
encoding. Whatever changes the counts of the same data is therefore a field of the spec: task, classes, grid, groups,
normalization, the ignored target, the order of a study's labels.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, get_args

import torch
from torch import Tensor

from torchmetrics_fed.counting import ScoreGrid, Table, Tree
from torchmetrics_fed.counting.validation import Rules
from torchmetrics_fed.errors import (
    InputError,
    ReleaseError,
    SpecMismatchError,
    WireError,
    check_choice,
    check_int,
)
from torchmetrics_fed.privacy import Exact, Privacy
from torchmetrics_fed.privacy.noise import Noise
from torchmetrics_fed.privacy.sensitivity import Sensitivity
from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.wire import text_size
from torchmetrics_fed.typing import GridName, Groups, MultiClass, Normalization, Task

SPEC_VERSION = 3
MOST_SPEC_BYTES = 1 << 19
"""The most bytes of a spec: parsed JSON takes up to 40 times its size."""
MOST_GROUPS = 256
MOST_PAIRED_BINS = 512
MOST_QUERIES = 2
"""The most queries that one release takes, which its delta is charged for."""


@dataclass(frozen=True)
class Spec:
    """What is counted, on which grid, and with which noise it leaves.

    Args:
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        classes: length of the class axis: 1 for binary tasks, the number of classes or labels for others.
        grid: the bins of the scores.
        privacy: who adds which noise.
        multi_class: whether the scores of a class are counted for it against the rest (``"ovr"``), or for every true
            class by itself (``"ovo"``), which answers both questions and takes ``classes / 2`` times the room.
        secure: whether exact counts, too, may only travel through secure aggregation (the paper's SA).
        groups: names of the groups, each example in one of them; none if there are no groups.
        models: names of two models that score the same examples, whose pairs of bins are counted; none for one model.
        thresholds: for each of the two models, the score from which on it calls an example positive: an edge of the
            grid.
        normalization: what is applied to scores before they are binned.
        ignore_index: the target value of examples that are left out.
        labels: what the label columns of a study's tables hold, in the order 0, 1, ...; none where they hold numbers.
        labels_per_example: for multi-label tasks, how many positive labels an example can have at most.

    Example:
        >>> from torchmetrics_fed import ScoreGrid, Spec
        >>> Spec("binary", 1, ScoreGrid()).digest == Spec("binary", 1, ScoreGrid(bins=64)).digest
        False
    """

    task: Task
    classes: int
    grid: ScoreGrid
    privacy: Privacy = field(default_factory=Exact)
    multi_class: MultiClass = "ovr"
    secure: bool = False
    groups: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()
    normalization: Normalization | None = field(default=None, kw_only=True)
    ignore_index: int | None = field(default=None, kw_only=True)
    labels: tuple[str, ...] = field(default=(), kw_only=True)
    labels_per_example: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _check_task(self.task, self.classes, self.multi_class)
        _check_privacy(self.privacy)
        if not isinstance(self.secure, bool):
            raise InputError(f"Expected argument `secure` to be a bool but got {self.secure!r}.")
        if self.secure and self.privacy.charges:
            raise InputError(
                f"Expected argument `secure` only with `privacy=None` but got it with {self.privacy}. Leave it out: "
                "DistributedDP hides shares by itself, and the noise of LocalDP hides each share."
            )
        if not _are_names(self.groups) or len(self.groups) == 1 or len(self.groups) > MOST_GROUPS:
            raise InputError(
                f"Expected argument `groups` to be 2 to {MOST_GROUPS} different names, or their number, but got "
                f"{self.groups!r}."
            )
        if self.models or self.thresholds:
            plain = self.task == "binary" and not self.groups
            _check_models(self.models, self.thresholds, self.grid, plain)
        self._check_reading()

    @classmethod
    def build(
        cls,
        task: Task,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        multi_class: MultiClass = "ovr",
        quantiles: int = 1024,
        grid: GridName | ScoreGrid = "two_sided",
        normalization: Normalization | None = None,
        ignore_index: int | None = None,
        privacy: Privacy | None = None,
        secure: bool = False,
        groups: Groups = None,
        labels: Sequence[str] = (),
    ) -> Spec:
        """Return the spec that a metric's arguments ask for, or raise and say what to pass instead.

        Example:
            >>> from torchmetrics_fed import Spec
            >>> Spec.build("multiclass", num_classes=3, quantiles=64).counts_shape
            (3, 2, 256)
        """
        if isinstance(labels, str):
            raise InputError(
                f"Expected argument `labels` to be a list of names but got {labels!r}. Pass `labels=[...]`."
            )
        chosen = _grid(grid, quantiles)
        spec = cls(
            task,
            _classes(task, num_classes, num_labels),
            chosen,
            privacy=Exact() if privacy is None else privacy,
            multi_class=multi_class,
            secure=secure,
            groups=_group_names(groups),
            normalization=normalization,
            ignore_index=ignore_index,
            labels=tuple(labels),
        )
        low, high = chosen.score_range
        if normalization is not None and not low <= 0 < 1 <= high:
            raise InputError(
                f'Expected scores from 0 to 1 to fit the bins with `normalization="{normalization}"` but they span '
                f"[{low}, {high}]. Leave out `grid`: its range is that after normalization."
            )
        return spec

    def _check_reading(self) -> None:
        """Raise unless the fields that say how a batch is read fit the task."""
        logits = "softmax" if self.task == "multiclass" else "sigmoid"
        if self.normalization not in (None, logits):
            raise InputError(
                f'Expected argument `normalization` to be None or "{logits}" for task="{self.task}" but got '
                f"{self.normalization!r}."
            )
        if self.ignore_index is not None and type(self.ignore_index) is not int:
            raise InputError(
                f"Expected argument `ignore_index` to be None or an int but got {self.ignore_index!r}."
            )
        if not _are_names(self.labels):
            raise InputError(
                f"Expected argument `labels` to be different names but got {self.labels!r}."
            )
        if self.labels_per_example is not None:
            check_int("labels_per_example", self.labels_per_example, 1, self.classes)
            if self.task != "multilabel":
                raise InputError(
                    "Expected argument `labels_per_example` only for multi-label tasks but got it for "
                    f'task="{self.task}". Leave it out.'
                )

    @cached_property
    def rows(self) -> int:
        """Histograms per class, and per group: negatives and positives, or one per true class."""
        return self.classes if self.multi_class == "ovo" else 2

    @property
    def epsilon(self) -> float:
        """What a release costs."""
        return self.privacy.epsilon

    @property
    def clients_needed(self) -> int:
        """How many shares a sum must hold before it is opened."""
        return self.privacy.clients_needed

    @property
    def hides_shares(self) -> bool:
        """Whether shares may only travel through secure aggregation."""
        return self.secure or self.privacy.hides_shares

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of cells: integers, except for the paper's continuous noise."""
        return torch.float64 if self.privacy.draws_floats else torch.int64

    @cached_property
    def delta(self) -> float:
        """The delta that a release costs, whatever its queries: the samplers' distance from their laws included."""
        most_cells = 2 * math.prod(self.counts_shape)  # no tree has twice as many nodes as leaves
        return self.privacy.charged_delta(cells=most_cells, queries=MOST_QUERIES)

    @cached_property
    def all_bins(self) -> Query:
        """The query for every bin at once, which exact counts are asked."""
        if self.models:
            return Query(Table.flat(self.grid.bins))
        return Query(Tree.flat(self.grid.bins))

    @cached_property
    def everybody(self) -> Spec:
        """The same without groups."""
        return replace(self, groups=()) if self.groups else self

    @property
    def counts_shape(self) -> tuple[int, int, int]:
        """The shape of counts: ``(classes, groups * rows, bins)``; for two models all pairs of bins."""
        rows = max(len(self.groups), 1) * self.rows
        return self.classes, rows, self.grid.bins ** max(len(self.models), 1)

    def rules(self, *, validates: bool = True) -> Rules:
        """Return how a batch is to be read; ``validates`` is whether the values of scores and targets are checked."""
        return Rules(
            task=self.task,
            normalization=self.normalization,
            ignore_index=self.ignore_index,
            validate=validates,
            private=self.privacy.charges,
            groups=len(self.groups),
        )

    def empty_counts(self) -> Tensor:
        """Return the counts of no examples."""
        return torch.zeros(self.counts_shape, dtype=torch.int64)

    def by_group(self, counts: Tensor) -> Tensor:
        """Return counts with the groups on the class axis, ``(groups * classes, rows, bins)``, group by group."""
        return torch.flatten(counts.unflatten(1, (-1, self.rows)).transpose(0, 1), 0, 1)

    def histograms(self, query: Query) -> tuple[int, int]:
        """Return how many groups and how many classes the replies to a query tell apart."""
        groups = 1 if query.pools_groups else max(len(self.groups), 1)
        classes = 1 if query.pools_classes else self.classes
        return groups, classes

    def shape(self, query: Query) -> tuple[int, int, int]:
        """Return the shape of the cells of a reply."""
        groups, classes = self.histograms(query)
        return groups * classes, self.rows, query.tree.cells

    def sensitivity(self, query: Query) -> Sensitivity:
        """Return how much one person can change the replies to a query."""
        return Sensitivity.of(
            self.task,
            self.classes,
            tuple(level.largest for level in query.weights),
            pools_classes=query.pools_classes,
            one_vs_one=self.multi_class == "ovo",
            neighbours=self.privacy.neighbours,
            examples_per_person=self.privacy.examples_per_person,
        )

    def noise(self, query: Query) -> Noise:
        """Return the noise of one reply, calibrated for the sensitivity of what is counted."""
        cells = math.prod(self.shape(query))
        return _noise(self.privacy, self.sensitivity(query), cells, query.fraction)

    def cells(self, query: Query, counts: Tensor) -> Tensor:
        """Return every level of the tree of ``counts`` side by side, without noise, as :meth:`shape` says.

        Every cell counts an example as many times as its weight says.
        """
        histograms = self.by_group(counts).unflatten(0, (-1, self.classes))
        if query.pools_groups:
            histograms = histograms.sum(0, keepdim=True)
        if query.pools_classes:
            histograms = histograms.sum(1, keepdim=True)
        cells = query.tree.joined(query.tree.leaf(histograms.flatten(0, 1)))
        if query.is_weighted:
            cells = cells * self._cell_weights(query)
        return cells

    def levels(self, query: Query, cells: Tensor) -> list[Tensor]:
        """Return the levels that lie side by side in ``cells``, each counted once: the inverse of :meth:`cells`."""
        levels = query.tree.split(cells)
        if not query.is_weighted:
            return levels
        weights = query.tree.split(self._cell_weights(query))
        return [
            level if bool((weight == 1).all()) else level.double() / weight
            for level, weight in zip(levels, weights, strict=True)
        ]

    def _cell_weights(self, query: Query) -> Tensor:
        """Return the weight of each cell, to be multiplied with cells ``(groups * classes, rows, cells)``."""
        weights = torch.from_numpy(query.cell_weights)
        if self.multi_class == "ovr":
            return weights
        if query.pools_classes:
            return weights[:1]  # the same for negatives and positives: other queries are refused
        is_positive = torch.eye(self.classes, dtype=torch.int64)
        groups, _ = self.histograms(query)
        return weights[is_positive].repeat(groups, 1, 1)

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
        self._check_pooling(query)
        if not self.privacy.charges and query != Query(query.tree):
            raise InputError(
                "Expected a query for all of it, that counts each example once and each class and group by itself, "
                "because exact counts have no epsilon to divide."
            )

    def _check_pooling(self, query: Query) -> None:
        if query.pools_groups and not self.groups:
            raise InputError(
                "Expected a query that adds up groups only where there are groups. Ask without `pools_groups`."
            )
        if query.pools_classes and self.classes == 1:
            raise InputError(
                "Expected a query that adds up classes only where there are several. Ask without `pools_classes`."
            )
        differ = any(level.single is None for level in query.weights)
        if query.pools_classes and self.multi_class == "ovo" and differ:
            raise InputError(
                "Expected one weight for each level where one-vs-one counts are added up over classes, because a row "
                "then holds negatives and positives. Ask without `pools_classes`."
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
        models = [
            [name, threshold.hex()]
            for name, threshold in zip(self.models, self.thresholds, strict=True)
        ]
        return {
            "version": SPEC_VERSION,
            "task": self.task,
            "classes": self.classes,
            "multi_class": self.multi_class,
            "normalization": self.normalization,
            "ignore_index": self.ignore_index,
            "labels": list(self.labels),
            "labels_per_example": self.labels_per_example,
            "secure": self.secure,
            "groups": list(self.groups),
            "models": models,
            **self.grid.fields,
            "privacy": self.privacy.fields,
        }

    @cached_property
    def canonical(self) -> bytes:
        """The fields as JSON, one encoding only."""
        canonical = _canonical(self.fields)
        if len(canonical) > MOST_SPEC_BYTES:
            raise InputError(
                f"Expected a spec of at most {MOST_SPEC_BYTES} bytes but this one takes {len(canonical)}. Use fewer "
                "edges, or shorter names."
            )
        return canonical

    @classmethod
    def from_canonical(cls, data: bytes) -> Spec:
        """Return the spec whose :attr:`canonical` encoding is ``data``, and refuse any other encoding of it."""
        if len(data) > MOST_SPEC_BYTES:
            raise WireError(
                f"Expected a spec of at most {MOST_SPEC_BYTES} bytes but got {len(data)}."
            )
        try:
            fields = json.loads(data)
            version = fields["version"]
            spec = cls._from_fields(fields) if version == SPEC_VERSION else None
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
        if spec is None:
            raise WireError(
                f"Expected version {SPEC_VERSION} of the spec but got version {_short(version)}. Install one version "
                "of this package for all parties."
            )
        if spec.canonical != data:
            raise WireError(
                "Expected the canonical encoding of a spec but got another one. Install one version for all."
            )
        return spec

    @classmethod
    def _from_fields(cls, fields: dict[str, Any]) -> Spec:
        return cls(
            fields["task"],
            fields["classes"],
            ScoreGrid.from_fields(fields),
            privacy=Privacy.from_fields(fields["privacy"]),
            multi_class=fields["multi_class"],
            secure=fields["secure"],
            groups=tuple(fields["groups"]),
            models=tuple(name for name, _ in fields["models"]),
            thresholds=tuple(float.fromhex(threshold) for _, threshold in fields["models"]),
            normalization=fields["normalization"],
            ignore_index=fields["ignore_index"],
            labels=tuple(fields["labels"]),
            labels_per_example=fields["labels_per_example"],
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
        mine = _flat(self.fields)
        theirs = _flat(other.fields)
        named = [
            f"{name}: expected {_short(mine.get(name))}, got {_short(theirs.get(name))}"
            for name in mine | theirs
            if mine.get(name) != theirs.get(name)
        ]
        if named:
            raise SpecMismatchError(
                f"Expected one spec for all but {'; '.join(named)}. Build every metric with the same arguments."
            )


@lru_cache(maxsize=64)  # an aggregator asks for the noise of every share
def _noise(privacy: Privacy, sensitivity: Sensitivity, cells: int, fraction: float) -> Noise:
    return privacy.noise(sensitivity, cells=cells, fraction=fraction)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with those of the privacy setting beside them, its kind as ``privacy``."""
    privacy = dict(fields["privacy"])
    kind = privacy.pop("kind")
    return {**fields, **privacy, "privacy": kind}


def _short(value: Any) -> str:
    text = re.sub(r"-?0x[\da-f.]+p[+-]\d+", lambda found: repr(float.fromhex(found[0])), str(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _grid(grid: GridName | ScoreGrid, quantiles: int) -> ScoreGrid:
    if grid == "two_sided":
        return ScoreGrid.two_sided(quantiles)
    if grid == "even":
        return ScoreGrid.even(quantiles)
    if not isinstance(grid, ScoreGrid):
        raise InputError(
            f"Expected argument `grid` to be one of {get_args(GridName)} or a ScoreGrid but got {grid!r}. Ranges and "
            "edges are ScoreGrid.even(quantiles, score_range) and ScoreGrid.from_edges(edges)."
        )
    return grid


def _group_names(groups: Groups) -> tuple[str, ...]:
    """The groups' names: digits where only their number is given."""
    if groups is None:
        return ()
    if isinstance(groups, int) and not isinstance(groups, bool) and 2 <= groups <= MOST_GROUPS:
        return tuple(map(str, range(groups)))
    if isinstance(groups, list | tuple) and groups:
        return tuple(groups)
    return (repr(groups),)  # which the spec refuses


def _classes(task: Task, num_classes: int | None, num_labels: int | None) -> int:
    """The length of the class axis; raises for one that is missing or belongs to another task."""
    given = {"multiclass": ("num_classes", num_classes), "multilabel": ("num_labels", num_labels)}
    for other, (name, number) in given.items():
        if other != task and number is not None and task in get_args(Task):
            raise InputError(
                f'Expected no argument `{name}` for task="{task}" but got {number!r}. Pass `task="{other}"`, or leave '
                f"out `{name}`."
            )
    name, number = given.get(task, ("classes", 1))
    if number is None:
        raise InputError(
            f'Expected argument `{name}` for task="{task}" but got none. Pass it, as in `{name}=3`.'
        )
    return number


def _check_privacy(privacy: object) -> None:
    if isinstance(privacy, Privacy):
        return
    epsilon = privacy if type(privacy) in (int, float) else 1.0
    raise InputError(
        "Expected argument `privacy` to be None, DistributedDP, LocalDP or CentralDP but got "
        f"{privacy!r}. Name who adds the noise: `CentralDP(epsilon={epsilon})`, `LocalDP(epsilon="
        f"{epsilon})` or `DistributedDP(epsilon={epsilon}, min_clients=8)`."
    )


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
    names: tuple[str, ...], thresholds: tuple[float, ...], grid: ScoreGrid, plain: bool
) -> None:
    """Raise unless two models can be compared on this grid; ``plain`` is a binary task without groups."""
    if not plain or grid.bins > MOST_PAIRED_BINS:
        raise InputError(
            f"Expected a binary task without groups on at most {MOST_PAIRED_BINS} bins to compare two models but got "
            f"another, or {grid.bins} bins."
        )
    if not _are_names(names) or len(names) != 2:
        raise InputError(f"Expected argument `models` to be two different names but got {names!r}.")
    is_pair = isinstance(thresholds, tuple) and len(thresholds) == 2
    if not is_pair or not set(thresholds) <= set(grid.edges[1:-1].tolist()):
        low, high = grid.score_range
        raise InputError(
            f"Expected argument `thresholds` to be two scores inside [{low}, {high}] but got {thresholds!r}."
        )


def _are_names(names: tuple[str, ...]) -> bool:
    known = isinstance(names, tuple) and all(0 < text_size(name) <= 255 for name in names)
    return known and len(set(names)) == len(names)
