"""Whether the budget of a module's metrics lasts for a training, before it begins."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import lightning

from torchmetrics_fed.integrations.lightning.loaders import Group
from torchmetrics_fed.metrics import CountsMetric, one_per_release, terms_of


def planned_evaluations(trainer: lightning.Trainer) -> int | None:
    """Return how many validations a fit will make from now on; None if that is open.

    Early stopping may end a fit before.
    """
    batches = trainer.num_training_batches
    if not isinstance(batches, int) or batches == 0:
        return None
    epochs = math.inf
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        epochs = trainer.max_epochs - trainer.current_epoch
    if trainer.max_steps >= 0:
        steps = (trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches
        epochs = min(epochs, steps / batches)
    interval = trainer.val_check_batch
    if not math.isfinite(epochs) or not isinstance(interval, int):
        return None
    epochs_apart = trainer.check_val_every_n_epoch
    if epochs_apart is None:  # the interval counts batches over all epochs
        return int(epochs * batches / interval)
    return int(epochs * (batches // interval) / epochs_apart)


def check_spending(trainer: lightning.Trainer, place: str, groups: Sequence[Group]) -> None:
    """Raise if no evaluation can be paid for; warn if the budget ends before the training does.

    Args:
        trainer: the trainer, at the start of a fit.
        place: what warnings call the metrics.
        groups: the metrics of each dataloader.
    """
    metrics = one_per_release(metric for group in groups for metric in group.values())
    by_ledger: dict[int, list[CountsMetric]] = {}
    for metric in metrics:
        if metric.spec.privacy.charges:
            by_ledger.setdefault(id(terms_of(metric).ledger), []).append(metric)
    evaluations = planned_evaluations(trainer)
    for private in by_ledger.values():
        terms = terms_of(private[0])
        releases = None
        if evaluations is not None:
            releases = evaluations * len(private)
        remark = terms.check_run(releases, clients=trainer.world_size)
        if remark:
            warnings.warn(f"{place}: {remark}", stacklevel=2)
        ledger = terms.ledger
        if ledger.budget is not None and ledger.path is None and _can_resume(trainer):
            warnings.warn(
                f"{place}: the budget is kept in the memory of this process and does not survive "
                "it: a resumed run would begin at 0. Pass `PrivacyLedger(budget=..., path=...)`.",
                stacklevel=2,
            )


def _can_resume(trainer: lightning.Trainer) -> bool:
    """Return whether a run leaves a checkpoint, or began with one."""
    return bool(trainer.checkpoint_callbacks) or trainer.ckpt_path is not None
