"""FederatedEvaluation: a Lightning callback that releases once per validation or test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.integrations.lightning.loaders import check_data
from torchmetrics_fed.integrations.lightning.loggers import log_curve
from torchmetrics_fed.integrations.lightning.names import check_names, held_metrics, scalar_names, suffix


class FederatedEvaluation(lightning.Callback):
    """Computes the metrics of a module at the end of every validation and test, logs scalars, and resets them.

    The module keeps the metrics as an attribute and updates them in its ``validation_step`` and ``test_step``;
    everything else is done here, in the order that spends privacy once: nothing in the sanity check, one release per
    evaluation on all ranks together, a reset before the next.

    Args:
        attribute: the module's attribute that holds a federated metric or a
            :func:`~torchmetrics_fed.federated_collection`; for several dataloaders a list of them, one for each.
        prefix: of the names that are logged in validation: ``val_auroc``, ``val_average_precision``,
            ``val_expected_calibration_error``, ``val_brier_score``, ``val_area_under_gain``, ``val_equal_error_rate``,
            with the class's number behind where there are several. None leaves validation alone.
        test_prefix: the same in ``Trainer.test``.
        figures: whether loggers get figures of the curves (TensorBoard, Weights & Biases and MLflow take them, if
            matplotlib is installed), and TensorBoard's PR-curve page the counts.
        federated: for a client of a federated trainer, whose curve is made elsewhere: nothing is computed here, and
            the metric keeps the last evaluation's data until its share is sent.
        each_example_once: your word that no example comes twice in one evaluation, where that cannot be seen: private
            metrics refuse samplers, loaders and iterable datasets that they do not know without it.

    Example:
        >>> from torchmetrics_fed.integrations.lightning import FederatedEvaluation
        >>> evaluation = FederatedEvaluation("metrics")
        >>> evaluation.prefix, evaluation.test_prefix
        ('val_', 'test_')
    """

    def __init__(
        self,
        attribute: str,
        prefix: str | None = "val_",
        test_prefix: str | None = "test_",
        *,
        figures: bool = True,
        federated: bool = False,
        each_example_once: bool = False,
    ) -> None:
        self.attribute = attribute
        self.prefix = prefix
        self.test_prefix = test_prefix
        self.figures = figures
        self.federated = federated
        self.each_example_once = each_example_once
        self.curves: dict[str, Any] = {}
        """The curves of the last evaluation, by metric name."""

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Refuse what validation would refuse, before the first training step."""
        if trainer.enable_validation:
            self._check(trainer, pl_module)

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Refuse names that collide and data that is mixed or repeated; begin without earlier data."""
        self._check(trainer, pl_module)
        self._reset(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Release and log, except in the sanity check."""
        prefix = self._prefix(trainer)
        if prefix is None or self.federated or trainer.sanity_checking:
            return
        groups = held_metrics(pl_module, self.attribute)
        for group in groups:
            counted = any(metric.update_called for metric in group.values())
            if not trainer.strategy.reduce_boolean_decision(counted, all=False):
                raise InputError(
                    f"Expected `{type(pl_module).__name__}.{self.attribute}` to be updated for every dataloader but "
                    "nothing was counted for one. Update it in the step, or pass `prefix=None` or `test_prefix=None` "
                    "to leave this evaluation alone."
                )
        self.curves = {}
        for number, group in enumerate(groups):
            end, names = suffix(number, groups), scalar_names(group)
            for name, metric in group.items():
                self.curves[name + end] = result = metric.compute()
                # a number, or a result that knows its scalars and its figure
                scalars = {name: result} if isinstance(result, Tensor) else result.scalars
                for scalar, value in scalars.items():
                    for key, one in _by_class(names[name].get(scalar, f"{name}_{scalar}"), value):
                        # every rank has the same release, hence the same number: nothing is left to average
                        pl_module.log(f"{prefix}{key}{end}", one.float(), rank_zero_only=True, sync_dist=False)
                if self.figures and trainer.loggers and not isinstance(result, Tensor):
                    release = metric.release()  # on all ranks together; a private one is there already
                    if trainer.is_global_zero:
                        at = trainer.global_step
                        log_curve(trainer.loggers, f"{prefix}{name}{end}", at, metric, result, release)

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Reset, when every callback has read the release; a federated client's data stays for its share."""
        if not self.federated or trainer.sanity_checking:
            self._reset(trainer, pl_module)

    on_test_start = on_validation_start
    on_test_epoch_end = on_validation_epoch_end
    on_test_end = on_validation_end

    def _prefix(self, trainer: lightning.Trainer) -> str | None:
        return self.test_prefix if trainer.testing else self.prefix

    def _reset(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        for group in held_metrics(module, self.attribute) if self._prefix(trainer) is not None else ():
            for metric in group.values():
                metric.reset()

    def _check(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Raise for what would give a wrong number, before anything is counted."""
        if self._prefix(trainer) is None:
            return
        place = f"`{type(module).__name__}.{self.attribute}`"
        callbacks: list[Any] = list(trainer.callbacks)  # type: ignore[attr-defined, unused-ignore]
        others = [one for one in callbacks if isinstance(one, FederatedEvaluation) and one._prefix(trainer) is not None]
        if any(one.attribute == self.attribute and one.federated != self.federated for one in others):
            raise InputError(
                f"Expected one use of {place} but got a callback with `federated=True` and one without, which would "
                "reset what the share is made of. Keep a metric for each."
            )
        check_names(module, [(one._prefix(trainer) or "", one.attribute) for one in others if not one.federated])
        check_data(trainer, place, held_metrics(module, self.attribute), self.each_example_once)


def _by_class(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The scalar itself, or one per class, numbered."""
    if value.ndim == 0:
        yield name, value
    else:
        yield from ((f"{name}_{number}", one) for number, one in enumerate(value))
