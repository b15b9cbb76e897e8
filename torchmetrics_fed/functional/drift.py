"""Drift: whether the scores of two releases come from the same population."""

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import check_uncertain
from torchmetrics_fed.functional.figures.canvas import Labels, ReferenceLine, plot_curves
from torchmetrics_fed.functional.figures.notebook import result_html
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.reconstruct.histograms import Histograms
from torchmetrics_fed.reconstruct.uncertainty.bands import above
from torchmetrics_fed.reconstruct.uncertainty.thresholds import uncertain_counts
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats

LEAST_FRACTION = 1e-4
"""A part with a smaller fraction of the scores is taken to hold this: its logarithm is finite."""

INDEX_DOUBT = 0.05
"""A warning says if the order of scores within leaves may make the index smaller by more."""


class Drift(NamedTuple):
    """The population stability index (PSI) of the scores, ``(...)``, and whether it is chance.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> metric = FederatedROC()
        >>> metric.update(torch.linspace(0, 1, 1000), torch.arange(1000) % 2)
        >>> population_stability_index(metric.release(), metric.release()).drifted
        tensor(False)
    """

    value: Tensor
    """PSI, less the mean effect of noise. Below 0.1 is usually called stable, above 0.25 a shift.

    It assumes that scores are spread smoothly within each leaf. Ties may make it too large; it is
    at least ``least``.
    """
    p_value: Tensor
    """Probability of a difference at least as large if noise and sampling are all that changed."""
    drifted: Tensor
    """Whether the p-value is at or below the level."""
    least: Tensor
    """The smallest PSI that fits both releases, over all orders of scores within their leaves."""
    before: Tensor
    """Fraction of the scores in each part, ``(..., parts)``."""
    after: Tensor
    edges: Tensor
    """Of the parts, ``(..., parts + 1)``."""

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """PSI and p-value."""
        return {"population_stability_index": self.value, "p_value": self.p_value}

    def plot(
        self,
        ax: Any = None,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw the ratio of the fractions after and before of each part, and return ``(fig, ax)``.

        Arguments are those of :meth:`ROCCurve.plot`.
        """
        ratio = torch.where(self.before > 0, self.after / self.before, torch.nan)
        parts = torch.arange(1, ratio.shape[-1] + 1)
        fig, ax = plot_curves(
            parts.expand_as(ratio),
            ratio,
            ax=ax,
            xlabel="Part of the scores, from the lowest",
            ylabel="After / before",
            name="scores",
            label=label,
            labels=labels,
            curve_score=torch.stack([self.value, self.p_value]),
            score_format="PSI {:.4f}, p {:.3f}",
            references=[ReferenceLine((1, len(parts)), (1, 1), "before")],
            rates=False,
            style={"marker": "o", "markersize": 4},
            line_kwargs=line_kwargs,
        )
        highest = max(ratio.nan_to_num().max().item(), 1.0)
        ax.set(xticks=parts, ylim=(0, 1.25 * highest))
        return fig, ax


def population_stability_index(
    before: Release, after: Release, level: float = 0.05, parts: int = 10, tied: bool = True
) -> Drift:
    r"""Return how far the scores have drifted: :math:`\sum_k (q_k - p_k) \ln(q_k / p_k)`.

    p and q are the fractions of all examples before and after, negatives and positives together, in
    each part k of the scores. The test compares :math:`\sum_k (q_k - p_k)^2 / \bar p_k` with its
    law under noise and sampling alone. A release does not say how scores are ordered within a leaf,
    so the test takes the order that makes the sum smallest.

    Args:
        before: a release, whose quantiles part the scores.
        after: a release of other examples on the same grid; privacy and plan may differ.
        level: the highest probability that the test finds a drift where there is none.
        parts: how many parts of the scores; where many scores are tied, some parts are empty.
        tied: whether scores may be tied. Where hardly any are, False finds smaller drifts between
            private releases with different leaves. With the same leaves,
            ``plan=Query(before.queries[-1].tree)``, it changes nothing.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> def release_of(scores):
        ...     metric = FederatedROC()
        ...     metric.update(scores, torch.arange(1000) % 2)
        ...     return metric.release()
        >>> scores = torch.linspace(0, 1, 1000)
        >>> population_stability_index(release_of(scores), release_of(scores**2)).drifted
        tensor(True)
    """
    if not 0 < level < 1 or not isinstance(parts, int) or parts < 2:
        raise InputError(
            "Expected `level` above 0 and below 1, and 2 or more `parts`, but got "
            f"{level!r} and {parts!r}. The usual are 0.05 and 10."
        )
    _check_comparable(check_uncertain(before, 0.95), check_uncertain(after, 0.95))
    histograms = read(before)
    edges = _edges_of_parts(before, histograms, parts)
    classes_before = _classes(before, edges, tied)
    classes_after = _classes(after, edges, tied)
    comparisons = [
        _compared(class_before, class_after)
        for class_before, class_after in zip(classes_before, classes_after, strict=True)
    ]
    value = np.array([comparison.value for comparison in comparisons])
    least = np.array([comparison.least for comparison in comparisons])
    p_value = np.array([comparison.p_value for comparison in comparisons])
    doubtful = (value - least).argmax()
    if value[doubtful] - least[doubtful] > INDEX_DOUBT:
        warnings.warn(
            f"The index {value[doubtful]:.3f} may be as low as {least[doubtful]:.3f}: these "
            "releases have different leaves, and do not say how scores are spread within a leaf. "
            "Trust the test, or ask for the same leaves next time: "
            "`plan=Query(before.queries[-1].tree)`.",
            stacklevel=2,
        )
    return Drift(
        value=histograms.shaped(value),
        p_value=histograms.shaped(p_value),
        drifted=histograms.shaped(p_value) <= level,
        least=histograms.shaped(least),
        before=histograms.shaped(np.stack([part.fraction for part in classes_before])),
        after=histograms.shaped(np.stack([part.fraction for part in classes_after])),
        edges=histograms.shaped(edges),
    )


def _check_comparable(before: Release, after: Release) -> None:
    same_task = before.spec.task == after.spec.task
    same_classes = before.spec.classes == after.spec.classes
    if not (same_task and same_classes and before.spec.grid == after.spec.grid):
        raise InputError(
            "Expected releases of the same task, classes and grid but these differ. "
            "Build metrics alike."
        )


def _edges_of_parts(release: Release, histograms: Histograms, parts: int) -> Floats:
    """Return the edges of parts with about as many scores each, ``(classes, parts + 1)``.

    They are edges of the release: at its edges noise is the only error of the release.
    """
    edges = release.last.edges.numpy()
    fractions_above = np.linspace(1, 0, parts + 1)[1:-1, None]
    rows = []
    for counts in above(histograms.flat.sum(1)):
        tail = np.interp(edges, histograms.edges.numpy(), counts)
        nearest = np.abs(tail - fractions_above * tail[0]).argmin(1)
        rows.append(np.r_[edges[0], edges[nearest], edges[-1]])
    return np.stack(rows)


class _Class(NamedTuple):
    """The scores of one class in each part."""

    fraction: Floats
    """``(parts,)``."""
    variance: Floats
    """Variance of the fraction by noise, ``(parts,)``."""
    draws: Floats
    """Errors of the fraction by noise and sampling, ``(vectors, parts)``."""
    slack: Floats
    """How far the fraction above an inner edge may be off if the edge is within a leaf."""


def _classes(release: Release, edges: Floats, tied: bool) -> list[_Class]:
    histograms = read(release)
    leaf = histograms.flat
    leaf_edges = histograms.edges.numpy()
    inner_edges = edges[:, 1:-1]
    noisy = uncertain_counts(release, leaf, leaf_edges, thresholds=inner_edges, tied=tied)
    sampled = uncertain_counts(
        release, leaf, leaf_edges, thresholds=inner_edges, tied=tied, sampling=True
    )
    classes = []
    for noise, sampling, class_edges in zip(noisy, sampled, edges, strict=True):
        n = max(noise.seen[:, 0].sum(), 1.0)
        has_width = np.diff(class_edges) > 0
        fraction = _in_parts(noise.seen) / n
        noise_draws = _deviations(noise.draws, n, fraction, has_width)
        classes.append(
            _Class(
                fraction=fraction,
                variance=noise_draws.var(0),
                draws=_deviations(sampling.draws, n, fraction, has_width),
                slack=noise.slack.sum(0)[1:] / n,
            )
        )
    return classes


def _in_parts(counts: Floats) -> Floats:
    """Return the examples in each part from negatives and positives at or above each edge."""
    examples: Floats = -np.diff(counts.sum(0), append=0)
    return examples


def _deviations(draws: Floats, n: float, fraction: Floats, has_width: NDArray[np.bool_]) -> Floats:
    """Return the errors of the fractions if these are the errors of the counts."""
    parts = _in_parts(draws) / n
    deviations: Floats = has_width * (parts - fraction * parts.sum(-1, keepdims=True))
    return deviations


class _Comparison(NamedTuple):
    value: float
    least: float
    p_value: float


def _compared(before: _Class, after: _Class) -> _Comparison:
    """Return PSI, the least that it may be, and the p-value of one class."""
    middle = np.maximum(before.fraction + after.fraction, 2 * LEAST_FRACTION) / 2
    difference = after.fraction - before.fraction
    # The least difference of all that the slack admits. The true order of the scores is admitted,
    # so that under noise and sampling alone the least difference is no larger than theirs.
    moves = np.diff(np.eye(len(middle) - 1), axis=0, prepend=0, append=0)
    slack = before.slack + after.slack + 1e-15
    root = np.sqrt(middle)
    fit = lsq_linear(moves / root[:, None], -difference / root, (-slack, slack), tol=1e-12)
    bias = float(((before.variance + after.variance) / middle).sum())
    value = _index(before.fraction, after.fraction, bias)
    least = _index(before.fraction, before.fraction + difference + moves @ fit.x, bias)
    # both releases have draws of one seed: a roll by one vector makes them as good as independent
    vectors = min(len(before.draws), len(after.draws))
    chance = before.draws[:vectors] - np.roll(after.draws[:vectors], 1, 0)
    is_as_large = (chance**2 / middle).sum(-1) >= 2 * fit.cost * (1 - 1e-9)
    p_value = float((1 + is_as_large.sum()) / (1 + vectors))
    return _Comparison(value, min(least, value), p_value)


def _index(p: Floats, q: Floats, bias: float) -> float:
    """Return the population stability index of fractions p and q, less its bias, at least 0."""
    p = np.maximum(p, LEAST_FRACTION)
    q = np.maximum(q, LEAST_FRACTION)
    return max(float(((q - p) * np.log(q / p)).sum() - bias), 0.0)
