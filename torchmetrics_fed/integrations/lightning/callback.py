"""FederatedEvaluation: a Lightning callback that releases once per validation or test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import MLFlowLogger, WandbLogger
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional import PrecisionRecallCurve, Source, confusion_at, read
from torchmetrics_fed.functional.figures.page import caption, provenance
from torchmetrics_fed.functional.source import are_probabilities
from torchmetrics_fed.integrations.lightning.loaders import Group, check_data, held_metrics
from torchmetrics_fed.metrics import FederatedMetric
from torchmetrics_fed.release import Release


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
        each_example_once: your word that no example comes twice in one evaluation, where that cannot be seen: private
            metrics refuse samplers, loaders and iterable datasets that they do not know without it.

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
        each_example_once: bool = False,
    ) -> None:
        self.attribute, self.prefix, self.test_prefix = attribute, prefix, test_prefix
        self.figures, self.federated, self.each_example_once = figures, federated, each_example_once
        self.curves: dict[str, Any] = {}
        """The curves of the last evaluation, by metric name."""

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Refuse what validation would refuse, before the first training step."""
        if trainer.enable_validation:
            self._check(trainer, pl_module)

    def on_validation_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Refuse names that collide and data that is mixed or repeated; begin without earlier data."""
        self._check(trainer, pl_module)
        self._reset(trainer, pl_module)

    def on_validation_epoch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
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
            end, names = _suffix(number, groups), _scalar_names(group)
            for name, metric in group.items():
                self.curves[name + end] = result = metric.compute()
                # a number, or a result that knows its scalars and its figure
                scalars = {name: result} if isinstance(result, Tensor) else result.scalars
                for scalar, value in scalars.items():
                    for of_class, one in _by_class(value):
                        key = (
                            f"{prefix}{names[name].get(scalar, f'{name}_{scalar}')}{of_class}{end}"
                        )
                        # every rank has the same release, hence the same number: nothing is left to average
                        pl_module.log(key, one.float(), rank_zero_only=True, sync_dist=False)
                if self.figures and trainer.loggers and not isinstance(result, Tensor):
                    release = (
                        metric.release()
                    )  # on all ranks together; a private one is there already
                    if trainer.is_global_zero:
                        _log_curve(trainer, f"{prefix}{name}{end}", metric, result, release)

    def on_validation_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Reset, when every callback has read the release; a federated client's data stays for its share."""
        if not self.federated or trainer.sanity_checking:
            self._reset(trainer, pl_module)

    on_test_start = on_validation_start
    on_test_epoch_end = on_validation_epoch_end
    on_test_end = on_validation_end

    def _prefix(self, trainer: lightning.Trainer) -> str | None:
        return self.test_prefix if trainer.testing else self.prefix

    def _reset(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        for group in (
            held_metrics(module, self.attribute) if self._prefix(trainer) is not None else ()
        ):
            for metric in group.values():
                metric.reset()

    def _check(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Raise for what would give a wrong number, before anything is counted."""
        if self._prefix(trainer) is None:
            return
        place = f"`{type(module).__name__}.{self.attribute}`"
        callbacks: list[Any] = list(trainer.callbacks)  # type: ignore[attr-defined, unused-ignore]
        others = [
            one
            for one in callbacks
            if isinstance(one, FederatedEvaluation) and one._prefix(trainer) is not None
        ]
        if any(
            one.attribute == self.attribute and one.federated != self.federated for one in others
        ):
            raise InputError(
                f"Expected one use of {place} but got a callback with `federated=True` and one without, which would "
                "reset what the share is made of. Keep a metric for each."
            )
        _check_names(
            module,
            [(one._prefix(trainer) or "", one.attribute) for one in others if not one.federated],
        )
        check_data(trainer, place, held_metrics(module, self.attribute), self.each_example_once)


def _by_class(value: Tensor, ndim: int = 0) -> list[tuple[str, Tensor]]:
    """What has this many dimensions with nothing behind its name, or one per class, numbered."""
    return (
        [("", value)]
        if value.ndim == ndim
        else [(f"_{number}", one) for number, one in enumerate(value)]
    )


def _scalar_names(group: Group) -> dict[str, dict[str, str]]:
    """Return each metric's scalars' names: a number's is its metric's, a curve's its own, behind that if not unique."""
    own = {name: metric.scalar_names or (name,) for name, metric in group.items()}
    times = Counter(scalar for scalars in own.values() for scalar in scalars)
    return {
        name: {
            one: f"{name}_{one}" if times[one] > 1 and group[name].scalar_names else one
            for one in scalars
        }
        for name, scalars in own.items()
    }


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


def _log_curve(
    trainer: lightning.Trainer, name: str, metric: FederatedMetric, result: Any, release: Release
) -> None:
    """Hand what a release says to the loggers, on rank zero: a figure, and of a PR curve the counts behind it."""
    loggers, step = trainer.loggers, trainer.global_step
    boards: list[Any] = [getattr(logger, "experiment", None) for logger in loggers]
    if isinstance(result, PrecisionRecallCurve) and metric.average in (None, "micro"):
        source = read(release, reconstruction=metric.reconstruction)
        for end, rows in _pr_counts(source.pooled() if metric.average == "micro" else source):
            for board in (board for board in boards if hasattr(board, "add_pr_curve_raw")):
                board.add_pr_curve_raw(
                    name + end, *rows.tolist(), step, num_thresholds=rows.shape[-1]
                )
    if find_spec("matplotlib") is None:
        return
    import matplotlib.pyplot as plt

    sure = metric.confidence
    fig, ax = result.plot(
        **({} if sure is None else {"band": metric.bands_of(release, sure, metric.population)})
    )
    caption(ax, provenance(metric.spec.privacy, sure))
    fig.set_dpi(200)  # loggers show pixels
    for logger, board in zip(loggers, boards, strict=True):
        if isinstance(logger, WandbLogger):
            logger.log_image(name, [fig], step)
        elif isinstance(logger, MLFlowLogger):
            board.log_figure(logger.run_id, fig, f"{name}/{step:08}.png")
        elif hasattr(board, "add_figure"):
            board.add_figure(name, fig, step)
    plt.close(fig)


def _pr_counts(source: Source) -> Iterator[tuple[str, Tensor]]:
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
