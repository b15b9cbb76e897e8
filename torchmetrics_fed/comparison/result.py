"""Two models on the same examples: whether the second one is better, and whose call it changes."""

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from torchmetrics_fed.comparison.statistics import area, difference, margins, tables_of
from torchmetrics_fed.counting.tree import Table
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Interval, check_uncertain, said_before
from torchmetrics_fed.functional.roc import ROCCurve, roc_from_counts
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats

# Examples of the smaller class times epsilon below which a difference of 0.02 cannot be seen.
_SEEN = 500.0


class ModelComparison(NamedTuple):
    """What two models say of the same examples. Differences are the second model's minus the first's.

    Where noise drowns a class, all but the curves is not a number, and intervals are all there can be.

    Example:
        >>> from torchmetrics_fed import FederatedModelComparison
        >>> metric = FederatedModelComparison(models=("old", "new"))
        >>> target = torch.tensor([0, 0, 1, 1])
        >>> metric.update(torch.tensor([0.1, 0.6, 0.4, 0.9]), torch.tensor([0.1, 0.3, 0.6, 0.9]), target)
        >>> metric.compute().net_reclassification
        tensor(1., dtype=torch.float64)
    """

    curves: tuple[ROCCurve, ROCCurve]
    """The ROC curve of each model."""
    auroc: Tensor
    """The area of each, ``(2,)``."""
    difference: Tensor
    """The second area minus the first."""
    interval: Interval
    """Of the difference in the population that the examples were drawn from."""
    p_value: Tensor
    """Of a difference of 0, two-sided."""
    reclassified: Tensor
    """Estimated numbers of examples called positive by the second model alone, and by the first alone: of negatives and
    of positives, ``(2, 2)``."""
    net_reclassification: Tensor
    """Positives called so by the second model alone less those by the first alone, as a part of the positives, plus the
    opposite of negatives: from -2 to 2."""
    net_interval: Interval
    mcnemar: Tensor
    """McNemar's statistic of the examples that only one of the models calls right, without continuity correction."""
    mcnemar_p_value: Tensor
    models: tuple[str, ...]
    thresholds: Tensor
    """The scores from which on each model calls an example positive."""

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Areas, their difference with its interval and p-value, net reclassification and McNemar's p-value."""
        ends = {"difference_low": self.interval.low, "difference_high": self.interval.high}
        areas = dict(zip(("auroc_first", "auroc_second"), self.auroc, strict=True))
        names = ("p_value", "net_reclassification", "mcnemar_p_value")
        return {
            **areas,
            "difference": self.difference,
            **ends,
            **{name: getattr(self, name) for name in names},
        }

    def plot(self, ax: Any = None) -> Any:
        """Draw both curves, their areas and the difference of these, and return ``(fig, ax)``."""
        for curve, name, score in zip(self.curves, self.models, self.auroc, strict=True):
            fig, ax = curve.plot(score, ax, name)
        found = f"difference {self.difference:+.4f}\n[{self.interval.low:+.4f}, {self.interval.high:+.4f}]"
        ax.legend(title=found, loc="lower right", fontsize=7.5, title_fontsize=7.5)
        return fig, ax


