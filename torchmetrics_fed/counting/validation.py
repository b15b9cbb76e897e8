"""Rules: how a batch is to be read, which examples of it can be counted, and what is said of one that cannot."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Size, Tensor

from torchmetrics_fed.counting.binning import Binning
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.typing import Normalization, Task

_MOST_WEIGHT = 1 << 32
# Labels that no target has: what stands for those that cannot be labels, so that every path refuses them as it refuses
# any other, without a look at the values.
_FRACTION, _ONE_HOT = -(1 << 63), 1 - (1 << 63)
# With groups a label says its group, too. Those that are ignored, that have no group, or that are no label are these.
_IGNORED, _NO_GROUP, _STRANGE = -1, -2, -3


class Rules(NamedTuple):
    """How a batch is to be read."""

    task: Task = "binary"
    normalization: Normalization | None = None
    ignore_index: int | None = None
    validate: bool = True
    private: bool = False
    """Whether errors must not show values of the data: under privacy an error text may travel."""
    groups: int = 0
    """Where there are some, label y of group g is the number g * labels + y."""

    def ignored(self, labels: Tensor) -> Tensor | None:
        """Return which labels are to be left out; None if none can be."""
        return None if self.ignore_index is None else labels == self.ignore_index

    def labels(self, columns: int) -> int:
        return columns if self.task == "multiclass" else 2

    def highest(self, columns: int) -> int:
        return self.labels(columns) * max(self.groups, 1) - 1

    def are_pairs(self, columns: int, rows: int) -> bool:
        """Whether a group's rows are the true classes, one against one."""
        return rows == columns * max(self.groups, 1) and columns > 2

    def grouped(self, labels: Tensor, group: Tensor | None, columns: int) -> tuple[Tensor, Rules]:
        """Return labels that say their group, and the rules to read them by, without a look at the values."""
        if not self.groups:
            raise InputError(
                "Expected no argument `groups` because this metric has none. Build it with `groups=`."
            )
        if group is None:
            raise InputError(
                f"Expected argument `groups`, an integer from 0 to {self.groups - 1} for each example, because this "
                f"metric has {self.groups} groups, but got none. Pass `update(preds, target, groups)`."
            )
        check_per_example("groups", group, labels, self.task)
        if group.is_floating_point() or group.is_complex() or group.dtype == torch.bool:
            raise InputError(
                f"Expected `groups` to hold integers from 0 to {self.groups - 1} but got {group.dtype}."
            )
        several, group = self.labels(columns), group.detach().to(labels.device).long()
        if self.task == "multilabel":
            group = group.unsqueeze(1)
        labels = plain_int(labels).long()
        fused = labels + several * group
        if self.validate:
            fused = torch.where(
                (labels >= 0) & (labels < several), fused, labels.clamp(max=_STRANGE)
            )
            fused = torch.where((group >= 0) & (group < self.groups), fused, _NO_GROUP)
        ignored = self.ignored(labels)
        if ignored is None:
            return fused, self
        return torch.where(ignored, _IGNORED, fused), self._replace(ignore_index=_IGNORED)

    def whole(self, target: Tensor) -> Tensor:
        """Return a floating target as integers, without a look at the values."""
        target = wide(target)
        labels = target.to(torch.int64)
        return torch.where(labels == target, labels, _FRACTION) if self.validate else labels

    def unless_one_hot(self, target: Tensor) -> Tensor:
        """Return the labels of a binary task, none of them good if every row is one of two classes, one-hot.

        By itself the shape is fine, and so is one such row.
        """
        if not self.validate or target.ndim != 2 or target.shape[1] != 2 or len(target) < 2:
            return target
        labels = plain_int(target).long()
        hot = ((labels == 0).sum(1) == 1) & ((labels == 1).sum(1) == 1)
        return labels.masked_fill(hot.all(), _ONE_HOT)

    def good(
        self, scores: Tensor, labels: Tensor, binning: Binning, weight: Tensor | None = None
    ) -> Tensor:
        """Return which examples of ``(N, columns)`` scores can be counted, ``(N,)``, without a look at the values."""
        fine = scores.isfinite() if self.normalization else binning.holds(scores)
        if weight is not None:
            fine &= _can_weigh(weight.reshape(-1, 1))
        known = (labels >= 0) & (labels <= self.highest(scores.shape[1]))
        ignored = self.ignored(labels)
        if self.task == "multiclass":
            good = fine.all(1) & known
            return good if ignored is None else good | ignored
        fine &= known
        return (fine if ignored is None else fine | ignored).all(1)

    def check(
        self, scores: Tensor, labels: Tensor, binning: Binning, weight: Tensor | None = None
    ) -> None:
        """Raise unless every example is good."""
        if not bool(self.good(scores, labels, binning, weight).all()):
            raise self._objection(scores, labels, binning, weight)

    def _objection(
        self, scores: Tensor, labels: Tensor, binning: Binning, weight: Tensor | None
    ) -> InputError:
        """Return the error of a batch in which not every example is good. It may take its time."""
        if weight is not None and not bool(_can_weigh(weight).all()):
            return InputError(
                f"Expected argument `sample_weight` to hold integers from 0 to {_MOST_WEIGHT}."
            )
        ignored, highest = self.ignored(labels), self.labels(scores.shape[1]) - 1
        most_label = self.highest(scores.shape[1])
        if ignored is not None:
            labels, scores = labels[~ignored], scores[~ignored]
        least, most = _span(labels)
        if least == _ONE_HOT:
            return InputError(
                "Expected argument `target` to hold one label for each example but got a one-hot target, in which each "
                "would count twice. Pass `preds[:, 1]` and `target.argmax(1)`; if each score is an example of its own, "
                "`preds.flatten()` and `target.flatten()`."
            )
        if least == _FRACTION:
            remedy = (
                "target.round().long()" if self.task == "multiclass" else "(target > 0.5).long()"
            )
            return InputError(
                f"Expected argument `target` to hold labels from 0 to {highest} but got floats that are no whole "
                f"numbers. Make labels of them, as in `{remedy}`."
            )
        if self.groups > 1 and bool((labels == _NO_GROUP).any()):
            return InputError(
                f"Expected argument `groups` to hold integers from 0 to {self.groups - 1}, one for each group of the "
                "metric, but got others. Build the metric with more `groups`, or with one for whoever has none."
            )
        if not (least >= 0 and most <= most_label):
            also = "" if self.ignore_index is None else f" or ignore_index={self.ignore_index}"
            expected = "only 0 and 1" if self.task == "binary" else f"labels from 0 to {highest}"
            got = "others" if self.groups > 1 else self._values(least, most)
            remedy = (
                "Build the metric with more `num_classes`"
                if self.task == "multiclass"
                else "Map them to 0 and 1"
            )
            return InputError(
                f"Expected argument `target` to hold {expected}{also} but got {got}. {remedy}, "
                "or name the one to leave out with `ignore_index`."
            )
        least, most = _span(scores)
        low, high = binning.ends(scores.dtype)
        expected, logits = (
            f"scores in [{low}, {high}]",
            "softmax" if self.task == "multiclass" else "sigmoid",
        )
        remedy = (
            f'If they are logits, build the metric with `normalization="{logits}"`; scores of another range take '
            "`grid=ScoreGrid.even(1024, (low, high))`."
        )
        if self.normalization:
            expected, remedy = "finite logits", "Bound them, as in `preds.clamp(-1e4, 1e4)`."
        if math.isnan(least):
            remedy = "`preds.isnan().nonzero()` says where: look at these examples and at the model's weights."
        return InputError(
            f"Expected argument `preds` to be {expected} but got {self._values(least, most)}. {remedy}"
        )

    def _values(self, least: float, most: float) -> str:
        if math.isnan(least):
            return "NaN"
        return "others" if self.private else f"values from {least} to {most}"


