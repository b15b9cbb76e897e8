"""FederatedEvaluation: a Lightning callback that releases once per validation or test."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, get_args

import lightning
from torch import Tensor

from torchmetrics_fed.errors import BudgetExceededError, InputError, check_choice
from torchmetrics_fed.functional import Interval
from torchmetrics_fed.integrations.lightning.figures import Drawing, log_drawing
from torchmetrics_fed.integrations.lightning.loaders import Group, check_data, held_metrics
from torchmetrics_fed.integrations.lightning.names import (
    by_class,
    check_names,
    loader_suffix,
    scalar_names,
)
from torchmetrics_fed.integrations.lightning.spending import check_spending
from torchmetrics_fed.metrics import CountsMetric, FederatedMetric
from torchmetrics_fed.metrics.history import History

BudgetEnd = Literal["raise", "skip"]
"""What a training does whose privacy budget ends."""


class FederatedEvaluation(lightning.Callback):
    """Computes a module's metrics at the end of every validation and test, logs and resets them.

    The module updates the metrics in its ``validation_step`` and ``test_step``. The callback does
    everything else, in the order that spends privacy once: it releases nothing in the sanity check,
    and makes one release per evaluation on all ranks together.

    Args:
        attribute: the module's attribute that holds a federated metric or a
            :func:`~torchmetrics_fed.federated_collection`; for several dataloaders a list with
            one of these for each dataloader.
        prefix: the prefix of the names that are logged in validation: ``val_auroc``,
            ``val_average_precision``, ``val_expected_calibration_error``, ``val_brier_score``,
            ``val_area_under_gain``, ``val_equal_error_rate``, followed by the number of the class
            if there are several. None leaves validation alone.
        test_prefix: the same in ``Trainer.test``.
        figures: whether TensorBoard, Weights & Biases and MLflow get figures of the curves (if
            matplotlib is installed), and TensorBoard's PR-curve page gets the counts.
        federated: for a client of a federated trainer, where the server makes the curve: nothing
            is computed here, and the metric keeps the last evaluation's data until its share is
            sent.
        budget_end: what happens to a training whose privacy budget ends: ``"raise"`` ends it with
            an error, ``"skip"`` ends its evaluations with a warning and goes on training. Nothing
            more is released in both cases. Whether the budget lasts is checked before the first
            training step.
        trend: whether every number is also logged as ``val_auroc_trend``, smoothed over the
            evaluations so far (:func:`~torchmetrics_fed.functional.trend`), which costs no
            privacy. ``history.trend("val_auroc")`` has all evaluations, with intervals.

    Example:
        >>> FederatedEvaluation("metrics").prefix
        'val_'
    """

    def __init__(
        self,
        attribute: str,
        prefix: str | None = "val_",
        test_prefix: str | None = "test_",
        *,
        figures: bool = True,
        federated: bool = False,
        budget_end: BudgetEnd = "raise",
        trend: bool = False,
    ) -> None:
        check_choice("budget_end", budget_end, get_args(BudgetEnd))
        self.attribute = attribute
        self.prefix = prefix
        self.test_prefix = test_prefix
        self.figures = figures
        self.federated = federated
        self.budget_end = budget_end
        self.trend = trend
        self.curves: dict[str, Any] = {}
        """The curves of the last evaluation, by metric name."""
        self.history = History()
        """The logged values of all evaluations so far."""
        self._drawings: list[Drawing] = []

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Make the checks of validation, and of its budget, before the first training step."""
        if not trainer.enable_validation:
            return
        self._check(trainer, pl_module)
        if self.prefix is not None and not self.federated:
            place = f"`{type(pl_module).__name__}.{self.attribute}`"
            check_spending(trainer, place, held_metrics(pl_module, self.attribute))

    def on_validation_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Refuse colliding names, mixed data and samplers that repeat; drop earlier data."""
        self._check(trainer, pl_module)
        self._reset(trainer, pl_module)

    def on_validation_epoch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Release the metrics and log their scalars, except in the sanity check."""
        prefix = self._active_prefix(trainer)
        if prefix is None or self.federated or trainer.sanity_checking:
            return
        groups = held_metrics(pl_module, self.attribute)
        self._check_updated(trainer, pl_module, groups)
        self.curves = {}
        try:
            self._compute(groups)
        except BudgetExceededError as error:
            if self.budget_end == "raise":
                raise
            warnings.warn(
                f"No evaluation of this epoch, and the training goes on. {error}", stacklevel=2
            )
            self.curves = {}
            return
        self._log(pl_module, prefix, groups)
        if self.figures and trainer.loggers:
            self._drawings = self._collect_drawings(prefix, groups)

    def on_validation_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Draw, now that every logger has the scalars, and reset the metrics.

        The data of a federated client stays for its share.
        """
        drawings = self._drawings
        self._drawings = []
        if trainer.is_global_zero:
            for drawing in drawings:
                log_drawing(trainer, drawing)
        if not self.federated or trainer.sanity_checking:
            self._reset(trainer, pl_module)

    def on_save_checkpoint(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        checkpoint: dict[str, Any],
    ) -> None:
        """Keep the values so far, so that a resumed run goes on with its trend."""
        if self.trend:
            checkpoint[self._checkpoint_key] = self.history.state

    def on_load_checkpoint(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        checkpoint: dict[str, Any],
    ) -> None:
        """Take over the values of a checkpoint."""
        if self._checkpoint_key in checkpoint:
            self.history = History.from_state(checkpoint[self._checkpoint_key])

    @property
    def _checkpoint_key(self) -> str:
        return f"torchmetrics_fed history of {self.attribute!r}, {self.prefix!r}"

    on_test_start = on_validation_start
    on_test_epoch_end = on_validation_epoch_end
    on_test_end = on_validation_end

    def _active_prefix(self, trainer: lightning.Trainer) -> str | None:
        """Return the prefix of the evaluation that is running; None if it is left alone."""
        if trainer.testing:
            return self.test_prefix
        return self.prefix

    def _compute(self, groups: Sequence[Group]) -> None:
        """Release the metrics, and keep their results."""
        for number, group in enumerate(groups):
            suffix = loader_suffix(number, groups)
            for name, metric in group.items():
                self.curves[name + suffix] = metric.compute()

    def _log(self, module: lightning.LightningModule, prefix: str, groups: Sequence[Group]) -> None:
        """Log the scalars of all results, and their trends."""
        for number, group in enumerate(groups):
            suffix = loader_suffix(number, groups)
            logged_names = scalar_names(group)
            for name, metric in group.items():
                intervals = _shown_intervals(name, metric)
                for scalar, value in _scalars(name, self.curves[name + suffix]).items():
                    key = prefix + logged_names[name].get(scalar, f"{name}_{scalar}")
                    _log_scalar(module, key, suffix, value)
                    if scalar in intervals:
                        _log_scalar(module, f"{key}_low", suffix, intervals[scalar].low)
                        _log_scalar(module, f"{key}_high", suffix, intervals[scalar].high)
                    if self.trend:
                        trend = self.history.add(key + suffix, scalar, value, metric)
                        _log_scalar(module, f"{key}_trend", suffix, trend.value[-1])

    def _collect_drawings(self, prefix: str, groups: Sequence[Group]) -> list[Drawing]:
        """Return the curves to draw. Runs on all ranks: exact counts are summed over them."""
        drawings = []
        for number, group in enumerate(groups):
            suffix = loader_suffix(number, groups)
            for name, metric in group.items():
                result = self.curves[name + suffix]
                if isinstance(result, Tensor):
                    continue
                drawing = Drawing(
                    name=f"{prefix}{name}{suffix}",
                    metric=metric,
                    result=result,
                    release=metric.release(),  # under privacy, the release that `compute` made
                )
                drawings.append(drawing)
        return drawings

    def _reset(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self._active_prefix(trainer) is None:
            return
        for group in held_metrics(module, self.attribute):
            for metric in group.values():
                metric.reset()

    def _check(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Raise for everything that would give a wrong number, before anything is counted."""
        if self._active_prefix(trainer) is None:
            return
        place = f"`{type(module).__name__}.{self.attribute}`"
        callbacks: list[Any] = list(trainer.callbacks)  # type: ignore[attr-defined, unused-ignore]
        prefixed_attributes: list[tuple[str, str]] = []
        for callback in callbacks:
            if not isinstance(callback, FederatedEvaluation):
                continue
            prefix = callback._active_prefix(trainer)
            if prefix is None:
                continue
            if callback.attribute == self.attribute and callback.federated != self.federated:
                raise InputError(
                    f"Expected one use of {place} but got a callback with `federated=True` and one "
                    "without, which would reset the data of the share. Keep a metric for each."
                )
            if not callback.federated:
                prefixed_attributes.append((prefix, callback.attribute))
        check_names(module, prefixed_attributes)
        check_data(trainer, place, held_metrics(module, self.attribute))

    def _check_updated(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        groups: Sequence[Group],
    ) -> None:
        """Raise, on all ranks, if no rank has updated the metrics of one dataloader."""
        for group in groups:
            is_updated = any(metric.update_called for metric in group.values())
            if not trainer.strategy.reduce_boolean_decision(is_updated, all=False):
                raise InputError(
                    f"Expected `{type(module).__name__}.{self.attribute}` to be updated for every "
                    "dataloader but nothing was counted for one. Update it in the step, or pass "
                    "`prefix=None` or `test_prefix=None` to leave this evaluation alone."
                )


def _scalars(name: str, result: Any) -> dict[str, Tensor]:
    """Return the numbers of a result by name. A result that is a number has its metric's name."""
    if isinstance(result, Tensor):
        return {name: result}
    scalars: dict[str, Tensor] = result.scalars
    return scalars


def _shown_intervals(name: str, metric: CountsMetric) -> dict[str, Interval]:
    """Return the intervals that a metric's numbers are logged with, by the names of the numbers."""
    if not isinstance(metric, FederatedMetric):
        return {}  # a comparison has its interval among its scalars
    intervals = metric.shown_intervals()
    if metric.definition.result is None:
        return dict(zip([name], intervals.values(), strict=False))
    return intervals


def _log_scalar(module: lightning.LightningModule, key: str, suffix: str, value: Tensor) -> None:
    for class_suffix, number in by_class(value):
        module.log(
            f"{key}{class_suffix}{suffix}",
            number.float(),
            rank_zero_only=True,
            sync_dist=False,  # every rank has the same release, hence the same number
        )
