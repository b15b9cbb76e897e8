"""ROC curves and the area under them: from scores, from counts, and from quantiles.

From ``FederatedROC.compute`` to the division there are four functions: ``compute``,
:func:`roc_from_counts`, ``Histograms.tails``, and ``tails`` of the reconstruction, which divides
fp by the negatives and tp by the positives at every threshold.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.averages import Averaging, averaged, checked_average, macro_curve
from torchmetrics_fed.functional.band import Band, Interval
from torchmetrics_fed.functional.curve import CurveOptions, count, warn_if_empty
from torchmetrics_fed.functional.figures.canvas import CHANCE, Labels, Score, plot_curves
from torchmetrics_fed.functional.figures.notebook import result_html
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.paper import ClassQuantiles, Interpolation, tails_from_quantiles
from torchmetrics_fed.reconstruct import Reconstruction, Tails
from torchmetrics_fed.reconstruct.histograms import Edges, Histograms, Readable
from torchmetrics_fed.typing import Average, Floats, Task


class ROCCurve(NamedTuple):
    """A ROC curve in torchmetrics' order: thresholds decrease, from (0, 0) to (1, 1).

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> roc_from_counts(counts).tpr
        tensor([0.0000, 0.7500, 1.0000], dtype=torch.float64)
    """

    fpr: Tensor
    tpr: Tensor
    thresholds: Tensor

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """The area under the curve."""
        return {"auroc": auroc_from_curve(self)}

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
        """Draw the curve with the chance line, and return ``(fig, ax)``.

        With a class axis there is one line for each class. Of more than ten classes the best and
        the worst have a colour, the others are grey.

        Args:
            score: the AUROC in the legend; False for none, the area under the curve if True or not
                given.
            ax: axes to draw on; new ones if not given.
            label: name in the legend, which tells several models on the same axes apart.
            labels: names of the classes.
            band: shaded behind the curve.
            interval: of the AUROC, shown behind it.
            line_kwargs: keywords of matplotlib's ``Line2D`` for the lines of the curves, for
                example ``color="black"`` or ``linewidth=3``.

        Example:
            >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
            >>> fig, ax = roc_from_counts(counts).plot(linestyle=":")
            >>> ax.get_lines()[-1].get_label()
            'ROC (AUROC 0.7500)'
        """
        return plot_curves(
            self.fpr,
            self.tpr,
            ax=ax,
            xlabel="False positive rate",
            ylabel="True positive rate",
            name="ROC",
            label=label,
            labels=labels,
            score=score,
            curve_score=auroc_from_curve(self),
            score_format="AUROC {:.4f}",
            references=[CHANCE],
            band=band,
            interval=interval,
            has_mean=True,
            line_kwargs=line_kwargs,
        )


def roc(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Averaging = None,
    **options: Unpack[CurveOptions],
) -> ROCCurve:
    """Return the ROC curve of binned scores: :class:`~torchmetrics_fed.FederatedROC` as a function.

    Args:
        preds: scores: any shape for binary tasks, ``(N, classes, ...)`` for others.
        target: 0 or 1 for each score, or for multi-class tasks the class of each of N.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        average: as in :func:`roc_from_counts`.
        options: as in :class:`~torchmetrics_fed.FederatedROC`.

    Example:
        >>> roc(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1])).scalars
        {'auroc': tensor(0.7500, dtype=torch.float64)}
    """
    average = checked_average(average, ("micro", "macro"), task)
    return roc_from_counts(count(preds, target, task, **options), average=average)


def roc_from_counts(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    average: Averaging = None,
) -> ROCCurve:
    r"""Return the ROC curve of a release or of leaf counts.

    At each threshold s, :math:`tpr = T(s) = \Pr[S \ge s \mid y = 1]` and
    :math:`fpr = F(s) = \Pr[S \ge s \mid y = 0]`.

    Args:
        source: a release, or counts ``(..., 2, leaves)``, row 0 negatives, row 1 positives.
        edges: ascending edges of leaf counts, which are refused without. A release has its own.
        reconstruction: how to read between the edges; ``Aligned()`` if not given.
        average: None for one curve for each class, ``"micro"`` for the curve of the scores of all
            classes together, ``"macro"`` for the mean of the curves at all their false positive
            rates (thresholds then have no meaning).

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> roc_from_counts(counts).fpr
        tensor([0.0000, 0.2500, 1.0000], dtype=torch.float64)
    """
    tails = read(source, edges, reconstruction).pooled(average).tails
    curve = roc_from_tails(tails)
    if average == "macro":
        fpr, tpr, thresholds = macro_curve(curve.fpr, curve.tpr, curve.thresholds)
        return ROCCurve(fpr, tpr, thresholds)
    return curve


def roc_from_quantiles(
    quantiles: ClassQuantiles,
    score_range: tuple[float, float] = (0.0, 1.0),
    interpolation: Interpolation = "pchip",
) -> ROCCurve:
    """Return the ROC curve through evenly spaced quantiles of each class, as in the paper.

    Example:
        >>> negative = torch.linspace(0, 1, 9).double()
        >>> positive = torch.linspace(0.5, 1, 9).double()
        >>> curve = roc_from_quantiles(ClassQuantiles(negative, positive))
        >>> round(curve.scalars["auroc"].item(), 3)
        0.75
    """
    tails = tails_from_quantiles(
        torch.stack(quantiles),
        torch.ones(2),
        score_range=score_range,
        interpolation=interpolation,
    )
    return roc_from_tails(tails)


def roc_from_tails(tails: Tails) -> ROCCurve:
    """Return the ROC curve of the tails of negatives and positives, ``(..., 2, points)``."""
    warn_if_empty(tails.total)
    fpr, tpr = tails.tail.unbind(-2)
    return ROCCurve(fpr, tpr, tails.thresholds)


def auroc_from_curve(curve: ROCCurve, max_fpr: float | None = None) -> Tensor:
    r"""Return the area ``(...)`` under ROC curves by the trapezoidal rule, in [0, 1].

    It is 0 where a class is empty. With ``max_fpr`` it is the area A up to :math:`m` = ``max_fpr``
    on McClish's scale, where 1/2 is chance and 1 perfect:
    :math:`\frac12 \left(1 + \frac{A - m^2/2}{m - m^2/2}\right)`, as in scikit-learn and
    torchmetrics.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> curve = roc_from_counts(counts)
        >>> auroc_from_curve(curve)
        tensor(0.7500, dtype=torch.float64)
        >>> auroc_from_curve(curve, max_fpr=0.25)
        tensor(0.6429, dtype=torch.float64)
    """
    max_fpr = checked_max_fpr(max_fpr)
    fpr = curve.fpr
    tpr = curve.tpr
    if max_fpr is None:
        return torch.trapezoid(tpr, fpr).clamp(0.0, 1.0)
    run = fpr.diff()
    rise = tpr.diff()
    width = torch.minimum(run, (max_fpr - fpr[..., :-1]).clamp(min=0.0))
    part = torch.where(run > 0, width / run, 0.0)  # the part of each step below max_fpr
    area = (width * (tpr[..., :-1] + rise * part / 2)).sum(-1)
    chance = max_fpr**2 / 2
    scaled = (1 + (area - chance) / (max_fpr - chance)) / 2
    is_empty = (fpr[..., -1] <= 0) | (tpr[..., -1] <= 0)
    return torch.where(is_empty, 0.0, scaled).clamp(0.0, 1.0)


def checked_max_fpr(max_fpr: float | None) -> float | None:
    """Return ``max_fpr`` if an area can end there."""
    if max_fpr is None or 0 < max_fpr <= 1:
        return max_fpr
    raise InputError(
        f"Expected argument `max_fpr` to be in (0, 1] but got {max_fpr!r}. "
        "Leave it out for the whole area."
    )


def auroc_from_counts(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    max_fpr: float | None = None,
    average: Averaging = None,
) -> Tensor:
    """Return the AUROC of a release or of leaf counts, in [0, 1].

    Scores in one leaf are ties, which count half. The average of one-vs-one counts is the mean over
    pairs of classes (Hand and Till 2001), as in scikit-learn. Arguments are those of
    :func:`roc_from_counts`, and ``max_fpr`` is that of :func:`auroc_from_curve`.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> auroc_from_counts(counts)
        tensor(0.7500, dtype=torch.float64)
    """
    histograms = read(source, edges, reconstruction)
    if histograms.pairs is not None and average in ("macro", "weighted"):
        tails = histograms.reconstruction.tails(histograms.pairs, histograms.edges)
        return _auroc_over_pairs(tails, average, max_fpr)
    areas = _areas(histograms.pooled(average), max_fpr)
    return averaged(areas, histograms, average)


def _areas(histograms: Histograms, max_fpr: float | None) -> Tensor:
    """Return the area of each class, some classes at a time."""
    blocks = histograms.blocks
    if len(blocks) == 1:
        return auroc_from_curve(roc_from_tails(histograms.tails), max_fpr)
    # In tensors that are made beforehand: small ones, made between the blocks, would keep the
    # memory of one block from being used for the next.
    leaf = histograms.leaf
    areas = leaf.new_empty(len(leaf), dtype=torch.float64)
    totals = leaf.new_empty(len(leaf), 2, dtype=torch.float64)
    sizes = [len(block.leaf) for block in blocks]
    for block, area, total in zip(blocks, areas.split(sizes), totals.split(sizes), strict=True):
        tails = block.tails
        fpr, tpr = tails.tail.unbind(-2)
        area[:] = auroc_from_curve(ROCCurve(fpr, tpr, tails.thresholds), max_fpr)
        total[:] = tails.total
    warn_if_empty(totals)
    return areas


def log_auc(
    source: Readable,
    fpr_range: tuple[float, float] = (0.001, 0.1),
    average: Averaging = None,
) -> Tensor:
    r"""Return the area ``(...)`` under the ROC curve over the logarithm of fpr, in [0, 1].

    It is the mean of tpr over :math:`\log_{10}` fpr between the two ends of ``fpr_range``, by the
    trapezoidal rule of torchmetrics' ``BinaryLogAUC``. It is 0 where a class is empty.

    Args:
        source: a release, or histograms.
        fpr_range: lowest and highest false positive rate, above 0 and up to 1.
        average: None for an area of each class, ``"micro"`` for that of the scores of all classes
            together, ``"macro"`` for the mean, ``"weighted"`` for the mean by positives.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> log_auc(counts, fpr_range=(0.25, 1.0))
        tensor(0.8750, dtype=torch.float64)
    """
    low, high = checked_fpr_range(fpr_range)
    histograms = read(source)
    curve = roc_from_tails(histograms.pooled(average).tails)
    points = curve.fpr.shape[-1]
    fpr = curve.fpr.reshape(-1, points)
    tpr = curve.tpr.reshape(-1, points)
    areas = [
        _log_area(class_fpr, class_tpr, low, high)
        for class_fpr, class_tpr in zip(fpr.cpu().numpy(), tpr.cpu().numpy(), strict=True)
    ]
    shaped = torch.tensor(areas, dtype=torch.float64).reshape(curve.fpr.shape[:-1])
    return averaged(shaped, histograms, average)


def _log_area(fpr: Floats, tpr: Floats, low: float, high: float) -> float:
    """Return the mean of tpr over the logarithm of fpr from ``low`` to ``high``."""
    if fpr[-1] <= 0 or tpr[-1] <= 0:
        return 0.0
    is_inside = (fpr > low) & (fpr < high)
    rates = np.concatenate([[low], fpr[is_inside], [high]])
    heights = np.concatenate(
        [[np.interp(low, fpr, tpr)], tpr[is_inside], [np.interp(high, fpr, tpr)]]
    )
    widths = np.diff(np.log10(rates))
    area = (widths * (heights[:-1] + heights[1:]) / 2).sum()
    return float(np.clip(area / widths.sum(), 0.0, 1.0))


def checked_fpr_range(fpr_range: tuple[float, float]) -> tuple[float, float]:
    """Return the two ends if an area over the logarithm can lie between them."""
    is_pair = isinstance(fpr_range, tuple | list) and len(fpr_range) == 2
    if not is_pair or not 0 < fpr_range[0] < fpr_range[1] <= 1:
        raise InputError(
            "Expected argument `fpr_range` to be (low, high) with 0 < low < high <= 1 but got "
            f"{fpr_range!r}. torchmetrics' default is (0.001, 0.1)."
        )
    low, high = fpr_range
    return float(low), float(high)


def mann_whitney_u(source: Readable) -> Tensor:
    r"""Return Mann and Whitney's U of the positives, in [0, n+ n-].

    :math:`U = \sum_k c^+_k (C^-_{<k} + c^-_k / 2)` counts the pairs in which the positive scores
    higher; pairs in one leaf count half.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> mann_whitney_u(counts)
        tensor(12., dtype=torch.float64)
    """
    negatives, positives = read(source).leaf.double().clamp(min=0.0).unbind(-2)
    negatives_below = negatives.cumsum(-1) - negatives / 2
    return (positives * negatives_below).sum(-1)


def _auroc_over_pairs(tails: Tails, average: Average, max_fpr: float | None) -> Tensor:
    """Return the mean AUROC over pairs of classes a < b (Hand and Till 2001).

    The AUROC of a pair is the mean of two areas: of a against b by the scores of a, and of b
    against a by the scores of b. ``tails.tail[a, b]`` is the tail of the examples of class b by the
    scores of a.
    """
    tpr = tails.tail.diagonal(dim1=0, dim2=1).movedim(-1, 0)[:, None].expand_as(tails.tail)
    curve = ROCCurve(fpr=tails.tail, tpr=tpr, thresholds=tails.thresholds)
    area = auroc_from_curve(curve, max_fpr)
    first, second = torch.triu_indices(len(area), len(area), offset=1)
    areas = (area[first, second] + area[second, first]) / 2
    weights = torch.ones_like(areas)
    if average == "weighted":
        examples = tails.total.diagonal()
        weights = examples[first] + examples[second]
    if weights.sum() <= 0:
        return areas.mean()
    return (areas * weights).sum() / weights.sum()


def auroc(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    max_fpr: float | None = None,
    average: Averaging = "macro",
    **options: Unpack[CurveOptions],
) -> Tensor:
    """Return the AUROC of binned scores: :class:`~torchmetrics_fed.FederatedAUROC` as a function.

    Other arguments are those of :func:`roc`, ``max_fpr`` is that of :func:`auroc_from_curve`.

    Example:
        >>> auroc(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        tensor(0.7500, dtype=torch.float64)
    """
    if task == "binary":
        average = None
    histograms = count(preds, target, task, **options)
    return auroc_from_counts(histograms, max_fpr=max_fpr, average=average)
