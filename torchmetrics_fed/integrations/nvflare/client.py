"""What a client sends: its share in the meta of its model, or a note that the server may ask for it."""

from __future__ import annotations

import nvflare.client as flare
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import InputError, ReleaseError
from torchmetrics_fed.exchange.queries import check_one_query
from torchmetrics_fed.integrations.nvflare.filter import responders
from torchmetrics_fed.metrics import FederatedMetric, representative

META_KEY = "torchmetrics_fed"
"""Where in ``FLModel.meta`` a share travels. Not in ``metrics``, whose values NVFlare averages by weight."""

HELD = b"held"
"""Instead of a share: the site's :class:`FederatedMetricFilter` holds the data, and answers when it is asked."""


def round_name(job: str, number: int) -> str:
    """Return the name of a round. The simulator calls every job the same: where a server asks, it adds to the name."""
    return f"{job}/round-{number}"


def payload(
    metric: FederatedMetric | MetricCollection, round: int, *, job: str | None = None, site: str | None = None
) -> bytes:
    """Return what goes into ``FLModel.meta[META_KEY]``: the share, or HELD where a filter holds the data.

    Exact counts travel as a share. Other data is held if the job has the filter, so that nothing is drawn or charged
    before the server asks. Without it, a private share that the server may see is drawn and charged at the first call
    for a round. The arguments are those of :func:`attach`.
    """
    one = representative(metric)
    name = round_name(flare.get_job_id() if job is None else job, round)
    one.check_ledger()
    if one.spec.privacy is None and not one.spec.secure:
        return bytes(one.share(round=name))
    if responders:  # filter and script are in one process
        responders[flare.get_site_name() if site is None else site].hold(one, name)
        return HELD
    if one.spec.hides_shares:
        raise ReleaseError(
            "Expected a FederatedMetricFilter in this process because only secure aggregation may carry this share, "
            "but there is none. Call `recipe.add_client_output_filter(FederatedMetricFilter(), tasks=['train'])` and "
            "leave `launch_external_process` out, or use `LocalDP`, or `trusted_aggregator=True` if the server may see "
            "it."
        )
    check_one_query(one.plan)
    return bytes(one.share(round=name))


def attach(
    model: flare.FLModel,
    metric: FederatedMetric | MetricCollection,
    round: int | None = None,
    *,
    job: str | None = None,
    site: str | None = None,
) -> flare.FLModel:
    """Put this client's share into the model that it sends, and return the model. Nothing else of it is touched.

    Where the job has a :class:`FederatedMetricFilter`, private and secure data stays here: the filter takes a copy and
    answers the server's queries. Without it, it is for the caller to keep other numbers about private data out of the
    model: NVFlare sends ``metrics`` and ``meta[MetaKey.NUM_STEPS_CURRENT_ROUND]`` as they are. A client without the
    latter has weight 1.

    Args:
        model: what goes to ``flare.send``.
        metric: a federated metric, or a collection of them; call its ``reset`` before the next round.
        round: ``current_round`` of the model that was received; if not given that of ``model``.
        job: the job's id; that of the running job if not given.
        site: the site's name; that of the running job if not given.

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
    model.meta = {**(model.meta or {}), META_KEY: payload(metric, number, job=job, site=site)}
    return model
