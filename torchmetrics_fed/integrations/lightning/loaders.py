"""Which metrics a module holds, and what dataloaders feed into them: each its own, no private example too often."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import lightning
import numpy as np
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch.overrides.distributed import (
    UnrepeatedDistributedSampler,
    UnrepeatedDistributedSamplerWrapper,
)
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import ModuleList
from torch.utils import data
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.metrics import FederatedMetric

Group = Mapping[str, FederatedMetric]
"""The metrics of one dataloader, by name."""
_Rows = NDArray[Any]
_LISTS = (list, tuple, range, np.ndarray, Tensor)
_WRAPPERS = (DistributedSamplerWrapper, UnrepeatedDistributedSamplerWrapper)


def held_metrics(module: lightning.LightningModule, attribute: str) -> Sequence[Group]:
    """Return the metrics of a module's attribute: one group, or where it is a list one for each dataloader."""
    held, place = getattr(module, attribute, None), f"`{type(module).__name__}.{attribute}`"
    groups: list[dict[str, Any]] = []
    for one in held if isinstance(held, list | tuple | ModuleList) else [held]:
        items = (
            one.items(copy_state=False) if isinstance(one, MetricCollection) else [(attribute, one)]
        )
        group: dict[str, Any] = dict(items)
        for name, metric in group.items():
            if not isinstance(metric, FederatedMetric):
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


def check_data(
    trainer: lightning.Trainer, place: str, groups: Sequence[Group], each_example_once: bool
) -> None:
    """Raise unless each dataloader has a group of its own, and gives its private metrics no example too often.

    Errors call the metrics ``place``. What cannot be looked through needs the user's word, ``each_example_once``.
    """
    # not `trainer.val_dataloaders`: it hides the mode, and in `validate` after `fit` it returns the loaders of `fit`
    fitting = trainer.state.fn is not None and trainer.state.fn.value == "fit"
    loop = trainer.fit_loop.epoch_loop.val_loop if fitting else trainer.validate_loop
    combined = (trainer.test_loop if trainer.testing else loop)._combined_loader
    if combined is None:  # not loaded yet: the check comes again before the data
        return
    # in other modes a step gets a batch of every loader at once, and knows which is whose
    loaders = combined.flattened
    streams = [[loader] for loader in loaders] if combined._mode == "sequential" else [loaders]
    if len(streams) != len(groups):
        raise InputError(
            f"Expected a metric or collection for each dataloader in {place} but got {len(groups)} for {len(streams)} "
            "dataloaders, whose data would be mixed. Join the data in one dataloader by "
            "`torch.utils.data.ConcatDataset`, or with FederatedEvaluation keep a `torch.nn.ModuleList` of metrics and "
            "update the one at `dataloader_idx`."
        )
    cycles = combined._mode == "max_size_cycle" and len(loaders) > 1
    for stream, group in zip(streams, groups, strict=True):
        settings = [metric.spec.privacy for metric in group.values()]
        # where the bound is enforced, `update` leaves out what comes too often
        allowed = [
            privacy.examples_per_person
            for privacy in settings
            if privacy.charges and not privacy.enforced
        ]
        if allowed and (cycles or _repeats(stream, each_example_once) > min(allowed)):
            raise InputError(
                f"Expected every example once per evaluation, or `examples_per_person` times, but the data of {place} "
                "can repeat one more often: it draws with replacement, pads or shuffles ranks by themselves, cycles, "
                "or holds a row twice. What is counted twice is protected half as well. Use a sampler without "
                "replacement and every row once; on several ranks pass `use_distributed_sampler=False` to the Trainer "
                "and give each rank its own part of the data."
            )


def _repeats(loaders: Sequence[Any], each_example_once: bool) -> int:
    """How often one row of a dataset can come in an epoch, at most, as far as can be seen."""
    drawn: dict[int, list[tuple[_Rows, int]]] = defaultdict(list)
    for loader in loaders:
        rows, times = _drawn(loader, each_example_once)
        for dataset, part in _leaves(getattr(loader, "dataset", None), rows):
            drawn[id(dataset)].append((part, times))
    most = 0
    for parts in drawn.values():
        _, place = np.unique(np.concatenate([rows for rows, _ in parts]), return_inverse=True)
        times_each = np.concatenate([np.full(len(rows), times) for rows, times in parts])
        most = max(most, int(np.bincount(place, times_each).max(initial=0)))
    return most


def _drawn(source: Any, each_example_once: bool) -> tuple[_Rows, int]:
    """The rows that a loader or sampler draws on all ranks together, and how often each of them at most."""
    # the class whose `__iter__` runs: a subclass with one of its own may draw anything
    kind = next((kind for kind in type(source).__mro__ if "__iter__" in vars(kind)), None)
    if kind is data.DataLoader and not isinstance(source.dataset, data.IterableDataset):
        return _drawn(
            source.sampler if source.batch_sampler is None else source.batch_sampler,
            each_example_once,
        )
    if kind is data.BatchSampler:
        return _drawn(source.sampler, each_example_once)
    if kind in _LISTS:  # of rows, or of batches of rows
        return np.hstack([np.empty(0, int), *source]), 1
    if kind is data.SubsetRandomSampler:
        return np.asarray(source.indices), 1
    if kind is data.SequentialSampler:
        return np.arange(len(source)), 1
    if kind is data.RandomSampler:
        size = len(source.data_source)
        return np.arange(size), source.num_samples if source.replacement else ceil(
            source.num_samples / size
        )
    if kind is data.WeightedRandomSampler:
        return np.arange(len(source.weights)), source.num_samples if source.replacement else 1
    if kind in (data.DistributedSampler, UnrepeatedDistributedSampler, *_WRAPPERS):
        laps = ceil(
            source.total_size / max(len(source.dataset), 1)
        )  # 2 where ranks are padded to equal length
        if kind not in _WRAPPERS:
            return np.arange(len(source.dataset)), laps
        inner = source.dataset._sampler
        rows, times = _drawn(inner, each_example_once)
        # each rank takes its part of an order of its own, so that several may take the same example
        shuffled = not isinstance(inner, (data.SequentialSampler, *_LISTS))
        return rows, times * laps * (source.num_replicas if shuffled else 1)
    if not each_example_once:
        what = type(source.dataset if kind is data.DataLoader else source).__name__
        raise InputError(
            f"Expected data whose repeats can be seen but got {what}: an example that is counted twice is protected "
            "half as well. If it gives every example at most once per evaluation, pass `each_example_once=True` to the "
            "callback; else use a sampler of torch without replacement."
        )
    return np.empty(0, int), 1


def _leaves(dataset: Any, rows: _Rows) -> Iterator[tuple[Any, _Rows]]:
    """The datasets below subsets and concatenations, and the rows of each that the rows of this one are."""
    if isinstance(dataset, data.Subset):
        yield from _leaves(dataset.dataset, np.asarray(dataset.indices)[rows])
    elif isinstance(dataset, data.ConcatDataset):
        part = np.searchsorted(dataset.cumulative_sizes, rows, side="right")
        for number, (one, end) in enumerate(
            zip(dataset.datasets, dataset.cumulative_sizes, strict=True)
        ):
            yield from _leaves(
                one, rows[part == number] - end
            )  # counted from its end, as negative rows are
    else:
        yield dataset, rows
