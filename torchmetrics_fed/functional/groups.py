"""Gaps between groups: how far their rates at a threshold and their areas are apart, and how sure that is."""

import math
import warnings
from collections.abc import Mapping
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import auroc_interval, check_uncertain
from torchmetrics_fed.functional.figures.canvas import PALETTE, dress, figure
from torchmetrics_fed.functional.roc import auroc_from_counts
from torchmetrics_fed.reconstruct.histograms import nearest_edge
from torchmetrics_fed.reconstruct.uncertainty.thresholds import Counted, Rates
from torchmetrics_fed.release import Release, Spec
from torchmetrics_fed.typing import Floats

_FEW = 60.0
"""A group's smaller class times epsilon below which noise outweighs sampling."""

_TOO_FEW = 30.0
"""The same, below which a gap is noise: its rates are withheld."""

_WORTH = 0.02
"""A difference that noise alone shows, and that is worth a warning."""

_RATES = {
    "tpr": "True positive rate",
    "fpr": "False positive rate",
    "positive_rate": "Positive rate",
    "precision": "Precision",
    "auroc": "AUROC",
}


class Gap(NamedTuple):
    """A rate, or a difference of rates, and its interval; NaN where it is withheld.

    A largest difference among groups of which one is withheld has the value NaN and an interval from what the others
    show to 1: the withheld group may differ more.
    """

    value: Tensor
    low: Tensor
    high: Tensor


class GroupGaps(NamedTuple):
    """What :func:`group_gaps` found. Values have the class axis of the release, if it has one.

    Example:
        >>> from torchmetrics_fed import FederatedAUROC
        >>> metric = FederatedAUROC(groups=("female", "male"))
        >>> preds, target = torch.tensor([0.2, 0.9, 0.8, 0.1, 0.3, 0.7]), torch.tensor([0, 1, 1, 0, 1, 1])
        >>> metric.update(preds, target, torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> group_gaps(metric.release()).between("female", "male")["tpr"].value
        tensor(0.5000, dtype=torch.float64)
    """

    groups: tuple[str, ...]
    threshold: float
    """The edge of the grid that was used, the nearest to the one asked for."""
    rates: dict[str, Gap]
    """Of each group, ``(groups, ...)``: ``tpr``, ``fpr``, ``positive_rate``, ``precision`` and ``auroc``."""
    largest: dict[str, Gap]
    """The largest difference of any two groups; its interval allows for all pairs at once.

    The value is NaN where the rate of a group is withheld; see ``withheld``.
    """

    @property
    def withheld(self) -> dict[str, tuple[str, ...]]:
        """By rate, the groups without a value: withheld under privacy, or without examples that the rate is of."""
        missing = {
            name: rate.value.isnan().reshape(len(self.groups), -1).any(1).tolist()
            for name, rate in self.rates.items()
        }
        return {
            name: tuple(group for group, lacks in zip(self.groups, rows, strict=True) if lacks)
            for name, rows in missing.items()
            if any(rows)
        }

    def between(self, one: str, other: str) -> dict[str, Gap]:
        """Return what the rates of one group exceed those of another by."""
        for name in (one, other):
            if name not in self.groups:
                raise InputError(f"Expected one of the groups {self.groups} but got {name!r}.")
        first, second = self.groups.index(one), self.groups.index(other)
        numbers = {
            name: Rates(*(each.numpy() for each in rate)) for name, rate in self.rates.items()
        }
        return {
            name: Gap(*map(torch.as_tensor, rate.difference(first, second)))
            for name, rate in numbers.items()
        }

    @property
    def equal_opportunity(self) -> Gap:
        """The largest difference of true positive rates."""
        return self.largest["tpr"]

    @property
    def equalized_odds(self) -> Gap:
        """The largest difference of true or of false positive rates."""
        return Gap(*map(torch.maximum, self.largest["tpr"], self.largest["fpr"]))

    @property
    def demographic_parity(self) -> Gap:
        """The largest difference of positive rates."""
        return self.largest["positive_rate"]

    @property
    def scalars(self) -> dict[str, Tensor]:
        """The usual summaries, and the largest differences of precision and AUROC; NaN where a group is withheld."""
        names = ("equal_opportunity", "equalized_odds", "demographic_parity")
        gaps = {f"{name}_gap": self.largest[name].value for name in ("precision", "auroc")}
        return {name: getattr(self, name).value for name in names} | gaps

    def plot(self, axes: Any = None) -> Any:
        """Draw each group's rates with their intervals, one panel a rate, and return ``(fig, axes)``.

        Several classes are drawn below each other in each group's row.
        """
        rates = list(self.rates.items())
        if axes is None:
            wide = 0.9 + 0.06 * max(map(len, self.groups))
            fig, axes = figure(
                1, len(rates), (wide + 1.7 * len(rates), 0.9 + 0.28 * len(self.groups))
            )
        else:
            fig = axes[0].figure
        for panel, (ax, (name, rate)) in enumerate(zip(axes, rates, strict=True)):
            value, low, high = (each.reshape(len(self.groups), -1).numpy() for each in rate)
            place = (
                np.arange(len(self.groups))[:, None]
                + np.linspace(-0.2, 0.2, value.shape[1] + 2)[1:-1]
            )
            for row in range(len(self.groups)):
                reach = [value[row] - low[row], high[row] - value[row]]
                look = {
                    "color": PALETTE[row % len(PALETTE)],
                    "fmt": "o",
                    "markersize": 4,
                    "linewidth": 1.2,
                }
                ax.errorbar(value[row], place[row], xerr=np.maximum(reach, 0), **look)
            for group in self.withheld.get(name, ()):
                row = self.groups.index(group)
                ax.text(
                    0.5,
                    row,
                    "withheld",
                    transform=ax.get_yaxis_transform(),
                    ha="center",
                    va="center",
                    color="grey",
                    fontsize="small",
                )
            dress(ax, _RATES[name], "", rates=False)
            ax.set_yticks(range(len(self.groups)), self.groups if panel == 0 else [])
            ax.set_ylim(len(self.groups) - 0.5, -0.5)
        return fig, axes


