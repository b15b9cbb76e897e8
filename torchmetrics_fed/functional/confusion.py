"""The confusion matrix of calls at a threshold, and every score that follows from it.

A call is "score >= threshold". With several classes or labels each has calls of its own, so there
is a matrix of two rows and two columns for each, as in scikit-learn's
``multilabel_confusion_matrix``. Histograms of each class do not hold the arg-max of several scores,
so there is no matrix of classes against classes.

A score whose denominator is 0 is 0, as in torchmetrics. Likelihood ratios and Cohen's kappa are NaN
then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.averages import Averaging, averaged
from torchmetrics_fed.functional.figures import canvas
from torchmetrics_fed.functional.figures.notebook import result_html
from torchmetrics_fed.functional.figures.page import cut, ink, scale
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.reconstruct.histograms import Readable, nearest_edge

ScoreName = Literal[
    "accuracy",
    "balanced_accuracy",
    "precision",
    "recall",
    "specificity",
    "negative_predictive_value",
    "f1",
    "fbeta",
    "jaccard_index",
    "matthews_corrcoef",
    "cohen_kappa",
    "hamming_distance",
    "positive_likelihood_ratio",
    "negative_likelihood_ratio",
]
"""The scores of a confusion matrix."""

SCORE_NAMES: tuple[ScoreName, ...] = get_args(ScoreName)
"""The scores of a confusion matrix, in the order of :attr:`Confusion.scalars`."""

MOST_NAMED_ROWS = 20
"""The figure of a confusion matrix names its classes and shows their counts up to this number."""

CELLS = ("TN", "FP", "FN", "TP")
"""The cells of a confusion matrix, in the order of its rows."""


class Confusion(NamedTuple):
    """Counts and the edge at which they were taken.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> result = confusion_at(counts, 0.5)
        >>> result.matrix
        tensor([[3, 1],
                [1, 3]])
        >>> result.scalars["accuracy"]
        tensor(0.7500, dtype=torch.float64)
    """

    matrix: Tensor
    """``(..., 2, 2)``: [[tn, fp], [fn, tp]] as in scikit-learn, of the dtype of the counts."""
    threshold: Tensor
    """The edge that was used, a float64 scalar."""

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Every score of the matrix, by the names of :data:`SCORE_NAMES`, without ``"fbeta"``."""
        calls = _Calls.of(self.matrix)
        return {name: _SCORES[name](calls) for name in SCORE_NAMES if name != "fbeta"}

    def plot(
        self,
        score: canvas.Score = None,
        ax: Any = None,
        label: str | None = None,
        labels: canvas.Labels = None,
        **image_kwargs: Any,
    ) -> Any:
        """Draw the matrix, a row of four cells for each class, and return ``(fig, ax)``.

        The colour of a cell is its share of the negatives, or of the positives. A binary matrix has
        two rows, of negatives and positives.

        Args:
            score: the number in the title; False for none, the accuracy if True or not given.
            ax: axes to draw on; new ones if not given.
            label: name of the model, in the title.
            labels: names of the classes.
            image_kwargs: keywords of matplotlib's ``imshow``, for example ``cmap="Greys"``.
        """
        matrix = self.matrix.detach().cpu().double().reshape(-1, 2, 2)
        shares = _ratio(matrix, matrix.sum(-1, keepdim=True))
        is_binary = self.matrix.ndim == 2
        if is_binary:
            counts = matrix[0]
            shares = shares[0]
            row_names: list[str] = ["negative", "positive"]
            column_names = ["negative", "positive"]
        else:
            counts = matrix.flatten(1)
            shares = shares.flatten(1)
            row_names = canvas.legend_entries(len(counts), name="class", labels=labels)
            column_names = list(CELLS)
        fig, ax = canvas.open_axes(ax)
        _draw_cells(ax, counts, shares, image_kwargs)
        ax.set_xticks(range(len(column_names)), column_names)
        if len(counts) <= MOST_NAMED_ROWS:
            ax.set_yticks(range(len(counts)), [cut(name) for name in row_names[: len(counts)]])
        xlabel = f"Call at threshold {self.threshold:.3g}"
        ylabel = "Label" if is_binary else "Class"
        _dress_matrix(ax, xlabel, ylabel)
        # above the caption, which stands at the right
        title_pad = 14 * scale()
        ax.set_title(self._title(score, label), fontsize=9 * scale(), loc="left", pad=title_pad)
        return fig, ax

    def _title(self, score: canvas.Score, label: str | None) -> str:
        """Return the name of the model and its accuracy, of several classes their mean."""
        parts = []
        if label:
            parts.append(cut(label))
        if score is None or score is True:
            score = self.scalars["accuracy"]
        if score is not False:
            mean = torch.as_tensor(score, dtype=torch.float64).mean().item()
            parts.append(f"accuracy {mean:.4f}")
        return ", ".join(parts)


