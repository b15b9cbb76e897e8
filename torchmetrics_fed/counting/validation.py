"""Rules: how a batch is read, which examples of it can be counted, and the errors about the rest.

Invariants:

- A batch that is refused is refused whole: nothing of it is counted.
- Checks that run for every batch (:meth:`Rules.countable` and the conversions of labels) do not
  look at single values, so they need no transfer from a device. Only a batch that is refused is
  looked at in detail, to name the problem.
- Under privacy no error shows a value of the data: the text of an error may travel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Size, Tensor

from torchmetrics_fed.counting.binning import Binning
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.typing import Normalization, Task

MOST_WEIGHT = 1 << 32
"""The largest weight of an example."""

ROW_SUM_TOLERANCE = 1 / 64
"""How far the scores of an example may add up to another number than 1.

The coarsest dtype, bfloat16, rounds every score by up to 1/512 of it, and so the sum. Tables with
three decimals are off by 1/2000 for each class. Noise that rests on the sum is calibrated for a sum
of 1 and this.
"""

# Labels that no target has. They stand for values that cannot be labels, so that every path refuses
# them as it refuses any other wrong label, without looking at single values.

FRACTION = -(1 << 63)
"""The label of a floating target that is no whole number."""

ONE_HOT = 1 - (1 << 63)
"""The label of every score if a binary target is one-hot."""

EXCESS = 2 - (1 << 63)
"""The label in place of a positive label beyond the most that are counted of an example."""

# With groups, a label also encodes its group. These labels encode no group.

IGNORED = -1
"""The label of an example that is left out."""

NO_GROUP = -2
"""The label of an example whose group is none of the metric's groups."""

NO_LABEL = -3
"""The largest label of an example whose target is no label."""


