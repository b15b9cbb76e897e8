"""The Area Error to expect of a plan at an epsilon, before anything is spent.

It is that of simulated releases: examples are drawn from a public distribution of scores
(:class:`ReferenceScores`), counted, and released by the same plan and with noise of the same law
as real data would be. Nothing private is involved, so that examples and noise come from a seeded
generator. The cost of a run does not depend on the number of examples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from torch import Tensor

from torchmetrics_fed import functional as F
from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.errors import InputError, check_int
from torchmetrics_fed.exchange import PlanArgument, plan_from
from torchmetrics_fed.exchange.plans import make_release
from torchmetrics_fed.paper import Quantiles
from torchmetrics_fed.privacy import CentralDP, Privacy
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.reconstruct.histograms import Readable
from torchmetrics_fed.reconstruct.uncertainty.bands import summed_noise
from torchmetrics_fed.release import Query, Spec, Sum
from torchmetrics_fed.typing import Floats, Task

_EXACT_BINS = 1 << 16
"""Bins, about, that exact curves are read on: enough that next to no two scores share a bin."""

_MOST_CLASSES_READ = 10
"""Classes whose errors are averaged. They stand for all: each has the same numbers of examples."""

_Curves: TypeAlias = tuple[F.ROCCurve, F.PrecisionRecallCurve]


@dataclass(frozen=True)
class ReferenceScores:
    r"""Scores of a calibrated classifier of two normal classes.

    Each example has a feature :math:`x \sim N(\pm d/2, 1)`, with the plus for positives. Its score
    :math:`s` is the probability that it is positive:
    :math:`\operatorname{logit} s = d x + \log(n^+ / n^-)`. The area under the ROC curve of such
    scores is :math:`\Phi(d / \sqrt 2)`. They are smooth: ties, as of a k-nearest-neighbours
    classifier, are harder for every plan.

    Example:
        >>> ReferenceScores(n_pos=20, n_neg=80).masses([0, 0.25, 0.5, 0.75, 1]).round(2)
        array([[0.82, 0.13, 0.04, 0.01],
               [0.3 , 0.29, 0.25, 0.17]])
    """

    n_pos: int
    n_neg: int
    auroc: float = 0.85

    def __post_init__(self) -> None:
        check_int("n_pos", self.n_pos, 1)
        check_int("n_neg", self.n_neg, 1)
        if not 0.5 < self.auroc < 1:
            raise InputError(
                f"Expected argument `auroc` between 0.5 and 1 but got {self.auroc!r}: at 0.5 every "
                "score is the same, at 1 there is nothing to tell apart. Give the area that you "
                "expect of your model."
            )

    def masses(self, edges: ArrayLike) -> Floats:
        """Return the probability of each bin, ``(2, bins)``, negatives first.

        Args:
            edges: edges of the bins, from 0 to 1.
        """
        distance = math.sqrt(2) * float(ndtri(self.auroc))
        inner_edges = np.asarray(edges)[1:-1]
        with np.errstate(divide="ignore"):  # a two-sided grid has an inner edge at 1
            logit = np.log(inner_edges / (1 - inner_edges))
        features = (logit - math.log(self.n_pos / self.n_neg)) / distance
        offsets = np.array([[0.5], [-0.5]]) * distance  # of negatives, of positives
        below = ndtr(features + offsets)
        return np.asarray(np.diff(below, prepend=0.0, append=1.0, axis=1))

    def counts(self, edges: ArrayLike, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return the counts of freshly drawn examples, ``(2, bins)``, negatives first."""
        masses = self.masses(edges)
        negatives = generator.multinomial(self.n_neg, masses[0])
        positives = generator.multinomial(self.n_pos, masses[1])
        return np.stack([negatives, positives]).astype(np.int64)


class ExpectedError(NamedTuple):
    """Mean Area Errors of both curves, and their standard errors.

    Example:
        >>> error = expected_area_error("adaptive", 1.0, 1_000, 1_000, runs=4)
        >>> [query.fraction for query in error.queries]
        [0.046875, 0.953125]
    """

    roc: float
    precision_recall: float
    roc_standard_error: float
    precision_recall_standard_error: float
    queries: tuple[Query, ...] = ()
    """The queries of the last run: those of some plans depend on the release before."""

    @classmethod
    def of(
        cls, runs: Sequence[tuple[float, float]], queries: tuple[Query, ...] = ()
    ) -> ExpectedError:
        """Return the means and standard errors of the runs' errors."""
        errors = np.array(runs)
        means = errors.mean(0).tolist()
        standard_errors = (errors.std(0, ddof=1) / math.sqrt(len(errors))).tolist()
        return cls(
            roc=means[0],
            precision_recall=means[1],
            roc_standard_error=standard_errors[0],
            precision_recall_standard_error=standard_errors[1],
            queries=queries,
        )