def confusion_at(source: Readable, threshold: float, average: Averaging = None) -> Confusion:
    """Return the confusion matrix of "score >= threshold" at the edge nearest to ``threshold``.

    Of two edges at the same distance the lower is used. Nothing is known inside a leaf, so the edge
    is returned with the counts. The highest edge selects no example, not even scores equal to it:
    these are counted in the last leaf. On a two-sided grid the highest edge is the next number
    above 1, and the threshold 1 selects scores of exactly 1. torchmetrics calls a score positive
    that is *above* the threshold; here one that is equal to it is, as on curves.

    Args:
        source: a release, or histograms.
        threshold: the least score that is called positive.
        average: None for a matrix of each class, ``"micro"`` for their sum.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> confusion_at(counts, 0.4).threshold
        tensor(0.5000, dtype=torch.float64)
    """
    check_threshold(threshold)
    histograms = read(source).pooled(average)
    edge = nearest_edge(histograms.edges, threshold)
    leaf = histograms.leaf.clamp(min=0)
    called_negative = leaf[..., :edge].sum(-1)
    called_positive = leaf[..., edge:].sum(-1)
    matrix = torch.stack([called_negative, called_positive], -1)
    return Confusion(matrix, histograms.edges[edge])


def score_at_threshold(
    source: Readable,
    score: ScoreName,
    threshold: float = 0.5,
    *,
    beta: float = 1.0,
    average: Averaging = None,
) -> Tensor:
    """Return one score ``(...)`` of the calls at a threshold.

    Args:
        source: as in :func:`confusion_at`.
        score: one of the names in :attr:`Confusion.scalars`, or ``"fbeta"``.
        threshold: as in :func:`confusion_at`.
        beta: the weight of recall in ``"fbeta"``.
        average: None for a score of each class, ``"micro"`` for the score of their summed matrices,
            ``"macro"`` for the mean of the scores, ``"weighted"`` for their mean by positives.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> score_at_threshold(counts, "f1")
        tensor(0.7500, dtype=torch.float64)
    """
    check_score(score)
    check_beta(beta)
    histograms = read(source)
    confusion = confusion_at(histograms, threshold, average)
    calls = _Calls.of(confusion.matrix)._replace(beta=beta)
    return averaged(_SCORES[score](calls), histograms, average, name=score)


def check_threshold(threshold: float) -> None:
    """Raise unless scores can be compared with this threshold."""
    if not math.isfinite(threshold):
        raise InputError(
            f"Expected argument `threshold` to be a finite score but got {threshold!r}. The lowest "
            "edge selects every example, the highest none."
        )


def check_score(score: str) -> None:
    """Raise unless a confusion matrix has this score."""
    if score not in SCORE_NAMES:
        raise InputError(f"Expected argument `score` to be one of {SCORE_NAMES} but got {score!r}.")


def check_beta(beta: float) -> None:
    """Raise unless recall can have this weight."""
    if not 0 < beta < math.inf:
        raise InputError(
            f"Expected argument `beta` to be a number above 0 but got {beta!r}. "
            "1 weighs precision and recall alike."
        )


class _Calls(NamedTuple):
    """The cells of confusion matrices, float64 ``(...)``, and the weight of recall."""

    tn: Tensor
    fp: Tensor
    fn: Tensor
    tp: Tensor
    beta: float = 1.0

    @classmethod
    def of(cls, matrix: Tensor) -> _Calls:
        negatives, positives = matrix.double().unbind(-2)
        tn, fp = negatives.unbind(-1)
        fn, tp = positives.unbind(-1)
        return cls(tn, fp, fn, tp)


def _ratio(part: Tensor, total: Tensor, if_empty: float = 0.0) -> Tensor:
    return torch.where(total > 0, part / total, if_empty)


def _accuracy(calls: _Calls) -> Tensor:
    right = calls.tp + calls.tn
    return _ratio(right, right + calls.fp + calls.fn)


def _precision(calls: _Calls) -> Tensor:
    return _ratio(calls.tp, calls.tp + calls.fp)


def _recall(calls: _Calls) -> Tensor:
    return _ratio(calls.tp, calls.tp + calls.fn)


def _specificity(calls: _Calls) -> Tensor:
    return _ratio(calls.tn, calls.tn + calls.fp)


def _negative_predictive_value(calls: _Calls) -> Tensor:
    return _ratio(calls.tn, calls.tn + calls.fn)


