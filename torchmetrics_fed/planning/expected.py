"""The Area Error to expect of a plan at an epsilon, before anything is spent: releases of public reference scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

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
from torchmetrics_fed.typing import Floats

# Exact curves are read on about this many bins, in parts of those of the grid: next to no two scores share one.
_EXACT_BINS = 1 << 16
_Curves = tuple[F.ROCCurve, F.PrecisionRecallCurve]


@dataclass(frozen=True)
class ReferenceScores:
    r"""Scores of a calibrated classifier of two normal classes.

    Something normal with variance 1 is seen of each example, its mean :math:`d` higher for positives, and the score is
    the probability that the example is positive: :math:`\operatorname{logit} s = d x + \log(n^+ / n^-)` with
    :math:`x \sim N(\pm d/2, 1)`. The area under the ROC curve of such scores is :math:`\Phi(d / \sqrt 2)`. They are
    smooth: ties, as of a k-nearest-neighbours classifier, are harder for every plan.

    Example:
        >>> ReferenceScores(n_pos=20, n_neg=80).masses([0, 0.25, 0.5, 0.75, 1]).round(2)
        array([[0.82, 0.13, 0.04, 0.01],
               [0.3 , 0.29, 0.25, 0.17]])
    """

    n_pos: int
    n_neg: int
    auroc: float = 0.85

    def __post_init__(self) -> None:
        for name in ("n_pos", "n_neg"):
            check_int(name, getattr(self, name), 1)
        if not 0.5 < self.auroc < 1:
            raise InputError(
                f"Expected argument `auroc` between 0.5 and 1 but got {self.auroc!r}: at 0.5 every score is the same, "
                "at 1 there is nothing to tell apart. Give the area that you expect of your model."
            )

    def masses(self, edges: ArrayLike) -> Floats:
        """Return the probability of each bin between edges from 0 to 1, ``(2, bins)``, negatives first."""
        distance = math.sqrt(2) * float(ndtri(self.auroc))
        inner = np.asarray(edges)[1:-1]
        with np.errstate(divide="ignore"):  # a two-sided grid has an inner edge at 1
            logit = np.log(inner / (1 - inner))
        seen = (logit - math.log(self.n_pos / self.n_neg)) / distance
        below = ndtr(seen + np.array([[0.5], [-0.5]]) * distance)
        return np.asarray(np.diff(below, prepend=0.0, append=1.0, axis=1))

    def counts(self, edges: ArrayLike, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return counts of freshly drawn examples, ``(2, bins)``. What it costs does not depend on their number."""
        drawn = [
            generator.multinomial(n, p)
            for n, p in zip((self.n_neg, self.n_pos), self.masses(edges), strict=True)
        ]
        return np.stack(drawn).astype(np.int64)


