"""Drift: whether the scores of two releases come from the same population."""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import lsq_linear
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import check_uncertain
from torchmetrics_fed.functional.figures.canvas import Labels, plot_curves
from torchmetrics_fed.reconstruct.histograms import read
from torchmetrics_fed.reconstruct.uncertainty.bands import above
from torchmetrics_fed.reconstruct.uncertainty.thresholds import uncertain_counts
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats

# A part with less than this fraction of the scores is taken to hold it: logarithms need it.
_LEAST = 1e-4
# How much smaller the index may be, by the order of scores within leaves, before a warning says so.
_DOUBT = 0.05


class Drift(NamedTuple):
    """The population stability index (PSI) of the scores, ``(...)``, and whether it is more than chance.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> metric = FederatedROC()
        >>> metric.update(torch.linspace(0, 1, 1000), torch.arange(1000) % 2)
        >>> population_stability_index(metric.release(), metric.release()).drifted
        tensor(False)
    """

    value: Tensor
    """PSI, less what noise adds to it on average. Below 0.1 is usually called stable, above 0.25 a shift.

    It assumes that scores are spread smoothly within each leaf. Ties may make it too large; it is at least ``least``.
    """
    p_value: Tensor
    """Probability of a difference at least as large if nothing has changed but noise and sampling."""
    drifted: Tensor
    """Whether the p-value is at or below the level."""
    least: Tensor
    """The smallest PSI that fits both releases, over all orders of scores within their leaves."""
    before: Tensor
    """Fraction of the scores in each part, ``(..., parts)``."""
    after: Tensor
    edges: Tensor
    """Of the parts, ``(..., parts + 1)``."""

    @property
    def scalars(self) -> dict[str, Tensor]:
        """PSI and p-value."""
        return {"population_stability_index": self.value, "p_value": self.p_value}

    def plot(self, ax: Any = None, label: str | None = None, labels: Labels = None) -> Any:
        """Draw how many times as many scores are in each part; arguments are those of :meth:`ROCCurve.plot`."""
        y = torch.where(self.before > 0, self.after / self.before, torch.nan)
        parts = torch.arange(1, y.shape[-1] + 1)
        score = None, torch.stack([self.value, self.p_value]), "PSI {:.4f}, p {:.3f}"
        axes, names = (
            ("Part of the scores, from the lowest", "After / before"),
            ("scores", label, labels),
        )
        curves, chance = (parts.expand_as(y), y), ([1, len(parts)], [1, 1], "before")
        fig, ax = plot_curves(
            curves, score, axes, ax, names, chance, rates=False, marker="o", markersize=4
        )
        ax.set(xticks=parts, ylim=(0, 1.25 * max(y.nan_to_num().max().item(), 1.0)))
        return fig, ax