class Rules(NamedTuple):
    """How a batch is read."""

    task: Task = "binary"
    normalization: Normalization | None = None
    ignore_index: int | None = None
    validate: bool = True
    private: bool = False
    """Whether errors must not show values of the data."""
    groups: int = 0
    """The number of groups. With groups, label y of group g is the number g * labels + y."""
    labels_per_example: int | None = None
    """The most positive labels of a multi-label example that are counted."""
    sums_to_one: bool = False
    """Whether the scores of a multi-class example have to add up to 1."""

    @property
    def checks_sums(self) -> bool:
        """Whether scores may add up to another number than 1: softmax makes them add up."""
        return self.sums_to_one and self.normalization is None

    def ignored(self, labels: Tensor) -> Tensor | None:
        """Return which labels are left out; None if there is no such label."""
        if self.ignore_index is None:
            return None
        return labels == self.ignore_index

    def labels(self, columns: int) -> int:
        """Return the number of different labels."""
        if self.task == "multiclass":
            return columns
        return 2

    def highest(self, columns: int) -> int:
        """Return the largest label, with its group."""
        return self.labels(columns) * max(self.groups, 1) - 1

    def are_pairs(self, columns: int, rows: int) -> bool:
        """Whether the rows of a group are the true classes, one against one."""
        return rows == columns * max(self.groups, 1) and columns > 2

    def grouped(self, labels: Tensor, group: Tensor | None, columns: int) -> tuple[Tensor, Rules]:
        """Return labels that encode their group, and the rules by which to read them."""
        group = self._checked_group(labels, group)
        number_of_labels = self.labels(columns)
        group = group.detach().to(labels.device).long()
        if self.task == "multilabel":
            group = group.unsqueeze(1)
        labels = plain_int(labels).long()
        fused = labels + number_of_labels * group
        if self.validate:
            is_label = (labels >= 0) & (labels < number_of_labels)
            is_group = (group >= 0) & (group < self.groups)
            fused = torch.where(is_label, fused, labels.clamp(max=NO_LABEL))
            fused = torch.where(is_group, fused, NO_GROUP)
        ignored = self.ignored(labels)
        if ignored is None:
            return fused, self
        return torch.where(ignored, IGNORED, fused), self._replace(ignore_index=IGNORED)

    def _checked_group(self, labels: Tensor, group: Tensor | None) -> Tensor:
        """Return the argument `groups`; raise unless it has an integer for each example."""
        if not self.groups:
            raise InputError(
                "Expected no argument `groups` because this metric has none. Build it with "
                "`groups=`."
            )
        if group is None:
            raise InputError(
                f"Expected argument `groups`, an integer from 0 to {self.groups - 1} for each "
                f"example, because this metric has {self.groups} groups, but got none. Pass "
                "`update(preds, target, groups)`."
            )
        check_per_example("groups", group, labels, self.task)
        if group.is_floating_point() or group.is_complex() or group.dtype == torch.bool:
            raise InputError(
                f"Expected `groups` to hold integers from 0 to {self.groups - 1} but got "
                f"{group.dtype}."
            )
        return group

    def limited(self, labels: Tensor) -> tuple[Tensor, Rules]:
        """Return labels without the positive labels beyond the most that are counted.

        The first ones in the order of the labels are counted, the others are left out: they are
        neither positives nor negatives. Which ones depends on the example alone.
        """
        if self.labels_per_example is None:
            return labels, self
        labels = plain_int(labels).long()
        is_excess = (labels == 1).cumsum(1) > self.labels_per_example
        is_excess &= labels == 1
        if labels.is_cpu and not bool(is_excess.any()):
            return labels, self
        if self.ignore_index is not None:
            return torch.where(is_excess, self.ignore_index, labels), self
        return torch.where(is_excess, EXCESS, labels), self._replace(ignore_index=EXCESS)

    def whole_labels(self, target: Tensor) -> Tensor:
        """Return a floating target as integers; floats that are no labels as :data:`FRACTION`."""
        target = wide(target)
        labels = target.to(torch.int64)
        if not self.validate:
            return labels
        return torch.where(labels == target, labels, FRACTION)

    def unless_one_hot(self, target: Tensor) -> Tensor:
        """Return the labels of a binary task, or labels that are refused if they are one-hot.

        Two columns are one-hot if every row has one 0 and one 1. The shape alone is fine, and so is
        a single such row.
        """
        if not self.validate or target.ndim != 2 or target.shape[1] != 2 or len(target) < 2:
            return target
        labels = plain_int(target).long()
        has_one_zero = (labels == 0).sum(1) == 1
        has_one_one = (labels == 1).sum(1) == 1
        is_one_hot = (has_one_zero & has_one_one).all()
        return labels.masked_fill(is_one_hot, ONE_HOT)

    def countable(
        self, scores: Tensor, labels: Tensor, binning: Binning, weight: Tensor | None = None
    ) -> Tensor:
        """Return which examples of ``(N, columns)`` scores can be counted, ``(N,)``."""
        can_count = scores.isfinite() if self.normalization else binning.holds(scores)
        if weight is not None:
            can_count &= _can_weigh(weight.reshape(-1, 1))
        is_label = (labels >= 0) & (labels <= self.highest(scores.shape[1]))
        ignored = self.ignored(labels)
        if self.task == "multiclass":
            can_count = can_count.all(1) & is_label
            if self.checks_sums:
                can_count &= add_up(scores)
            if ignored is None:
                return can_count
            return can_count | ignored
        can_count &= is_label
        if ignored is not None:
            can_count = can_count | ignored
        return can_count.all(1)

    def check(
        self, scores: Tensor, labels: Tensor, binning: Binning, weight: Tensor | None = None
    ) -> None:
        """Raise unless every example can be counted."""
        if bool(self.countable(scores, labels, binning, weight).all()):
            return
        if weight is not None and not bool(_can_weigh(weight).all()):
            raise InputError(
                f"Expected argument `sample_weight` to hold integers from 0 to {MOST_WEIGHT}."
            )
        columns = scores.shape[1]
        ignored = self.ignored(labels)
        if ignored is not None:
            labels = labels[~ignored]
            scores = scores[~ignored]
        self._check_labels(labels, columns)
        if self.checks_sums and bool(binning.holds(scores).all()):
            raise InputError(
                "Expected the scores of each example to add up to 1, because the noise of this "
                "metric rests on it, but got others. If they are logits, build the metric with "
                '`normalization="softmax"`; if they are no softmax scores, with '
                "`sums_to_one=False`, which takes more noise."
            )
        raise self._score_error(scores, binning)

    def _check_labels(self, labels: Tensor, columns: int) -> None:
        """Raise an error that names the problem, if there is one with the labels."""
        lowest, highest = _span(labels)
        highest_label = self.labels(columns) - 1
        if lowest == ONE_HOT:
            raise InputError(
                "Expected argument `target` to hold one label for each example but got a one-hot "
                "target, in which each would count twice. Pass `preds[:, 1]` and "
                "`target.argmax(1)`; if each score is an example of its own, `preds.flatten()` and "
                "`target.flatten()`."
            )
        if lowest == FRACTION:
            remedy = "(target > 0.5).long()"
            if self.task == "multiclass":
                remedy = "target.round().long()"
            raise InputError(
                f"Expected argument `target` to hold labels from 0 to {highest_label} but got "
                f"floats that are no whole numbers. Make labels of them, as in `{remedy}`."
            )
        if self.groups > 1 and bool((labels == NO_GROUP).any()):
            raise InputError(
                f"Expected argument `groups` to hold integers from 0 to {self.groups - 1}, one for "
                "each group of the metric, but got others. Build the metric with more `groups`, or "
                "with a group for examples that have none."
            )
        if not (lowest >= 0 and highest <= self.highest(columns)):
            raise self._label_error(lowest, highest, highest_label)

    def _label_error(self, lowest: float, highest: float, highest_label: int) -> InputError:
        """Return the error of labels from ``lowest`` to ``highest``."""
        expected = "only 0 and 1"
        if self.task != "binary":
            expected = f"labels from 0 to {highest_label}"
        if self.ignore_index is not None:
            expected += f" or ignore_index={self.ignore_index}"
        values = "others"
        if self.groups <= 1:
            values = self._values(lowest, highest)
        remedy = "Map them to 0 and 1"
        if self.task == "multiclass":
            remedy = "Build the metric with more `num_classes`"
        return InputError(
            f"Expected argument `target` to hold {expected} but got {values}. {remedy}, or name "
            "the one to leave out with `ignore_index`."
        )

    def _score_error(self, scores: Tensor, binning: Binning) -> InputError:
        """Return the error of scores of which some are outside of the grid, or not finite."""
        lowest, highest = _span(scores)
        if self.normalization:
            expected = "finite logits"
            remedy = "Bound them, as in `preds.clamp(-1e4, 1e4)`."
        else:
            low, high = binning.ends(scores.dtype)
            normalization = "softmax" if self.task == "multiclass" else "sigmoid"
            expected = f"scores in [{low}, {high}]"
            remedy = (
                "If they are logits, build the metric with "
                f'`normalization="{normalization}"`; scores of another range take '
                "`grid=ScoreGrid.even(1024, (low, high))`."
            )
        if math.isnan(lowest):
            remedy = (
                "`preds.isnan().nonzero()` says where: look at these examples and at the model's "
                "weights."
            )
        return InputError(
            f"Expected argument `preds` to be {expected} but got {self._values(lowest, highest)}. "
            f"{remedy}"
        )

    def _values(self, lowest: float, highest: float) -> str:
        """Return the words of an error for values from ``lowest`` to ``highest``."""
        if math.isnan(lowest):
            return "NaN"
        if self.private:
            return "others"
        return f"values from {lowest} to {highest}"