def _check_kind(preds: Tensor, target: Tensor) -> None:
    for name, value in (("preds", preds), ("target", target)):
        if not isinstance(value, Tensor):
            raise InputError(
                f"Expected argument `{name}` to be a torch.Tensor but got {type(value).__name__}. Pass "
                f"`torch.as_tensor({name})`."
            )
    if not preds.is_floating_point():
        raise InputError(
            f"Expected argument `preds` to be floating scores but got {preds.dtype}. Pass what the model says, "
            "before it is cut into classes; scores that happen to be integers as `preds.float()`."
        )
    if target.is_complex():
        raise InputError(
            f"Expected argument `target` to be labels but got {target.dtype}. Pass `target.real.long()`."
        )


def check_batch(preds: Tensor, target: Tensor, columns: int, task: Task) -> None:
    """Raise unless there is a label for each score, or for multi-class tasks one for each row of scores."""
    _check_kind(preds, target)
    expected = _without_columns(preds.shape) if task == "multiclass" else preds.shape
    if target.shape == expected and (
        task == "binary" or (preds.ndim > 1 and preds.shape[1] == columns)
    ):
        return
    scores = "(N, ...)" if task == "binary" else f"(N, {columns}, ...)"
    shapes = (
        f"the shapes {scores} and (N, ...)"
        if task == "multiclass"
        else f"the same shape, {scores},"
    )
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