def population_stability_index(
    before: Release, after: Release, level: float = 0.05, parts: int = 10, tied: bool = True
) -> Drift:
    r"""Return how far the scores have drifted between two releases: :math:`\sum_k (q_k - p_k) \ln(q_k / p_k)`.

    p and q are the fractions of all examples before and after, negatives and positives together. The test compares
    :math:`\sum_k (q_k - p_k)^2 / \bar p_k` with what noise and sampling make of it where nothing has changed. A release
    does not say how scores are ordered within a leaf, so the test takes the order that makes the sum smallest.

    Args:
        before: a release, whose quantiles part the scores.
        after: one of other examples on the same grid; privacy and plan may differ.
        level: the highest probability that the test finds a drift where there is none.
        parts: how many parts of the scores; where many are tied, some are empty.
        tied: whether scores may be tied. Where hardly any are, False finds smaller drifts between private releases
            with different leaves. With the same leaves, ``plan=Query(before.queries[-1].tree)``, it changes nothing.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> metrics = FederatedROC(), FederatedROC()
        >>> for power, metric in enumerate(metrics, 1):
        ...     metric.update(torch.linspace(0, 1, 1000) ** power, torch.arange(1000) % 2)
        >>> population_stability_index(*(metric.release() for metric in metrics)).drifted
        tensor(True)
    """
    if not 0 < level < 1 or not isinstance(parts, int) or parts < 2:
        raise InputError(
            f"Expected `level` above 0 and below 1, and 2 or more `parts`, but got {level!r} and {parts!r}. The usual "
            "are 0.05 and 10."
        )
    specs = [check_uncertain(release, 0.95).spec for release in (before, after)]
    if len({(spec.task, spec.classes, spec.grid) for spec in specs}) > 1:
        raise InputError(
            "Expected releases of the same task, classes and grid but these differ. Build metrics alike."
        )
    histograms, own = read(before), before.last.edges.numpy()
    tails = [
        np.interp(own, histograms.edges.numpy(), tail) for tail in above(histograms.flat.sum(1))
    ]
    # at its own edges, nothing but noise is in the release before
    wanted = np.linspace(1, 0, parts + 1)[1:-1, None]
    inner = [own[np.abs(tail - wanted * tail[0]).argmin(1)] for tail in tails]
    edges = np.stack([np.r_[own[0], cuts, own[-1]] for cuts in inner])
    first, second = ([*_fractions(release, edges, tied)] for release in (before, after))
    value, least, p_value = np.array(
        [_compared(*each) for each in zip(first, second, strict=True)]
    ).T
    worst = (value - least).argmax()
    if value[worst] - least[worst] > _DOUBT:
        warnings.warn(
            f"The index {value[worst]:.3f} may be as low as {least[worst]:.3f}: these releases have different leaves, "
            "and do not say how scores are spread within a leaf. Trust the test, or ask for the same leaves next time: "
            "`plan=Query(before.queries[-1].tree)`.",
            stacklevel=2,
        )
    fractions = (np.stack([each[0] for each in which]) for which in (first, second))
    return Drift(
        *map(histograms.shaped, (value, p_value, p_value <= level, least, *fractions, edges))
    )


def _fractions(
    release: Release, edges: Floats, tied: bool
) -> Iterator[tuple[Floats, Floats, Floats, Floats]]:
    """Yield of each class the fraction in each part, its variance by noise, draws of noise and sampling, and slack.

    Slack is how far the fraction above an inner edge may be off where that edge is within a leaf of the release.
    """
    histograms = read(release)
    counts = histograms.flat, histograms.edges.numpy(), edges[:, 1:-1]
    both = (uncertain_counts(release, population, *counts, tied) for population in (False, True))
    for noisy, sampled, wide in zip(*both, np.diff(edges) > 0, strict=True):
        every = (noisy.seen, noisy.draws, sampled.draws)
        size = max(noisy.seen[:, 0].sum(), 1.0)
        held, *moved = (-np.diff(each.sum(0), append=0) / size for each in every)
        noise, draws = (wide * (each - held * each.sum(-1, keepdims=True)) for each in moved)
        yield held, noise.var(0), draws, noisy.slack.sum(0)[1:] / size


def _compared(before: tuple[Floats, ...], after: tuple[Floats, ...]) -> tuple[float, float, float]:
    """Return PSI, the least that it may be, and the p-value of one class."""
    middle, vectors = (
        np.maximum(before[0] + after[0], 2 * _LEAST) / 2,
        min(len(before[2]), len(after[2])),
    )
    # of all that the slack admits, the least difference: what is true admits no less than noise and sampling alone
    moves = np.diff(np.eye(len(middle) - 1), axis=0, prepend=0, append=0)
    slack, root = before[3] + after[3] + 1e-15, np.sqrt(middle)
    apart = after[0] - before[0]
    fit = lsq_linear(moves / root[:, None], -apart / root, (-slack, slack), tol=1e-12)
    bias = ((before[1] + after[1]) / middle).sum()
    p, *others = (
        np.maximum(each, _LEAST)
        for each in (before[0], after[0], before[0] + apart + moves @ fit.x)
    )
    value, least = (max(float(((q - p) * np.log(q / p)).sum() - bias), 0.0) for q in others)
    # both are drawn from one seed: each against the next is as good as two seeds
    chance = before[2][:vectors] - np.roll(after[2][:vectors], 1, 0)
    more = (chance**2 / middle).sum(-1) >= 2 * fit.cost * (1 - 1e-9)
    return value, min(least, value), float((1 + more.sum()) / (1 + vectors))
