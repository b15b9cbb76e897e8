"""Which metrics a module holds, and whether the dataloaders may feed them.

Private metrics promise a bound on the examples per person. A sampler that repeats examples breaks
the promise, so the samplers that are known to repeat are refused before anything is counted.
"""

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
    """Return the metrics of a module's attribute.

    They are one group, or one group for each dataloader if the attribute is a list.
    """
    value = getattr(module, attribute, None)
    place = f"`{type(module).__name__}.{attribute}`"
    entries = [value]
    if isinstance(value, list | tuple | ModuleList):
        entries = list(value)
    groups = [_group(entry, attribute, place) for entry in entries]
    metrics = [id(metric) for group in groups for metric in group.values()]
    if len(set(metrics)) < len(metrics):
        raise InputError(
            f"Expected different metrics in {place} but got one of them twice: their data would be "
            "mixed. Build each by itself, not as `[metric] * 2`."
        )
    return groups


def _group(entry: Any, attribute: str, place: str) -> Group:
    """Return the metrics of one dataloader: a metric, named as the attribute, or a collection."""
    group: dict[str, Any] = {attribute: entry}
    if isinstance(entry, MetricCollection):
        group = dict(entry.items(copy_state=False))
    for name, metric in group.items():
        if not isinstance(metric, CountsMetric):
            raise InputError(
                f"Expected {place} to be a federated metric, a collection of them, or a list with "
                f"one of these for each dataloader but {name!r} is {type(metric).__name__}. "
                "Keep other metrics elsewhere."
            )
    return group


def check_data(trainer: lightning.Trainer, place: str, groups: Sequence[Group]) -> None:
    """Raise if dataloaders share a group, or if a sampler repeats examples of private metrics.

    Only torch's own samplers are examined. That no example comes twice for another reason is the
    user's responsibility, or is enforced by the ids of persons; then no sampler is examined.

    Args:
        trainer: the trainer, in an evaluation or before one.
        place: what errors call the metrics.
        groups: the metrics of each dataloader.
    """
    loaders = _dataloaders(trainer)
    if loaders is None:  # not loaded yet: the check is made again before the data comes
        return
    if len(loaders) != len(groups):
        raise InputError(
            f"Expected a metric or collection for each dataloader in {place} but got {len(groups)} "
            f"for {len(loaders)} dataloaders, whose data would be mixed. Join the data in one "
            "dataloader by `torch.utils.data.ConcatDataset`, or with FederatedEvaluation keep a "
            "`torch.nn.ModuleList` of metrics and update the one at `dataloader_idx`."
        )
    for loader, group in zip(loaders, groups, strict=True):
        fault = _repetition(loader)
        if fault and not all(_takes_repeats(metric) for metric in group.values()):
            raise InputError(
                f"Expected every example once per evaluation in the data of {place} but a sampler "
                f"{fault}. An example that is counted twice is protected half as well. Use a "
                "sampler without replacement. On several ranks pass `use_distributed_sampler=False`"
                " to the Trainer and give each rank its own part of the data. Or pass `persons` to "
                "`update`, with `enforced=True` in the privacy setting."
            )


def _dataloaders(trainer: lightning.Trainer) -> list[Any] | None:
    """Return the dataloaders of the running evaluation; None while they are not loaded."""
    loop: Any = trainer.validate_loop
    if trainer.testing:
        loop = trainer.test_loop
    elif trainer.state.fn is not None and trainer.state.fn.value == "fit":
        loop = trainer.fit_loop.epoch_loop.val_loop
    # The public `trainer.val_dataloaders` does not tell: in `validate` after `fit` it returns the
    # loaders of `fit`.
    combined = loop._combined_loader
    if combined is None:
        return None
    return list(combined.flattened)


def _takes_repeats(metric: CountsMetric) -> bool:
    """Return whether repeated examples do no harm.

    They do none to exact counts, nor where `update` leaves out a person's surplus examples.
    """
    privacy = metric.spec.privacy
    return not privacy.charges or privacy.enforced


def _repetition(loader: Any) -> str:
    """Return how the sampler of a dataloader repeats examples.

    The text is empty if it does not repeat them, or is none of torch's samplers.
    """
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
    if isinstance(sampler, DistributedSampler):
        examples: Any = sampler.dataset
        if sampler.total_size > len(examples):
            return "pads the ranks to equal length"
    return ""
