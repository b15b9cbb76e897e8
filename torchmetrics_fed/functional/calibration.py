"""Calibration: whether seven in ten of the examples scored 0.7 are positive, and proper losses.

Each leaf stands for its centre.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.averages import Averaging, averaged, checked_average
from torchmetrics_fed.functional.curve import CurveOptions, count
from torchmetrics_fed.functional.figures.canvas import (
    Labels,
    ReferenceLine,
    Score,
    plot_curves,
    rows,
)
from torchmetrics_fed.functional.figures.notebook import result_html
from torchmetrics_fed.functional.figures.page import scale
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.reconstruct.histograms import (
    Edges,
    Histograms,
    Readable,
    are_probabilities,
)
from torchmetrics_fed.typing import Task

LARGEST_MARKER = 80.0
"""Area of the marker of the bin with most examples, in square points."""

CALIBRATED = ReferenceLine((0, 1), (0, 1), "calibrated")
"""The line of scores that are probabilities of a positive."""

CalibrationNorm = Literal["l1", "l2", "max"]
"""How the distances of calibration bins are combined."""

NORMS: tuple[CalibrationNorm, ...] = get_args(CalibrationNorm)
"""The norms of the calibration error."""


class Calibration(NamedTuple):
    """Two scalars ``(...)`` and the reliability curve ``(..., bins)``, bins in ascending order.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> calibration_from_counts(counts).brier_score
        tensor(0.1875, dtype=torch.float64)
    """

    expected_calibration_error: Tensor
    """Mean distance of ``predicted`` and ``observed``, weighted by ``examples``, in [0, 1]."""
    brier_score: Tensor
    """Mean squared distance of score and label, in [0, 1]."""
    predicted: Tensor
    """Mean score; the centre of the calibration bin where it is empty."""
    observed: Tensor
    """Fraction of positives; NaN where the calibration bin is empty."""
    examples: Tensor
    """Number of examples, float64."""

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Expected calibration error and Brier score."""
        return {
            "expected_calibration_error": self.expected_calibration_error,
            "brier_score": self.brier_score,
        }

    def plot(
        self,
        score: Score = None,
        ax: Any = None,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw the share of positives against the mean score of each bin; return ``(fig, ax)``.

        The area of a marker is the count of its bin. The legend shows the expected calibration
        error (ECE) and the Brier score. Arguments are those of :meth:`ROCCurve.plot`.
        """
        predicted = rows(self.predicted)
        examples = rows(self.examples)
        observed = rows(self.observed)
        fullest = examples.amax(-1, keepdim=True).clamp(min=1e-9)
        score_format = "ECE {:.4f},\nBrier {:.4f}"
        if len(examples) > 1:
            score_format = "ECE {:.3f}, Brier {:.3f}"
        return plot_curves(
            predicted,
            observed,
            ax=ax,
            xlabel="Mean score",
            ylabel="Share of positives",
            name="scores",
            label=label,
            labels=labels,
            score=score,
            curve_score=torch.stack([self.expected_calibration_error, self.brier_score]),
            score_format=score_format,
            lowest_is_best=True,
            references=[CALIBRATED],
            marker_areas=LARGEST_MARKER * scale() ** 2 * examples / fullest,
            style={"linewidth": 0.9 * scale()},
            line_kwargs=line_kwargs,
        )


def calibration_from_counts(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    bins: int = 15,
    average: Averaging = None,
) -> Calibration:
    r"""Return calibration error, Brier score and reliability curve of a release or of leaf counts.

    Each leaf k stands for its centre :math:`s_k`. With :math:`n_b` examples in bin b,
    :math:`ECE = \sum_b \frac{n_b}{n} |\bar s_b - \bar y_b|`, as in torchmetrics'
    ``BinaryCalibrationError(norm="l1")``. The Brier score is
    :math:`\frac1n \sum_k c^+_k (1 - s_k)^2 + c^-_k s_k^2`. Without any examples both are 0.

    Args:
        source: as in :func:`roc_from_counts`.
        edges: as in :func:`roc_from_counts`, within [0, 1].
        reconstruction: as in :func:`roc_from_counts`.
        bins: number of calibration bins, even over [0, 1]. A leaf is in the bin of its centre; if a
            boundary is inside, in the bin where torchmetrics counts a score on the boundary.
        average: None or ``"micro"``.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> calibration_from_counts(counts, bins=2).observed
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    histograms = read(source, edges, reconstruction).pooled(average)
    sums = _bin_sums(histograms, bins)
    total = sums.examples.sum(-1)
    if bool((total <= 0).any()):
        warnings.warn(
            "No examples: their calibration is undefined and set to 0.", UserWarning, stacklevel=2
        )
    curve = sums.without_ones
    bin_centre = (torch.arange(bins, dtype=torch.float64) + 0.5) / bins
    return Calibration(
        expected_calibration_error=_distance(sums, "l1"),
        brier_score=_mean_loss(histograms, _squared_error).clamp(0.0, 1.0),
        predicted=torch.where(curve.examples > 0, curve.predicted, bin_centre),
        observed=curve.observed,
        examples=curve.examples,
    )


class _BinSums(NamedTuple):
    """Sums over calibration bins, ``(..., bins + 1)``: the last one is for scores of exactly 1."""

    examples: Tensor
    positives: Tensor
    scores: Tensor

    @property
    def predicted(self) -> Tensor:
        """Mean score; NaN where a bin is empty."""
        means = self.scores / self.examples
        return torch.where(self.examples > 0, means, torch.nan).clamp(0.0, 1.0)

    @property
    def observed(self) -> Tensor:
        """Fraction of positives; NaN where a bin is empty."""
        return torch.where(self.examples > 0, self.positives / self.examples, torch.nan)

    @property
    def without_ones(self) -> _BinSums:
        """The sums ``(..., bins)``, with the scores of exactly 1 in the last bin."""
        return _BinSums(
            _joined_at_end(self.examples),
            _joined_at_end(self.positives),
            _joined_at_end(self.scores),
        )


def _joined_at_end(sums: Tensor) -> Tensor:
    """Return sums whose last two bins are one."""
    last = sums[..., -2:].sum(-1, keepdim=True)
    return torch.cat([sums[..., :-2], last], -1)


def _bin_sums(histograms: Histograms, bins: int) -> _BinSums:
    check_bins(bins)
    check_probabilities(histograms.edges)
    negatives, positives = histograms.leaf.double().clamp(min=0.0).unbind(-2)
    bin_of_leaf = _calibration_bins(histograms.edges, bins)
    examples = negatives + positives
    return _BinSums(
        examples=_summed(examples, bin_of_leaf, bins + 1),
        positives=_summed(positives, bin_of_leaf, bins + 1),
        scores=_summed(examples * _centres(histograms.edges), bin_of_leaf, bins + 1),
    )


def _centres(edges: Tensor) -> Tensor:
    """Return the centre of each leaf, at most 1: the score that the leaf stands for."""
    return ((edges[:-1] + edges[1:]) / 2).clamp(max=1.0)


def _calibration_bins(edges: Tensor, bins: int) -> Tensor:
    """Return the calibration bin of each leaf, that of its centre.

    Rounded scores and scores of trees lie on the boundaries of calibration bins. So a leaf with one
    boundary inside goes where torchmetrics counts a score on this boundary: into the bin above it,
    unless the boundary, rounded to float32, is above the score. Scores of exactly 1 have a bin of
    their own, as in torchmetrics, if the grid tells them apart.
    """
    boundaries = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    bin_of_centre = torch.bucketize(_centres(edges), boundaries, right=True) - 1
    rounded_scores = (torch.arange(bins + 1, dtype=torch.float64) / bins).float()
    rounded_boundaries = torch.linspace(0, 1, bins + 1, dtype=torch.float32)
    bin_of_boundary = torch.bucketize(rounded_scores, rounded_boundaries, right=True) - 1
    first_inside = torch.searchsorted(boundaries, edges[:-1].contiguous(), right=True)
    first_above = torch.searchsorted(boundaries, edges[1:].contiguous())
    has_one_boundary = first_above - first_inside == 1
    boundary = first_inside.clamp(max=bins)
    bin_of_leaf = torch.where(has_one_boundary, bin_of_boundary[boundary], bin_of_centre)
    is_one = edges[:-1] >= 1
    return torch.where(is_one, bins, bin_of_leaf.clamp(0, bins - 1))


def _distance(sums: _BinSums, norm: CalibrationNorm) -> Tensor:
    """Return the distance ``(...)`` of predicted and observed; 0 without any examples."""
    distance = (sums.predicted - sums.observed).abs().nan_to_num(0.0)
    if norm == "max":
        return distance.amax(-1)
    share = sums.examples / sums.examples.sum(-1, keepdim=True).clamp(min=1e-300)
    if norm == "l1":
        return (distance * share).sum(-1).clamp(0.0, 1.0)
    return (distance**2 * share).sum(-1).sqrt().clamp(0.0, 1.0)


def calibration_error(
    source: Readable,
    bins: int = 15,
    norm: CalibrationNorm = "l1",
    average: Averaging = None,
) -> Tensor:
    r"""Return the calibration error ``(...)`` of each class's probabilities, in [0, 1].

    With :math:`n_b` examples in bin b and :math:`d_b = |\bar s_b - \bar y_b|`, it is
    :math:`\sum_b \frac{n_b}{n} d_b` for ``"l1"``, the root of :math:`\sum_b \frac{n_b}{n} d_b^2`
    for ``"l2"``, and the largest :math:`d_b` for ``"max"``: torchmetrics'
    ``BinaryCalibrationError``. With several classes it is that of each class against the rest;
    torchmetrics' multi-class error is that of the top label, which histograms do not hold.

    Args:
        source: as in :func:`roc_from_counts`.
        bins: as in :func:`calibration_from_counts`.
        norm: ``"l1"``, ``"l2"`` or ``"max"``.
        average: None, ``"micro"``, ``"macro"`` or ``"weighted"``.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.4, 1]))
        >>> calibration_error(counts, bins=2, norm="max")
        tensor(0.0500, dtype=torch.float64)
    """
    check_norm(norm)
    histograms = read(source)
    distance = _distance(_bin_sums(histograms.pooled(average), bins), norm)
    return averaged(distance, histograms, average)


def check_norm(norm: str) -> None:
    """Raise unless distances of calibration bins are combined so."""
    if norm not in NORMS:
        raise InputError(f"Expected argument `norm` to be one of {NORMS} but got {norm!r}.")


def check_bins(bins: int) -> None:
    """Raise unless this is a number of calibration bins."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise InputError(
            f"Expected argument `bins` to be a positive int but got {bins!r}. "
            "The usual number is 15."
        )


def _summed(values: Tensor, bin_of_leaf: Tensor, bins: int) -> Tensor:
    """Return the sums of the leaves' values over each calibration bin, ``(..., bins)``."""
    return values.new_zeros(*values.shape[:-1], bins).index_add_(-1, bin_of_leaf, values)


def brier_score(source: Readable, average: Averaging = None) -> Tensor:
    r"""Return the Brier score ``(...)``, the mean of :math:`(y - s)^2`, in [0, 1].

    Each leaf stands for its centre. Arguments are those of :func:`calibration_error`.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> brier_score(counts)
        tensor(0.1875, dtype=torch.float64)
    """
    return _averaged_loss(source, _squared_error, average)


def log_loss(source: Readable, average: Averaging = None) -> Tensor:
    r"""Return the log loss ``(...)``, the mean of :math:`-\ln s` or :math:`-\ln(1 - s)`.

    It is the first for positives and the second for negatives: the binary cross-entropy of each
    class. Each leaf stands for its centre, kept :math:`2^{-52}` from 0 and 1 as in scikit-learn.
    Arguments are those of :func:`calibration_error`.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> log_loss(counts)
        tensor(0.5623, dtype=torch.float64)
    """
    return _averaged_loss(source, _cross_entropy, average)


def hinge_loss(source: Readable, squared: bool = False, average: Averaging = None) -> Tensor:
    r"""Return the hinge loss ``(...)``: the mean of :math:`1 - s` or :math:`1 + s`.

    It is the first for positives and the second for negatives: torchmetrics' ``BinaryHingeLoss`` of
    probabilities. Arguments are those of :func:`calibration_error`, and:

    Args:
        source: a release, or histograms.
        squared: whether to square before the mean.
        average: None, ``"micro"``, ``"macro"`` or ``"weighted"``.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> hinge_loss(counts)
        tensor(0.8750, dtype=torch.float64)
    """
    if squared:
        return _averaged_loss(source, _squared_hinge, average)
    return _averaged_loss(source, _hinge, average)


class _Losses(NamedTuple):
    """The loss of a negative and of a positive example in each leaf, ``(leaves,)``."""

    of_negatives: Tensor
    of_positives: Tensor


def _squared_error(score: Tensor) -> _Losses:
    return _Losses(score**2, (1 - score) ** 2)


def _cross_entropy(score: Tensor) -> _Losses:
    least = torch.finfo(torch.float64).eps
    return _Losses(-(1 - score).clamp(min=least).log(), -score.clamp(min=least).log())


def _hinge(score: Tensor) -> _Losses:
    return _Losses(1 + score, 1 - score)


def _squared_hinge(score: Tensor) -> _Losses:
    return _Losses((1 + score) ** 2, (1 - score) ** 2)


def _averaged_loss(
    source: Readable, losses_of: Callable[[Tensor], _Losses], average: Averaging
) -> Tensor:
    histograms = read(source)
    return averaged(_mean_loss(histograms.pooled(average), losses_of), histograms, average)


def _mean_loss(histograms: Histograms, losses_of: Callable[[Tensor], _Losses]) -> Tensor:
    """Return the mean loss ``(...)`` of all examples; 0 without any."""
    check_probabilities(histograms.edges)
    negatives, positives = histograms.leaf.double().clamp(min=0.0).unbind(-2)
    losses = losses_of(_centres(histograms.edges))
    sums = (positives * losses.of_positives + negatives * losses.of_negatives).sum(-1)
    total = (negatives + positives).sum(-1)
    return torch.where(total > 0, sums / total, 0.0)


def check_probabilities(edges: Tensor) -> None:
    """Raise unless these edges are those of probabilities."""
    if not are_probabilities(edges):
        raise InputError(
            "Expected edges within [0, 1], for only probabilities can be calibrated, but they span "
            f"[{edges[0].item()}, {edges[-1].item()}]. Count probabilities: "
            '`normalization="sigmoid"` makes them of logits.'
        )


def calibration(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    bins: int = 15,
    average: Averaging = None,
    **options: Unpack[CurveOptions],
) -> Calibration:
    """Return the calibration of binned scores.

    It is :class:`~torchmetrics_fed.FederatedCalibration` as a function. The ``bins`` are those of
    calibration, other arguments are those of :func:`~torchmetrics_fed.functional.roc`.

    Example:
        >>> preds = torch.tensor([0.1, 0.4, 0.6, 0.9])
        >>> calibration(preds, torch.tensor([0, 1, 0, 1]), bins=2).observed
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    average = checked_average(average, ("micro",), task)
    histograms = count(preds, target, task, **options)
    return calibration_from_counts(histograms, bins=bins, average=average)