def _balanced_accuracy(calls: _Calls) -> Tensor:
    """Return the mean of recall and specificity; of an absent class neither counts."""
    has_positives = (calls.tp + calls.fn > 0).double()
    has_negatives = (calls.tn + calls.fp > 0).double()
    rates = has_positives * _recall(calls) + has_negatives * _specificity(calls)
    return _ratio(rates, has_positives + has_negatives)


def _fbeta(calls: _Calls) -> Tensor:
    weight = calls.beta**2
    right = (1 + weight) * calls.tp
    return _ratio(right, right + weight * calls.fn + calls.fp)


def _f1(calls: _Calls) -> Tensor:
    return _fbeta(calls._replace(beta=1.0))


def _jaccard_index(calls: _Calls) -> Tensor:
    return _ratio(calls.tp, calls.tp + calls.fp + calls.fn)


def _matthews_corrcoef(calls: _Calls) -> Tensor:
    """Return Matthews' correlation.

    It is 1 if every call is right, -1 if every call is wrong, and 0 where it is undefined else.
    """
    tn, fp, fn, tp, _ = calls
    # roots one by one: the product of four sums of a large release overflows
    spread = (tp + fp).sqrt() * (tp + fn).sqrt() * (tn + fp).sqrt() * (tn + fn).sqrt()
    correlation = _ratio(tp * tn - fp * fn, spread)
    right = tp + tn
    wrong = fp + fn
    correlation = torch.where((right > 0) & (wrong == 0), 1.0, correlation)
    return torch.where((right == 0) & (wrong > 0), -1.0, correlation).clamp(-1.0, 1.0)


def _cohen_kappa(calls: _Calls) -> Tensor:
    """Return Cohen's kappa: 1 minus the wrong calls over those expected by chance."""
    tn, fp, fn, tp, _ = calls
    total = tn + fp + fn + tp
    by_chance = (tp + fp) * _ratio(tn + fp, total) + (tn + fn) * _ratio(tp + fn, total)
    return 1 - _ratio(fp + fn, by_chance, if_empty=math.nan)


def _hamming_distance(calls: _Calls) -> Tensor:
    wrong = calls.fp + calls.fn
    return _ratio(wrong, wrong + calls.tp + calls.tn)


def _positive_likelihood_ratio(calls: _Calls) -> Tensor:
    fpr = _ratio(calls.fp, calls.tn + calls.fp, if_empty=math.nan)
    return _ratio(_ratio(calls.tp, calls.tp + calls.fn, if_empty=math.nan), fpr, if_empty=math.nan)


def _negative_likelihood_ratio(calls: _Calls) -> Tensor:
    tnr = _ratio(calls.tn, calls.tn + calls.fp, if_empty=math.nan)
    return _ratio(_ratio(calls.fn, calls.tp + calls.fn, if_empty=math.nan), tnr, if_empty=math.nan)


_SCORES: dict[ScoreName, Callable[[_Calls], Tensor]] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "precision": _precision,
    "recall": _recall,
    "specificity": _specificity,
    "negative_predictive_value": _negative_predictive_value,
    "f1": _f1,
    "fbeta": _fbeta,
    "jaccard_index": _jaccard_index,
    "matthews_corrcoef": _matthews_corrcoef,
    "cohen_kappa": _cohen_kappa,
    "hamming_distance": _hamming_distance,
    "positive_likelihood_ratio": _positive_likelihood_ratio,
    "negative_likelihood_ratio": _negative_likelihood_ratio,
}


def _draw_cells(ax: Any, counts: Tensor, shares: Tensor, image_kwargs: dict[str, Any]) -> None:
    """Draw a coloured cell for each share, with its count if there are few."""
    keywords = {"cmap": "Blues", "vmin": 0.0, "vmax": 1.0, "aspect": "auto", **image_kwargs}
    image = ax.imshow(shares.numpy(), **keywords)
    if len(counts) > MOST_NAMED_ROWS:
        return
    for row, row_counts in enumerate(counts.tolist()):
        for column, count in enumerate(row_counts):
            share = shares[row, column].item()
            red, green, blue, _ = image.cmap(image.norm(share))
            is_dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5  # brightness, as eyes see it
            ax.text(
                column,
                row,
                f"{count:,.0f}\n{share:.1%}",
                ha="center",
                va="center",
                fontsize=8 * scale(),
                color="white" if is_dark else "black",
            )


def _dress_matrix(ax: Any, xlabel: str, ylabel: str) -> None:
    """Name the axes of a matrix; a matrix has neither grid nor legend."""
    canvas.dress(ax, xlabel, ylabel, rates=False)
    ax.grid(visible=False)
    ax.tick_params(length=0, labelcolor=ink(ax, 1.0))
