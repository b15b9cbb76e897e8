"""Precision-recall curve and average precision: from scores, from leaf counts, from quantiles."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.functional.averages import Averaging, averaged, checked_average, macro_curve
from torchmetrics_fed.functional.band import Band, Interval
from torchmetrics_fed.functional.curve import CurveOptions, count
from torchmetrics_fed.functional.figures.canvas import Labels, Score, plot_curves
from torchmetrics_fed.paper import ClassQuantiles, Interpolation, tails_from_quantiles
from torchmetrics_fed.reconstruct import Reconstruction, Tails
from torchmetrics_fed.reconstruct.histograms import Edges, Readable, read
from torchmetrics_fed.typing import Task


class PrecisionRecallCurve(NamedTuple):
    """A PR curve in torchmetrics' order: thresholds increase, and a last point (1, 0) has no threshold.

    Example:
        >>> precision_recall_from_counts(torch.tensor([[3, 1], [1, 3]])).recall
        tensor([1.0000, 0.7500, 0.0000], dtype=torch.float64)
    """

    precision: Tensor
    recall: Tensor
    thresholds: Tensor

    @property
    def scalars(self) -> dict[str, Tensor]:
        """The average precision, which is the area under the curve read as a step."""
        return {"average_precision": average_precision_from_curve(self)}

    def plot(
        self,
        score: Score = None,
        ax: Any = None,
        label: str | None = None,
        labels: Labels = None,
        band: Band | None = None,
        interval: Interval | None = None,
    ) -> Any:
        """Draw the curve as the step that its average precision is the area of, and return ``(fig, ax)``.

        The chance line is the positives' share, the precision where everything is selected; the mean of the classes'.
        Arguments are those of :meth:`ROCCurve.plot`.
        """
        area, names = (
            (score, average_precision_from_curve(self), "AP {:.4f}"),
            ("PR", label, labels),
        )
        share, whose = (
            float(self.precision[..., 0].mean()),
            "mean chance" if self.precision.ndim > 1 else "chance",
        )
        curves, chance = (
            (self.recall, self.precision),
            ([0, 1], [share, share], f"{whose} ({share:.2g})"),
        )
        look: dict[str, Any] = {
            "band": band,
            "interval": interval,
            "mean": True,
            "drawstyle": "steps-post",
        }
        return plot_curves(curves, area, ("Recall", "Precision"), ax, names, chance, **look)


def precision_recall_curve(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Averaging = None,
    **options: Unpack[CurveOptions],
) -> PrecisionRecallCurve:
    """Return the PR curve of binned scores; twin of :class:`~torchmetrics_fed.FederatedPrecisionRecallCurve`.

    ``average`` is that of :func:`precision_recall_from_counts`, other arguments are those of
    :func:`~torchmetrics_fed.functional.roc`.

    Example:
        >>> precision_recall_curve(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1])).scalars
        {'average_precision': tensor(0.8333, dtype=torch.float64)}
    """
    average = checked_average(average, ("micro", "macro"), task)
    return precision_recall_from_counts(count(preds, target, task, **options), average=average)


def precision_recall_from_counts(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    average: Averaging = None,
) -> PrecisionRecallCurve:
    r"""Return the PR curve of a release or of leaf counts: :math:`P = T n^+ / (T n^+ + F n^-)` against T.

    Where no score reaches the threshold the precision is 1, so that the curve runs into its end (1, 0). Recall of a
    class without positives is undefined: NaN in a multi-class release, and otherwise 1 with a warning, as torchmetrics
    has it.

    Args:
        source: as in :func:`roc_from_counts`, and likewise ``edges`` and ``reconstruction``.
        average: as there, but ``"macro"`` is torchmetrics' mean of recall at all the classes' precisions, of those
            classes that have positives.

    Example:
        >>> precision_recall_from_counts(torch.tensor([[3, 1], [1, 3]])).precision
        tensor([0.5000, 0.7500, 1.0000], dtype=torch.float64)
    """
    histograms = read(source, edges, reconstruction).pooled(average)
    curve = precision_recall_from_tails(histograms.tails, histograms.exclusive)
    return PrecisionRecallCurve(*macro_curve(*curve)) if average == "macro" else curve


def precision_recall_from_quantiles(
    quantiles: ClassQuantiles,
    n_negative: float,
    n_positive: float,
    score_range: tuple[float, float] = (0.0, 1.0),
    interpolation: Interpolation = "pchip",
) -> PrecisionRecallCurve:
    """Return the PR curve through evenly spaced quantiles of each class and the class sizes, as in the paper.

    Example:
        >>> from torchmetrics_fed.paper import ClassQuantiles
        >>> even, high = torch.linspace(0, 1, 9).double(), torch.linspace(0.5, 1, 9).double()
        >>> round(precision_recall_from_quantiles(ClassQuantiles(even, high), 30, 10).precision[0].item(), 3)
        0.25
    """
    total = torch.tensor([n_negative, n_positive], dtype=torch.float64)
    return precision_recall_from_tails(
        tails_from_quantiles(torch.stack(quantiles), total, score_range, interpolation)
    )


def precision_recall_from_tails(tails: Tails, exclusive: bool = False) -> PrecisionRecallCurve:
    """Return PR curves of the tails of negatives and positives.

    ``exclusive`` is that of :class:`~torchmetrics_fed.functional.Histograms`.
    """
    above = tails.tail * tails.total[..., None]
    found = above[..., 1, :]
    selected = found + above[..., 0, :]
    if tails.of_all is not None:  # the paper's strategy "combine"
        selected = tails.of_all * tails.total.sum(-1, keepdim=True)
    precision = torch.where(selected > 0, found / selected, 1.0).clamp(max=1.0)
    absent = tails.total[..., 1, None] <= 0
    if not exclusive and bool(absent.any()):
        text = "No positive examples in these counts: recall is undefined and set to 1 wherever something is selected."
        warnings.warn(text, UserWarning, stacklevel=2)
    undefined = torch.full_like(found, torch.nan) if exclusive else (selected > 0).to(found)
    undefined[..., 0] = 0.0  # the end, where nothing is selected
    recall = torch.where(absent, undefined, tails.tail[..., 1, :])
    # The highest threshold, where nothing is selected, is the end (1, 0), which torchmetrics gives without threshold.
    return PrecisionRecallCurve(precision.flip(-1), recall.flip(-1), tails.thresholds.flip(0)[:-1])


def average_precision_from_curve(curve: PrecisionRecallCurve) -> Tensor:
    r"""Return the area ``(...)`` under PR curves read as steps, :math:`\sum_k (R_k - R_{k+1}) P_k`, in [0, 1].

    Example:
        >>> average_precision_from_curve(precision_recall_from_counts(torch.tensor([[3, 1], [1, 3]])))
        tensor(0.6875, dtype=torch.float64)
    """
    return (
        ((curve.recall[..., :-1] - curve.recall[..., 1:]) * curve.precision[..., :-1])
        .sum(-1)
        .clamp(0.0, 1.0)
    )


def average_precision_from_counts(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    average: Averaging = None,
) -> Tensor:
    """Return the average precision of a release or of leaf counts, in [0, 1]; 1 without negatives.

    Without positives it is 0, with a warning. A class that no example of a multi-class release has is NaN, and macro
    and weighted averages leave it out, as in torchmetrics. Arguments are those of :func:`roc_from_counts`.

    Example:
        >>> average_precision_from_counts(torch.tensor([[3, 1], [1, 3]]))
        tensor(0.6875, dtype=torch.float64)
    """
    histograms = read(source, edges, reconstruction)
    return averaged(
        lambda each: average_precision_from_curve(precision_recall_from_counts(each)),
        histograms,
        average,
    )


def average_precision(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Averaging = "macro",
    **options: Unpack[CurveOptions],
) -> Tensor:
    """Return the average precision of binned scores; twin of :class:`~torchmetrics_fed.FederatedAveragePrecision`.

    Other arguments are those of :func:`~torchmetrics_fed.functional.roc`.

    Example:
        >>> average_precision(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        tensor(0.8333, dtype=torch.float64)
    """
    average = None if task == "binary" else average
    return average_precision_from_counts(count(preds, target, task, **options), average=average)