def add_up(scores: Tensor) -> Tensor:
    """Return whether each row of ``(N, columns)`` scores adds up to 1, ``(N,)``."""
    difference = scores.sum(1, dtype=torch.float64) - 1
    return difference.abs() <= ROW_SUM_TOLERANCE


def check_batch(preds: Tensor, target: Tensor, columns: int, task: Task) -> None:
    """Raise unless there is a label for each score, or for each row of scores (multi-class)."""
    _check_dtypes(preds, target)
    expected = preds.shape
    if task == "multiclass":
        expected = _without_columns(preds.shape)
    has_columns = task == "binary" or (preds.ndim > 1 and preds.shape[1] == columns)
    if target.shape == expected and has_columns:
        return
    if task == "binary":
        shapes = "the same shape, (N, ...),"
    elif task == "multilabel":
        shapes = f"the same shape, (N, {columns}, ...),"
    else:
        shapes = f"the shapes (N, {columns}, ...) and (N, ...)"
    remedy = _shape_remedy(preds.shape, target.shape, task)
    raise InputError(
        f'Expected arguments `preds` and `target` to have {shapes} for task="{task}" but got '
        f"{tuple(preds.shape)} and {tuple(target.shape)}. {remedy}"
    )


def _check_dtypes(preds: Tensor, target: Tensor) -> None:
    if not isinstance(preds, Tensor):
        raise _no_tensor("preds", preds)
    if not isinstance(target, Tensor):
        raise _no_tensor("target", target)
    if not preds.is_floating_point():
        raise InputError(
            f"Expected argument `preds` to be floating scores but got {preds.dtype}. Pass the "
            "output of the model, before it is cut into classes; scores that happen to be integers "
            "as `preds.float()`."
        )
    if target.is_complex():
        raise InputError(
            f"Expected argument `target` to be labels but got {target.dtype}. Pass "
            "`target.real.long()`."
        )


def _no_tensor(name: str, value: object) -> InputError:
    return InputError(
        f"Expected argument `{name}` to be a torch.Tensor but got {type(value).__name__}. Pass "
        f"`torch.as_tensor({name})`."
    )


def _without_columns(shape: Size) -> Size:
    return shape[:1] + shape[2:]


def _shape_remedy(scores: Size, labels: Size, task: Task) -> str:
    """Return what to do about shapes of scores and labels that do not fit."""
    if task == "binary":
        return _binary_remedy(scores, labels)
    if task == "multiclass":
        return _multiclass_remedy(scores, labels)
    if len(scores) > 1 and labels == scores:
        return f"Pass `num_labels={scores[1]}` to the metric."
    return "Pass one score and one label for each label of each example."


