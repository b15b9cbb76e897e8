"""Precision-recall curves and average precision: from scores, from counts, and from quantiles."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.functional.averages import Averaging, averaged, checked_average, macro_curve
from torchmetrics_fed.functional.band import Band, Interval
from torchmetrics_fed.functional.curve import CurveOptions, count
from torchmetrics_fed.functional.figures.canvas import Labels, ReferenceLine, Score, plot_curves
from torchmetrics_fed.functional.figures.notebook import result_html
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.paper import ClassQuantiles, Interpolation, tails_from_quantiles
from torchmetrics_fed.reconstruct import Reconstruction, Tails
from torchmetrics_fed.reconstruct.histograms import Edges, Histograms, Readable
from torchmetrics_fed.typing import Task


class PrecisionRecallCurve(NamedTuple):
    """A PR curve in torchmetrics' order: thresholds increase.

    The last point, precision 1 and recall 0, has no threshold.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> precision_recall_from_counts(counts).recall
        tensor([1.0000, 0.7500, 0.0000], dtype=torch.float64)
    """

    precision: Tensor
    recall: Tensor
    thresholds: Tensor

    def _repr_html_(self) -> str:
        return result_html(self)

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
        **line_kwargs: Any,
    ) -> Any:
        """Draw the curve as the step whose area is the average precision; return ``(fig, ax)``.

        The chance line is the share of positives, which is the precision at the lowest threshold;
        for several classes their mean. Arguments are those of :meth:`ROCCurve.plot`.
        """
        prevalence = float(self.precision[..., 0].mean())
        chance = "chance"
        if self.precision.ndim > 1:
            chance = "mean chance"
        return plot_curves(
            self.recall,
            self.precision,
            ax=ax,
            xlabel="Recall",
            ylabel="Precision",
            name="PR",
            label=label,
            labels=labels,
            score=score,
            curve_score=average_precision_from_curve(self),
            score_format="AP {:.4f}",
            references=[
                ReferenceLine((0, 1), (prevalence, prevalence), f"{chance} ({prevalence:.2g})")
            ],
            band=band,
            interval=interval,
            has_mean=True,
            style={"drawstyle": "steps-post"},
            line_kwargs=line_kwargs,
        )


def precision_recall_curve(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Averaging = None,
    **options: Unpack[CurveOptions],
) -> PrecisionRecallCurve:
    """Return the PR curve of binned scores.

    It is :class:`~torchmetrics_fed.FederatedPrecisionRecallCurve` as a function. The ``average`` is
    that of :func:`precision_recall_from_counts`, other arguments are those of
    :func:`~torchmetrics_fed.functional.roc`.

    Example:
        >>> preds = torch.tensor([0.1, 0.4, 0.6, 0.9])
        >>> precision_recall_curve(preds, torch.tensor([0, 1, 0, 1])).scalars
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
    r"""Return the PR curve of a release or of leaf counts: :math:`TP / (TP + FP)` against T.

    With the rates T and F at a threshold, :math:`TP = T n^+` and :math:`FP = F n^-`. Where no score
    reaches the threshold the precision is 1, so that the curve ends at precision 1 and recall 0.
    The recall of a class without positives is undefined: NaN in a multi-class release, otherwise 1
    with a warning, as in torchmetrics.

    Args:
        source: as in :func:`roc_from_counts`.
        edges: as in :func:`roc_from_counts`.
        reconstruction: as in :func:`roc_from_counts`.
        average: as in :func:`roc_from_counts`, but ``"macro"`` is torchmetrics' mean of recall at
            the precisions of all classes that have positives.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> precision_recall_from_counts(counts).precision
        tensor([0.5000, 0.7500, 1.0000], dtype=torch.float64)
    """
    histograms = read(source, edges, reconstruction).pooled(average)
    curve = precision_recall_from_tails(histograms.tails, histograms.exclusive)
    if average == "macro":
        precision, recall, thresholds = macro_curve(curve.precision, curve.recall, curve.thresholds)
        return PrecisionRecallCurve(precision, recall, thresholds)
    return curve


def precision_recall_from_quantiles(
    quantiles: ClassQuantiles,
    n_negative: float,
    n_positive: float,
    score_range: tuple[float, float] = (0.0, 1.0),
    interpolation: Interpolation = "pchip",
) -> PrecisionRecallCurve:
    """Return the PR curve through evenly spaced quantiles of each class, as in the paper.

    Args:
        quantiles: scores at even fractions of each class.
        n_negative: number of negatives.
        n_positive: number of positives.
        score_range: lowest and highest score.
        interpolation: between quantiles.

    Example:
        >>> from torchmetrics_fed.paper import ClassQuantiles
        >>> negative = torch.linspace(0, 1, 9).double()
        >>> positive = torch.linspace(0.5, 1, 9).double()
        >>> quantiles = ClassQuantiles(negative, positive)
        >>> round(precision_recall_from_quantiles(quantiles, 30, 10).precision[0].item(), 3)
        0.25
    """
    tails = tails_from_quantiles(
        torch.stack(quantiles),
        torch.tensor([n_negative, n_positive], dtype=torch.float64),
        score_range=score_range,
        interpolation=interpolation,
    )
    return precision_recall_from_tails(tails)