def group_gaps(release: Release, threshold: float = 0.5, confidence: float = 0.95) -> GroupGaps:
    """Return how far groups are apart: their rates of "score >= threshold", their areas, and the usual summaries.

    Intervals are for the population that the examples were drawn from: they allow for noise and for sampling. Under
    privacy, rates of groups so small that noise would make them are withheld, as NaN, with a warning. The largest
    difference is then unknown, too: NaN, with an interval from what the other groups show to 1.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> metric = FederatedROC(groups=2)
        >>> metric.update(torch.rand(20_000), torch.randint(0, 2, (20_000,)), torch.arange(20_000) % 2)
        >>> value, low, high = group_gaps(metric.release(), threshold=0.3).equalized_odds
    """
    check_uncertain(release, confidence)
    spec = release.spec
    if not spec.groups or spec.rows != 2:
        raise InputError(
            "Expected a release with groups, of negatives and positives. Build a metric with `groups=3`."
        )
    edges, parts = spec.grid.edges, list(release.by_group.values())
    place = nearest_edge(edges, threshold)
    found = [
        (auroc_from_counts(part), *auroc_interval(part, confidence, population=True))
        for part in parts
    ]
    areas = Rates(
        *(torch.stack(each).reshape(len(parts), -1).numpy() for each in zip(*found, strict=True))
    )
    counted = Counted.of(parts, place)
    areas = areas.withheld(
        counted.size.min(-1) <= 0
    )  # without a class there is no area, as there are no rates
    level, at_once = (1 + confidence) / 2, 1 - (1 - confidence) / (2 * math.comb(len(parts), 2))
    rates = {**counted.rates(level), "auroc": areas}
    sure = {
        **counted.rates(at_once),
        "auroc": areas.stretched(float(ndtri(at_once) / ndtri(level))),
    }
    if spec.privacy.charges:
        few = counted.size.min(-1) * release.last.whole_epsilon
        _warn_if_few(few, spec)
        rates, sure = (
            {name: each.withheld(few < _TOO_FEW) for name, each in some.items()}
            for some in (rates, sure)
        )
    largest = {name: _largest(rates[name], sure[name]) for name in rates}
    if spec.privacy.charges:
        _warn_if_inflated(largest, counted.noise())
    axis = 0 if spec.task == "binary" else slice(None)
    shown = (
        {
            name: Gap(*(torch.as_tensor(each[..., axis]) for each in rate))
            for name, rate in some.items()
        }
        for some in (rates, largest)
    )
    return GroupGaps(spec.groups, float(edges[place]), *shown)


def _largest(rates: Rates, sure: Rates) -> Rates:
    """Return the largest difference of any two groups.

    It is at most what the pair that may differ most allows, and at least what some pair shows, all taken at once. A
    group without a value may differ from the others by anything: then the difference is unknown, and at most 1.
    """
    pairs = list(permutations(range(len(rates.value)), 2))
    differences = [rates.difference(first, second) for first, second in pairs]
    at_once = [sure.difference(first, second) for first, second in pairs]
    unknown = np.isnan(rates.value).any(0)
    value = np.max([gap.value for gap in differences], axis=0)  # NaN where one is
    high = np.where(unknown, 1.0, np.max([gap.high for gap in differences], axis=0))
    shown = [np.nan_to_num(gap.low, nan=0.0) for gap in at_once]
    return Rates(value, np.maximum(np.max(shown, axis=0), 0.0), high)


def _warn_if_few(few: Floats, spec: Spec) -> None:
    """Warn of groups whose gaps are withheld, or uncertain."""
    for below, least, what in (
        (_TOO_FEW, -math.inf, "are withheld, so the largest gap is unknown"),
        (_FEW, _TOO_FEW, "are mostly noise"),
    ):
        which = (few >= least) & (few < below)
        names = [name for name, classes in zip(spec.groups, which, strict=True) if classes.any()]
        if names:
            warnings.warn(
                f"Gaps of {', '.join(names)} {what}: the smaller class times epsilon {spec.epsilon:g} is below "
                f"{below:g}. More examples, a larger epsilon or fewer groups would help.",
                stacklevel=3,
            )


def _warn_if_inflated(largest: Mapping[str, Rates], noise: Floats) -> None:
    """Warn if noise alone would show half of a largest difference: a maximum is biased upwards."""
    reach = 2 * float(
        ndtri((len(noise) - 0.375) / (len(noise) + 0.25))
    )  # of as many normal values (Blom 1958)
    for name, row in (("fpr", 0), ("tpr", 1)):
        value, low, high = largest[name]
        alone = reach * np.sqrt((noise[..., row] ** 2).mean(0))
        for found, least, most, inflated in zip(value, low, high, alone, strict=True):
            if not math.isnan(found) and inflated > max(found / 2, _WORTH):
                warnings.warn(
                    f"The largest difference of the {_RATES[name].lower()}, {found:.3f}, is inflated: noise alone "
                    f"would show about {inflated:.3f}. Report its interval, {least:.3f} to {most:.3f}.",
                    stacklevel=3,
                )
