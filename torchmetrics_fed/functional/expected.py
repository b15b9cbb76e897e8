"""The Area Error to expect of a plan at an epsilon, before anything is spent: releases of reference scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.area_error import area_error_pr, area_error_roc
from torchmetrics_fed.functional.precision_recall import PrecisionRecallCurve, precision_recall_from_counts
from torchmetrics_fed.functional.reference import ReferenceScores
from torchmetrics_fed.functional.roc import ROCCurve, roc_from_counts
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.grid import ScoreGrid
from torchmetrics_fed.privacy.mechanisms import CentralDP, Privacy
from torchmetrics_fed.reconstruct import LEAST_BINS, Plan, PlanName, Reconstruction
from torchmetrics_fed.reconstruct.noise_vectors import summed_noise
from torchmetrics_fed.release import Release
from torchmetrics_fed.spec import Spec
from torchmetrics_fed.tree import Tree

__all__ = ["ExpectedError", "expected_area_error", "expected_sampling_error"]

# Exact curves are read on this many bins or on those of the grid, if they are more: next to no two scores share one.
_EXACT_BINS = 1 << 16


class ExpectedError(NamedTuple):
    """A mean Area Error of both curves, and how well the runs know it.

    Example:
        >>> from torchmetrics_fed.functional import expected_area_error
        >>> error = expected_area_error("two_round", 1.0, n_pos=1_000, n_neg=1_000, runs=4)
        >>> [message.portion for message in error.messages]
        [0.078125, 0.921875]
    """

    roc: float
    precision_recall: float
    roc_standard_error: float
    precision_recall_standard_error: float
    messages: tuple[Plan, ...] = ()
    """What each message of the last run was about, for plans that depend on what was released before."""

    @classmethod
    def of(cls, runs: Sequence[tuple[float, float]], messages: tuple[Plan, ...] = ()) -> ExpectedError:
        """Return the means and standard errors of the runs' errors."""
        errors = np.array(runs)
        roc, precision_recall = errors.mean(0).tolist()
        spreads = (errors.std(0, ddof=1) / math.sqrt(len(errors))).tolist()
        return cls(roc, precision_recall, spreads[0], spreads[1], messages)


