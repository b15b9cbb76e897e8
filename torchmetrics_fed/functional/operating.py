"""Operating points: the best threshold for a purpose, and the rate that it attains.

Sources are releases, or what :func:`read` returns for leaf counts with their edges. Thresholds are
those of the tails: with ``Aligned()`` the edges of the leaves. "Score >= threshold" selects an
example.

Where several thresholds attain the best value the highest is returned. Where no threshold qualifies
the value is 0 at the highest edge, which selects no example. All values but costs are in [0, 1].
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.curve import tails_of
from torchmetrics_fed.functional.figures.canvas import RATE_LIMITS, Labels, Score, plot_curves
from torchmetrics_fed.functional.figures.notebook import result_html
from torchmetrics_fed.reconstruct.histograms import Readable

ROUNDING = 1e-12
"""A rate that is this much below a minimum qualifies: in float64, 1 - 9/10 is below 0.1."""


class OperatingPoint(NamedTuple):
    """The best value ``(...)`` and the threshold ``(...)`` that attains it.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> youden(counts).threshold
        tensor(0.5000, dtype=torch.float64)
    """

    value: Tensor
    threshold: Tensor

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Value and threshold."""
        return {"value": self.value, "threshold": self.threshold}

    def plot(
        self,
        score: Score = None,
        ax: Any = None,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw the value at its threshold, a point for each class, and return ``(fig, ax)``.

        Arguments are those of :meth:`ROCCurve.plot`.
        """
        fig, ax = plot_curves(
            self.threshold[..., None],
            self.value[..., None],
            ax=ax,
            xlabel="Threshold",
            ylabel="Value",
            name="point",
            label=label,
            labels=labels,
            score=score,
            curve_score=torch.stack([self.threshold, self.value]),
            score_format="threshold {:.3f}, value {:.3f}",
            rates=False,
            style={"marker": "o"},
            line_kwargs=line_kwargs,
        )
        ax.set_ylim(0, max(1.02, 1.1 * self.value.nan_to_num().max().item()))
        are_probabilities = self.threshold.min() >= 0 and self.threshold.max() <= 1
        if are_probabilities:
            ax.set_xlim(*RATE_LIMITS)
        return fig, ax


def recall_at_precision(source: Readable, min_precision: float) -> OperatingPoint:
    """Return the highest recall whose precision is at least ``min_precision``.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> recall_at_precision(counts, 0.7).value
        tensor(0.7500, dtype=torch.float64)
    """
    check_fraction("min_precision", min_precision)
    rates = _Rates.of(source)
    return rates.best(rates.tpr, rates.precision >= min_precision - ROUNDING)


def precision_at_recall(source: Readable, min_recall: float) -> OperatingPoint:
    """Return the highest precision whose recall is at least ``min_recall``.

    Of equal precisions the threshold with the highest recall is returned. Thresholds that select no
    example have no precision and do not qualify.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> precision_at_recall(counts, 0.7).value
        tensor(0.7500, dtype=torch.float64)
    """
    check_fraction("min_recall", min_recall)
    rates = _Rates.of(source)
    qualified = (rates.tpr >= min_recall - ROUNDING) & (rates.selected > 0)
    best = torch.where(qualified, rates.precision, -1.0).amax(-1, keepdim=True)
    point = rates.best(rates.tpr, qualified & (rates.precision >= best))
    return OperatingPoint(best[..., 0].clamp(min=0.0), point.threshold)


def sensitivity_at_specificity(source: Readable, min_specificity: float) -> OperatingPoint:
    """Return the highest sensitivity (recall) whose specificity is at least ``min_specificity``.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> sensitivity_at_specificity(counts, 0.7).value
        tensor(0.7500, dtype=torch.float64)
    """
    check_fraction("min_specificity", min_specificity)
    rates = _Rates.of(source)
    return rates.best(rates.tpr, 1 - rates.fpr >= min_specificity - ROUNDING)


def specificity_at_sensitivity(source: Readable, min_sensitivity: float) -> OperatingPoint:
    """Return the highest specificity (1 - fpr) whose sensitivity is at least ``min_sensitivity``.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> specificity_at_sensitivity(counts, 0.8).value
        tensor(0., dtype=torch.float64)
    """
    check_fraction("min_sensitivity", min_sensitivity)
    rates = _Rates.of(source)
    return rates.best(1 - rates.fpr, rates.tpr >= min_sensitivity - ROUNDING)


def best_f1(source: Readable) -> OperatingPoint:
    r"""Return the highest :math:`F_1 = 2 TP / (2 TP + FP + FN)`.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> best_f1(counts).value
        tensor(0.7500, dtype=torch.float64)
    """
    rates = _Rates.of(source)
    # 2 TP + FP + FN = (TP + FP) + (TP + FN)
    denominator = rates.selected + rates.positives
    f1 = torch.where(denominator > 0, 2 * rates.tpr * rates.positives / denominator, 0.0)
    return rates.best(f1.clamp(0.0, 1.0))


def youden(source: Readable) -> OperatingPoint:
    """Return Youden's J, the highest of tpr - fpr; 0 where a class is empty.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> youden(counts).value
        tensor(0.5000, dtype=torch.float64)
    """
    rates = _Rates.of(source)
    return rates.best(rates.tpr - rates.fpr, rates.has_both_classes)


def least_cost(
    source: Readable,
    false_positive: float = 1.0,
    false_negative: float = 1.0,
    prevalence: float | None = None,
) -> OperatingPoint:
    r"""Return the least expected cost of an example.

    The cost at threshold s is :math:`c_{fp} (1 - \pi) F(s) + c_{fn} \pi (1 - T(s))`.

    Args:
        source: as in :func:`youden`.
        false_positive: cost of a false positive, in any unit.
        false_negative: cost of a false negative, in the same unit.
        prevalence: the share of positives :math:`\pi` where the model will be used; that of the
            counts if not given.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> least_cost(counts, false_negative=5.0, prevalence=0.1).value
        tensor(0.3500, dtype=torch.float64)
    """
    _check_cost("false_positive", false_positive)
    _check_cost("false_negative", false_negative)
    if prevalence is not None:
        check_fraction("prevalence", prevalence)
    rates = _Rates.of(source)
    if prevalence is None:
        pi = rates.positives / rates.selected[..., -1:].clamp(min=1e-300)
    else:
        pi = torch.as_tensor(prevalence, dtype=torch.float64)
    cost = false_positive * (1 - pi) * rates.fpr + false_negative * pi * (1 - rates.tpr)
    point = rates.best(-cost)
    return OperatingPoint(-point.value, point.threshold)


def kolmogorov_smirnov(source: Readable) -> Tensor:
    r"""Return the Kolmogorov-Smirnov distance ``(...)``, :math:`\max_s |T(s) - F(s)|`, in [0, 1].

    It is the largest over the edges, so at most that of the scores themselves. It is 0 where a
    class is empty.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> kolmogorov_smirnov(counts)
        tensor(0.5000, dtype=torch.float64)
    """
    tails = tails_of(source)
    fpr, tpr = tails.tail.unbind(-2)
    distance = (tpr - fpr).abs().amax(-1)
    return torch.where((tails.total > 0).all(-1), distance, 0.0)


def check_fraction(name: str, value: float) -> None:
    """Raise unless an argument is in [0, 1]."""
    if not 0 <= value <= 1:
        raise InputError(
            f"Expected argument `{name}` to be in [0, 1] but got {value!r}. Give a fraction."
        )


def _check_cost(name: str, cost: float) -> None:
    if not 0 <= cost < math.inf:
        raise InputError(
            f"Expected argument `{name}` to be a cost of 0 or more but got {cost!r}. Give a number."
        )


class _Rates(NamedTuple):
    """Rates ``(..., points)`` at decreasing thresholds ``(points,)``."""

    fpr: Tensor
    tpr: Tensor
    precision: Tensor
    selected: Tensor
    """TP + FP."""
    positives: Tensor
    """TP + FN, ``(..., 1)``."""
    has_both_classes: Tensor
    thresholds: Tensor

    @classmethod
    def of(cls, source: Readable) -> _Rates:
        tails = tails_of(source)
        fpr, tpr = tails.tail.unbind(-2)
        negatives, positives = tails.total.clamp(min=0.0)[..., None].unbind(-2)
        fp = fpr * negatives
        tp = tpr * positives
        selected = fp + tp
        return cls(
            fpr=fpr,
            tpr=tpr,
            precision=torch.where(selected > 0, tp / selected, 1.0),
            selected=selected,
            positives=positives,
            has_both_classes=((negatives > 0) & (positives > 0)).expand(fpr.shape),
            thresholds=tails.thresholds,
        )

    def best(self, value: Tensor, qualified: Tensor | None = None) -> OperatingPoint:
        """Return the highest value of the thresholds that qualify; of all if not given.

        ``argmax`` returns the first of equal values: the highest threshold, which is also returned
        where no threshold qualifies.
        """
        if qualified is None:
            qualified = torch.ones_like(value, dtype=torch.bool)
        index = torch.where(qualified, value, -torch.inf).argmax(-1, keepdim=True)
        best = torch.where(qualified, value, 0.0).gather(-1, index)
        return OperatingPoint(best[..., 0], self.thresholds[index[..., 0]])
