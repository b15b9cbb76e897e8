"""The beginning of every curve: options that all curves share, and the counts of a batch."""

import warnings
from typing import TypedDict

from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.counting.validation import Rules
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.reconstruct import Reconstruction, Tails
from torchmetrics_fed.reconstruct.histograms import Edges, Histograms, Readable
from torchmetrics_fed.release import Release, Spec
from torchmetrics_fed.typing import Average, GridName, MultiClass, Normalization, Task

TIED_PAIRS_WARNED_OF = 0.01
"""Above this fraction of pairs in one bin a warning says by how much the AUROC can be off."""


class _SpecOptions(TypedDict, total=False):
    num_classes: int | None
    num_labels: int | None
    multi_class: MultiClass
    quantiles: int
    grid: GridName | ScoreGrid
    normalization: Normalization | None
    ignore_index: int | None


class CurveOptions(_SpecOptions, total=False):
    """Keyword arguments of every curve, as in :class:`~torchmetrics_fed.FederatedMetric`."""

    reconstruction: Reconstruction | None
    validate_args: bool


def count(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    reconstruction: Reconstruction | None = None,
    validate_args: bool = True,
    **options: Unpack[_SpecOptions],
) -> Histograms:
    """Return the histograms of one batch: the source of any function here, without a metric.

    Args:
        preds: scores: any shape for binary tasks, ``(N, classes, ...)`` for others.
        target: 0 or 1 for each score, or for multi-class tasks the class of each of N.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        reconstruction: how curves are read from the counts.
        validate_args: whether the values of scores and targets are checked.
        options: as in :class:`~torchmetrics_fed.FederatedMetric`.

    Example:
        >>> import torch
        >>> counts = count(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> counts.leaf.sum(-1)
        tensor([2, 2])
    """
    spec = Spec.build(task, **options)
    rules = Rules(task, spec.normalization, spec.ignore_index, validate_args)
    counts = spec.grid.add(spec.empty_counts().to(preds.device), preds, target, rules)
    histograms = read(Release.exact(spec, counts), reconstruction=reconstruction)
    warn_if_tied(histograms, spec.grid)
    return histograms


def tails_of(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    average: Average | None = None,
) -> Tails:
    """Return the tails of negatives and positives; warns where a class is empty.

    For a micro-average they are the tails of all classes together.
    """
    tails = read(source, edges, reconstruction).pooled(average).tails
    warn_if_empty(tails.total, stacklevel=4)
    return tails


def warn_if_empty(total: Tensor, stacklevel: int = 3) -> None:
    """Warn if a class has no examples: ``total`` are negatives and positives, ``(..., 2)``."""
    negatives, positives = total.unbind(-1)
    if bool((negatives <= 0).any()):
        warnings.warn(
            "No negative examples in these counts: the false positive rate is undefined and set "
            "to 0.",
            UserWarning,
            stacklevel=stacklevel,
        )
    if bool((positives <= 0).any()):
        warnings.warn(
            "No positive examples in these counts: the true positive rate is undefined and set "
            "to 0.",
            UserWarning,
            stacklevel=stacklevel,
        )


def warn_if_tied(source: Histograms, grid: ScoreGrid) -> bool:
    """Warn if more than 1% of the pairs of a positive and a negative share a bin.

    The user made the bins of a custom grid, each for a value that scores have: no warning. In the
    end bins of a two-sided grid the scores themselves are equal: all of them are 0, or 1.

    Returns:
        Whether it has warned.
    """
    if grid.kind == "custom":
        return False
    has_end_bins = grid.kind == "two_sided"
    tied = max(_tied_pairs(block.leaf, has_end_bins) for block in source.blocks)
    if tied <= TIED_PAIRS_WARNED_OF:
        return False
    remedy = "`normalization` with the logits themselves"
    if grid.kind == "even":
        remedy = '`grid="two_sided"`'
    warnings.warn(
        f"{tied:.1%} of the pairs of a positive and a negative example share a bin, and the AUROC "
        f"counts each as half: it can be off by up to {tied / 2:.3f}. If scores differ where the "
        f"bins do not, pass {remedy}, or more `quantiles`. If the scores themselves are equal (a "
        "constant classifier, nearest neighbours, trees), nothing is lost.",
        stacklevel=3,
    )
    return True


def _tied_pairs(leaf: Tensor, has_end_bins: bool) -> float:
    """Return the largest fraction of pairs, over classes, that share a bin, not at an end."""
    negatives, positives = leaf.double().unbind(-2)
    pairs = (negatives.sum(-1) * positives.sum(-1)).clamp(min=1.0)
    pairs_in_bin = negatives * positives
    if has_end_bins:
        pairs_in_bin = pairs_in_bin[..., 1:-1]
    return float((pairs_in_bin.sum(-1) / pairs).max())