def precision_recall_from_tails(tails: Tails, exclusive: bool = False) -> PrecisionRecallCurve:
    """Return PR curves of the tails of negatives and positives.

    Args:
        tails: at decreasing thresholds.
        exclusive: as in :class:`~torchmetrics_fed.functional.Histograms`.
    """
    if not exclusive:
        _warn_without_positives(tails.total)
    return _curve(tails, exclusive)


def _curve(tails: Tails, exclusive: bool) -> PrecisionRecallCurve:
    recall = tails.tail[..., 1, :]
    tp = recall * tails.total[..., 1, None]
    fp = tails.tail[..., 0, :] * tails.total[..., 0, None]
    selected = tp + fp
    if tails.of_all is not None:  # the paper's strategy "combine"
        selected = tails.of_all * tails.total.sum(-1, keepdim=True)
    precision = torch.where(selected > 0, tp / selected, 1.0).clamp(max=1.0)
    if exclusive:
        undefined = torch.full_like(tp, torch.nan)
    else:
        undefined = (selected > 0).to(tp)
    undefined[..., 0] = 0.0  # the highest threshold selects no example
    has_no_positives = tails.total[..., 1, None] <= 0
    recall = torch.where(has_no_positives, undefined, recall)
    # torchmetrics returns the point of the highest threshold, (1, 0), without its threshold
    return PrecisionRecallCurve(precision.flip(-1), recall.flip(-1), tails.thresholds.flip(0)[:-1])


def _warn_without_positives(total: Tensor) -> None:
    """Warn if a class has no positives: ``total`` are negatives and positives, ``(..., 2)``."""
    if bool((total[..., 1] <= 0).any()):
        warnings.warn(
            "No positive examples in these counts: recall is undefined and set to 1 wherever "
            "an example is selected.",
            UserWarning,
            stacklevel=3,
        )


def average_precision_from_curve(curve: PrecisionRecallCurve) -> Tensor:
    r"""Return the area ``(...)`` under PR curves read as steps, in [0, 1].

    It is :math:`\sum_k (R_k - R_{k+1}) P_k`.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> curve = precision_recall_from_counts(counts)
        >>> average_precision_from_curve(curve)
        tensor(0.6875, dtype=torch.float64)
    """
    step = curve.recall[..., :-1] - curve.recall[..., 1:]
    return (step * curve.precision[..., :-1]).sum(-1).clamp(0.0, 1.0)


def average_precision_from_counts(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    average: Averaging = None,
) -> Tensor:
    """Return the average precision of a release or of leaf counts, in [0, 1].

    It is 1 without negatives, and 0 with a warning without positives. A class without examples in a
    multi-class release has NaN, and macro and weighted averages leave it out, as in torchmetrics.
    Arguments are those of :func:`roc_from_counts`.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> average_precision_from_counts(counts)
        tensor(0.6875, dtype=torch.float64)
    """
    histograms = read(source, edges, reconstruction)
    areas = _areas(histograms.pooled(average))
    return averaged(areas, histograms, average)


def _areas(histograms: Histograms) -> Tensor:
    """Return the average precision of each class, some classes at a time."""
    blocks = histograms.blocks
    if len(blocks) == 1:
        return average_precision_from_curve(precision_recall_from_counts(histograms))
    # in tensors that are made beforehand, for the reason in roc.py
    leaf = histograms.leaf
    areas = leaf.new_empty(len(leaf), dtype=torch.float64)
    totals = leaf.new_empty(len(leaf), 2, dtype=torch.float64)
    sizes = [len(block.leaf) for block in blocks]
    for block, area, total in zip(blocks, areas.split(sizes), totals.split(sizes), strict=True):
        tails = block.tails
        area[:] = average_precision_from_curve(_curve(tails, block.exclusive))
        total[:] = tails.total
    if not histograms.exclusive:
        _warn_without_positives(totals)
    return areas


def average_precision(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Averaging = "macro",
    **options: Unpack[CurveOptions],
) -> Tensor:
    """Return the average precision of binned scores.

    It is :class:`~torchmetrics_fed.FederatedAveragePrecision` as a function. Other arguments are
    those of :func:`~torchmetrics_fed.functional.roc`.

    Example:
        >>> average_precision(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        tensor(0.8333, dtype=torch.float64)
    """
    if task == "binary":
        average = None
    return average_precision_from_counts(count(preds, target, task, **options), average=average)
