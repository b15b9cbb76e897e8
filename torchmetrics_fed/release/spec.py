"""Spec: everything that all parties agree on before they add up counts.

These rules hold for every spec:

- A spec is a frozen value. It draws nothing, charges nothing, and decides nothing.
- Every setting that changes the counts of the same data is a field: task, classes, grid, groups,
  normalization, the ignored target, the order of a study's labels.
- Two parties that add up have the same spec. They compare it by a 256-bit digest of its one
  encoding, :attr:`Spec.canonical`. Digests of each field name the field that differs.
- Every reply is bound to the spec and to its :class:`Query` by :meth:`Spec.binding`.
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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.counting import ScoreGrid, Table, Tree
from torchmetrics_fed.counting.batch import empty_counts
from torchmetrics_fed.counting.validation import ROW_SUM_TOLERANCE, Rules
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
from torchmetrics_fed.privacy.sensitivity import LevelWeight, Sensitivity, most_together
from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.wire import text_size
from torchmetrics_fed.typing import GridName, Groups, MultiClass, Normalization, Task

SPEC_VERSION = 4
"""The version of the encoding of a spec."""

MOST_SPEC_BYTES = 1 << 19
"""The most bytes of an encoded spec: parsed JSON takes up to 40 times its size in memory."""

MOST_GROUPS = 256
"""The most groups of a spec."""

MOST_PAIRED_BINS = 512
"""The most bins of a grid on which two models are compared: all pairs of bins are counted."""

MOST_QUERIES = 2
"""The most queries of one release. The delta of a release is charged for as many."""

_LONGEST_VALUE = 60
"""The most characters of a field's value in an error."""

_HEX_FLOAT = re.compile(r"-?0x[\da-f.]+p[+-]\d+")
"""A float in hexadecimal, as :meth:`float.hex` writes it."""


