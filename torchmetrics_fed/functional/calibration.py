"""Calibration: whether of the examples scored 0.7, seven in ten are positive."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.averages import Averaging, checked_average
from torchmetrics_fed.functional.curve import CurveOptions, count
from torchmetrics_fed.functional.figures.canvas import Labels, Score, plot_curves, rows
from torchmetrics_fed.functional.figures.page import scale
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.reconstruct.histograms import Edges, Readable, are_probabilities, read
from torchmetrics_fed.typing import Task

_MARKER = 80.0  # area of the fullest bin's marker, in square points


class Calibration(NamedTuple):
    """Two scalars ``(...)`` and the reliability curve ``(..., bins)``, calibration bins in ascending order.

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
    """Fraction of positives; 0 where it is empty."""
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
        self, score: Score = None, ax: Any = None, label: str | None = None, labels: Labels = None
    ) -> Any:
        """Draw the positives' share against the mean score of each bin, and return ``(fig, ax)``.

        A marker's area is its bin's count. The legend shows the expected calibration error (ECE) and the Brier score.
        Arguments are those of :meth:`ROCCurve.plot`.
        """
        predicted, observed, count = map(rows, (self.predicted, self.observed, self.examples))
        observed = torch.where(
            count > 0, observed, torch.nan
        )  # an empty bin has no share of positives
        scores = torch.stack([self.expected_calibration_error, self.brier_score])
        form = "ECE {:.3f}, Brier {:.3f}" if len(count) > 1 else "ECE {:.4f},\nBrier {:.4f}"
        area = _MARKER * scale() ** 2 * count / count.amax(-1, keepdim=True).clamp(min=1e-9)
        axes, chance = ("Mean score", "Share of positives"), ([0, 1], [0, 1], "calibrated")
        curves, names, shown = (
            (predicted, observed),
            ("scores", label, labels),
            (score, scores, form),
        )
        look: dict[str, Any] = {"sizes": area, "lowest_is_best": True, "linewidth": 0.9 * scale()}
        return plot_curves(curves, shown, axes, ax, names, chance, **look)


def calibration_from_counts(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    bins: int = 15,
    average: Averaging = None,
) -> Calibration:
    r"""Return calibration error, Brier score and reliability curve of a release or of leaf counts.

    Each leaf stands for its centre :math:`s_k`: :math:`ECE = \sum_b \frac{n_b}{n} |\bar s_b - \bar y_b|` as in
    torchmetrics' ``BinaryCalibrationError(norm="l1")``, and :math:`\frac1n \sum_k c^+_k (1 - s_k)^2 + c^-_k s_k^2`.
    Without any examples both are 0.

    There are ``bins`` calibration bins, even over [0, 1]; a leaf is in the one that holds its centre. Other arguments
    are those of :func:`roc_from_counts`, with edges within [0, 1]; ``average`` is None or ``"micro"``.

    Example:
        >>> calibration_from_counts(torch.tensor([[3, 1], [1, 3]]), bins=2).observed
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise InputError(
            f"Expected argument `bins` to be a positive int but got {bins!r}. The usual number is 15."
        )
    histograms = read(source, edges, reconstruction).pooled(average)
    edges = histograms.edges
    check_probabilities(edges)
    leaf = histograms.leaf.double().clamp(min=0.0)
    centre = (edges[:-1] + edges[1:]) / 2
    boundaries = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    index = (torch.bucketize(centre, boundaries, right=True) - 1).clamp(max=bins - 1)
    # negatives, positives, and the scores of both, summed over each calibration bin
    parts = torch.cat([leaf, (leaf.sum(-2) * centre)[..., None, :]], -2)
    negative, positive, score = (
        parts.new_zeros(*parts.shape[:-1], bins).index_add_(-1, index, parts).unbind(-2)
    )
    examples = negative + positive
    total = examples.sum(-1)
    if bool((total <= 0).any()):
        warnings.warn(
            "No examples: their calibration is undefined and set to 0.", UserWarning, stacklevel=2
        )
    predicted = torch.where(
        examples > 0, score / examples, (boundaries[:-1] + boundaries[1:]) / 2
    ).clamp(0.0, 1.0)
    observed = torch.where(examples > 0, positive / examples, 0.0)
    error = ((predicted - observed).abs() * examples).sum(-1)
    squares = (leaf[..., 1, :] * (1 - centre) ** 2 + leaf[..., 0, :] * centre**2).sum(-1)
    ece, brier = (
        torch.where(total > 0, value / total, 0.0).clamp(0.0, 1.0) for value in (error, squares)
    )
    return Calibration(ece, brier, predicted, observed, examples)


def check_probabilities(edges: Tensor) -> None:
    """Raise unless these edges are those of probabilities."""
    low, high = edges[0].item(), edges[-1].item()
    if not are_probabilities(edges):
        raise InputError(
            f"Expected edges within [0, 1], for only probabilities can be calibrated, but they span [{low}, {high}]. "
            'Count probabilities: `normalization="sigmoid"` makes them of logits.'
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
    """Return the calibration of binned scores; the functional twin of :class:`~torchmetrics_fed.FederatedCalibration`.

    Other arguments are those of :func:`~torchmetrics_fed.functional.roc`, ``bins`` are those of calibration.

    Example:
        >>> calibration(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]), bins=2).observed
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    average = checked_average(average, ("micro",), task)
    return calibration_from_counts(
        count(preds, target, task, **options), bins=bins, average=average
    )