def check_pairs(models: tuple[Tensor, Tensor], target: Tensor) -> None:
    for scores in models:
        _check_kind(scores, target)
        if scores.shape != target.shape:
            raise InputError(
                f"Expected one score of each model for each of target's {tuple(target.shape)} but got "
                f"{tuple(scores.shape)}. Both models score the same examples, in the same order."
            )


def check_per_example(name: str, value: Tensor, target: Tensor, task: Task) -> None:
    shape = tuple(target.shape) if task != "multilabel" else (*target.shape[:1], *target.shape[2:])
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            f"Expected argument `{name}` to be a tensor of shape {shape} but got {got}."
        )


def check_weight(weight: Tensor, target: Tensor, task: Task) -> None:
    """Raise unless these are integers, one for each example. What they are is checked with the scores."""
    check_per_example("sample_weight", weight, target, task)
    if weight.is_floating_point() or weight.is_complex():
        raise InputError(
            f"Expected argument `sample_weight` to hold integers but got {weight.dtype}: counts are exact. Scale the "
            "weights and round them, as in `(1000 * weight).round().long()`; curves do not depend on the scale."
        )


def _can_weigh(weight: Tensor) -> Tensor:
    return (weight >= 0) & (weight.long() <= _MOST_WEIGHT)


def plain_int(target: Tensor) -> Tensor:
    """Return the labels in a dtype that torch can reduce."""
    if target.dtype == torch.bool:
        return target.view(torch.uint8)
    return (
        target.to(torch.int64)
        if target.dtype in (torch.uint16, torch.uint32, torch.uint64)
        else target
    )


def wide(scores: Tensor) -> Tensor:
    return scores if scores.dtype in (torch.float32, torch.float64) else scores.float()


def probabilities(
    logits: Tensor, normalization: Normalization | None
) -> tuple[Tensor, Tensor | None]:
    """Return scores in [0, 1] and their complements, neither of which saturates.

    A sigmoid's complement is the sigmoid of the negated logit. Of a softmax only the largest score can be near 1, and
    its complement is the sum of all others. Both keep their digits where one minus the score has none left.
    """
    if normalization is None:
        return logits, None
    if normalization == "sigmoid":
        return logits.sigmoid(), (-logits).sigmoid()
    top = logits.argmax(-1, keepdim=True)
    power = (logits - logits.gather(-1, top)).exp_()
    rest = power.scatter(-1, top, 0.0).sum(-1, keepdim=True)
    scores = power / (1 + rest)
    return scores, (1 - scores).scatter_(-1, top, rest / (1 + rest))


def _span(values: Tensor) -> tuple[float, float]:
    least, most = values.aminmax()
    return least.item(), most.item()
