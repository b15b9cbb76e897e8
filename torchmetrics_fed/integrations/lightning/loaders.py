"""Which metrics a module holds, and whether the dataloaders may feed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from torch.nn import ModuleList
from torch.utils.data import DistributedSampler, RandomSampler, WeightedRandomSampler
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.metrics import CountsMetric

Group = Mapping[str, CountsMetric]
"""The metrics of one dataloader, by name."""


def held_metrics(module: lightning.LightningModule, attribute: str) -> Sequence[Group]:
    """Return the metrics of a module's attribute: one group, or for a list one group for each dataloader."""
    held = getattr(module, attribute, None)
    place = f"`{type(module).__name__}.{attribute}`"
    entries = held if isinstance(held, list | tuple | ModuleList) else [held]
    groups: list[dict[str, Any]] = []
    for entry in entries:
        group: dict[str, Any] = {attribute: entry}
        if isinstance(entry, MetricCollection):
            group = dict(entry.items(copy_state=False))
        for name, metric in group.items():
            if not isinstance(metric, CountsMetric):
                raise InputError(
                    f"Expected {place} to be a federated metric, a collection of them, or a list with one of these for "
                    f"each dataloader but {name!r} is {type(metric).__name__}. Keep other metrics elsewhere."
                )
        groups.append(group)
    metrics = [id(metric) for group in groups for metric in group.values()]
    if len(set(metrics)) < len(metrics):
        raise InputError(
            f"Expected different metrics in {place} but got one of them twice: their data would be mixed. Build each "
            "by itself, not as `[metric] * 2`."
        )
    return groups


def check_data(trainer: lightning.Trainer, place: str, groups: Sequence[Group]) -> None:
    """Raise unless each dataloader has a group of its own, and no sampler repeats examples of private metrics.

    Errors call the metrics ``place``. Only torch's own samplers are looked at. That no example comes twice for another
    reason is the user's word, or is enforced by the ids of persons: then no sampler is looked at.
    """
    loaders = _dataloaders(trainer)
    if loaders is None:  # not loaded yet: the check is made again before the data comes
        return
    if len(loaders) != len(groups):
        raise InputError(
            f"Expected a metric or collection for each dataloader in {place} but got {len(groups)} for {len(loaders)} "
            "dataloaders, whose data would be mixed. Join the data in one dataloader by "
            "`torch.utils.data.ConcatDataset`, or with FederatedEvaluation keep a `torch.nn.ModuleList` of metrics and "
            "update the one at `dataloader_idx`."
        )
    for loader, group in zip(loaders, groups, strict=True):
        fault = _repeating(loader)
        if fault and not all(_takes_repeats(metric) for metric in group.values()):
            raise InputError(
                f"Expected every example once per evaluation in the data of {place} but a sampler {fault}. An example "
                "that is counted twice is protected half as well. Use a sampler without replacement. On several ranks "
                "pass `use_distributed_sampler=False` to the Trainer and give each rank its own part of the data. Or "
                "pass `persons` to `update`, with `enforced=True` in the privacy setting."
            )


def _dataloaders(trainer: lightning.Trainer) -> list[Any] | None:
    """Return the dataloaders of the evaluation that runs, None while they are not loaded."""
    loop: Any = trainer.validate_loop
    if trainer.testing:
        loop = trainer.test_loop
    elif trainer.state.fn is not None and trainer.state.fn.value == "fit":
        loop = trainer.fit_loop.epoch_loop.val_loop
    # The public `trainer.val_dataloaders` does not tell: in `validate` after `fit` it returns the loaders of `fit`.
    combined = loop._combined_loader
    return None if combined is None else list(combined.flattened)


def _takes_repeats(metric: CountsMetric) -> bool:
    """Return whether repeated examples do no harm: exact counts, or `update` leaves out what comes too often."""
    privacy = metric.spec.privacy
    return not privacy.charges or privacy.enforced


def _repeating(loader: Any) -> str:
    """Return how the sampler of a dataloader repeats examples; empty if it does not, or is not one of torch's."""
    sampler = getattr(loader, "sampler", None)
    batch_sampler = getattr(loader, "batch_sampler", None)
    if batch_sampler is not None:
        sampler = getattr(batch_sampler, "sampler", None)
    if isinstance(sampler, RandomSampler | WeightedRandomSampler) and sampler.replacement:
        return "draws with replacement"
    if isinstance(sampler, RandomSampler) and sampler.num_samples > len(sampler.data_source):
        return "draws more examples than there are"
    if isinstance(sampler, DistributedSamplerWrapper):
        return "was split over ranks by Lightning, where each rank draws an order of its own"
    if isinstance(sampler, DistributedSampler) and sampler.total_size > len(sampler.dataset):  # type: ignore[arg-type]
        return "pads the ranks to equal length"
    return ""