@dataclass(frozen=True)
class Spec:
    """The agreement of all parties: the task, the grid, and the noise.

    Args:
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        classes: length of the class axis: 1 for binary tasks, otherwise the number of classes or
            labels.
        grid: the bins of the scores.
        privacy: who adds which noise.
        multi_class: how the scores of a class are counted: for the class against the rest
            (``"ovr"``), or for each true class separately (``"ovo"``). The latter answers both
            questions and takes ``classes / 2`` times the space.
        secure: whether exact counts, too, may only travel through secure aggregation (the paper's
            SA).
        groups: names of the groups, each example in one of them; none if there are no groups.
        models: names of two models that score the same examples: pairs of bins are counted. None
            for one model.
        thresholds: for each of the two models, the lowest score of a positive prediction: an edge
            of the grid.
        normalization: the function that is applied to scores before they are binned.
        ignore_index: the target value of examples that are left out.
        labels: the values of the label columns in a study's tables, in the order 0, 1, ...; none
            where they are numbers.
        labels_per_example: for multi-label tasks, the most positive labels of an example that are
            counted.
        sums_to_one: for multi-class tasks under privacy, whether the scores of each example add up
            to 1. Clients check it before they count, and pure noise rests on it. By default,
            :meth:`build` asks for it wherever noise can rest on it.

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
    sums_to_one: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_task(self.task, self.classes, self.multi_class)
        _check_privacy(self.privacy)
        if not isinstance(self.secure, bool):
            raise InputError(f"Expected argument `secure` to be a bool but got {self.secure!r}.")
        if self.secure and self.privacy.charges:
            raise InputError(
                f"Expected argument `secure` only with `privacy=None` but got it with "
                f"{self.privacy}. Leave it out: DistributedDP hides shares by itself, and the "
                "noise of LocalDP hides each share."
            )
        if not _are_names(self.groups) or len(self.groups) == 1 or len(self.groups) > MOST_GROUPS:
            raise InputError(
                f"Expected argument `groups` to be 2 to {MOST_GROUPS} different names, or their "
                f"number, but got {self.groups!r}."
            )
        if self.models or self.thresholds:
            self._check_models()
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
        labels_per_example: int | None = None,
        sums_to_one: bool | None = None,
    ) -> Spec:
        """Return the spec for a metric's arguments. Errors say which argument to pass instead.

        Example:
            >>> from torchmetrics_fed import Spec
            >>> Spec.build("multiclass", num_classes=3, quantiles=64).counts_shape
            (3, 2, 256)
        """
        if isinstance(labels, str):
            raise InputError(
                f"Expected argument `labels` to be a list of names but got {labels!r}. Pass "
                "`labels=[...]`."
            )
        if privacy is None:
            privacy = Exact()
        _check_privacy(privacy)
        score_grid = _make_grid(grid, quantiles)
        if sums_to_one is None:
            is_pure = privacy.charges and privacy.delta == 0
            is_softmax = task == "multiclass" and score_grid.holds_probabilities
            sums_to_one = is_pure and is_softmax and multi_class == "ovr"
        spec = cls(
            task,
            _number_of_classes(task, num_classes, num_labels),
            score_grid,
            privacy=privacy,
            multi_class=multi_class,
            secure=secure,
            groups=_group_names(groups),
            normalization=normalization,
            ignore_index=ignore_index,
            labels=tuple(labels),
            labels_per_example=labels_per_example,
            sums_to_one=sums_to_one,
        )
        low, high = score_grid.score_range
        if normalization is not None and not low <= 0 < 1 <= high:
            raise InputError(
                "Expected scores from 0 to 1 to fit the bins with "
                f'`normalization="{normalization}"` but they span '
                f"[{low}, {high}]. Leave out `grid`: its range is that after normalization."
            )
        return spec

    def _check_reading(self) -> None:
        """Raise unless the fields about the reading of a batch fit the task."""
        allowed = "softmax" if self.task == "multiclass" else "sigmoid"
        if self.normalization not in (None, allowed):
            raise InputError(
                f'Expected argument `normalization` to be None or "{allowed}" for '
                f'task="{self.task}" but got {self.normalization!r}.'
            )
        if self.ignore_index is not None and type(self.ignore_index) is not int:
            raise InputError(
                "Expected argument `ignore_index` to be None or an int but got "
                f"{self.ignore_index!r}."
            )
        if not _are_names(self.labels):
            raise InputError(
                f"Expected argument `labels` to be different names but got {self.labels!r}."
            )
        if self.labels_per_example is not None:
            self._check_labels_per_example()
        if self.sums_to_one is not False:
            self._check_sums_to_one()

    def _check_labels_per_example(self) -> None:
        check_int("labels_per_example", self.labels_per_example, 1, self.classes)
        if self.task != "multilabel":
            raise InputError(
                "Expected argument `labels_per_example` only for multi-label tasks but got it for "
                f'task="{self.task}". Leave it out.'
            )

    def _check_sums_to_one(self) -> None:
        if self.sums_to_one is not True:
            raise InputError(
                f"Expected argument `sums_to_one` to be a bool but got {self.sums_to_one!r}."
            )
        is_private = self.task == "multiclass" and self.privacy.charges
        if not is_private or not self.grid.holds_probabilities:
            low, high = self.grid.score_range
            raise InputError(
                "Expected argument `sums_to_one` only for multi-class tasks with `privacy`, on "
                f'bins of scores from 0 to 1, but got it for task="{self.task}" with '
                f"{self.privacy} on [{low}, {high}]. Leave it out."
            )

    def _check_models(self) -> None:
        """Raise unless two models can be compared on this grid."""
        is_plain = self.task == "binary" and not self.groups
        if not is_plain or self.grid.bins > MOST_PAIRED_BINS:
            raise InputError(
                f"Expected a binary task without groups on at most {MOST_PAIRED_BINS} bins to "
                f"compare two models but got another, or {self.grid.bins} bins."
            )
        if not _are_names(self.models) or len(self.models) != 2:
            raise InputError(
                f"Expected argument `models` to be two different names but got {self.models!r}."
            )
        is_pair = isinstance(self.thresholds, tuple) and len(self.thresholds) == 2
        inner_edges = set(self.grid.edges[1:-1].tolist())
        if not is_pair or not set(self.thresholds) <= inner_edges:
            low, high = self.grid.score_range
            raise InputError(
                f"Expected argument `thresholds` to be two scores inside [{low}, {high}] but got "
                f"{self.thresholds!r}."
            )

    @cached_property
    def rows(self) -> int:
        """Histograms of each class and group: negatives and positives, or one per true class."""
        if self.multi_class == "ovo":
            return self.classes
        return 2

    @property
    def epsilon(self) -> float:
        """The epsilon that a release costs."""
        return self.privacy.release_epsilon

    @property
    def clients_needed(self) -> int:
        """The number of shares that a sum must hold before it is opened."""
        return self.privacy.clients_needed

    @property
    def hides_shares(self) -> bool:
        """Whether shares may only travel through secure aggregation."""
        return self.secure or self.privacy.hides_shares

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of cells. They are integers, except with the paper's continuous noise."""
        if self.privacy.draws_floats:
            return torch.float64
        return torch.int64

    @cached_property
    def delta(self) -> float:
        """The delta that a release costs, with any queries.

        It includes the distance of the samplers from their laws.
        """
        most_cells = 2 * math.prod(self.counts_shape)  # no tree has twice as many nodes as leaves
        return self.privacy.charged_delta(cells=most_cells, queries=MOST_QUERIES)

    @cached_property
    def all_bins(self) -> Query:
        """The query for every bin at once: the query for exact counts."""
        if self.models:
            return Query(Table.flat(self.grid.bins))
        return Query(Tree.flat(self.grid.bins))

    @cached_property
    def everybody(self) -> Spec:
        """The same spec without groups."""
        if not self.groups:
            return self
        return replace(self, groups=())

    @property
    def counts_shape(self) -> tuple[int, int, int]:
        """The shape of counts: ``(classes, groups * rows, bins)``; for two models pairs of bins."""
        rows = max(len(self.groups), 1) * self.rows
        bins = self.grid.bins ** max(len(self.models), 1)
        return self.classes, rows, bins

    def rules(self, *, validates: bool = True) -> Rules:
        """Return the rules for reading a batch.

        Args:
            validates: whether the values of scores and targets are checked. Where the noise rests
                on these values, they always are.
        """
        rests_on_values = self.sums_to_one or self.labels_per_example is not None
        if rests_on_values and self.privacy.charges and not validates:
            name = "sums_to_one=False" if self.sums_to_one else "labels_per_example=None"
            raise InputError(
                'Expected argument `validate_args` to be True or "deferred" because the noise of '
                "this metric rests on the values of scores and targets but got False. Pass "
                f"`{name}`, which takes more noise."
            )
        return Rules(
            task=self.task,
            normalization=self.normalization,
            ignore_index=self.ignore_index,
            validate=validates,
            private=self.privacy.charges,
            groups=len(self.groups),
            labels_per_example=self.labels_per_example,
            sums_to_one=self.sums_to_one,
        )

    def empty_counts(self) -> Tensor:
        """Return the counts of no examples."""
        classes, rows, bins = self.counts_shape
        return empty_counts(classes, rows, bins)

    def by_group(self, counts: Tensor) -> Tensor:
        """Return counts with the groups on the class axis, ``(groups * classes, rows, bins)``."""
        groups_first = counts.unflatten(1, (-1, self.rows)).transpose(0, 1)
        return torch.flatten(groups_first, 0, 1)

    def histograms(self, query: Query) -> tuple[int, int]:
        """Return the number of groups and of classes that the replies to a query tell apart."""
        groups = max(len(self.groups), 1)
        classes = self.classes
        if query.pools_groups:
            groups = 1
        if query.pools_classes:
            classes = 1
        return groups, classes

    def shape(self, query: Query) -> tuple[int, int, int]:
        """Return the shape of the cells of a reply."""
        groups, classes = self.histograms(query)
        return groups * classes, self.rows, query.tree.cells

    def sensitivity(self, query: Query) -> Sensitivity:
        """Return the most that one person can change the replies to a query."""
        return _sensitivity(self, query)

    def noise(self, query: Query) -> Noise:
        """Return the noise of one reply, calibrated for the sensitivity of the query."""
        return _calibrated_noise(
            self.privacy,
            self.sensitivity(query),
            cells=math.prod(self.shape(query)),
            fraction=query.fraction,
        )

    def cells(self, query: Query, counts: Tensor) -> Tensor:
        """Return the cells of ``counts`` without noise: the levels of the tree, side by side.

        Every cell counts an example as many times as its weight says.

        Args:
            query: the query with the tree and the weights.
            counts: the raw counts, of :attr:`counts_shape`.

        Returns:
            The cells, of the shape that :meth:`shape` returns.
        """
        histograms = self.by_group(counts).unflatten(0, (-1, self.classes))
        if query.pools_groups:
            histograms = histograms.sum(0, keepdim=True)
        if query.pools_classes:
            histograms = histograms.sum(1, keepdim=True)
        leaf_counts = query.tree.leaf(histograms.flatten(0, 1))
        cells = query.tree.joined(leaf_counts)
        if query.is_weighted:
            levels = query.tree.split(cells)
            weights = map(torch.from_numpy, self.weights(query))
            weighted = [level * weight for level, weight in zip(levels, weights, strict=True)]
            cells = torch.cat(weighted, -1)
        return cells

    def levels(self, query: Query, cells: Tensor) -> list[Tensor]:
        """Return the levels of ``cells``, divided by their weights: the inverse of :meth:`cells`.

        A level whose weights are all 1 stays integer.
        """
        levels = query.tree.split(cells)
        if not query.is_weighted:
            return levels
        weights = map(torch.from_numpy, self.weights(query))
        return [_unweighted(level, weight) for level, weight in zip(levels, weights, strict=True)]

    def weights(self, query: Query) -> list[NDArray[np.int64]]:
        """Return how many times each cell of a level counts an example, the top level first.

        The weights of a level broadcast to its cells, ``(groups * classes, rows, nodes)``. The last
        axis has length 1 where all nodes have the same weight.
        """
        rows = [level.rows for level in query.weights]
        if self.multi_class == "ovr":
            return rows
        if query.pools_classes:
            # Negatives and positives have the same weights: `check_query` refuses other queries.
            return [weights[:1] for weights in rows]
        is_positive = np.eye(self.classes, dtype=np.int64)
        groups, _ = self.histograms(query)
        return [np.tile(weights[is_positive], (groups, 1, 1)) for weights in rows]

    def check_query(self, query: Query) -> None:
        """Raise unless the query can be answered from counts of this spec."""
        self._check_models_of(query)
        if not query.tree.fits(self.grid.bins):
            leaves = f"{query.tree.leaves} leaves"
            if query.tree.edges:
                leaves += f" up to {query.tree.edges[-1]}"
            raise InputError(
                f"Expected a query with leaves of whole bins, of which there are {self.grid.bins}, "
                f"but {query.tree.branching} has {leaves}."
            )
        self._check_pooling(query)
        if not self.privacy.charges and query != Query(query.tree):
            raise InputError(
                "Expected a query for all of it, that counts each example once and each class and "
                "group by itself, because exact counts have no epsilon to divide."
            )

    def _check_models_of(self, query: Query) -> None:
        """Raise unless the query is about as many models as the spec."""
        is_expected = not self.models
        if isinstance(query.tree, Table):
            has_second_query = query.fraction < 1
            is_expected = bool(self.models) and (query.tree.joint or has_second_query)
        if not is_expected:
            models = "two models" if self.models else "one model"
            raise InputError(
                f"Expected a query for {models} but got another. A Table asks for two models' "
                "leaves, a joint one unless a second query follows; a Tree asks for one model's."
            )

    def _check_pooling(self, query: Query) -> None:
        if query.pools_groups and not self.groups:
            raise InputError(
                "Expected a query that adds up groups only where there are groups. Ask without "
                "`pools_groups`."
            )
        if query.pools_classes and self.classes == 1:
            raise InputError(
                "Expected a query that adds up classes only where there are several. Ask without "
                "`pools_classes`."
            )
        weights_differ = any(level.single is None for level in query.weights)
        if query.pools_classes and self.multi_class == "ovo" and weights_differ:
            raise InputError(
                "Expected one weight for each level where one-vs-one counts are added up over "
                "classes, because a row then holds negatives and positives. Ask without "
                "`pools_classes`."
            )

    def check_may_travel(self, shares: int = 1) -> None:
        """Raise if a sum of ``shares`` shares may only travel through secure aggregation."""
        if self.hides_shares and shares < max(self.clients_needed, 2):
            raise ReleaseError(
                "Expected this to travel through secure aggregation, because by itself it hides "
                "next to nothing. Send `metric.mask(client, ...)` with a SecureAggregationClient, "
                "or pass `trusted_aggregator=True` (with privacy=None leave out `secure=True`) if "
                "the aggregator may see it."
            )

    @property
    def fields(self) -> dict[str, Any]:
        """The fields as JSON values, floats in hexadecimal so that no digit is lost."""
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
            "sums_to_one": self.sums_to_one,
            "secure": self.secure,
            "groups": list(self.groups),
            "models": models,
            **self.grid.fields,
            "privacy": self.privacy.fields,
        }

    @cached_property
    def canonical(self) -> bytes:
        """The fields as JSON, in the one encoding that is allowed."""
        canonical = _canonical(self.fields)
        if len(canonical) > MOST_SPEC_BYTES:
            raise InputError(
                f"Expected a spec of at most {MOST_SPEC_BYTES} bytes but this one takes "
                f"{len(canonical)}. Use fewer edges, or shorter names."
            )
        return canonical

    @classmethod
    def from_canonical(cls, data: bytes) -> Spec:
        """Return the spec whose :attr:`canonical` encoding is ``data``. Raises for other bytes."""
        if len(data) > MOST_SPEC_BYTES:
            raise WireError(
                f"Expected a spec of at most {MOST_SPEC_BYTES} bytes but got {len(data)}."
            )
        spec = None
        try:
            fields = json.loads(data)
            version = fields["version"]
            if version == SPEC_VERSION:
                spec = cls._from_fields(fields)
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
                f"Expected version {SPEC_VERSION} of the spec but got version {_short(version)}. "
                "Install one version of this package for all parties."
            )
        if spec.canonical != data:
            raise WireError(
                "Expected the canonical encoding of a spec but got another one. Install one "
                "version for all."
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
            sums_to_one=fields["sums_to_one"],
        )

    @cached_property
    def digests(self) -> dict[str, bytes]:
        """SHA-256 of each field: a party can name a differing field without the other spec."""
        return {
            name: hashlib.sha256(_canonical(value)).digest() for name, value in self.fields.items()
        }

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all fields."""
        return hashlib.sha256(self.canonical).digest()

    def binding(self, query: Query) -> bytes:
        """Return the SHA-256 of spec and query, which binds a reply to both."""
        return hashlib.sha256(self.digest + query.digest).digest()

    def check(self, spec: Spec) -> None:
        """Raise if another party's ``spec`` differs, and name every differing field."""
        expected = _flat(self.fields)
        actual = _flat(spec.fields)
        differences = [
            f"{name}: expected {_short(expected.get(name))}, got {_short(actual.get(name))}"
            for name in expected | actual
            if expected.get(name) != actual.get(name)
        ]
        if differences:
            raise SpecMismatchError(
                f"Expected one spec for all but {'; '.join(differences)}. Build every metric with "
                "the same arguments."
            )


