"""Operating points: the threshold to work at, and what it attains.

Sources are releases, leaf counts, or what :func:`read` makes of them. Thresholds are those of the tails: for
``"aligned"`` the edges of the leaves. "Score >= threshold" selects. Where several attain the best value the highest is
given; where none qualifies the value is 0 at the highest edge, which selects nothing. All but costs are in [0, 1].
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.curve import tails_of
from torchmetrics_fed.functional.figures.canvas import Labels, plot_curves
from torchmetrics_fed.reconstruct.histograms import Readable

# A rate of exactly the minimum must qualify, and 1 - 9/10 is below 0.1 in float64.
_SLACK = 1e-12


class OperatingPoint(NamedTuple):
    """The best value ``(...)`` and the threshold ``(...)`` that attains it.

    Example:
        >>> youden(torch.tensor([[3, 1], [1, 3]])).threshold
        tensor(0.5000, dtype=torch.float64)
    """

    value: Tensor
    threshold: Tensor

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Value and threshold."""
        return self._asdict()

    def plot(self, ax: Any = None, label: str | None = None, labels: Labels = None) -> Any:
        """Draw the value at its threshold, a point for each class, as :meth:`ROCCurve.plot` does."""
        x, y, names = self.threshold[..., None], self.value[..., None], ("point", label, labels)
        score = None, torch.stack([self.threshold, self.value]), "threshold {:.3f}, value {:.3f}"
        fig, ax = plot_curves(
            (x, y), score, ("Threshold", "Value"), ax, names, rates=False, marker="o"
        )
        ax.set_ylim(0, max(1.02, 1.1 * y.nan_to_num().max().item()))
        if x.min() >= 0 and x.max() <= 1:  # as probabilities are
            ax.set_xlim(-0.02, 1.02)
        return fig, ax


def recall_at_precision(source: Readable, min_precision: float) -> OperatingPoint:
    """Return the highest recall whose precision is at least ``min_precision``.

    Example:
        >>> recall_at_precision(torch.tensor([[3, 1], [1, 3]]), 0.7)
        OperatingPoint(value=tensor(0.7500, dtype=torch.float64), threshold=tensor(0.5000, dtype=torch.float64))
    """
    rates = _Rates.of(source, min_precision=min_precision)
    return rates.best(rates.tpr, rates.precision >= min_precision - _SLACK)


def precision_at_recall(source: Readable, min_recall: float) -> OperatingPoint:
    """Return the highest precision whose recall is at least ``min_recall``, with the most recall it can have.

    Thresholds that select nothing have no precision and do not qualify.

    Example:
        >>> precision_at_recall(torch.tensor([[3, 1], [1, 3]]), 0.7).value
        tensor(0.7500, dtype=torch.float64)
    """
    rates = _Rates.of(source, min_recall=min_recall)
    qualified = (rates.tpr >= min_recall - _SLACK) & (rates.selected > 0)
    best = torch.where(qualified, rates.precision, -1.0).amax(-1, keepdim=True)
    _, threshold = rates.best(rates.tpr, qualified & (rates.precision >= best))
    return OperatingPoint(best[..., 0].clamp(min=0.0), threshold)


def sensitivity_at_specificity(source: Readable, min_specificity: float) -> OperatingPoint:
    """Return the highest sensitivity (recall) whose specificity is at least ``min_specificity``.

    Example:
        >>> sensitivity_at_specificity(torch.tensor([[3, 1], [1, 3]]), 0.7).value
        tensor(0.7500, dtype=torch.float64)
    """
    rates = _Rates.of(source, min_specificity=min_specificity)
    return rates.best(rates.tpr, 1 - rates.fpr >= min_specificity - _SLACK)


def specificity_at_sensitivity(source: Readable, min_sensitivity: float) -> OperatingPoint:
    """Return the highest specificity (1 - fpr) whose sensitivity is at least ``min_sensitivity``.

    Example:
        >>> specificity_at_sensitivity(torch.tensor([[3, 1], [1, 3]]), 0.8).value
        tensor(0., dtype=torch.float64)
    """
    rates = _Rates.of(source, min_sensitivity=min_sensitivity)
    return rates.best(1 - rates.fpr, rates.tpr >= min_sensitivity - _SLACK)


