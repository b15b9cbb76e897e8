"""The names that metrics are logged under in Lightning, each unique.

A number has the name of its metric. A scalar of a curve has a name of its own, such as ``auroc``;
if several metrics of a collection have that name, the curve's name stands before it. With several
classes the number of the class follows, with several dataloaders the number of the dataloader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import lightning
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.integrations.lightning.loaders import Group, held_metrics
from torchmetrics_fed.metrics import CountsMetric


def scalar_names(group: Group) -> dict[str, dict[str, str]]:
    """Return, for each metric of a group, the logged name of each of its scalars."""
    scalars = {name: metric.definition.scalars or (name,) for name, metric in group.items()}
    uses = Counter(scalar for names in scalars.values() for scalar in names)
    logged: dict[str, dict[str, str]] = {}
    for name, metric in group.items():
        logged[name] = {scalar: scalar for scalar in scalars[name]}
        for scalar in metric.definition.scalars:
            if uses[scalar] > 1:
                logged[name][scalar] = f"{name}_{scalar}"
    return logged


def loader_suffix(number: int, groups: Sequence[Group]) -> str:
    """Return the suffix of a dataloader's names; empty if there is one dataloader."""
    if len(groups) == 1:
        return ""
    # Lightning's own suffix is `/dataloader_idx_0`. For names that are logged at the end of an
    # epoch, its table would show the last dataloader's value for all of them.
    return f"/dataloader_{number}"


def by_class(value: Tensor, ndim: int = 0) -> list[tuple[str, Tensor]]:
    """Return the suffix and the value of each class.

    A value with ``ndim`` dimensions has no axis of classes, and its suffix is empty.
    """
    if value.ndim == ndim:
        return [("", value)]
    return [(f"_{number}", row) for number, row in enumerate(value)]


def check_names(
    module: lightning.LightningModule, prefixed_attributes: Iterable[tuple[str, str]]
) -> None:
    """Raise if two metrics would be logged under one name.

    Args:
        module: the module that holds the metrics.
        prefixed_attributes: prefix and attribute of each callback that logs.
    """
    owners: dict[str, str] = {}
    for prefix, attribute in prefixed_attributes:
        for name, owner in _possible_names(module, attribute):
            key = prefix + name
            if key in owners:
                raise InputError(
                    f"Expected one metric for each logged name but got {owners[key]} and {owner} "
                    f"for {key!r}, and Lightning would log their mean. Give one another name in "
                    "its collection, or one of the callbacks another prefix; None leaves "
                    "validation or test alone."
                )
            owners[key] = owner


def _possible_names(module: lightning.LightningModule, attribute: str) -> Iterator[tuple[str, str]]:
    """Yield every name that an attribute's metrics can be logged under, and the metric's place."""
    groups = held_metrics(module, attribute)
    for number, group in enumerate(groups):
        place = f"`{type(module).__name__}.{attribute}`"
        if len(groups) > 1:
            place = f"`{type(module).__name__}.{attribute}[{number}]`"
        for name, scalars in scalar_names(group).items():
            owner = place
            if name != attribute:
                owner = f"{name!r} of {place}"
            for scalar in scalars.values():
                for class_suffix in _class_suffixes(group[name]):
                    yield f"{scalar}{class_suffix}{loader_suffix(number, groups)}", owner


def _class_suffixes(metric: CountsMetric) -> list[str]:
    """Return the suffixes that a metric's scalars can have: none, or the number of a class."""
    suffixes = [""]
    if metric.average is None and metric.spec.classes > 1:
        suffixes += [f"_{label}" for label in range(metric.spec.classes)]
    return suffixes
