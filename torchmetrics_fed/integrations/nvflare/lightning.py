"""FlareEvaluation: a Lightning callback for clients under ``flare.patch``.

Extras ``nvflare`` and ``lightning``.
"""

from __future__ import annotations

from typing import Any

import lightning
from lightning.pytorch.trainer.states import TrainerFn
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_opt.lightning.api import FL_META_KEY, FLCallback
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.integrations.lightning.loaders import check_data, held_metrics
from torchmetrics_fed.integrations.nvflare.client import META_KEY, payload
from torchmetrics_fed.metrics import CountsMetric, representative

__all__ = ["FlareEvaluation"]


class FlareEvaluation(lightning.Callback):
    """Sends the share of the received model's scores with the model that is trained next.

    The module keeps a federated metric (or a collection) as an attribute and updates it in its
    ``validation_step``. ``trainer.validate`` before ``trainer.fit`` evaluates the model that was
    received: its share is made then. Metrics of validation inside ``fit`` are reset without a
    release because the model there is this client's alone.

    With private or secure data, the steps of the round are sent as 1 unless the module's
    ``__fl_meta__`` says otherwise. What ``validation_step`` logs is sent as it is unless the job
    has a :class:`~torchmetrics_fed.integrations.nvflare.FederatedMetricFilter`.

    Args:
        attribute: the module's attribute that holds the metric or the collection.

    Example:
        >>> FlareEvaluation("metrics").attribute
        'metrics'
    """

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def on_validation_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Where a share is made of the data, refuse a mixture and samplers that repeat.

        Begin without earlier data.
        """
        metric = self._metric(pl_module)
        if _is_received(trainer):
            place = f"`{type(pl_module).__name__}.{self.attribute}`"
            check_data(trainer, place, held_metrics(pl_module, self.attribute))
        metric.reset()

    def on_validation_epoch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Make the share, once for the model that was received, and reset."""
        metric = self._metric(pl_module)
        if _is_received(trainer):
            meta = dict(getattr(pl_module, FL_META_KEY, {}))
            meta[META_KEY] = payload(metric, _round(trainer))
            spec = representative(metric).spec
            if spec.privacy.charges or spec.hides_shares:
                meta.setdefault(FLMetaKey.NUM_STEPS_CURRENT_ROUND, 1)
            setattr(pl_module, FL_META_KEY, meta)
        metric.reset()

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Forget the share, which was sent when training ended."""
        getattr(pl_module, FL_META_KEY, {}).pop(META_KEY, None)

    def _metric(self, module: lightning.LightningModule) -> CountsMetric | MetricCollection:
        metric = getattr(module, self.attribute, None)
        if not isinstance(metric, CountsMetric | MetricCollection):
            raise InputError(
                f"Expected `{type(module).__name__}.{self.attribute}` to be a federated metric or "
                f"a collection of them but got {type(metric).__name__}."
            )
        return metric


def _is_received(trainer: lightning.Trainer) -> bool:
    """Whether the model that was received is evaluated."""
    # by value: nvflare patches trainers of `lightning` and of `pytorch_lightning`, whose enums
    # differ
    return trainer.state.fn is not None and trainer.state.fn.value == TrainerFn.VALIDATING.value


def _round(trainer: lightning.Trainer) -> int:
    """The number of the round whose model the patched trainer has received."""
    callbacks: list[Any] = list(trainer.callbacks)  # type: ignore[attr-defined, unused-ignore]
    rounds = [callback.current_round for callback in callbacks if isinstance(callback, FLCallback)]
    if not rounds or rounds[0] is None:
        raise InputError(
            "Expected a Trainer that was patched and has received a model but got none. Call "
            "`flare.patch(trainer)`, and `trainer.validate` before `trainer.fit` in every round."
        )
    return int(rounds[0])
