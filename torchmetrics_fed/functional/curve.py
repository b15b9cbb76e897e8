"""What every curve starts from: the options all of them share, the counts of a batch, exact quantiles."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.source import Source, read
from torchmetrics_fed.grid import ScoreGrid
from torchmetrics_fed.kernel import Normalization, Task
from torchmetrics_fed.reconstruct import Interpolation, Method, Reconstruction
from torchmetrics_fed.release import Release
from torchmetrics_fed.spec import MultiClass, Spec

__all__ = ["CurveOptions", "Quantiles", "choose_grid", "classes_of", "count", "exact_quantiles", "warn_if_empty"]


class CurveOptions(TypedDict, total=False):
    """Keyword arguments of every curve; :class:`~torchmetrics_fed.FederatedCurve` says what each means."""

    num_classes: int | None
    num_labels: int | None
    multi_class: MultiClass
    quantiles: int
    score_range: tuple[float, float]
    score_edges: Sequence[float] | Tensor | None
    normalization: Normalization | None
    ignore_index: int | None
    method: Method
    interpolation: Interpolation
    validate_args: bool
    thresholds: None


class Quantiles(NamedTuple):
    """Scores at the same fractions of each class.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import exact_quantiles
        >>> exact_quantiles(torch.tensor([0.2, 0.4, 0.6, 0.8]), torch.tensor([0, 0, 1, 1]), 2).positive
        tensor([0.6000, 0.8000], dtype=torch.float64)
    """

    negative: Tensor
    positive: Tensor


def choose_grid(
    quantiles: int = 1024,
    score_range: tuple[float, float] = (0.0, 1.0),
    score_edges: Sequence[float] | Tensor | None = None,
    normalization: Normalization | None = None,
    task: Task = "binary",
    thresholds: None = None,
) -> ScoreGrid:
    """Return the grid that a curve's options ask for, or raise and say what to pass instead."""
    if thresholds is not None:
        raise InputError(
            f"Expected no argument `thresholds` but got {thresholds!r}. The bins are the thresholds: `quantiles` sets "
            "how fine they are, `score_edges` sets them one by one."
        )
    logits = "softmax" if task == "multiclass" else "sigmoid"
    if normalization not in (None, logits):
        raise InputError(
            f'Expected argument `normalization` to be None or "{logits}" for task="{task}" but got {normalization!r}.'
        )
    grid = ScoreGrid.for_quantiles(quantiles, score_range)
    if score_edges is not None:
        grid = ScoreGrid.from_edges(score_edges)
    low, high = grid.score_range
    if normalization is not None and not low <= 0 < 1 <= high:
        raise InputError(
            f'Expected scores from 0 to 1 to fit the bins with `normalization="{normalization}"` but they span '
            f"[{low}, {high}]. Leave out `score_range`: it is the range after normalization."
        )
    return grid


def count(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    num_classes: int | None = None,
    num_labels: int | None = None,
    multi_class: MultiClass = "ovr",
    quantiles: int = 1024,
    score_range: tuple[float, float] = (0.0, 1.0),
    score_edges: Sequence[float] | Tensor | None = None,
    normalization: Normalization | None = None,
    ignore_index: int | None = None,
    method: Method = "aligned",
    interpolation: Interpolation = "pchip",
    validate_args: bool = True,
    thresholds: None = None,
) -> Source:
    """Return the histograms of one batch, to be read as the options ask for."""
    grid = choose_grid(quantiles, score_range, score_edges, normalization, task, thresholds)
    spec = Spec(task, classes_of(task, num_classes, num_labels), grid, multi_class=multi_class)
    empty = grid.empty(spec.classes, spec.rows).to(preds.device)
    counts = grid.add(empty, preds, target, normalization, ignore_index, validate_args, task)
    release = Release(spec, counts.cpu().contiguous())
    return read(release, reconstruction=Reconstruction(method, quantiles, interpolation))


def classes_of(task: Task, num_classes: int | None, num_labels: int | None) -> int:
    """Return the length of the class axis; :class:`~torchmetrics_fed.Spec` says what is wrong with a missing one."""
    given = {"multiclass": num_classes, "multilabel": num_labels}.get(task, 1)
    return given if given is not None else 0


def warn_if_empty(total: Tensor) -> None:
    """Warn where a class (``total[..., 0]`` negatives, ``total[..., 1]`` positives) has no examples."""
    for row, name, rate in ((0, "negative", "false positive rate"), (1, "positive", "true positive rate")):
        if bool((total[..., row] <= 0).any()):
            warnings.warn(f"No {name} examples: the {rate} is undefined and set to 0.", UserWarning, stacklevel=3)


def exact_quantiles(preds: Tensor, target: Tensor, quantiles: int | Tensor = 1024) -> Quantiles:
    """Return each class's exact quantiles (the paper's EQ), for comparison: this needs the scores themselves.

    Args:
        preds: scores.
        target: 0 or 1 for each.
        quantiles: how many, evenly from 0 to 1 with both ends, or the fractions themselves.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import exact_quantiles
        >>> exact_quantiles(torch.tensor([0.0, 0.2, 0.4, 0.6, 1.0]), torch.tensor([0, 0, 0, 1, 1]), 3).negative
        tensor([0.0000, 0.2000, 0.4000], dtype=torch.float64)
    """
    if preds.shape != target.shape:
        raise InputError(f"Expected one target for each score but got {tuple(target.shape)} for {tuple(preds.shape)}.")
    q = torch.linspace(0, 1, quantiles, dtype=torch.float64) if isinstance(quantiles, int) else quantiles.double()
    classes = [preds[target == label].double().sort().values for label in (0, 1)]
    if any(len(scores) == 0 for scores in classes):
        raise InputError("Expected examples of both classes, for a class without examples has no quantiles.")
    return Quantiles(*(_interpolated(scores, q) for scores in classes))


def _interpolated(ordered: Tensor, q: Tensor) -> Tensor:
    # torch.quantile refuses more than 16 million values
    position = q * (len(ordered) - 1)
    below = position.floor().long().clamp(max=max(len(ordered) - 2, 0))
    return torch.lerp(ordered[below], ordered[(below + 1).clamp(max=len(ordered) - 1)], position - below)