def _binary_remedy(scores: Size, labels: Size) -> str:
    if len(scores) > 1 and _without_columns(scores) == labels:
        if scores[1] == 1:
            return "Pass `preds.squeeze(1)`."
        if scores[1] == 2:
            return "Pass the scores of the positive class, `preds[:, 1]`."
        return (
            f'Pass `task="multiclass", num_classes={scores[1]}` to the metric if these are scores '
            "of classes."
        )
    if len(labels) > 1:
        if _without_columns(labels) == scores:
            return _one_column_remedy(labels)
        if labels[1] == 1 and scores[1:2] == (2,):
            return "Pass `preds[:, 1]` and `target.squeeze(1)`."
    return "Pass one label for each score."


def _multiclass_remedy(scores: Size, labels: Size) -> str:
    if len(labels) > 1 and _without_columns(labels) == _without_columns(scores):
        return _one_column_remedy(labels)
    if len(scores) > 1 and labels == _without_columns(scores):
        return f"Pass `num_classes={scores[1]}` to the metric."
    if scores == labels:
        return 'Pass one score for each class, or `task="binary"` to the metric.'
    return "Pass one score and one label for each class of each example."


def _one_column_remedy(labels: Size) -> str:
    """Return what to do about labels with a column too many."""
    if labels[1] == 1:
        return "Pass `target.squeeze(1)`."
    return "Pass classes in place of a one-hot target: `target.argmax(1)`."


def check_pairs(models: tuple[Tensor, Tensor], target: Tensor) -> None:
    """Raise unless both models have a score for each label."""
    for scores in models:
        _check_dtypes(scores, target)
        if scores.shape != target.shape:
            raise InputError(
                f"Expected one score of each model for each of target's {tuple(target.shape)} but "
                f"got {tuple(scores.shape)}. Both models score the same examples, in the same "
                "order."
            )


def check_per_example(name: str, value: Tensor, target: Tensor, task: Task) -> None:
    """Raise unless an argument is a tensor with one value for each example."""
    shape = tuple(target.shape)
    if task == "multilabel":
        shape = tuple(_without_columns(target.shape))
    if not isinstance(value, Tensor):
        raise InputError(
            f"Expected argument `{name}` to be a tensor of shape {shape} but got "
            f"{type(value).__name__}."
        )
    if tuple(value.shape) != shape:
        raise InputError(
            f"Expected argument `{name}` to be a tensor of shape {shape} but got "
            f"{tuple(value.shape)}."
        )


def check_weight(weight: Tensor, target: Tensor, task: Task) -> None:
    """Raise unless there is an integer weight for each example.

    The values of the weights are checked with the scores.
    """
    check_per_example("sample_weight", weight, target, task)
    if weight.is_floating_point() or weight.is_complex():
        raise InputError(
            f"Expected argument `sample_weight` to hold integers but got {weight.dtype}: counts "
            "are exact. Scale the weights and round them, as in `(1000 * weight).round().long()`; "
            "curves do not depend on the scale."
        )


def _can_weigh(weight: Tensor) -> Tensor:
    return (weight >= 0) & (weight.long() <= MOST_WEIGHT)


def plain_int(target: Tensor) -> Tensor:
    """Return the labels in a dtype that torch can reduce."""
    if target.dtype == torch.bool:
        return target.view(torch.uint8)
    if target.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return target.to(torch.int64)
    return target


def wide(scores: Tensor) -> Tensor:
    """Return scores in float32 or float64."""
    if scores.dtype in (torch.float32, torch.float64):
        return scores
    return scores.float()


def probabilities(
    logits: Tensor, normalization: Normalization | None
) -> tuple[Tensor, Tensor | None]:
    """Return scores in [0, 1] and their complements, neither of which saturates.

    The complement of a sigmoid is the sigmoid of the negated logit. In a softmax only the largest
    score can be near 1, and its complement is the sum of all other scores. Both keep their digits
    where one minus the score has none left.
    """
    if normalization is None:
        return logits, None
    if normalization == "sigmoid":
        return logits.sigmoid(), (-logits).sigmoid()
    top = logits.argmax(-1, keepdim=True)
    power = (logits - logits.gather(-1, top)).exp_()
    rest = power.scatter(-1, top, 0.0).sum(-1, keepdim=True)
    scores = power / (1 + rest)
    complements = (1 - scores).scatter_(-1, top, rest / (1 + rest))
    return scores, complements


def _span(values: Tensor) -> tuple[float, float]:
    """Return the lowest and the highest value."""
    lowest, highest = values.aminmax()
    return lowest.item(), highest.item()
