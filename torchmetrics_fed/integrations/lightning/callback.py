"""FederatedEvaluation: a Lightning callback that releases once per validation or test."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import lightning
import torch
from lightning.pytorch.loggers import MLFlowLogger, WandbLogger
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional import (
    Histograms,
    PrecisionRecallCurve,
    confusion_at,
    read,
)
from torchmetrics_fed.functional.figures.page import caption, provenance
from torchmetrics_fed.integrations.lightning.loaders import Group, check_data, held_metrics
from torchmetrics_fed.metrics import CountsMetric, FederatedMetric
from torchmetrics_fed.reconstruct.histograms import are_probabilities
from torchmetrics_fed.release import Release

_PIXELS_PER_INCH = 200
"""The resolution of logged figures: loggers show pixels."""


class FederatedEvaluation(lightning.Callback):
    """Computes the metrics of a module at the end of every validation and test, logs scalars, and resets them.

    The module updates the metrics in its ``validation_step`` and ``test_step``; everything else is done here, in the
    order that spends privacy once: nothing in the sanity check, one release per evaluation on all ranks together.

    Args:
        attribute: the module's attribute that holds a federated metric or a
            :func:`~torchmetrics_fed.federated_collection`; for several dataloaders a list of them, one for each.
        prefix: of the names that are logged in validation: ``val_auroc``, ``val_average_precision``,
            ``val_expected_calibration_error``, ``val_brier_score``, ``val_area_under_gain``, ``val_equal_error_rate``,
            with the class's number behind where there are several. None leaves validation alone.
        test_prefix: the same in ``Trainer.test``.
        figures: whether TensorBoard, Weights & Biases and MLflow get figures of the curves (if matplotlib is
            installed), and TensorBoard's PR-curve page the counts.
        federated: for a client of a federated trainer, whose curve is made elsewhere: nothing is computed here, and
            the metric keeps the last evaluation's data until its share is sent.

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
    ) -> None:
        self.attribute = attribute
        self.prefix = prefix
        self.test_prefix = test_prefix
        self.figures = figures
        self.federated = federated
        self.curves: dict[str, Any] = {}
        """The curves of the last evaluation, by metric name."""
        self._drawings: list[_Drawing] = []

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Refuse what validation would refuse, before the first training step."""
        if trainer.enable_validation:
            self._check(trainer, pl_module)

    def on_validation_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Refuse names that collide, data that is mixed, samplers that repeat; begin without earlier data."""
        self._check(trainer, pl_module)
        self._reset(trainer, pl_module)

    def on_validation_epoch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Release and log the scalars, except in the sanity check."""
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
            suffix = _suffix(number, groups)
            scalar_names = _scalar_names(group)
            for name, metric in group.items():
                result = metric.compute()
                self.curves[name + suffix] = result
                for scalar, value in _scalars(name, result).items():
                    key = prefix + scalar_names[name].get(scalar, f"{name}_{scalar}")
                    _log_scalar(pl_module, key, suffix, value)
        if self.figures and trainer.loggers:
            self._drawings = self._collect_drawings(prefix, groups)

    def on_validation_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Draw, now that every logger has the scalars, and reset; a federated client's data stays for its share."""
        drawings = self._drawings
        self._drawings = []
        if trainer.is_global_zero:
            for drawing in drawings:
                _log_drawing(trainer, drawing)
        if not self.federated or trainer.sanity_checking:
            self._reset(trainer, pl_module)

    on_test_start = on_validation_start
    on_test_epoch_end = on_validation_epoch_end
    on_test_end = on_validation_end

    def _prefix(self, trainer: lightning.Trainer) -> str | None:
        return self.test_prefix if trainer.testing else self.prefix

    def _collect_drawings(self, prefix: str, groups: Sequence[Group]) -> list[_Drawing]:
        """Return what the loggers get beside scalars. Runs on all ranks: exact counts are summed over them."""
        drawings = []
        for number, group in enumerate(groups):
            suffix = _suffix(number, groups)
            for name, metric in group.items():
                result = self.curves[name + suffix]
                if not isinstance(result, Tensor):
                    release = metric.release()  # a private release is there already
                    drawings.append(_Drawing(f"{prefix}{name}{suffix}", metric, result, release))
        return drawings

    def _reset(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self._prefix(trainer) is None:
            return
        for group in held_metrics(module, self.attribute):
            for metric in group.values():
                metric.reset()

    def _check(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Raise for what would give a wrong number, before anything is counted."""
        if self._prefix(trainer) is None:
            return
        place = f"`{type(module).__name__}.{self.attribute}`"
        callbacks: list[Any] = list(trainer.callbacks)  # type: ignore[attr-defined, unused-ignore]
        logged: list[tuple[str, str]] = []
        for callback in callbacks:
            if not isinstance(callback, FederatedEvaluation):
                continue
            prefix = callback._prefix(trainer)
            if prefix is None:
                continue
            if callback.attribute == self.attribute and callback.federated != self.federated:
                raise InputError(
                    f"Expected one use of {place} but got a callback with `federated=True` and one without, which "
                    "would reset what the share is made of. Keep a metric for each."
                )
            if not callback.federated:
                logged.append((prefix, callback.attribute))
        _check_names(module, logged)
        check_data(trainer, place, held_metrics(module, self.attribute))


def _scalars(name: str, result: Any) -> dict[str, Tensor]:
    """Return the numbers of a result by name; a number is called what its metric is called."""
    if isinstance(result, Tensor):
        return {name: result}
    scalars: dict[str, Tensor] = result.scalars
    return scalars


def _log_scalar(module: lightning.LightningModule, key: str, suffix: str, value: Tensor) -> None:
    for class_suffix, number in _by_class(value):
        # every rank has the same release, hence the same number: nothing is left to average
        module.log(
            f"{key}{class_suffix}{suffix}", number.float(), rank_zero_only=True, sync_dist=False
        )


def _by_class(value: Tensor, ndim: int = 0) -> list[tuple[str, Tensor]]:
    """Return a value of this many dimensions with an empty suffix, or a value for each class with its number."""
    if value.ndim == ndim:
        return [("", value)]
    return [(f"_{number}", row) for number, row in enumerate(value)]


def _scalar_names(group: Group) -> dict[str, dict[str, str]]:
    """Return the logged names of each metric's scalars.

    A number has the name of its metric. A curve's scalar has its own name, behind the curve's where that is not unique.
    """
    scalars = {name: metric.definition.scalars or (name,) for name, metric in group.items()}
    times = Counter(scalar for names in scalars.values() for scalar in names)
    logged: dict[str, dict[str, str]] = {}
    for name, metric in group.items():
        logged[name] = {scalar: scalar for scalar in scalars[name]}
        for scalar in metric.definition.scalars:
            if times[scalar] > 1:
                logged[name][scalar] = f"{name}_{scalar}"
    return logged


def _suffix(number: int, groups: Sequence[Group]) -> str:
    """Return what stands behind the names of a dataloader where there are several."""
    # not Lightning's own `/dataloader_idx_0`: of names logged at the epoch's end its table shows the last for all
    return f"/dataloader_{number}" if len(groups) > 1 else ""


def _check_names(module: lightning.LightningModule, logged: Iterable[tuple[str, str]]) -> None:
    """Raise if two metrics of these prefixes and attributes would be logged under one name."""
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
        for name, scalars in _scalar_names(group).items():
            place = f"`{type(module).__name__}.{attribute}{f'[{number}]' * (len(groups) > 1)}`"
            owner = place if name == attribute else f"{name!r} of {place}"
            classes = group[name].spec.classes if group[name].average is None else 1
            for scalar in scalars.values():
                for end in ("", *(f"_{label}" for label in range(classes) if classes > 1)):
                    yield f"{scalar}{end}{_suffix(number, groups)}", owner


class _Drawing(NamedTuple):
    """One result for the loggers that take figures, with the release that it was read from."""

    name: str
    metric: CountsMetric
    result: Any
    release: Release


def _log_drawing(trainer: lightning.Trainer, drawing: _Drawing) -> None:
    """Hand a drawing to the loggers, on rank zero; warn if that fails.

    An error would end the training for want of a figure, and leave the other ranks waiting.
    """
    try:
        _log_pr_counts(trainer, drawing)
        _log_figure(trainer, drawing)
    except Exception as error:
        warnings.warn(
            f"The figure {drawing.name!r} was not logged: {type(error).__name__}: {error}. The scalars of this "
            "evaluation were.",
            stacklevel=2,
        )


def _log_pr_counts(trainer: lightning.Trainer, drawing: _Drawing) -> None:
    """Log the counts behind a PR curve on TensorBoard's page of these."""
    metric = drawing.metric
    boards = [_board(logger) for logger in trainer.loggers]
    boards = [board for board in boards if hasattr(board, "add_pr_curve_raw")]
    if not boards or not isinstance(drawing.result, PrecisionRecallCurve):
        return
    if metric.average not in (None, "micro"):
        return
    assert isinstance(metric, FederatedMetric)  # as every metric with a PR curve
    source = read(drawing.release, reconstruction=metric.reconstruction)
    if metric.average == "micro":
        source = source.pooled()
    for suffix, rows in _pr_counts(source):
        for board in boards:
            board.add_pr_curve_raw(
                drawing.name + suffix,
                *rows.tolist(),
                trainer.global_step,
                num_thresholds=rows.shape[-1],
            )


def _log_figure(trainer: lightning.Trainer, drawing: _Drawing) -> None:
    """Draw a result, with its band if its metric has a confidence, for the loggers that take figures."""
    loggers = [logger for logger in trainer.loggers if _takes_figures(logger)]
    if not loggers or find_spec("matplotlib") is None:
        return
    import matplotlib.pyplot as plt

    name, metric, result, release = drawing
    step = trainer.global_step
    make_band = metric.definition.band
    if metric.confidence is None or make_band is None:
        fig, ax = result.plot()  # a comparison shows its interval itself
        words = provenance(metric.spec.privacy)
    else:
        fig, ax = result.plot(band=make_band(release, confidence=metric.confidence))
        words = provenance(metric.spec.privacy, metric.confidence)
    caption(ax, words)
    fig.set_dpi(_PIXELS_PER_INCH)
    try:
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.log_image(name, [fig], step)
            elif isinstance(logger, MLFlowLogger):
                logger.experiment.log_figure(logger.run_id, fig, f"{name}/{step:08}.png")
            else:
                _board(logger).add_figure(name, fig, step)
    finally:
        plt.close(fig)


def _takes_figures(logger: Any) -> bool:
    return isinstance(logger, WandbLogger | MLFlowLogger) or hasattr(_board(logger), "add_figure")


def _board(logger: Any) -> Any:
    """Return the client behind a logger, as TensorBoard's SummaryWriter is."""
    return getattr(logger, "experiment", None)


def _pr_counts(source: Histograms) -> Iterator[tuple[str, Tensor]]:
    """For each class what stands behind its name, and TP, FP, TN, FN, precision, recall, as TensorBoard has them.

    It shows them at even thresholds from 0 to 1. Only edges of the grid are, or nothing comes: no count is guessed.
    """
    edges = source.edges
    even = [torch.linspace(0, 1, parts + 1, dtype=edges.dtype) for parts in (64, 32, 16, 8)]
    thresholds = next((some for some in even if bool(torch.isin(some, edges).all())), None)
    if thresholds is None or not are_probabilities(edges):
        return
    matrix = torch.stack(
        [confusion_at(source, at).matrix for at in thresholds.tolist()], -1
    ).double()
    (tn, fp), (fn, tp) = (row.unbind(-2) for row in matrix.unbind(-3))
    precision = torch.where(tp + fp > 0, tp / (tp + fp), 1.0)  # as at the end of a PR curve
    recall = torch.where(tp + fn > 0, tp / (tp + fn), 0.0)
    yield from _by_class(torch.stack([tp, fp, tn, fn, precision, recall], -2), 2)