def expected_area_error(
    plan: PlanArgument,
    privacy: Privacy | float,
    n_pos: int,
    n_neg: int,
    *,
    clients: int = 1,
    auroc: float = 0.85,
    quantiles: int = 1024,
    reconstruction: Reconstruction | None = None,
    runs: int = 20,
    seed: int = 0,
    num_classes: int | None = None,
    num_labels: int | None = None,
    labels_per_example: int | None = None,
) -> ExpectedError:
    """Return the Area Error that privacy noise and binning will cost, from simulated releases.

    Every run draws examples (:class:`ReferenceScores`) and the noise that all clients together
    would add, and compares the curves of the release with the exact curves. With ``DistributedDP``
    noise is calibrated for ``min_clients - max_colluding`` clients, and every further client adds
    more; with ``LocalDP`` every client adds all of it. For several classes or labels it is the mean
    error of their curves, each of as many positives and negatives.

    Args:
        plan: as of the metrics, and likewise ``quantiles`` and ``reconstruction``.
        privacy: who adds how much noise; a number is the epsilon of ``CentralDP``.
        n_pos: number of positives of all clients together, of one class or label.
        n_neg: number of negatives, likewise.
        clients: number of clients that take part.
        auroc: the area under the ROC curve that the model is expected to have.
        runs: number of simulated releases, at least 2.
        seed: of examples and noise.
        num_classes: for a multi-class task, as of the metrics.
        num_labels: for a multi-label task, and likewise ``labels_per_example``.

    Example:
        >>> from torchmetrics_fed import DistributedDP
        >>> privacy = DistributedDP(epsilon=1.0, min_clients=16)
        >>> error = expected_area_error("adaptive", privacy, 6_000, 24_000, clients=20, runs=5)
        >>> error.roc < 0.002
        True
    """
    if isinstance(privacy, int | float):
        privacy = CentralDP(float(privacy))
    check_int("clients", clients, 1)
    check_int("runs", runs, 2)
    if clients < privacy.clients_needed:
        raise InputError(
            f"Expected at least min_clients={privacy.clients_needed} clients but got {clients}: "
            "the sum would not be opened. Lower `min_clients`, at the price of more noise in each "
            "share."
        )
    reference = ReferenceScores(n_pos, n_neg, auroc)
    planned = PlannedTask.of(num_classes, num_labels, labels_per_example)
    spec = planned.spec(reference_grid(plan, quantiles, reconstruction), privacy)
    generator = np.random.default_rng(seed)
    strategy = plan_from(plan, spec)
    federation = _SimulatedFederation(spec, clients, generator)
    release = None
    errors = []
    for run in range(runs + strategy.carries_over):
        examples = _Examples.drawn(reference, spec, generator)
        answer = partial(federation.answer, examples.counts)
        release = make_release(strategy, spec, answer, previous=release)
        if strategy.carries_over and run == 0:  # it has no release to carry over
            continue
        errors.append(examples.errors(F.read(release, reconstruction=reconstruction)))
    assert release is not None
    return ExpectedError.of(errors, release.queries)


@dataclass(frozen=True)
class PlannedTask:
    """The task of a planned evaluation: what :class:`~torchmetrics_fed.Spec` says of classes.

    Example:
        >>> PlannedTask.of(num_classes=10).classes
        10
    """

    task: Task = "binary"
    classes: int = 1
    labels_per_example: int | None = None

    @classmethod
    def of(
        cls,
        num_classes: int | None = None,
        num_labels: int | None = None,
        labels_per_example: int | None = None,
    ) -> PlannedTask:
        """Return the task with a metric's arguments."""
        if num_classes is not None and num_labels is not None:
            raise InputError(
                "Expected `num_classes` or `num_labels` but got both. Leave one of them out."
            )
        if num_classes is not None:
            return cls("multiclass", num_classes, labels_per_example)
        if num_labels is not None:
            return cls("multilabel", num_labels, labels_per_example)
        return cls(labels_per_example=labels_per_example)

    def spec(self, grid: ScoreGrid, privacy: Privacy) -> Spec:
        """Return the spec of the evaluation on a grid."""
        return Spec.build(
            self.task,
            num_classes=self.classes if self.task == "multiclass" else None,
            num_labels=self.classes if self.task == "multilabel" else None,
            grid=grid,
            privacy=privacy,
            labels_per_example=self.labels_per_example,
        )


