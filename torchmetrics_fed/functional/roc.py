"""ROC curve and the area under it: from scores, from leaf counts, from quantiles; the rank statistic behind it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.averages import Averaging, averaged, checked_average, macro_curve
from torchmetrics_fed.functional.band import Band, Interval
from torchmetrics_fed.functional.curve import CurveOptions, count, warn_if_empty
from torchmetrics_fed.functional.figures.canvas import Labels, Score, plot_curves
from torchmetrics_fed.paper import ClassQuantiles, Interpolation, tails_from_quantiles
from torchmetrics_fed.reconstruct import Reconstruction, Tails
from torchmetrics_fed.reconstruct.histograms import Edges, Readable, read
from torchmetrics_fed.typing import Average, Task


class ROCCurve(NamedTuple):
    """A ROC curve in torchmetrics' order: thresholds decrease, from (0, 0) to (1, 1).

    Example:
        >>> roc_from_counts(torch.tensor([[3, 1], [1, 3]])).tpr
        tensor([0.0000, 0.7500, 1.0000], dtype=torch.float64)
    """

    fpr: Tensor
    tpr: Tensor
    thresholds: Tensor

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
    ) -> Any:
        """Draw the curve with the chance line, and return ``(fig, ax)``.

        With a class axis there is one line per class, all of them in grey where they are more than ten.

        Args:
            score: the AUROC that the legend shows; False for none, the area under the curve if True or not given.
            ax: axes to draw on; new ones if not given.
            label: name in the legend, which tells several models on the same axes apart.
            labels: names of the classes.
            band: shaded behind the curve.
            interval: of the AUROC, shown behind it.

        Example:
            >>> fig, ax = roc_from_counts(torch.tensor([[3, 1], [1, 3]])).plot()
            >>> ax.get_lines()[-1].get_label()
            'ROC (AUROC 0.7500)'
        """
        area, names = (score, auroc_from_curve(self), "AUROC {:.4f}"), ("ROC", label, labels)
        axes, chance = ("False positive rate", "True positive rate"), ([0, 1], [0, 1], "chance")
        curves = self.fpr, self.tpr
        return plot_curves(
            curves, area, axes, ax, names, chance, band=band, interval=interval, mean=True
        )


def roc(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Averaging = None,
    **options: Unpack[CurveOptions],
) -> ROCCurve:
    """Return the ROC curve of binned scores; the functional twin of :class:`~torchmetrics_fed.FederatedROC`.

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
    r"""Return the ROC curve of a release or of leaf counts: :math:`T(s) = \Pr[S \ge s \mid y = 1]` against F.

    Args:
        source: a release, or counts ``(..., 2, leaves)``, row 0 negatives, row 1 positives.
        edges: ascending edges of leaf counts; even over [0, 1] if not given.
        reconstruction: how to read between the edges; ``"aligned"`` if not given.
        average: None for one curve per class, ``"micro"`` for the curve of all classes' scores together, ``"macro"``
            for the mean of the curves at all their false positive rates (thresholds then have no meaning).

    Example:
        >>> roc_from_counts(torch.tensor([[3, 1], [1, 3]])).fpr
        tensor([0.0000, 0.2500, 1.0000], dtype=torch.float64)
    """
    curve = roc_from_tails(read(source, edges, reconstruction).pooled(average).tails)
    return ROCCurve(*macro_curve(*curve)) if average == "macro" else curve


def roc_from_quantiles(
    quantiles: ClassQuantiles,
    score_range: tuple[float, float] = (0.0, 1.0),
    interpolation: Interpolation = "pchip",
) -> ROCCurve:
    """Return the ROC curve through evenly spaced quantiles of each class, as in the paper.

    Example:
        >>> even, high = torch.linspace(0, 1, 9).double(), torch.linspace(0.5, 1, 9).double()
        >>> round(roc_from_quantiles(ClassQuantiles(negative=even, positive=high)).scalars["auroc"].item(), 3)
        0.75
    """
    return roc_from_tails(
        tails_from_quantiles(torch.stack(quantiles), torch.ones(2), score_range, interpolation)
    )


def roc_from_tails(tails: Tails) -> ROCCurve:
    """Return the ROC curve of the tails of both classes, ``(..., 2, points)``."""
    warn_if_empty(tails.total)
    return ROCCurve(tails.tail[..., 0, :], tails.tail[..., 1, :], tails.thresholds)


