"""Gaps between groups: the differences of their rates and areas, with intervals.

Under privacy the rates of groups so small that noise would make them are withheld. A withheld group
may differ from the others by anything, so the largest gap is unknown then.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import check_uncertain
from torchmetrics_fed.functional.figures.canvas import PALETTE, dress, figure
from torchmetrics_fed.functional.figures.notebook import result_html
from torchmetrics_fed.functional.intervals import auroc_interval
from torchmetrics_fed.functional.roc import auroc_from_counts
from torchmetrics_fed.reconstruct.histograms import nearest_edge
from torchmetrics_fed.reconstruct.uncertainty.thresholds import Counted, Rates
from torchmetrics_fed.release import Release, Spec
from torchmetrics_fed.typing import Floats

UNCERTAIN_SIZE = 60.0
"""Examples of the smaller class of a group times epsilon, below which noise outweighs sampling."""

WITHHELD_SIZE = 30.0
"""The same, below which a gap is noise: the rates of the group are withheld."""

INFLATION_WARNED_OF = 0.02
"""A largest difference that noise alone shows, and that is worth a warning."""

_RATE_NAMES = {
    "tpr": "True positive rate",
    "fpr": "False positive rate",
    "positive_rate": "Positive rate",
    "precision": "Precision",
    "auroc": "AUROC",
}


class Gap(NamedTuple):
    """A rate, or a difference of rates, and its interval; NaN where it is withheld.

    If one group is withheld, a largest difference has the value NaN, and its interval goes from the
    largest difference of the other groups to 1: the withheld group may differ more.
    """

    value: Tensor
    low: Tensor
    high: Tensor


class GroupGaps(NamedTuple):
    """The result of :func:`group_gaps`. Values have the class axis of the release, if it has one.

    Example:
        >>> from torchmetrics_fed import FederatedAUROC
        >>> metric = FederatedAUROC(groups=("female", "male"))
        >>> preds = torch.tensor([0.2, 0.9, 0.8, 0.1, 0.3, 0.7])
        >>> target = torch.tensor([0, 1, 1, 0, 1, 1])
        >>> metric.update(preds, target, torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> group_gaps(metric.release()).between("female", "male")["tpr"].value
        tensor(0.5000, dtype=torch.float64)
    """

    groups: tuple[str, ...]
    threshold: float
    """The edge of the grid that was used, the nearest to the threshold that was passed."""
    rates: dict[str, Gap]
    """``tpr``, ``fpr``, ``positive_rate``, ``precision`` and ``auroc``, ``(groups, ...)``."""
    largest: dict[str, Gap]
    """The largest difference of any two groups; its interval allows for all pairs at once.

    The value is NaN where the rate of a group is withheld; see ``withheld``.
    """

    @property
    def withheld(self) -> dict[str, tuple[str, ...]]:
        """By rate, the groups without a value: withheld, or without examples for the rate."""
        withheld = {}
        for name, rate in self.rates.items():
            is_missing = rate.value.isnan().reshape(len(self.groups), -1).any(1).tolist()
            if any(is_missing):
                withheld[name] = _selected(self.groups, is_missing)
        return withheld

    def between(self, first: str, second: str) -> dict[str, Gap]:
        """Return the rates of the first group less those of the second."""
        for name in (first, second):
            if name not in self.groups:
                raise InputError(f"Expected one of the groups {self.groups} but got {name!r}.")
        first_place = self.groups.index(first)
        second_place = self.groups.index(second)
        gaps = {}
        for name, rate in self.rates.items():
            rates = Rates(rate.value.numpy(), rate.low.numpy(), rate.high.numpy())
            gaps[name] = _gap(rates.difference(first_place, second_place))
        return gaps

    @property
    def equal_opportunity(self) -> Gap:
        """The largest difference of true positive rates."""
        return self.largest["tpr"]

    @property
    def equalized_odds(self) -> Gap:
        """The largest difference of true or of false positive rates."""
        tpr = self.largest["tpr"]
        fpr = self.largest["fpr"]
        return Gap(
            value=torch.maximum(tpr.value, fpr.value),
            low=torch.maximum(tpr.low, fpr.low),
            high=torch.maximum(tpr.high, fpr.high),
        )

    @property
    def demographic_parity(self) -> Gap:
        """The largest difference of positive rates."""
        return self.largest["positive_rate"]

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """The largest differences of rates; NaN where a group is withheld."""
        return {
            "equal_opportunity": self.equal_opportunity.value,
            "equalized_odds": self.equalized_odds.value,
            "demographic_parity": self.demographic_parity.value,
            "precision_gap": self.largest["precision"].value,
            "auroc_gap": self.largest["auroc"].value,
        }

    def plot(self, axes: Any = None, **line_kwargs: Any) -> Any:
        """Draw the rates of each group with their intervals, and return ``(fig, axes)``.

        There is a panel for each rate. Several classes are drawn below each other in the row of
        their group.

        Args:
            axes: one for each rate; new ones if not given.
            line_kwargs: keywords of matplotlib's ``errorbar``.
        """
        if axes is None:
            longest = max(len(group) for group in self.groups)
            width = 0.9 + 0.06 * longest + 1.7 * len(self.rates)
            _, axes = figure(1, len(self.rates), (width, 0.9 + 0.28 * len(self.groups)))
        for panel, (ax, name) in enumerate(zip(axes, self.rates, strict=True)):
            self._draw_rate(ax, name, line_kwargs)
            dress(ax, _RATE_NAMES[name], "", rates=False)
            row_names = list(self.groups)
            if panel > 0:
                row_names = []
            ax.set_yticks(range(len(self.groups)), row_names)
            ax.set_ylim(len(self.groups) - 0.5, -0.5)
        return axes[0].figure, axes

    def _draw_rate(self, ax: Any, name: str, line_kwargs: Mapping[str, Any]) -> None:
        """Draw the intervals of one rate, a row for each group."""
        rate = self.rates[name]
        value = rate.value.reshape(len(self.groups), -1).numpy()
        low = rate.low.reshape(len(self.groups), -1).numpy()
        high = rate.high.reshape(len(self.groups), -1).numpy()
        places_in_row = np.linspace(-0.2, 0.2, value.shape[1] + 2)[1:-1]
        for row in range(len(self.groups)):
            keywords = {
                "color": PALETTE[row % len(PALETTE)],
                "fmt": "o",
                "markersize": 4,
                "linewidth": 1.2,
                **line_kwargs,
            }
            reach = np.maximum([value[row] - low[row], high[row] - value[row]], 0)
            ax.errorbar(value[row], row + places_in_row, xerr=reach, **keywords)
        for group in self.withheld.get(name, ()):
            ax.text(
                0.5,
                self.groups.index(group),
                "withheld",
                transform=ax.get_yaxis_transform(),
                ha="center",
                va="center",
                color="grey",
                fontsize="small",
            )


def group_gaps(release: Release, threshold: float = 0.5, confidence: float = 0.95) -> GroupGaps:
    """Return how far groups are apart: their rates of "score >= threshold", and their areas.

    Intervals are for the population that the examples were drawn from: they allow for noise and for
    sampling. Under privacy, rates of groups so small that noise would make them are withheld, as
    NaN, with a warning. The largest difference is then unknown, too: NaN, with an interval from the
    largest difference of the other groups to 1.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> metric = FederatedROC(groups=2)
        >>> target = torch.randint(0, 2, (20_000,))
        >>> metric.update(torch.rand(20_000), target, torch.arange(20_000) % 2)
        >>> value, low, high = group_gaps(metric.release(), threshold=0.3).equalized_odds
    """
    check_uncertain(release, confidence)
    spec = release.spec
    if not spec.groups or spec.rows != 2:
        raise InputError(
            "Expected a release with groups, of negatives and positives. "
            "Build a metric with `groups=3`."
        )
    parts = list(release.by_group.values())
    place = nearest_edge(spec.grid.edges, threshold)
    areas = _areas(parts, confidence)
    counts = Counted.of(parts, place)
    smaller_class = counts.size.min(-1)
    # a group without a class has no area, as it has no rates of this class
    areas = areas.withheld(smaller_class <= 0)
    level = (1 + confidence) / 2
    level_for_all_pairs = 1 - (1 - confidence) / (2 * math.comb(len(parts), 2))
    stretch = float(ndtri(level_for_all_pairs) / ndtri(level))
    rates = {**counts.rates(level), "auroc": areas}
    rates_for_all_pairs = {
        **counts.rates(level_for_all_pairs),
        "auroc": areas.stretched(stretch),
    }
    if spec.privacy.charges:
        size = smaller_class * release.last.whole_epsilon
        _warn_if_small(size, spec)
        rates = _withheld(rates, size)
        rates_for_all_pairs = _withheld(rates_for_all_pairs, size)
    largest = {name: _largest(rates[name], rates_for_all_pairs[name]) for name in rates}
    if spec.privacy.charges:
        _warn_if_inflated(largest, counts.noise())
    has_classes = spec.task != "binary"
    return GroupGaps(
        spec.groups,
        float(spec.grid.edges[place]),
        rates={name: _gap(rate, has_classes) for name, rate in rates.items()},
        largest={name: _gap(rate, has_classes) for name, rate in largest.items()},
    )


def _selected(groups: Sequence[str], is_selected: Sequence[bool]) -> tuple[str, ...]:
    """Return the names of the selected groups."""
    return tuple(group for group, selected in zip(groups, is_selected, strict=True) if selected)


def _gap(rates: Rates, has_classes: bool = True) -> Gap:
    """Return rates as tensors, without the class axis of a binary task."""
    if not has_classes:
        rates = Rates(rates.value[..., 0], rates.low[..., 0], rates.high[..., 0])
    return Gap(
        value=torch.as_tensor(rates.value),
        low=torch.as_tensor(rates.low),
        high=torch.as_tensor(rates.high),
    )


def _areas(parts: Sequence[Release], confidence: float) -> Rates:
    """Return the AUROC of each group with its interval, ``(groups, classes)``."""
    areas = []
    lows = []
    highs = []
    for part in parts:
        interval = auroc_interval(part, confidence)
        areas.append(auroc_from_counts(part).reshape(-1))
        lows.append(interval.low.reshape(-1))
        highs.append(interval.high.reshape(-1))
    return Rates(torch.stack(areas).numpy(), torch.stack(lows).numpy(), torch.stack(highs).numpy())


def _withheld(rates: Mapping[str, Rates], size: Floats) -> dict[str, Rates]:
    """Return the rates with NaN in place of those of small groups."""
    return {name: rate.withheld(size < WITHHELD_SIZE) for name, rate in rates.items()}


def _largest(rates: Rates, rates_for_all_pairs: Rates) -> Rates:
    """Return the largest difference of any two groups.

    Its upper bound is that of the pair that may differ most. Its lower bound is the largest lower
    bound of a pair, where the bounds of all pairs hold at once. A group without a value may differ
    from the others by anything: then the difference is unknown, and at most 1.
    """
    pairs = list(permutations(range(len(rates.value)), 2))
    differences = [rates.difference(first, second) for first, second in pairs]
    at_once = [rates_for_all_pairs.difference(first, second) for first, second in pairs]
    is_unknown = np.isnan(rates.value).any(0)
    # the maximum is NaN where a difference is
    value = np.max([gap.value for gap in differences], axis=0)
    low = np.max([np.nan_to_num(gap.low, nan=0.0) for gap in at_once], axis=0)
    high = np.max([gap.high for gap in differences], axis=0)
    return Rates(value, np.maximum(low, 0.0), np.where(is_unknown, 1.0, high))


def _warn_if_small(size: Floats, spec: Spec) -> None:
    """Warn of groups whose gaps are withheld, or uncertain.

    The ``size`` is that of the smaller class times epsilon, ``(groups, classes)``.
    """
    is_withheld = size < WITHHELD_SIZE
    is_uncertain = (size >= WITHHELD_SIZE) & (size < UNCERTAIN_SIZE)
    for is_affected, limit, verdict in (
        (is_withheld, WITHHELD_SIZE, "are withheld, so the largest gap is unknown"),
        (is_uncertain, UNCERTAIN_SIZE, "are mostly noise"),
    ):
        names = _selected(spec.groups, [bool(classes.any()) for classes in is_affected])
        if names:
            warnings.warn(
                f"Gaps of {', '.join(names)} {verdict}: the smaller class times epsilon "
                f"{spec.epsilon:g} is below {limit:g}. More examples, a larger epsilon or fewer "
                "groups would help.",
                stacklevel=3,
            )


def _warn_if_inflated(largest: Mapping[str, Rates], noise: Floats) -> None:
    """Warn if noise alone would produce half of the largest gap: a maximum is biased upwards.

    The ``noise`` are standard deviations of fpr and tpr, ``(groups, classes, 2)``.
    """
    # the expected range of one normal value for each group (Blom 1958)
    groups = len(noise)
    expected_range = 2 * float(ndtri((groups - 0.375) / (groups + 0.25)))
    for name, row in (("fpr", 0), ("tpr", 1)):
        noise_alone = expected_range * np.sqrt((noise[..., row] ** 2).mean(0))
        gaps = zip(*largest[name], noise_alone, strict=True)
        for value, low, high, inflation in gaps:
            if not math.isnan(value) and inflation > max(value / 2, INFLATION_WARNED_OF):
                warnings.warn(
                    f"The largest difference of the {_RATE_NAMES[name].lower()}, {value:.3f}, is "
                    f"inflated: noise alone would show about {inflation:.3f}. Report its interval, "
                    f"{low:.3f} to {high:.3f}.",
                    stacklevel=3,
                )