class ExpectedError(NamedTuple):
    """A mean Area Error of both curves, and how well the runs know it.

    Example:
        >>> [query.fraction for query in expected_area_error("adaptive", 1.0, 1_000, 1_000, runs=4).queries]
        [0.046875, 0.953125]
    """

    roc: float
    precision_recall: float
    roc_standard_error: float
    precision_recall_standard_error: float
    queries: tuple[Query, ...] = ()
    """What was asked in the last run, for plans that depend on what was released before."""

    @classmethod
    def of(
        cls, runs: Sequence[tuple[float, float]], queries: tuple[Query, ...] = ()
    ) -> ExpectedError:
        """Return the means and standard errors of the runs' errors."""
        errors = np.array(runs)
        roc, precision_recall = errors.mean(0).tolist()
        spreads = (errors.std(0, ddof=1) / math.sqrt(len(errors))).tolist()
        return cls(roc, precision_recall, spreads[0], spreads[1], queries)


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
) -> ExpectedError:
    """Return the Area Error that privacy noise and binning will cost, from simulated releases of reference scores.

    Every run draws examples (:class:`ReferenceScores`) and the noise that all clients together would add, from a seeded
    generator because nothing private is involved, and compares the release's curves with the exact ones. With
    ``DistributedDP`` noise is calibrated for ``min_clients - max_colluding`` clients, and whoever takes part beyond
    that adds more; with ``LocalDP`` every client adds all of it.

    Args:
        plan: as of the metrics, and likewise ``quantiles`` and ``reconstruction``.
        privacy: who adds how much noise; a number is the epsilon of ``CentralDP``.
        n_pos: number of positives of all clients together.
        n_neg: number of negatives.
        clients: how many take part.
        auroc: the area under the ROC curve that the model is expected to have.
        runs: number of simulated releases, at least 2.
        seed: of examples and noise.

    Example:
        >>> from torchmetrics_fed import DistributedDP
        >>> privacy = DistributedDP(epsilon=1.0, min_clients=16)
        >>> expected_area_error("adaptive", privacy, n_pos=6_000, n_neg=24_000, clients=20, runs=5).roc < 0.002
        True
    """
    law = CentralDP(float(privacy)) if isinstance(privacy, int | float) else privacy
    check_int("clients", clients, 1)
    check_int("runs", runs, 2)
    if clients < law.clients_needed:
        raise InputError(
            f"Expected at least min_clients={law.clients_needed} clients but got {clients}: the sum would not be "
            "opened. Lower `min_clients`, at the price of more noise in each share."
        )
    reference = ReferenceScores(n_pos, n_neg, auroc)
    grid = reference_grid(plan, quantiles, reconstruction)
    spec = Spec("binary", 1, grid, law)
    generator = np.random.default_rng(seed)
    strategy = plan_from(plan, spec)

    def answer(counts: Tensor, query: Query) -> Sum:
        """Return the sum of all clients' answers, with noise of the same law from a generator."""
        noise, shape = spec.noise(query), spec.shape(query)
        drawn = summed_noise(
            generator, law.mechanism, noise.variance, law.noise_times(clients), shape
        )
        return Sum(
            spec, query, spec.cells(query, counts) + torch.from_numpy(drawn).to(spec.dtype), clients
        )

    edges, errors, release = _parts(grid), [], None
    for run in range(runs + strategy.carries_over):
        counts = reference.counts(edges, generator)
        binned = torch.from_numpy(counts.reshape(1, 2, grid.bins, -1).sum(-1))
        release = make_release(strategy, spec, partial(answer, binned), previous=release)
        if (
            run or not strategy.carries_over
        ):  # the first of a carried-over plan has nothing to carry
            errors.append(
                _errors(_curves(F.read(release, reconstruction=reconstruction)), _curves(counts))
            )
    assert release is not None
    return ExpectedError.of(errors, release.queries)


def expected_sampling_error(
    n_pos: int, n_neg: int, *, auroc: float = 0.85, runs: int = 20, seed: int = 0
) -> ExpectedError:
    """Return the Area Error of exact curves of a test set, against those of the distribution that it is drawn from.

    Noise well below it is not worth another unit of epsilon. Arguments are those of :func:`expected_area_error`;
    ``runs`` is the number of test sets.

    Example:
        >>> few, many = (expected_sampling_error(n, 4 * n, runs=5).roc for n in (100, 10_000))
        >>> few > 5 * many
        True
    """
    check_int("runs", runs, 2)
    reference, generator = ReferenceScores(n_pos, n_neg, auroc), np.random.default_rng(seed)
    edges = _parts(ScoreGrid.two_sided())
    truth = _curves(reference.masses(edges) * [[n_neg], [n_pos]])
    return ExpectedError.of(
        [_errors(_curves(reference.counts(edges, generator)), truth) for _ in range(runs)]
    )


def reference_grid(
    plan: PlanArgument, quantiles: int, reading: Reconstruction | None = None
) -> ScoreGrid:
    """Return the grid that metrics have by default, or the paper's where the plan or the reading is the paper's."""
    if plan == "paper" or isinstance(reading, Quantiles):
        return ScoreGrid.even(quantiles)
    return ScoreGrid.two_sided(quantiles)


def _parts(grid: ScoreGrid) -> Floats:
    """Return the edges of equal parts of the grid's bins."""
    parts = max(_EXACT_BINS // grid.bins, 1)
    at = np.arange(grid.bins * parts + 1) / parts
    return np.asarray(np.interp(at, np.arange(grid.bins + 1), grid.smooth_edges))


def _curves(source: Readable | NDArray[np.generic]) -> _Curves:
    """Return the curves of a source, or of counts on bins so fine that scores in one are as good as equal."""
    if isinstance(source, np.ndarray):
        source = torch.from_numpy(source[:, source.any(0)])
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # noise can leave nothing of a small class: the error tells
        return F.roc_from_counts(source), F.precision_recall_from_counts(source)


def _errors(curves: _Curves, exact: _Curves) -> tuple[float, float]:
    return F.area_error_roc(curves[0], exact[0]), F.area_error_pr(curves[1], exact[1])