@lru_cache(maxsize=64)  # an aggregator asks for the noise of every share
def _sensitivity(spec: Spec, query: Query) -> Sensitivity:
    levels = []
    leaves = query.tree.leaves
    for weights, nodes in zip(query.weights, query.tree.sizes, strict=True):
        negatives = None
        if spec.sums_to_one and len(weights.negatives) > 1:
            places = query.tree.places(spec.grid.bins)[: -1 : leaves // nodes]
            negatives = most_together(
                weights.negatives,
                spec.grid.edges[places].tolist(),
                count=spec.classes - 1,
                total=1 + ROW_SUM_TOLERANCE,
            )
        level = LevelWeight(
            negative=max(weights.negatives),
            positive=max(weights.positives),
            negatives=negatives,
        )
        levels.append(level)
    return Sensitivity.of(
        spec.task,
        spec.classes,
        levels=tuple(levels),
        pools_classes=query.pools_classes,
        one_vs_one=spec.multi_class == "ovo",
        neighbours=spec.privacy.neighbours,
        examples_per_person=spec.privacy.examples_per_person,
        labels_per_example=spec.labels_per_example,
    )


@lru_cache(maxsize=64)
def _calibrated_noise(
    privacy: Privacy, sensitivity: Sensitivity, *, cells: int, fraction: float
) -> Noise:
    return privacy.noise(sensitivity, cells=cells, fraction=fraction)


def _unweighted(level: Tensor, weights: Tensor) -> Tensor:
    if bool((weights == 1).all()):
        return level
    return level.double() / weights


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with those of the privacy setting beside them; ``privacy`` is its kind."""
    privacy = dict(fields["privacy"])
    kind = privacy.pop("kind")
    return {**fields, **privacy, "privacy": kind}


def _short(value: Any) -> str:
    """Return a value for an error: floats in decimal, and not too long."""
    text = _HEX_FLOAT.sub(_in_decimal, str(value))
    if len(text) > _LONGEST_VALUE:
        return text[: _LONGEST_VALUE - 3] + "..."
    return text


def _in_decimal(match: re.Match[str]) -> str:
    return repr(float.fromhex(match[0]))


def _make_grid(grid: GridName | ScoreGrid, quantiles: int) -> ScoreGrid:
    if grid == "two_sided":
        return ScoreGrid.two_sided(quantiles)
    if grid == "even":
        return ScoreGrid.even(quantiles)
    if not isinstance(grid, ScoreGrid):
        raise InputError(
            f"Expected argument `grid` to be one of {get_args(GridName)} or a ScoreGrid but got "
            f"{grid!r}. Ranges and edges are ScoreGrid.even(quantiles, score_range) and "
            "ScoreGrid.from_edges(edges)."
        )
    return grid


def _group_names(groups: Groups) -> tuple[str, ...]:
    """Return the names of the groups: digits where only their number is given."""
    if groups is None:
        return ()
    if isinstance(groups, int) and not isinstance(groups, bool) and 2 <= groups <= MOST_GROUPS:
        return tuple(map(str, range(groups)))
    if isinstance(groups, list | tuple) and groups:
        return tuple(groups)
    return (repr(groups),)  # one name, which the spec refuses


def _number_of_classes(task: Task, num_classes: int | None, num_labels: int | None) -> int:
    """Return the length of the class axis. Raises if it is missing or belongs to another task."""
    _check_not_given(task, "num_classes", num_classes, "multiclass")
    _check_not_given(task, "num_labels", num_labels, "multilabel")
    if task == "multiclass":
        return _required(task, "num_classes", num_classes)
    if task == "multilabel":
        return _required(task, "num_labels", num_labels)
    return 1


def _check_not_given(task: Task, name: str, value: int | None, task_of_argument: str) -> None:
    """Raise if an argument of another task was given."""
    is_unexpected = task != task_of_argument and task in get_args(Task)
    if is_unexpected and value is not None:
        raise InputError(
            f'Expected no argument `{name}` for task="{task}" but got {value!r}. Pass '
            f'`task="{task_of_argument}"`, or leave out `{name}`.'
        )


def _required(task: Task, name: str, value: int | None) -> int:
    if value is None:
        raise InputError(
            f'Expected argument `{name}` for task="{task}" but got none. Pass it, as in `{name}=3`.'
        )
    return value


def _check_privacy(privacy: object) -> None:
    if isinstance(privacy, Privacy):
        return
    epsilon: object = 1.0
    if type(privacy) in (int, float):
        epsilon = privacy
    raise InputError(
        "Expected argument `privacy` to be None, DistributedDP, LocalDP or CentralDP but got "
        f"{privacy!r}. Name who adds the noise: `CentralDP(epsilon={epsilon})`, `LocalDP(epsilon="
        f"{epsilon})` or `DistributedDP(epsilon={epsilon}, min_clients=8)`."
    )


def _check_task(task: Task, classes: int, multi_class: MultiClass) -> None:
    check_choice("task", task, get_args(Task))
    name = "classes"
    least = 1
    if task == "multiclass":
        name = "num_classes"
        least = 2
    elif task == "multilabel":
        name = "num_labels"
    check_int(name, classes, least, which=f' for task="{task}"')
    if task == "binary" and classes != 1:
        raise InputError(
            f'Expected argument `classes` to be 1 for task="binary" but got {classes!r}.'
        )
    is_allowed = multi_class in get_args(MultiClass)
    if multi_class == "ovo":
        is_allowed = task == "multiclass" and classes >= 3
    if not is_allowed:
        raise InputError(
            f"Expected argument `multi_class` to be one of {get_args(MultiClass)}, the latter for "
            f"three classes or more, but got {multi_class!r} for {classes} of task {task!r}."
        )


def _are_names(names: tuple[str, ...]) -> bool:
    """Return whether this is a tuple of different names of 1 to 255 bytes."""
    if not isinstance(names, tuple):
        return False
    if any(not 1 <= text_size(name) <= 255 for name in names):
        return False
    return len(set(names)) == len(names)
