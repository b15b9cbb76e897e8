"""FederatedEvaluation: a Lightning callback that releases once per validation epoch. Extra ``lightning``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning
from torch import Tensor
from torch.utils.data import DistributedSampler, RandomSampler, WeightedRandomSampler
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.metrics import FederatedMetric

__all__ = ["FederatedEvaluation"]


class FederatedEvaluation(lightning.Callback):
    """Computes the metrics of a module at the end of every validation epoch, logs scalars, and resets them.

    The module keeps the metrics as an attribute and updates them in its ``validation_step``; everything else is done
    here, in the order that spends privacy once: nothing in the sanity check, one release per epoch on all ranks
    together, a reset before the next.

    Args:
        attribute: the module's attribute that holds a federated metric or a
            :func:`~torchmetrics_fed.federated_collection`.
        prefix: of the logged names: ``val_auroc``, ``val_average_precision``, ``val_expected_calibration_error``,
            ``val_brier_score``, ``val_area_under_gain``, ``val_equal_error_rate``, with the class's number behind where
            there are several.
        figures: whether to hand figures of the curves to the logger (on rank zero, if the logger takes them).
        federated: for a client of a federated trainer, whose curve is made elsewhere: nothing is computed here, and
            the metric keeps the last validation epoch's data until its share is sent.

    Example:
        >>> from torchmetrics_fed.integrations.lightning import FederatedEvaluation
        >>> FederatedEvaluation("metrics").prefix
        'val_'
    """

    def __init__(self, attribute: str, prefix: str = "val_", figures: bool = True, federated: bool = False) -> None:
        self.attribute = attribute
        self.prefix = prefix
        self.figures = figures
        self.federated = federated
        self.curves: dict[str, Any] = {}
        """The curves of the last validation epoch, by metric name."""

    def on_validation_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Refuse data that counts anybody more often than declared, before any of it is counted."""
        if self.federated:
            for _, metric in self._metrics(pl_module):
                metric.reset()
        if any(metric.spec.privacy is not None for _, metric in self._metrics(pl_module)):
            for loader in _as_list(trainer.val_dataloaders):
                _refuse_duplicates(getattr(loader, "sampler", None))

    def on_validation_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Release, log and reset; in the sanity check only reset."""
        metrics = list(self._metrics(pl_module))
        if self.federated and not trainer.sanity_checking:
            return
        if not trainer.sanity_checking:
            self.curves = {name: metric.compute() for name, metric in metrics}
            for name, curve in self.curves.items():
                self._log(trainer, pl_module, name, curve)
        for _, metric in metrics:
            metric.reset()

    def _metrics(self, module: lightning.LightningModule) -> Iterator[tuple[str, FederatedMetric]]:
        held = getattr(module, self.attribute, None)
        named = held.items(copy_state=False) if isinstance(held, MetricCollection) else [(self.attribute, held)]
        for name, metric in named:
            if not isinstance(metric, FederatedMetric):
                raise InputError(
                    f"Expected `{type(module).__name__}.{self.attribute}` to be a federated metric or a collection of "
                    f"them but {name!r} is {type(metric).__name__}."
                )
            yield name, metric

    def _log(self, trainer: lightning.Trainer, module: lightning.LightningModule, name: str, curve: Any) -> None:
        # a number, or a result that knows its scalars and its figure
        scalars = {name: curve} if isinstance(curve, Tensor) else curve.scalars
        # every rank has the same release, hence the same number: nothing is left to average
        for scalar, value in scalars.items():
            for key, number in _by_class(scalar, value):
                module.log(f"{self.prefix}{key}", number.float(), rank_zero_only=True, sync_dist=False)
        if isinstance(curve, Tensor) or not (self.figures and trainer.is_global_zero):
            return
        for logger in trainer.loggers:
            add_figure = getattr(getattr(logger, "experiment", None), "add_figure", None)
            if callable(add_figure):
                import matplotlib.pyplot as plt

                figure, _ = curve.plot()
                add_figure(f"{self.prefix}{name}", figure, trainer.global_step)
                plt.close(figure)


def _by_class(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The scalar itself, or one per class, numbered."""
    if value.ndim == 0:
        yield name, value
    else:
        yield from ((f"{name}_{number}", one) for number, one in enumerate(value))


def _as_list(loaders: Any) -> list[Any]:
    if loaders is None:
        return []
    return list(loaders) if isinstance(loaders, list | tuple) else [loaders]


def _refuse_duplicates(sampler: Any) -> None:
    """Raise for samplers that may give one example more than once in an epoch."""
    repeats = isinstance(sampler, WeightedRandomSampler | RandomSampler) and sampler.replacement
    pads = isinstance(sampler, DistributedSampler) and not sampler.drop_last and sampler.total_size > _size(sampler)
    if repeats or pads:
        why = "pads the ranks to equal length" if pads else "draws with replacement"
        raise InputError(
            f"Expected every example once per validation epoch but {type(sampler).__name__} {why}: an example that is "
            "counted twice is protected half as well. Pass `use_distributed_sampler=False` to the Trainer and give "
            "each rank its own part of the data, or a sampler without replacement."
        )


def _size(sampler: DistributedSampler[Any]) -> int:
    return len(sampler.dataset)  # type: ignore[arg-type]
