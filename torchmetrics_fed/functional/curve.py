"""What every curve starts from: the options that all of them share, and the counts of a batch."""

import warnings
from typing import TypedDict

from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.counting.validation import Rules
from torchmetrics_fed.reconstruct import Reconstruction, Tails
from torchmetrics_fed.reconstruct.histograms import Edges, Histograms, Readable, read
from torchmetrics_fed.release import Release, Spec
from torchmetrics_fed.typing import Average, GridName, MultiClass, Normalization, Task

_MOST_TIED = 0.01


class _SpecOptions(TypedDict, total=False):
    num_classes: int | None
    num_labels: int | None
    multi_class: MultiClass
    quantiles: int
    grid: GridName | ScoreGrid
    normalization: Normalization | None
    ignore_index: int | None


class CurveOptions(_SpecOptions, total=False):
    """Keyword arguments of every curve; :class:`~torchmetrics_fed.FederatedMetric` says what each means."""

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
    """Return the histograms of one batch, to be read as the options ask for."""
    spec = Spec.build(task, **options)
    rules = Rules(task, spec.normalization, spec.ignore_index, validate_args)
    counts = spec.grid.add(spec.empty_counts().to(preds.device), preds, target, rules)
    source = read(Release.exact(spec, counts), reconstruction=reconstruction)
    warn_if_tied(source, spec.grid)
    return source


def tails_of(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    average: Average | None = None,
) -> Tails:
    """Return the tails of both classes, of all classes together for a micro-average; warns where a class is empty."""
    tails = read(source, edges, reconstruction).pooled(average).tails
    warn_if_empty(tails.total, stacklevel=4)
    return tails


def warn_if_empty(total: Tensor, stacklevel: int = 3) -> None:
    """Warn where a class (``total[..., 0]`` negatives, ``total[..., 1]`` positives) has no examples."""
    for row, name, rate in (
        (0, "negative", "false positive rate"),
        (1, "positive", "true positive rate"),
    ):
        if bool((total[..., row] <= 0).any()):
            text = f"No {name} examples in these counts: the {rate} is undefined and set to 0."
            warnings.warn(text, UserWarning, stacklevel=stacklevel)


def warn_if_tied(source: Histograms, grid: ScoreGrid) -> bool:
    """Warn where more than 1% of the pairs of a positive and a negative share a bin, and return whether they do.

    The bins of a custom grid are the user's own, each made for a value that scores have. In the end bins of a
    two-sided grid the scores themselves are equal: all of them are 0, or 1.
    """
    if grid.kind == "custom":
        return False
    negative, positive = source.leaf.double().unbind(-2)
    pairs = (negative.sum(-1) * positive.sum(-1)).clamp(min=1.0)
    beside = negative * positive
    if grid.kind == "two_sided":
        beside = beside[..., 1:-1]
    tied = float((beside.sum(-1) / pairs).max())
    if tied <= _MOST_TIED:
        return False
    finer = (
        '`grid="two_sided"`'
        if grid.kind == "even"
        else "`normalization` with the logits themselves"
    )
    warnings.warn(
        f"{tied:.1%} of the pairs of a positive and a negative example share a bin, and the AUROC counts each as half: "
        f"it can be off by up to {tied / 2:.3f}. If scores differ where the bins do not, pass {finer}, or more "
        "`quantiles`. If the scores themselves are equal (a constant classifier, nearest neighbours, trees), nothing "
        "is lost.",
        stacklevel=3,
    )
    return True
