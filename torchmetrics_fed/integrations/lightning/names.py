"""Which metrics a module holds, and the name that each of their scalars is logged under."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import lightning
from torch.nn import ModuleList
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.metrics import FederatedMetric

Group = Mapping[str, FederatedMetric]
"""The metrics of one dataloader, by name."""


def held_metrics(module: lightning.LightningModule, attribute: str) -> Sequence[Group]:
    """Return the metrics of a module's attribute: one group, or where it is a list one for each dataloader."""
    held, place = getattr(module, attribute, None), f"`{type(module).__name__}.{attribute}`"
    groups: list[dict[str, Any]] = []
    for one in held if isinstance(held, list | tuple | ModuleList) else [held]:
        group: dict[str, Any] = (
            dict(one.items(copy_state=False)) if isinstance(one, MetricCollection) else {attribute: one}
        )
        for name, metric in group.items():
            if not isinstance(metric, FederatedMetric):
                raise InputError(
                    f"Expected {place} to be a federated metric, a collection of them, or a list with one of these for "
                    f"each dataloader but {name!r} is {type(metric).__name__}. Keep other metrics elsewhere."
                )
        groups.append(group)
    if any(times > 1 for times in Counter(id(metric) for group in groups for metric in group.values()).values()):
        raise InputError(
            f"Expected different metrics in {place} but got one of them twice: their data would be mixed. Build each "
            "by itself, not as `[metric] * 2`."
        )
    return groups


def scalar_names(group: Group) -> dict[str, dict[str, str]]:
    """Return, for each metric, the name of each of its scalars.

    A number has its metric's name. A scalar of a curve has its own, behind the metric's where another has it too.
    """
    own = {name: metric.scalar_names or (name,) for name, metric in group.items()}
    times = Counter(scalar for scalars in own.values() for scalar in scalars)
    return {
        name: {one: f"{name}_{one}" if times[one] > 1 and group[name].scalar_names else one for one in scalars}
        for name, scalars in own.items()
    }


def suffix(number: int, groups: Sequence[Group]) -> str:
    """Return what stands behind the names of a dataloader where there are several."""
    # not Lightning's own `/dataloader_idx_0`: of names logged at the epoch's end its table shows the last for all
    return f"/dataloader_{number}" if len(groups) > 1 else ""


def check_names(module: lightning.LightningModule, logged: Iterable[tuple[str, str]]) -> None:
    """Raise if two metrics of these prefixes and attributes would be logged under one name.

    Lightning would show their mean.
    """
    owners: dict[str, str] = {}
    for prefix, attribute in logged:
        for name, owner in _names(module, attribute):
            if prefix + name in owners:
                raise InputError(
                    f"Expected one metric for each logged name but got {owners[prefix + name]} and {owner} for "
                    f"{prefix + name!r}, and Lightning would log their mean. Give one another name in its collection, "
                    "or one of the callbacks another prefix; None leaves validation or test alone."
                )
            owners[prefix + name] = owner


def _names(module: lightning.LightningModule, attribute: str) -> Iterator[tuple[str, str]]:
    """Every name that an attribute's metrics can be logged under, and the metric."""
    groups = held_metrics(module, attribute)
    for number, group in enumerate(groups):
        for name, scalars in scalar_names(group).items():
            place = f"`{type(module).__name__}.{attribute}{f'[{number}]' * (len(groups) > 1)}`"
            owner = place if name == attribute else f"{name!r} of {place}"
            classes = group[name].spec.classes if group[name].average is None else 1
            for scalar in scalars.values():
                for end in ("", *(f"_{label}" for label in range(classes) if classes > 1)):
                    yield f"{scalar}{end}{suffix(number, groups)}", owner
