"""Operating points: the threshold to work at, and what it attains.

Thresholds are those of the tails: for ``"aligned"`` the edges of the leaves. "Score >= threshold" selects. Where
several thresholds attain the best value the highest is given, and where none qualifies the value is 0 at the highest
edge, which selects nothing. All values but costs are in [0, 1].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.curve import warn_if_empty
from torchmetrics_fed.functional.source import Readable, read
from torchmetrics_fed.reconstruct import Reconstruction

# A rate of exactly the minimum must qualify, and 1 - 9/10 is below 0.1 in float64.
_SLACK = 1e-12


class OperatingPoint(NamedTuple):
    """The best value ``(...)`` and the threshold ``(...)`` that attains it.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import youden
        >>> youden(torch.tensor([[3, 1], [1, 3]])).threshold
        tensor(0.5000, dtype=torch.float64)
    """

    value: Tensor
    threshold: Tensor

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Value and threshold."""
        return {"value": self.value, "threshold": self.threshold}


def recall_at_precision(
    source: Readable, min_precision: float, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> OperatingPoint:
    """Return the highest recall whose precision is at least ``min_precision``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.operating import recall_at_precision
        >>> recall_at_precision(torch.tensor([[3, 1], [1, 3]]), 0.7)
        OperatingPoint(value=tensor(0.7500, dtype=torch.float64), threshold=tensor(0.5000, dtype=torch.float64))
    """
    _check("min_precision", min_precision)
    rates = _rates(source, edges, reconstruction)
    return _best(rates.tpr, rates.precision >= min_precision - _SLACK, rates.thresholds)


def precision_at_recall(
    source: Readable, min_recall: float, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> OperatingPoint:
    """Return the highest precision whose recall is at least ``min_recall``, with the most recall it can have.

    Thresholds that select nothing have no precision and do not qualify.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.operating import precision_at_recall
        >>> precision_at_recall(torch.tensor([[3, 1], [1, 3]]), 0.7).value
        tensor(0.7500, dtype=torch.float64)
    """
    _check("min_recall", min_recall)
    rates = _rates(source, edges, reconstruction)
    qualified = (rates.tpr >= min_recall - _SLACK) & (rates.selected > 0)
    best = torch.where(qualified, rates.precision, -1.0).amax(-1, keepdim=True)
    _, threshold = _best(rates.tpr, qualified & (rates.precision >= best), rates.thresholds)
    return OperatingPoint(best[..., 0].clamp(min=0.0), threshold)


def sensitivity_at_specificity(
    source: Readable, min_specificity: float, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> OperatingPoint:
    """Return the highest sensitivity (recall) whose specificity is at least ``min_specificity``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.operating import sensitivity_at_specificity
        >>> sensitivity_at_specificity(torch.tensor([[3, 1], [1, 3]]), 0.7).value
        tensor(0.7500, dtype=torch.float64)
    """
    _check("min_specificity", min_specificity)
    rates = _rates(source, edges, reconstruction)
    return _best(rates.tpr, 1 - rates.fpr >= min_specificity - _SLACK, rates.thresholds)


def specificity_at_sensitivity(
    source: Readable, min_sensitivity: float, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> OperatingPoint:
    """Return the highest specificity (1 - fpr) whose sensitivity is at least ``min_sensitivity``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.operating import specificity_at_sensitivity
        >>> specificity_at_sensitivity(torch.tensor([[3, 1], [1, 3]]), 0.8).value
        tensor(0., dtype=torch.float64)
    """
    _check("min_sensitivity", min_sensitivity)
    rates = _rates(source, edges, reconstruction)
    return _best(1 - rates.fpr, rates.tpr >= min_sensitivity - _SLACK, rates.thresholds)


def best_f1(
    source: Readable, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> OperatingPoint:
    r"""Return the highest :math:`F_1 = 2 TP / (2 TP + FP + FN)`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.operating import best_f1
        >>> best_f1(torch.tensor([[3, 1], [1, 3]])).value
        tensor(0.7500, dtype=torch.float64)
    """
    rates = _rates(source, edges, reconstruction)
    size = rates.selected + rates.positives
    f1 = torch.where(size > 0, 2 * rates.tpr * rates.positives / size, 0.0).clamp(0.0, 1.0)
    return _best(f1, torch.ones_like(f1, dtype=torch.bool), rates.thresholds)


def youden(
    source: Readable, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> OperatingPoint:
    """Return Youden's J, the highest of tpr - fpr; 0 where a class is empty.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.operating import youden
        >>> youden(torch.tensor([[3, 1], [1, 3]])).value
        tensor(0.5000, dtype=torch.float64)
    """
    rates = _rates(source, edges, reconstruction)
    return _best(rates.tpr - rates.fpr, rates.both, rates.thresholds)


def least_cost(
    source: Readable, false_positive: float = 1.0, false_negative: float = 1.0, prevalence: float | None = None
) -> OperatingPoint:
    r"""Return the least expected cost of an example, :math:`c_{fp} (1 - \pi) F(s) + c_{fn} \pi (1 - T(s))`.

    Args:
        source: a release, or leaf counts ``(..., 2, leaves)``.
        false_positive: what a false positive costs, in the unit of ``false_negative``.
        prevalence: the positives' share :math:`\pi` where the model will be used; that of the counts if not given.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import least_cost
        >>> least_cost(torch.tensor([[3, 1], [1, 3]]), false_negative=5.0, prevalence=0.1)
        OperatingPoint(value=tensor(0.3500, dtype=torch.float64), threshold=tensor(0.5000, dtype=torch.float64))
    """
    for name, given in (("false_positive", false_positive), ("false_negative", false_negative)):
        if not 0 <= given < math.inf:
            raise InputError(f"Expected argument `{name}` to be a cost of 0 or more but got {given!r}. Give a number.")
    rates = _rates(source, None, None)
    share = rates.positives / rates.selected[..., -1:].clamp(min=1e-300)
    if prevalence is not None:
        _check("prevalence", prevalence)
        share = torch.as_tensor(prevalence, dtype=torch.float64)
    cost = false_positive * (1 - share) * rates.fpr + false_negative * share * (1 - rates.tpr)
    gain, threshold = _best(-cost, torch.ones_like(cost, dtype=torch.bool), rates.thresholds)
    return OperatingPoint(-gain, threshold)


def kolmogorov_smirnov(
    source: Readable, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> Tensor:
    r"""Return the Kolmogorov-Smirnov distance ``(...)``, :math:`\max_s |T(s) - F(s)|`, in [0, 1].

    It is the largest over the edges, so at most that of the scores themselves. It is 0 where a class is empty.

    Args:
        source: as in :func:`roc_from_counts`, and likewise ``edges`` and ``reconstruction``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import kolmogorov_smirnov
        >>> kolmogorov_smirnov(torch.tensor([[3, 1], [1, 3]]))
        tensor(0.5000, dtype=torch.float64)
    """
    tails = read(source, edges, reconstruction).tails
    warn_if_empty(tails.total)
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
    thresholds: Tensor


def _rates(source: Readable, edges: Tensor | None, reconstruction: Reconstruction | None) -> _Rates:
    tails = read(source, edges, reconstruction).tails
    warn_if_empty(tails.total)
    total = tails.total.clamp(min=0.0)[..., None]
    fpr, tpr = tails.tail.unbind(-2)
    false, true = (tails.tail * total).unbind(-2)
    selected = false + true
    precision = torch.where(selected > 0, true / selected, 1.0)
    both = (total > 0).all(-2).expand(fpr.shape)
    return _Rates(fpr, tpr, precision, selected, total[..., 1, :], both, tails.thresholds)


def _best(value: Tensor, qualified: Tensor, thresholds: Tensor) -> OperatingPoint:
    # argmax takes the first of equals, which is the highest threshold, and the first of all where none qualifies
    index = torch.where(qualified, value, -torch.inf).argmax(-1, keepdim=True)
    found = torch.where(qualified, value, 0.0).gather(-1, index)
    return OperatingPoint(found[..., 0], thresholds[index[..., 0]])


def _check(name: str, minimum: float) -> None:
    if not 0 <= minimum <= 1:
        raise InputError(f"Expected argument `{name}` to be in [0, 1] but got {minimum!r}. Give it as a fraction.")