def best_f1(source: Readable) -> OperatingPoint:
    r"""Return the highest :math:`F_1 = 2 TP / (2 TP + FP + FN)`.

    Example:
        >>> best_f1(torch.tensor([[3, 1], [1, 3]])).value
        tensor(0.7500, dtype=torch.float64)
    """
    rates = _Rates.of(source)
    size = rates.selected + rates.positives
    return rates.best(
        torch.where(size > 0, 2 * rates.tpr * rates.positives / size, 0.0).clamp(0.0, 1.0)
    )


def youden(source: Readable) -> OperatingPoint:
    """Return Youden's J, the highest of tpr - fpr; 0 where a class is empty.

    Example:
        >>> youden(torch.tensor([[3, 1], [1, 3]])).value
        tensor(0.5000, dtype=torch.float64)
    """
    rates = _Rates.of(source)
    return rates.best(rates.tpr - rates.fpr, rates.both)


def least_cost(
    source: Readable,
    false_positive: float = 1.0,
    false_negative: float = 1.0,
    prevalence: float | None = None,
) -> OperatingPoint:
    r"""Return the least expected cost of an example, :math:`c_{fp} (1 - \pi) F(s) + c_{fn} \pi (1 - T(s))`.

    Costs are in one unit. The ``prevalence`` :math:`\pi` is the positives' share where the model will be used, that of
    the counts if not given.

    Example:
        >>> least_cost(torch.tensor([[3, 1], [1, 3]]), false_negative=5.0, prevalence=0.1)
        OperatingPoint(value=tensor(0.3500, dtype=torch.float64), threshold=tensor(0.5000, dtype=torch.float64))
    """
    for name, given in (("false_positive", false_positive), ("false_negative", false_negative)):
        if not 0 <= given < math.inf:
            raise InputError(
                f"Expected argument `{name}` to be a cost of 0 or more but got {given!r}. Give a number."
            )
    rates = _Rates.of(source, prevalence=prevalence)
    share = rates.positives / rates.selected[..., -1:].clamp(min=1e-300)
    if prevalence is not None:
        share = torch.as_tensor(prevalence, dtype=torch.float64)
    cost = false_positive * (1 - share) * rates.fpr + false_negative * share * (1 - rates.tpr)
    gain, threshold = rates.best(-cost)
    return OperatingPoint(-gain, threshold)


def kolmogorov_smirnov(source: Readable) -> Tensor:
    r"""Return the Kolmogorov-Smirnov distance ``(...)``, :math:`\max_s |T(s) - F(s)|`, in [0, 1].

    It is the largest over the edges, so at most that of the scores themselves. It is 0 where a class is empty.

    Example:
        >>> kolmogorov_smirnov(torch.tensor([[3, 1], [1, 3]]))
        tensor(0.5000, dtype=torch.float64)
    """
    tails = tails_of(source)
    farthest = tails.tail.diff(dim=-2).abs().amax((-2, -1))
    return torch.where((tails.total > 0).all(-1), farthest, 0.0)


class _Rates(NamedTuple):
    """Rates ``(..., points)`` at decreasing thresholds ``(points,)``."""

    fpr: Tensor
    tpr: Tensor
    precision: Tensor
    selected: Tensor
    positives: Tensor
    both: Tensor
    """Whether there are examples of both classes."""
    thresholds: Tensor

    @classmethod
    def of(cls, source: Readable, **fractions: float | None) -> _Rates:
        for name, value in fractions.items():
            if value is not None and not 0 <= value <= 1:
                raise InputError(
                    f"Expected argument `{name}` to be in [0, 1] but got {value!r}. Give a fraction."
                )
        tails = tails_of(source)
        total = tails.total.clamp(min=0.0)[..., None]
        fpr, tpr = tails.tail.unbind(-2)
        false, true = (tails.tail * total).unbind(-2)
        selected = false + true
        precision = torch.where(selected > 0, true / selected, 1.0)
        both = (total > 0).all(-2).expand(fpr.shape)
        return cls(fpr, tpr, precision, selected, total[..., 1, :], both, tails.thresholds)

    def best(self, value: Tensor, qualified: Tensor | None = None) -> OperatingPoint:
        """The highest value of those that qualify, all if not given."""
        qualified = torch.ones_like(value, dtype=torch.bool) if qualified is None else qualified
        # argmax takes the first of equals, which is the highest threshold, and the first of all where none qualifies
        index = torch.where(qualified, value, -torch.inf).argmax(-1, keepdim=True)
        found = torch.where(qualified, value, 0.0).gather(-1, index)
        return OperatingPoint(found[..., 0], self.thresholds[index[..., 0]])
