"""Arguments of a spec: what can be agreed on, and what is said of the rest."""

from __future__ import annotations

from typing import get_args

from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.errors import InputError, check_choice
from torchmetrics_fed.release.wire import text_size
from torchmetrics_fed.typing import MultiClass, Task

MOST_GROUPS = 256
MOST_PAIRED_BINS = 512


def check_task(task: Task, classes: int, multi_class: MultiClass) -> None:
    check_choice("task", task, get_args(Task))
    name, least = {"binary": ("classes", 1), "multiclass": ("num_classes", 2), "multilabel": ("num_labels", 1)}[task]
    number = isinstance(classes, int) and not isinstance(classes, bool) and classes >= least
    if not number or (task == "binary" and classes != 1):
        expected = "1" if task == "binary" else f"an int of at least {least}"
        raise InputError(f'Expected argument `{name}` to be {expected} for task="{task}" but got {classes!r}.')
    if multi_class not in get_args(MultiClass) or (multi_class == "ovo" and (task != "multiclass" or classes < 3)):
        raise InputError(
            f"Expected argument `multi_class` to be one of {get_args(MultiClass)}, the latter for three classes or "
            f"more, but got {multi_class!r} for {classes} of task {task!r}."
        )


def check_groups(groups: tuple[str, ...]) -> None:
    named = isinstance(groups, tuple) and all(map(_is_name, groups))
    if not named or len(groups) == 1 or len(groups) > MOST_GROUPS or len(set(groups)) < len(groups):
        raise InputError(
            f"Expected argument `groups` to be 2 to {MOST_GROUPS} different names, or their number, but got {groups!r}."
        )


def check_models(names: tuple[str, ...], at: tuple[float, ...], grid: ScoreGrid, plain: bool) -> None:
    """Raise unless two models can be compared on this grid; ``plain`` is a binary task without groups."""
    if not plain or grid.bins > MOST_PAIRED_BINS:
        raise InputError(
            f"Expected a binary task without groups on at most {MOST_PAIRED_BINS} bins to compare two models but got "
            f"another, or {grid.bins} bins."
        )
    if not isinstance(names, tuple) or len(names) != 2 or len(set(names)) != 2 or not all(map(_is_name, names)):
        raise InputError(f"Expected argument `models` to be two different names but got {names!r}.")
    if not isinstance(at, tuple) or len(at) != 2 or not set(at) <= set(grid.edges[1:-1].tolist()):
        low, high = grid.score_range
        raise InputError(f"Expected argument `thresholds` to be two scores inside [{low}, {high}] but got {at!r}.")


def _is_name(name: object) -> bool:
    return 0 < text_size(name) <= 255
