"""Shapes: which ones scores and targets have, and what to write where they have others."""

from __future__ import annotations

from torch import Size, Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.typing import Task


def check_shapes(preds: Tensor, target: Tensor, columns: int, task: Task) -> None:
    """Raise unless there is a label for each score, or for multi-class tasks one for each row of scores."""
    expected = _without_columns(preds.shape) if task == "multiclass" else preds.shape
    if target.shape == expected and (task == "binary" or (preds.ndim > 1 and preds.shape[1] == columns)):
        return
    scores = "(N, ...)" if task == "binary" else f"(N, {columns}, ...)"
    shapes = f"the shapes {scores} and (N, ...)" if task == "multiclass" else f"the same shape, {scores},"
    raise InputError(
        f'Expected arguments `preds` and `target` to have {shapes} for task="{task}" but got '
        f"{tuple(preds.shape)} and {tuple(target.shape)}. {_remedy(preds.shape, target.shape, task)}"
    )


def _without_columns(shape: Size) -> Size:
    return shape[:1] + shape[2:]


def _remedy(scores: Size, labels: Size, task: Task) -> str:
    if task == "binary" and len(scores) > 1 and _without_columns(scores) == labels:
        if scores[1] == 1:
            return "Pass `preds.squeeze(1)`."
        if scores[1] == 2:
            return "Pass the scores of the positive class, `preds[:, 1]`."
        return f'Pass `task="multiclass", num_classes={scores[1]}` to the metric if these are scores of classes.'
    if task != "multilabel" and len(labels) > 1:
        if _without_columns(labels) == (scores if task == "binary" else _without_columns(scores)):
            if labels[1] == 1:
                return "Pass `target.squeeze(1)`."
            return "Pass classes in place of a one-hot target: `target.argmax(1)`."
        if task == "binary" and labels[1] == 1 and scores[1:2] == (2,):
            return "Pass `preds[:, 1]` and `target.squeeze(1)`."
    if task == "binary":
        return "Pass one label for each score."
    if len(scores) > 1 and labels == (scores if task == "multilabel" else _without_columns(scores)):
        return f"Pass `num_{'classes' if task == 'multiclass' else 'labels'}={scores[1]}` to the metric."
    if task == "multiclass" and scores == labels:
        return 'Pass one score for each class, or `task="binary"` to the metric.'
    return f"Pass one score and one label for each {'class' if task == 'multiclass' else 'label'} of each example."
