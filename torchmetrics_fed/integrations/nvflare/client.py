"""What a client sends: its share, in the meta of its model."""

from __future__ import annotations

import nvflare.client as flare
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import InputError, ReleaseError
from torchmetrics_fed.exchange.queries import check_one_query
from torchmetrics_fed.metrics import FederatedMetric, representative
from torchmetrics_fed.privacy import CentralDP
from torchmetrics_fed.release.spec import Spec

__all__ = ["META_KEY", "attach", "check_visible", "payload", "round_name"]

META_KEY = "torchmetrics_fed"
"""Where in ``FLModel.meta`` a share travels. Not in ``metrics``, whose values NVFlare averages by weight."""


def check_visible(spec: Spec) -> None:
    """Raise for a spec without shares that the server may see: NVFlare shows it each of them."""
    if isinstance(spec.privacy, CentralDP):
        raise ReleaseError(
            "Expected shares with noise of their own but got CentralDP, whose noise one trusted party adds to the sum. "
            "Use `LocalDP`, or `DistributedDP(..., trusted_aggregator=True)`."
        )
    if spec.hides_shares:
        asked = "secure=True" if spec.secure else f"{type(spec.privacy).__name__} without `trusted_aggregator=True`"
        raise ReleaseError(
            f"Expected shares that the server may see because NVFlare hands it each client's payload, but got {asked}. "
            "Use `DistributedDP(..., trusted_aggregator=True)` if the server is trusted with single shares, `LocalDP`, "
            "or secure aggregation, as the Flower integration does."
        )


def round_name(job: str, number: int) -> str:
    """Return the name of a round, which no other round of any job has."""
    return f"{job}/round-{number}"


def payload(metric: FederatedMetric | MetricCollection, round: int, *, job: str | None = None) -> bytes:
    """Return the bytes of this client's share, for ``FLModel.meta[META_KEY]``.

    Under privacy the noise is drawn and charged when this is first called for a round, and nothing else about the data
    is in the bytes, their length included. A private metric needs a ledger with a budget and a path.

    Args:
        metric: a federated metric, or a collection of them that shares one release.
        round: the number of the round: ``current_round`` of the model that was received.
        job: the job's id; that of the running job if not given.
    """
    one = representative(metric)
    check_visible(one.spec)
    name = round_name(flare.get_job_id() if job is None else job, round)
    one.check_ledger()
    check_one_query(one.plan)
    return bytes(one.share(round=name))


def attach(
    model: flare.FLModel,
    metric: FederatedMetric | MetricCollection,
    round: int | None = None,
    *,
    job: str | None = None,
) -> flare.FLModel:
    """Put this client's share into the model that it sends, and return the model. Nothing else of it is touched.

    Under privacy it is for the caller to keep other numbers about the data out of the model: NVFlare sends ``metrics``
    and ``meta[MetaKey.NUM_STEPS_CURRENT_ROUND]`` as they are. A client without the latter has weight 1.

    Args:
        model: what goes to ``flare.send``.
        metric: a federated metric, or a collection of them; call its ``reset`` before the next round.
        round: ``current_round`` of the model that was received; if not given that of ``model``.
        job: the job's id; that of the running job if not given.

    Example:
        >>> import torch
        >>> from nvflare.client import FLModel
        >>> from torchmetrics_fed import FederatedAUROC
        >>> from torchmetrics_fed.integrations.nvflare import attach
        >>> metric = FederatedAUROC()
        >>> metric.update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> model = FLModel(params={"w": torch.zeros(1)}, meta={"mine": 1})
        >>> sorted(attach(model, metric, round=0, job="6f1c").meta)
        ['mine', 'torchmetrics_fed']
    """
    number = model.current_round if round is None else round
    if number is None:
        raise InputError(
            "Expected argument `round` because the model to send has no `current_round`. Pass `round=received."
            "current_round` of the model that `flare.receive()` returned."
        )
    model.meta = {**(model.meta or {}), META_KEY: payload(metric, number, job=job)}
    return model