def expected_area_error(
    plan: PlanName | Plan,
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

    Every run draws examples (:class:`ReferenceScores`), the noise that all clients together would add, reads the curves
    from the release, and compares them with the exact curves of the same examples. Nothing private is involved, so
    noise comes from a seeded generator here.

    How noise adds up: with ``DistributedDP`` shares are cut for ``min_clients - max_colluding``, and whoever takes part
    beyond that adds more; with ``LocalDP`` every client adds all of it; with ``CentralDP`` it is added once.

    Args:
        plan: one of the names that metrics know, or a plan for a single message.
        privacy: who adds how much noise; a number is the epsilon of ``CentralDP``.
        n_pos: number of positives of all clients together.
        n_neg: number of negatives.
        clients: how many take part.
        auroc: the area under the ROC curve that the model is expected to have.
        quantiles: the resolution, as of the metrics.
        reconstruction: how curves are read; as metrics do if not given.
        runs: number of simulated releases, at least 2.
        seed: of examples and noise: the same answer for the same seed.

    Example:
        >>> from torchmetrics_fed import DistributedDP
        >>> from torchmetrics_fed.functional import expected_area_error
        >>> privacy = DistributedDP(epsilon=1.0, min_clients=16)
        >>> error = expected_area_error("two_round", privacy, n_pos=6_000, n_neg=24_000, clients=20, runs=5)
        >>> 0.0001 < error.roc < 0.002
        True
    """
    privacy = CentralDP(float(privacy)) if isinstance(privacy, int | float) else privacy
    _check_ints(clients=(clients, 1), runs=(runs, 2))
    needed = privacy.shares_needed
    if clients < needed:
        raise InputError(
            f"Expected at least min_clients={needed} clients but got {clients}: the sum would not be opened. Lower "
            "`min_clients`, at the price of more noise in each share."
        )
    grid, generator = ScoreGrid.for_quantiles(quantiles), np.random.default_rng(seed)
    federation = _Federation(Spec("binary", 1, grid, privacy=privacy), clients, generator)
    federation.check(plan)
    reference, reading = ReferenceScores(n_pos, n_neg, auroc), reconstruction or Reconstruction(quantiles=quantiles)
    errors, release = [], None
    for run in range(runs + (plan == "carry_over")):
        counts = reference.counts(max(_EXACT_BINS, grid.bins), generator)
        release = federation.release(plan, counts, release)
        if run or plan != "carry_over":  # the first of a carried-over plan has nothing to carry
            errors.append(_errors(release, reading, _exact(counts)))
    assert release is not None
    made = (release,) if release.pilot is None else (release.pilot, release)
    return ExpectedError.of(errors, tuple(Plan(each.spec.tree, each.spec.portion) for each in made))


def expected_sampling_error(
    n_pos: int, n_neg: int, *, auroc: float = 0.85, runs: int = 20, seed: int = 0
) -> ExpectedError:
    """Return the Area Error of exact curves of so many examples, against those of the distribution they are drawn from.

    What a test set of this size cannot tell in any case: noise well below it is not worth another unit of epsilon.

    Args:
        n_pos: number of positives.
        n_neg: number of negatives.
        auroc: as in :func:`expected_area_error`.
        runs: number of test sets, at least 2.
        seed: of the examples.

    Example:
        >>> from torchmetrics_fed.functional import expected_sampling_error
        >>> few, many = (expected_sampling_error(n, 4 * n, runs=5).roc for n in (100, 10_000))
        >>> few > 5 * many
        True
    """
    _check_ints(runs=(runs, 2))
    reference, generator = ReferenceScores(n_pos, n_neg, auroc), np.random.default_rng(seed)
    truth = _exact(reference.masses(_EXACT_BINS) * [[n_neg], [n_pos]])
    samples = (_exact(reference.counts(_EXACT_BINS, generator)) for _ in range(runs))
    return ExpectedError.of([truth.distance(sample.roc, sample.precision_recall) for sample in samples])


class _Exact(NamedTuple):
    """The exact curves."""

    roc: ROCCurve
    precision_recall: PrecisionRecallCurve

    def distance(self, roc: ROCCurve, precision_recall: PrecisionRecallCurve) -> tuple[float, float]:
        """Return the Area Errors of both curves."""
        return area_error_roc(roc, self.roc), area_error_pr(precision_recall, self.precision_recall)


def _exact(counts: NDArray[np.int64] | NDArray[np.float64]) -> _Exact:
    """Return the curves of counts on bins so fine that scores in one are as good as equal."""
    leaf = torch.from_numpy(counts[:, counts.any(0)])
    return _Exact(roc_from_counts(leaf), precision_recall_from_counts(leaf))


def _errors(release: Release, reading: Reconstruction, exact: _Exact) -> tuple[float, float]:
    source = read(release, reconstruction=reading)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # noise can leave nothing of a small class: the error tells
        return exact.distance(roc_from_counts(source), precision_recall_from_counts(source))


@dataclass(frozen=True)
class _Federation:
    """Makes releases as clients would, with noise of the same law from a seeded generator."""

    spec: Spec
    clients: int
    generator: np.random.Generator

    def check(self, plan: PlanName | Plan) -> None:
        bins = self.spec.grid.bins
        if not isinstance(plan, Plan) and plan not in get_args(PlanName):
            raise InputError(f"Expected argument `plan` to be a Plan or one of {get_args(PlanName)} but got {plan!r}.")
        if plan in ("two_round", "carry_over") and bins < LEAST_BINS:
            raise InputError(
                f'Expected at least {LEAST_BINS} bins to place leaves on with plan="{plan}" but there are {bins}. Use '
                f"more than {LEAST_BINS // 8} `quantiles`, or another plan."
            )

    def release(self, plan: PlanName | Plan, exact: NDArray[np.int64], before: Release | None) -> Release:
        """Return the release of fine counts by a plan; a carried-over one is planned from the release before."""
        bins = self.spec.grid.bins
        counts = torch.from_numpy(exact.reshape(1, 2, bins, -1).sum(-1))
        if isinstance(plan, Plan):
            return self._sum(counts, plan)
        if plan == "paper":
            return self._sum(counts, Plan(Tree.binary(bins)))
        if plan == "one_message":
            return self._sum(counts, Plan(Tree.balanced(bins)))
        if plan == "carry_over" and before is not None:
            return self._sum(counts, Plan.from_release(before))
        pilot = self._sum(counts, Plan.pilot(bins))
        return replace(self._sum(counts, Plan.from_release(pilot)), pilot=pilot)

    def _sum(self, counts: Tensor, plan: Plan) -> Release:
        spec = self.spec.planned(plan.tree, plan.portion)
        shares = 1 if isinstance(spec.privacy, CentralDP) else self.clients
        cells = spec.cells(counts) + self._noise(spec, shares)
        return Release(spec, cells, shares=shares)

    def _noise(self, spec: Spec, shares: int) -> Tensor:
        """Return the sum of the noise of ``shares`` shares."""
        privacy, noise = spec.privacy, spec.noise
        assert privacy is not None
        assert noise is not None
        drawn = summed_noise(self.generator, privacy.mechanism, noise.variance, shares / privacy.shares, spec.shape)
        return torch.from_numpy(drawn).to(spec.dtype)


def _check_ints(**given: tuple[int, int]) -> None:
    for name, (value, least) in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"Expected argument `{name}` to be an int of at least {least} but got {value!r}.")