def auroc_from_curve(curve: ROCCurve, max_fpr: float | None = None) -> Tensor:
    r"""Return the area ``(...)`` under ROC curves by the trapezoidal rule, in [0, 1], 0 where a class is empty.

    With ``max_fpr``, the area A up to :math:`m` = ``max_fpr`` on McClish's scale, where 1/2 is chance and 1 perfect:
    :math:`\frac12 \left(1 + \frac{A - m^2/2}{m - m^2/2}\right)`, as in scikit-learn and torchmetrics.

    Example:
        >>> curve = roc_from_counts(torch.tensor([[3, 1], [1, 3]]))
        >>> auroc_from_curve(curve)
        tensor(0.7500, dtype=torch.float64)
        >>> auroc_from_curve(curve, max_fpr=0.25)
        tensor(0.6429, dtype=torch.float64)
    """
    max_fpr = checked_max_fpr(max_fpr)
    if max_fpr is None:
        return torch.trapezoid(curve.tpr, curve.fpr).clamp(0.0, 1.0)
    run, rise = curve.fpr.diff(), curve.tpr.diff()
    width = torch.minimum(run, (max_fpr - curve.fpr[..., :-1]).clamp(min=0.0))
    part = torch.where(run > 0, width / run, 0.0)  # how much of the step lies below max_fpr
    area = (width * (curve.tpr[..., :-1] + rise * part / 2)).sum(-1)
    chance = max_fpr**2 / 2
    scaled = (1 + (area - chance) / (max_fpr - chance)) / 2
    empty = (curve.fpr[..., -1] <= 0) | (curve.tpr[..., -1] <= 0)
    return torch.where(empty, 0.0, scaled).clamp(0.0, 1.0)


def checked_max_fpr(max_fpr: float | None) -> float | None:
    """Return ``max_fpr`` if an area can end there."""
    if max_fpr is None or 0 < max_fpr <= 1:
        return max_fpr
    raise InputError(
        f"Expected argument `max_fpr` to be in (0, 1] but got {max_fpr!r}. Leave it out for all of it."
    )


def auroc_from_counts(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    max_fpr: float | None = None,
    average: Averaging = None,
) -> Tensor:
    """Return the AUROC of a release or of leaf counts, in [0, 1]; scores of one leaf are ties, which count half.

    Averaged one-vs-one counts give the mean over pairs of classes (Hand and Till 2001), as in scikit-learn. Arguments
    are those of :func:`roc_from_counts`, and ``max_fpr`` is that of :func:`auroc_from_curve`.

    Example:
        >>> auroc_from_counts(torch.tensor([[3, 1], [1, 3]]))
        tensor(0.7500, dtype=torch.float64)
    """
    histograms = read(source, edges, reconstruction)
    if histograms.pairs is not None and average in ("macro", "weighted"):
        return _over_pairs(
            histograms.reconstruction.tails(histograms.pairs, histograms.edges), average, max_fpr
        )
    return averaged(
        lambda each: auroc_from_curve(roc_from_tails(each.tails), max_fpr), histograms, average
    )


def mann_whitney_u(source: Readable) -> Tensor:
    r"""Return Mann and Whitney's U of the positives: :math:`\sum_k c^+_k (C^-_{<k} + c^-_k / 2)`, in [0, n+ n-].

    It counts the pairs in which the positive scores higher, pairs of one leaf half, whatever the edges.

    Example:
        >>> mann_whitney_u(torch.tensor([[3, 1], [1, 3]]))
        tensor(12., dtype=torch.float64)
    """
    negative, positive = read(source).leaf.double().clamp(min=0.0).unbind(-2)
    return (positive * (negative.cumsum(-1) - negative / 2)).sum(-1)


def _over_pairs(tails: Tails, average: Average, max_fpr: float | None) -> Tensor:
    """Mean over a < b of the areas of a against b by the scores of a, and of b against a by the scores of b."""
    own = tails.tail.diagonal(dim1=0, dim2=1).movedim(-1, 0)
    curve = ROCCurve(tails.tail, own[:, None].expand_as(tails.tail), tails.thresholds)
    area = auroc_from_curve(curve, max_fpr)
    first, second = torch.triu_indices(len(area), len(area), offset=1)
    both = (area[first, second] + area[second, first]) / 2
    size = tails.total.diagonal()
    weight = size[first] + size[second] if average == "weighted" else torch.ones_like(both)
    return (both * weight).sum() / weight.sum() if weight.sum() > 0 else both.mean()


def auroc(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    max_fpr: float | None = None,
    average: Averaging = "macro",
    **options: Unpack[CurveOptions],
) -> Tensor:
    """Return the AUROC of binned scores; the functional twin of :class:`~torchmetrics_fed.FederatedAUROC`.

    Other arguments are those of :func:`roc`, ``max_fpr`` is that of :func:`auroc_from_curve`.

    Example:
        >>> auroc(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        tensor(0.7500, dtype=torch.float64)
    """
    average = None if task == "binary" else average
    return auroc_from_counts(
        count(preds, target, task, **options), max_fpr=max_fpr, average=average
    )
