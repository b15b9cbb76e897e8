"""Calibration: whether seven in ten of the examples scored 0.7 are positive."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.averages import Averaging, checked_average
from torchmetrics_fed.functional.curve import CurveOptions, count
from torchmetrics_fed.functional.figures.canvas import (
    Labels,
    ReferenceLine,
    Score,
    plot_curves,
    rows,
)
from torchmetrics_fed.functional.figures.page import scale
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.reconstruct.histograms import Edges, Readable, are_probabilities, read
from torchmetrics_fed.typing import Task

LARGEST_MARKER = 80.0
"""Area of the marker of the bin with most examples, in square points."""

CALIBRATED = ReferenceLine((0, 1), (0, 1), "calibrated")
"""The line of scores that are probabilities of a positive."""


class Calibration(NamedTuple):
    """Two scalars ``(...)`` and the reliability curve ``(..., bins)``, bins in ascending order.

    Example:
        >>> calibration_from_counts(torch.tensor([[3, 1], [1, 3]])).brier_score
        tensor(0.1875, dtype=torch.float64)
    """

    expected_calibration_error: Tensor
    """Mean distance of ``predicted`` and ``observed``, weighted by ``examples``, in [0, 1]."""
    brier_score: Tensor
    """Mean squared distance of score and label, in [0, 1]."""
    predicted: Tensor
    """Mean score; the centre of the calibration bin where it is empty."""
    observed: Tensor
    """Fraction of positives; 0 where the calibration bin is empty."""
    examples: Tensor
    """Number of examples, float64."""

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
        # an empty bin has no share of positives
        observed = torch.where(examples > 0, rows(self.observed), torch.nan)
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
        bins: number of calibration bins, even over [0, 1]. A leaf is in the bin of its centre.
        average: None or ``"micro"``.

    Example:
        >>> calibration_from_counts(torch.tensor([[3, 1], [1, 3]]), bins=2).observed
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise InputError(
            f"Expected argument `bins` to be a positive int but got {bins!r}. "
            "The usual number is 15."
        )
    histograms = read(source, edges, reconstruction).pooled(average)
    edges = histograms.edges
    check_probabilities(edges)
    negatives, positives = histograms.leaf.double().clamp(min=0.0).unbind(-2)
    centre = (edges[:-1] + edges[1:]) / 2
    boundaries = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    bin_of_leaf = (torch.bucketize(centre, boundaries, right=True) - 1).clamp(max=bins - 1)
    bin_positives = _summed(positives, bin_of_leaf, bins)
    examples = _summed(negatives, bin_of_leaf, bins) + bin_positives
    scores = _summed((negatives + positives) * centre, bin_of_leaf, bins)
    total = examples.sum(-1)
    if bool((total <= 0).any()):
        warnings.warn(
            "No examples: their calibration is undefined and set to 0.", UserWarning, stacklevel=2
        )
    bin_centre = (boundaries[:-1] + boundaries[1:]) / 2
    predicted = torch.where(examples > 0, scores / examples, bin_centre).clamp(0.0, 1.0)
    observed = torch.where(examples > 0, bin_positives / examples, 0.0)
    distances = ((predicted - observed).abs() * examples).sum(-1)
    squares = (positives * (1 - centre) ** 2 + negatives * centre**2).sum(-1)
    return Calibration(
        expected_calibration_error=torch.where(total > 0, distances / total, 0.0).clamp(0.0, 1.0),
        brier_score=torch.where(total > 0, squares / total, 0.0).clamp(0.0, 1.0),
        predicted=predicted,
        observed=observed,
        examples=examples,
    )


def _summed(values: Tensor, bin_of_leaf: Tensor, bins: int) -> Tensor:
    """Return the sums of the leaves' values over each calibration bin, ``(..., bins)``."""
    return values.new_zeros(*values.shape[:-1], bins).index_add_(-1, bin_of_leaf, values)


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