def compare_models(release: Release, confidence: float = 0.95) -> ModelComparison:
    """Return the comparison of two models from a release of :class:`~torchmetrics_fed.FederatedModelComparison`.

    Without noise the interval of the difference is DeLong's, of scores that share a bin tied. An interval holds what it
    is of, in the population, with the probability ``confidence``.

    Example:
        >>> from torchmetrics_fed import FederatedModelComparison
        >>> metric = FederatedModelComparison()
        >>> metric.update(torch.rand(1000), torch.rand(1000), torch.randint(0, 2, (1000,)))
        >>> low, high = compare_models(metric.release()).interval
    """
    check_uncertain(release, confidence)
    spec, table = release.spec, release.last.query.tree
    if not isinstance(table, Table):
        raise InputError(
            "Expected a release of FederatedModelComparison but this one is of a single model's scores."
        )
    tables, noise, each = tables_of(release), release.last.noise_variance, margins(release)
    sizes = tables.sum((1, 2))
    own = [area(one.leaves) for one in each]
    beyond = [
        area(one.bins) - area(np.add.reduceat(one.bins, one.places[:-1], axis=1)) for one in each
    ]
    found = difference(
        tables, noise, beyond[1] - beyond[0], confidence, (each[0].smooth, each[1].smooth)
    )
    edges = spec.grid.edges
    # the edge of the leaves that is the threshold's, or nearest to it
    near = [
        (edges[list(axis)] - at).abs() for axis, at in zip(table.axes, spec.thresholds, strict=True)
    ]
    cuts = [int(distance.argmin()) for distance in near]
    moved, net, reach, statistic = _reclassified(
        tables, cuts, noise, norm.ppf((1 + confidence) / 2)
    )
    lost = math.isnan(found.value)
    _warn(release, sizes, lost)
    p_value = (
        2 * norm.sf(abs(found.value) / math.sqrt(found.variance))
        if found.variance
        else float(found.value == 0)
    )
    known = math.nan if lost else 1.0
    values = {
        "auroc": known * np.clip(np.add(own, beyond), 0, 1),
        "difference": found.value,
        "p_value": p_value,
        "reclassified": known * moved,
        "net_reclassification": known * net,
        "mcnemar": known * statistic,
        "mcnemar_p_value": known * 2 * norm.sf(math.sqrt(statistic)),
    }
    nets = (-2.0, 2.0) if lost else (max(net - reach, -2.0), min(net + reach, 2.0))
    curves = tuple(roc_from_counts(torch.from_numpy(one.bins), edges) for one in each)
    return ModelComparison(
        curves=(curves[0], curves[1]),
        interval=Interval(*torch.tensor([found.low, found.high], dtype=torch.float64)),
        net_interval=Interval(*torch.tensor(nets, dtype=torch.float64)),
        models=spec.models,
        thresholds=edges[[axis[cut] for axis, cut in zip(table.axes, cuts, strict=True)]],
        **{name: torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()},
    )


def _reclassified(
    tables: Floats, cuts: list[int], noise: float, z: float
) -> tuple[Floats, float, float, float]:
    """Return who changes sides, the net of it, half the width of its interval, and McNemar's statistic.

    Of N cells with noise of variance v, b went up and c down, of m: the variance of b - c is
    :math:`b + c - (b - c)^2 / m + v N`, with :math:`\\sqrt{v N}` more because b + c is noisy.
    """
    rows, columns = cuts
    up, down = tables[:, :rows, columns:], tables[:, rows:, :columns]
    moved = np.stack([up.sum((1, 2)), down.sum((1, 2))], 1)
    sizes, cells = tables.sum((1, 2)), up[0].size + down[0].size
    gain, both = (moved[:, 0] - moved[:, 1]) * (-1, 1), np.maximum(moved.sum(1), 0)
    size = np.maximum(sizes, 1.0)
    added = math.sqrt(noise * cells) + noise * cells
    spread = np.maximum(both + added - gain**2 / size, 0)
    discordant = both.sum() + math.sqrt(2 * noise * cells) + 2 * noise * cells
    statistic = gain.sum() ** 2 / discordant if discordant else 0.0
    return (
        moved,
        float((gain / size).sum()),
        z * math.sqrt((spread / size**2).sum()),
        float(statistic),
    )


def _warn(release: Release, sizes: Floats, lost: bool) -> None:
    """Say, once for each release, what its noise hides."""
    epsilon, smaller = release.spec.epsilon, float(sizes.min())
    if said_before(release, "comparison"):
        return
    if lost:
        which = ("negative", "positive")[sizes.argmin()]
        why = (
            f"the noise of epsilon {epsilon:g} drowns it" if epsilon else "there are fewer than two"
        )
        text = f"Too few {which} examples, {why}: the comparison is withheld"
    elif epsilon and smaller * epsilon < _SEEN:
        text = (
            f"About {max(smaller, 0.0):.0f} examples of the smaller class at epsilon {epsilon:g}: a difference of 0.02 "
            "between two AUROCs cannot be seen; read the interval"
        )
    else:
        return
    warnings.warn(
        f"{text}. More examples or a larger epsilon would help.", UserWarning, stacklevel=4
    )