class _Examples(NamedTuple):
    """Examples of all clients, and the exact curves of some classes."""

    counts: Tensor
    """Counts on the bins of the grid, ``(classes, 2, bins)``."""
    curves: list[_Curves]
    """The exact curves of the first classes."""

    @classmethod
    def drawn(
        cls, reference: ReferenceScores, spec: Spec, generator: np.random.Generator
    ) -> _Examples:
        """Return fresh examples, of each class by itself."""
        edges = _fine_edges(spec.grid)
        counts = []
        curves = []
        for number in range(spec.classes):
            fine_counts = reference.counts(edges, generator)
            counts.append(fine_counts.reshape(2, spec.grid.bins, -1).sum(-1))
            if number < _MOST_CLASSES_READ:
                curves.append(_exact_curves(fine_counts))
        return cls(torch.from_numpy(np.stack(counts)), curves)

    def errors(self, histograms: F.Histograms) -> tuple[float, float]:
        """Return the mean Area Errors of the first classes."""
        if histograms.leaf.ndim == 2:
            return _area_errors(_curves(histograms), self.curves[0])
        errors = []
        for number, exact in enumerate(self.curves):
            levels = [level[number] for level in histograms.levels]
            of_class = histograms._replace(levels=levels)
            errors.append(_area_errors(_curves(of_class), exact))
        roc, precision_recall = np.mean(errors, 0).tolist()
        return roc, precision_recall


class _SimulatedFederation:
    """Answers queries as all clients together would.

    Args:
        spec: what the clients agree on.
        clients: number of clients.
        generator: draws their noise.
    """

    def __init__(self, spec: Spec, clients: int, generator: np.random.Generator) -> None:
        self._spec = spec
        self._clients = clients
        self._generator = generator

    def answer(self, counts: Tensor, query: Query) -> Sum:
        """Return the sum of the clients' shares, with noise of the same law.

        Args:
            counts: the counts of all clients together.
            query: the query.
        """
        spec = self._spec
        noise = summed_noise(
            self._generator,
            mechanism=spec.privacy.mechanism,
            variance=spec.noise(query).variance,
            shares=spec.privacy.noise_times(self._clients),
            shape=spec.shape(query),
        )
        cells = spec.cells(query, counts) + torch.from_numpy(noise).to(spec.dtype)
        return Sum(spec, query, cells, shares=self._clients)


def expected_sampling_error(
    n_pos: int, n_neg: int, *, auroc: float = 0.85, runs: int = 20, seed: int = 0
) -> ExpectedError:
    """Return the Area Error of the exact curves of a test set.

    It is the error against the curves of the distribution that the test set is drawn from. Noise
    well below it is not worth another unit of epsilon. Arguments are those of
    :func:`expected_area_error`; ``runs`` is the number of test sets.

    Example:
        >>> small = expected_sampling_error(100, 400, runs=5)
        >>> large = expected_sampling_error(10_000, 40_000, runs=5)
        >>> small.roc > 5 * large.roc
        True
    """
    check_int("runs", runs, 2)
    reference = ReferenceScores(n_pos, n_neg, auroc)
    generator = np.random.default_rng(seed)
    edges = _fine_edges(ScoreGrid.two_sided())
    truth = _exact_curves(reference.masses(edges) * [[n_neg], [n_pos]])
    errors = []
    for _ in range(runs):
        curves = _exact_curves(reference.counts(edges, generator))
        errors.append(_area_errors(curves, truth))
    return ExpectedError.of(errors)


def reference_grid(
    plan: PlanArgument, quantiles: int, reading: Reconstruction | None = None
) -> ScoreGrid:
    """Return the default grid of metrics, or the paper's for its plan and its reconstruction."""
    if plan == "paper" or isinstance(reading, Quantiles):
        return ScoreGrid.even(quantiles)
    return ScoreGrid.two_sided(quantiles)


def _fine_edges(grid: ScoreGrid) -> Floats:
    """Return the edges of fine bins, which are equal parts of the bins of the grid."""
    parts = max(_EXACT_BINS // grid.bins, 1)
    positions = np.arange(grid.bins * parts + 1) / parts
    return np.asarray(np.interp(positions, np.arange(grid.bins + 1), grid.smooth_edges))


def _exact_curves(fine_counts: NDArray[np.generic]) -> _Curves:
    """Return the curves of counts on fine bins, ``(2, bins)``, whose scores are next to equal."""
    is_filled = fine_counts.any(0)
    filled = torch.from_numpy(fine_counts[:, is_filled])
    places = torch.arange(filled.shape[-1] + 1)  # an area error needs no thresholds
    return _curves(F.read(filled, edges=places))


def _curves(source: Readable) -> _Curves:
    """Return the ROC and the PR curve."""
    with warnings.catch_warnings():
        # noise can leave nothing of a small class: the error shows it
        warnings.simplefilter("ignore", UserWarning)
        return F.roc_from_counts(source), F.precision_recall_from_counts(source)


def _area_errors(curves: _Curves, exact: _Curves) -> tuple[float, float]:
    """Return the Area Errors of the ROC and of the PR curve."""
    roc, precision_recall = curves
    exact_roc, exact_precision_recall = exact
    return (
        F.area_error_roc(roc, exact_roc),
        F.area_error_pr(precision_recall, exact_precision_recall),
    )
