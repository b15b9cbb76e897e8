"""ModelComparison: whether the second of two models is better, and whose calls it changes.

The difference of the AUROCs and its interval come from
:mod:`torchmetrics_fed.comparison.statistics`. Here are the calls at the thresholds: an example is
reclassified *up* if only the second model calls it positive, and *down* if only the first does.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from torchmetrics_fed.comparison.statistics import (
    Difference,
    Margin,
    area,
    difference,
    margins,
    tables_of,
)
from torchmetrics_fed.counting.tree import Table
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Interval, check_uncertain
from torchmetrics_fed.functional.figures.notebook import result_html
from torchmetrics_fed.functional.intervals import said_before
from torchmetrics_fed.functional.roc import ROCCurve, roc_from_counts
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats

VISIBLE_EXAMPLES_TIMES_EPSILON = 500.0
"""Examples of the smaller class times epsilon, below which a difference of 0.02 between two AUROCs
cannot be seen."""


class ModelComparison(NamedTuple):
    """The comparison of two models on the same examples.

    Differences are the second model's value minus the first model's. If noise drowns a class, all
    numbers but the curves are NaN, and intervals hold every possible value.

    Example:
        >>> from torchmetrics_fed import FederatedModelComparison
        >>> metric = FederatedModelComparison(models=("old", "new"))
        >>> old = torch.tensor([0.1, 0.6, 0.4, 0.9])
        >>> new = torch.tensor([0.1, 0.3, 0.6, 0.9])
        >>> metric.update(old, new, torch.tensor([0, 0, 1, 1]))
        >>> metric.compute().net_reclassification
        tensor(1., dtype=torch.float64)
    """

    curves: tuple[ROCCurve, ROCCurve]
    """The ROC curve of each model."""
    auroc: Tensor
    """The AUROC of each model, ``(2,)``."""
    difference: Tensor
    """The second AUROC minus the first."""
    interval: Interval
    """The interval of the difference in the population that the examples were drawn from."""
    p_value: Tensor
    """The p-value of a difference of 0, two-sided."""
    reclassified: Tensor
    """Estimated numbers of examples that are reclassified up and down: ``(2, 2)``, negatives first,
    up before down."""
    net_reclassification: Tensor
    """The fraction of positives that go up minus the fraction that go down, plus the opposite for
    negatives: from -2 to 2."""
    net_interval: Interval
    """The interval of the net reclassification."""
    mcnemar: Tensor
    """McNemar's statistic of the examples that only one of the models calls correctly, without
    continuity correction."""
    mcnemar_p_value: Tensor
    """The p-value of McNemar's statistic."""
    models: tuple[str, ...]
    """The names of the models."""
    thresholds: Tensor
    """The lowest score at which each model calls an example positive."""

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """AUROCs, difference, its interval and p-value, net reclassification, McNemar's p-value."""
        auroc_first, auroc_second = self.auroc
        return {
            "auroc_first": auroc_first,
            "auroc_second": auroc_second,
            "difference": self.difference,
            "difference_low": self.interval.low,
            "difference_high": self.interval.high,
            "p_value": self.p_value,
            "net_reclassification": self.net_reclassification,
            "mcnemar_p_value": self.mcnemar_p_value,
        }

    def plot(self, ax: Any = None) -> Any:
        """Draw both curves with AUROCs and their difference, and return ``(fig, ax)``."""
        for curve, name, auroc in zip(self.curves, self.models, self.auroc, strict=True):
            fig, ax = curve.plot(auroc, ax, name)
        low, high = self.interval
        title = f"difference {self.difference:+.4f}\n[{low:+.4f}, {high:+.4f}]"
        ax.legend(title=title, loc="lower right", fontsize=7.5, title_fontsize=7.5)
        return fig, ax


def compare_models(release: Release, confidence: float = 0.95) -> ModelComparison:
    """Return the comparison from a release of :class:`~torchmetrics_fed.FederatedModelComparison`.

    Without noise the interval of the difference is DeLong's, with scores of one bin tied. An
    interval holds the population's value with the probability ``confidence``.

    Example:
        >>> from torchmetrics_fed import FederatedModelComparison
        >>> metric = FederatedModelComparison()
        >>> metric.update(torch.rand(1000), torch.rand(1000), torch.randint(0, 2, (1000,)))
        >>> low, high = compare_models(metric.release()).interval
    """
    check_uncertain(release, confidence)
    table = release.last.query.tree
    if not isinstance(table, Table):
        raise InputError(
            "Expected a release of FederatedModelComparison but this one is of a single model's "
            "scores."
        )
    tables = tables_of(release)
    noise_variance = release.last.noise_variance
    first, second = margins(release)
    within_leaves = [_area_within_leaves(first), _area_within_leaves(second)]
    auroc = np.add([area(first.leaves), area(second.leaves)], within_leaves)
    auroc_difference = difference(
        tables,
        noise_variance,
        order_gain=within_leaves[1] - within_leaves[0],
        confidence=confidence,
        smooth=(first.smooth, second.smooth),
    )
    cuts = _cuts(release, table)
    calls = _reclassification(tables, cuts, noise_variance, norm.ppf((1 + confidence) / 2))
    is_lost = math.isnan(auroc_difference.value)
    _warn(release, tables.sum((1, 2)), is_lost)
    values: dict[str, Any] = {
        "auroc": np.clip(auroc, 0, 1),
        "difference": auroc_difference.value,
        "p_value": _p_value(auroc_difference),
        "reclassified": calls.numbers,
        "net_reclassification": calls.net,
        "mcnemar": calls.mcnemar,
        "mcnemar_p_value": 2 * norm.sf(math.sqrt(calls.mcnemar)),
    }
    net_interval = _interval(max(calls.net - calls.reach, -2.0), min(calls.net + calls.reach, 2.0))
    if is_lost:
        values = {name: math.nan * value for name, value in values.items()}
        net_interval = _interval(-2.0, 2.0)
    edges = release.spec.grid.edges
    places = [axis[cut] for axis, cut in zip(table.axes, cuts, strict=True)]
    return ModelComparison(
        curves=(
            roc_from_counts(torch.from_numpy(first.bins), edges),
            roc_from_counts(torch.from_numpy(second.bins), edges),
        ),
        interval=_interval(auroc_difference.low, auroc_difference.high),
        net_interval=net_interval,
        models=release.spec.models,
        thresholds=edges[places],
        **{name: torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()},
    )


