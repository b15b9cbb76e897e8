"""Drift: whether the scores of two releases come from the same population."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import check_uncertain
from torchmetrics_fed.functional.figures.canvas import draw_chance, draw_curves, dress, entries, open_axes, rows
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.reconstruct.uncertainty.noise_vectors import above
from torchmetrics_fed.reconstruct.uncertainty.thresholds import UncertainCounts
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats

# A part that holds less than this of either release's examples is taken to hold this much: logarithms need it.
_LEAST = 1e-4


class Drift(NamedTuple):
    """The population stability index (PSI) of the scores, ``(...)``, and whether it is more than chance.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.functional import population_stability_index
        >>> metric = FederatedROC()
        >>> metric.update(torch.linspace(0, 1, 1000), torch.arange(1000) % 2)
        >>> bool(population_stability_index(metric.release(), metric.release()).drifted)
        False
    """

    value: Tensor
    """PSI, less what noise adds to it on average. Below 0.1 is usually called stable, above 0.25 a shift."""
    p_value: Tensor
    """Probability of so much or more if nothing has changed but noise and sampling."""
    drifted: Tensor
    """Whether the p-value is at or below the level."""
    before: Tensor
    """Fraction of the scores in each part, ``(..., parts)``."""
    after: Tensor
    edges: Tensor
    """Of the parts, ``(..., parts + 1)``: each holds about as many scores before."""

    @property
    def scalars(self) -> dict[str, Tensor]:
        """PSI and p-value."""
        return {"population_stability_index": self.value, "p_value": self.p_value}

    def plot(self, ax: Any = None, label: str | None = None, labels: Sequence[str] | None = None) -> Any:
        """Draw how many times as many scores are in each part, and return ``(fig, ax)``.

        Arguments are those of :meth:`ROCCurve.plot`.

        Example:
            >>> import torch
            >>> from torchmetrics_fed import FederatedROC
            >>> from torchmetrics_fed.functional import population_stability_index
            >>> metric = FederatedROC()
            >>> metric.update(torch.linspace(0, 1, 1000), torch.arange(1000) % 2)
            >>> fig, ax = population_stability_index(metric.release(), metric.release()).plot()
            >>> ax.get_lines()[-1].get_label()
            'scores (PSI 0.0000, p 1.000)'
        """
        y = rows(torch.where(self.before > 0, self.after / self.before, torch.nan))
        scores = torch.stack([self.value, self.p_value])
        names = entries(len(y), ("scores", label, labels), scores, "PSI {:.4f}, p {:.3f}")
        fig, ax = open_axes(ax, names)
        x = torch.arange(1, y.shape[-1] + 1).expand_as(y)
        draw_chance(ax, [1, y.shape[-1]], [1, 1], "before")
        draw_curves(ax, x, y, names, marker="o", markersize=4)
        ax.set(xticks=x[0], ylim=(0, 1.25 * max(y.nan_to_num().max().item(), 1.0)))
        dress(ax, "Part of the scores, from the lowest", "After / before", rates=False)
        return fig, ax


def population_stability_index(before: Release, after: Release, level: float = 0.05, parts: int = 10) -> Drift:
    r"""Return how far the scores have drifted between two releases: :math:`\sum_k (q_k - p_k) \ln(q_k / p_k)`.

    p and q are the fractions of all examples, negatives and positives, before and after. The test compares
    :math:`\sum_k (q_k - p_k)^2 / \bar p_k` with what noise and sampling do to it where nothing has changed.

    Args:
        before: a release, whose quantiles part the scores.
        after: another one, on the same grid and of other examples. They may have different privacy and plans.
        level: probability that the test finds a drift where there is none.
        parts: how many parts; ten are usual. Where many scores are equal, some are empty.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.functional import population_stability_index
        >>> releases = []
        >>> for power in (1, 2):
        ...     metric = FederatedROC()
        ...     metric.update(torch.linspace(0, 1, 1000) ** power, torch.arange(1000) % 2)
        ...     releases.append(metric.release())
        >>> bool(population_stability_index(*releases).drifted)
        True
    """
    if not 0 < level < 1 or isinstance(parts, bool) or not isinstance(parts, int) or parts < 2:
        raise InputError(
            f"Expected a `level` above 0 and below 1 and 2 or more `parts` but got {level!r}, {parts!r}. The usual are "
            "0.05 and 10."
        )
    first, second = (check_uncertain(release, 0.95).spec for release in (before, after))
    if (first.task, first.classes) != (second.task, second.classes) or first.grid != second.grid:
        raise InputError(
            "Expected two releases of the same task, classes and grid but these differ. Release both with metrics that "
            "were built alike; privacy and plan may differ."
        )
    histograms = read(before)
    own, tails = before.last.edges.numpy(), above(histograms.flat.sum(1))
    mass = [1 - np.interp(own, histograms.edges.numpy(), tail) / max(tail[0], 1e-300) for tail in tails]
    # at edges of the release before nothing but noise makes its counts uncertain
    nearest = [np.abs(row - np.linspace(0, 1, parts + 1)[:, None]).argmin(1) for row in mass]
    edges = own[np.array(nearest)]
    edges[:, [0, -1]] = own[[0, -1]]
    p, q = (_fractions(release, edges[:, 1:-1]) for release in (before, after))
    value, p_value = np.array([_compared(*both) for both in zip(p, q, strict=True)]).T
    fractions = (np.stack([each.seen for each in which]) for which in (p, q))
    numbers = map(histograms.shaped, (value, p_value, p_value <= level, *fractions, edges))
    return Drift(*numbers)


class _Fractions(NamedTuple):
    """Fractions of one class's scores in each part."""

    seen: Floats
    variance: Floats
    """Of the noise alone."""
    draws: Floats
    """What noise and sampling may have added, ``(vectors, parts)``."""


def _fractions(release: Release, cuts: Floats) -> list[_Fractions]:
    histograms = read(release)
    noise, both = (
        UncertainCounts.of(release, population, histograms.flat, histograms.edges.numpy(), cuts)
        for population in (False, True)
    )
    return [_Fractions(*_parts(one.seen, one.draws, other.draws)) for one, other in zip(noise, both, strict=True)]


def _parts(seen: Floats, noise: Floats, both: Floats) -> tuple[Floats, Floats, Floats]:
    total = max(seen[:, 0].sum(), 1.0)
    held, *moved = (-np.diff(counts.sum(0), append=0) / total for counts in (seen, noise, both))
    alone, sampled = (each - held * each.sum(-1, keepdims=True) for each in moved)
    return held, alone.var(0), sampled


def _compared(before: _Fractions, after: _Fractions) -> tuple[float, float]:
    """Return PSI and p-value of one class."""
    p, q = (np.maximum(each.seen, _LEAST) for each in (before, after))
    middle = (p + q) / 2
    bias = ((before.variance + after.variance) / middle).sum()
    vectors = min(len(before.draws), len(after.draws))
    # both are drawn from the same seed: one against the next is as good as two seeds
    chance = before.draws[:vectors] - np.roll(after.draws[:vectors], 1, 0)
    extreme = (chance**2 / middle).sum(-1) >= ((before.seen - after.seen) ** 2 / middle).sum()
    return max(float(((q - p) * np.log(q / p)).sum() - bias), 0.0), float((1 + extreme.sum()) / (1 + vectors))