def _area_within_leaves(margin: Margin) -> float:
    """Return the part of a model's AUROC that comes from the order of scores within leaves."""
    on_leaves = np.add.reduceat(margin.bins, margin.places[:-1], axis=1)
    return area(margin.bins) - area(on_leaves)


def _p_value(auroc_difference: Difference) -> float:
    """Return the two-sided p-value of a difference of 0 by the normal law."""
    if not auroc_difference.variance:
        return float(auroc_difference.value == 0)
    z = abs(auroc_difference.value) / math.sqrt(auroc_difference.variance)
    return float(2 * norm.sf(z))


def _interval(low: float, high: float) -> Interval:
    return Interval(
        low=torch.tensor(low, dtype=torch.float64),
        high=torch.tensor(high, dtype=torch.float64),
    )


def _cuts(release: Release, table: Table) -> list[int]:
    """Return, for each model, the number of the leaf edge that is nearest to its threshold."""
    edges = release.spec.grid.edges
    cuts = []
    for axis, threshold in zip(table.axes, release.spec.thresholds, strict=True):
        distance = (edges[list(axis)] - threshold).abs()
        cuts.append(int(distance.argmin()))
    return cuts


class _Reclassification(NamedTuple):
    """Examples that only one of the models calls positive."""

    numbers: Floats
    """``(2, 2)``: negatives and positives, up and down."""
    net: float
    reach: float
    """Half the width of the interval of the net reclassification."""
    mcnemar: float


def _reclassification(
    tables: Floats, cuts: Sequence[int], noise_variance: float, z: float
) -> _Reclassification:
    r"""Return the reclassified examples, their net, and McNemar's statistic.

    If b of m examples of a class go up and c go down, counted in N cells with noise of variance v,
    the variance of b - c is :math:`b + c - (b - c)^2 / m + v N`. The noise in b + c adds its
    standard deviation :math:`\sqrt{v N}`.

    Args:
        tables: negatives and positives, ``(2, rows, columns)``.
        cuts: the leaf edges of the first and of the second model's threshold.
        noise_variance: the variance of the noise in each cell.
        z: the normal quantile of the interval.
    """
    row, column = cuts
    up = tables[:, :row, column:]
    down = tables[:, row:, :column]
    numbers = np.stack([up.sum((1, 2)), down.sum((1, 2))], 1)
    cells = up[0].size + down[0].size
    size = np.maximum(tables.sum((1, 2)), 1.0)
    gain = (numbers[:, 0] - numbers[:, 1]) * (-1, 1)  # a negative gains if it goes down
    discordant = np.maximum(numbers.sum(1), 0)
    noise = noise_variance * cells
    variance = np.maximum(discordant + (math.sqrt(noise) + noise) - gain**2 / size, 0)
    noise_of_both = 2 * noise_variance * cells
    all_discordant = discordant.sum() + math.sqrt(noise_of_both) + noise_of_both
    mcnemar = 0.0
    if all_discordant:
        mcnemar = float(gain.sum() ** 2 / all_discordant)
    return _Reclassification(
        numbers=numbers,
        net=float((gain / size).sum()),
        reach=z * math.sqrt((variance / size**2).sum()),
        mcnemar=mcnemar,
    )


def _warn(release: Release, sizes: Floats, is_lost: bool) -> None:
    """Warn, once for each release, if its noise hides the comparison."""
    if said_before(release, "comparison"):
        return
    epsilon = release.spec.epsilon
    smaller = float(sizes.min())
    if is_lost:
        label = ("negative", "positive")[sizes.argmin()]
        reason = "there are fewer than two"
        if epsilon:
            reason = f"the noise of epsilon {epsilon:g} drowns it"
        text = f"Too few {label} examples, {reason}: the comparison is withheld"
    elif epsilon and smaller * epsilon < VISIBLE_EXAMPLES_TIMES_EPSILON:
        text = (
            f"About {max(smaller, 0.0):.0f} examples of the smaller class at epsilon {epsilon:g}: "
            "a difference of 0.02 between two AUROCs cannot be seen; read the interval"
        )
    else:
        return
    warnings.warn(
        f"{text}. More examples or a larger epsilon would help.",
        UserWarning,
        stacklevel=4,
    )
