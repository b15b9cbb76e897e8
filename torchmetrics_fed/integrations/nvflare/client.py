"""The client's side: a share in the model's meta, or a filter that holds the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import RLock

import nvflare.client as flare
from nvflare.apis.dxo import DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import FederatedMetricError, InputError, ReleaseError
from torchmetrics_fed.exchange.client import Evaluation
from torchmetrics_fed.exchange.node import Node
from torchmetrics_fed.exchange.plans import check_one_query
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.metrics import CountsMetric, evaluation_of, representative, terms_of
from torchmetrics_fed.privacy.store import Store

TOPIC = "torchmetrics_fed"
"""Of the auxiliary requests, in which the server asks the sites."""
META_KEY = "torchmetrics_fed"
"""Where in ``FLModel.meta`` a share travels. Not in ``metrics``, whose values NVFlare averages
by weight."""

HELD = b"held"
"""Instead of a share: the site's :class:`FederatedMetricFilter` holds the data, and answers when
it is asked."""


def attach(
    model: flare.FLModel,
    metric: CountsMetric | MetricCollection,
    round: int | None = None,
    *,
    job: str | None = None,
    site: str | None = None,
) -> flare.FLModel:
    """Put this client's share into the model that it sends, and return the model.

    Nothing else of it is touched.

    Where the job has a :class:`FederatedMetricFilter`, private and secure data stays here: the
    filter takes a copy and answers the server's queries. Without it, keep other numbers about
    private data out of the model: NVFlare sends ``metrics`` and
    ``meta[MetaKey.NUM_STEPS_CURRENT_ROUND]`` as they are. A client without the latter has weight 1.

    Args:
        model: what goes to ``flare.send``.
        metric: call its ``reset`` before the next round.
        round: ``current_round`` of the model that was received; if not given that of ``model``.
        job: the job's id, and ``site`` the site's name; those of the running job if not given.

    Example:
        >>> import torch
        >>> from nvflare.client import FLModel
        >>> from torchmetrics_fed import FederatedAUROC
        >>> metric = FederatedAUROC()
        >>> metric.update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> model = FLModel(params={"w": 1.0}, meta={"mine": 1})
        >>> sorted(attach(model, metric, round=0, job="6f1c").meta)
        ['mine', 'torchmetrics_fed']
    """
    number = model.current_round if round is None else round
    if number is None:
        raise InputError(
            "Expected argument `round` because the model to send has no `current_round`. Pass "
            "`round=received.current_round` of the model that `flare.receive()` returned."
        )
    model.meta = {**(model.meta or {}), META_KEY: payload(metric, number, job=job, site=site)}
    return model


def round_name(job: str, number: int) -> str:
    """Return the name of a round.

    The simulator calls every job the same: where a server asks, it adds to the name.
    """
    return f"{job}/round-{number}"


def payload(
    metric: CountsMetric | MetricCollection,
    round: int,
    *,
    job: str | None = None,
    site: str | None = None,
) -> bytes:
    """Return the share, or HELD where a filter holds the data.

    Exact counts travel as a share. Other data is held if the job has the filter, so that nothing is
    drawn or charged before the server asks. Without it, a private share that the server may see is
    drawn and charged at the first call.
    """
    counting = representative(metric)
    terms = terms_of(counting)
    spec = terms.spec
    name = round_name(flare.get_job_id() if job is None else job, round)
    terms.check_ledger()
    if not spec.privacy.charges and not spec.hides_shares:
        return bytes(counting.share(round=name))
    if filters:  # filter and script are in one process
        filters[flare.get_site_name() if site is None else site].hold(counting, name)
        return HELD
    if spec.hides_shares:
        raise ReleaseError(
            "Expected a FederatedMetricFilter in this process because only secure aggregation may "
            "carry this share, but there is none. Call "
            "`recipe.add_client_output_filter(FederatedMetricFilter(), tasks=['train'])` and leave "
            "`launch_external_process` out, or use `LocalDP`, or `trusted_aggregator=True` if the "
            "server may see it."
        )
    check_one_query(terms.plan)
    return bytes(counting.share(round=name))


class FederatedMetricFilter(Filter):
    """Answers the aggregator's queries about the attached data, each query once.

    Add it with ``recipe.add_client_output_filter(FederatedMetricFilter(), tasks=["train"])``. The
    training script must be in the same process, which is NVFlare's default. Nothing is written to
    disk: a site whose process ends has dropped out. Once private or secure data was attached, steps
    are sent as 1 and other metrics stay behind unless ``publish`` names them.

    Args:
        publish: names of metrics that may leave as they are, although they are made from raw data.

    Example:
        >>> FederatedMetricFilter(publish=["loss"]).publish
        ['loss']
    """

    def __init__(self, publish: Sequence[str] = ()) -> None:
        super().__init__()
        self.publish = list(publish)
        self.site = ""
        self._lock = RLock()
        self._guards = False
        self._node: Node | None = None
        self._round = ""
        self._evaluation: Evaluation | None = None
        """The data, until it is drawn from. Between two queries the node keeps it."""

    def _forget(self) -> None:
        """Forget the data, and give back what was reserved for it and not drawn."""
        with self._lock:
            if self._node is not None:
                self._node.forget(self._round)
            self._evaluation = None
            self._node = None
            self._round = ""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Register for the server's questions while the job runs, and forget all at its end."""
        if event_type == EventType.START_RUN:
            self.site = fl_ctx.get_identity_name()
            self._guards = False
            filters[self.site] = self
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self.reply)
        elif event_type == EventType.END_RUN:
            self._forget()
            filters.pop(self.site, None)

    def hold(self, metric: CountsMetric, round: str) -> None:
        """Take the data of a round, for the queries to come, in place of an earlier round's."""
        with self._lock:
            self._forget()
            evaluation = evaluation_of(metric)
            # the training script goes on with its metric, and counts other data in it
            self._evaluation = replace(evaluation, counts=evaluation.counts.clone())
            self._node = Node(self.site, terms_of(metric), Store(None))
            self._round = round
            self._guards = True

    def answer(self, request: Request) -> bytes:
        """Return the reply to one stage.

        Noise is drawn and charged in ``SHARE`` and ``MASK``, nowhere else.
        """
        with self._lock:
            if self._node is None or not f"{request.round}/".startswith(f"{self._round}/"):
                raise ReleaseError(
                    "Expected a question about data that this site holds, of "
                    f"{self._round or 'no round'}, but got one about {request.round!r}. Every "
                    "query is answered once; the site takes part in the next round."
                )
            reply = self._node.reply(request, self._evaluation)
            self._round = request.round  # this data is for one release
            if request.stage.asks_data:
                self._evaluation = None
            return reply

    def reply(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the reply to one stage.

        An error of ours, which holds nothing of the data, is for both sides' logs.
        """
        reply = make_reply(ReturnCode.OK)
        try:
            reply["answer"] = self.answer(Request.from_fields(request))
        except FederatedMetricError as error:
            reply["error"] = str(error)
            self.log_warning(fl_ctx, f"Not answered to the server: {error}")
        return reply

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the result without numbers that neither noise nor a sum covers."""
        # NVFlare's own word for a failure, without a result
        has_failed = shareable.get_return_code(ReturnCode.OK) != ReturnCode.OK
        if has_failed or not self._guards:
            return shareable
        dxo = from_shareable(shareable)
        metrics = (
            dxo.data
            if dxo.data_kind == DataKind.METRICS
            else dxo.meta.get(MetaKey.INITIAL_METRICS) or {}
        )
        kept_back = [name for name in metrics if name not in self.publish]
        for name in kept_back:
            del metrics[name]
        if kept_back:
            self.log_warning(
                fl_ctx,
                f"Kept back {kept_back}, made from raw data. Name them in `publish` to send them.",
            )
        if MetaKey.NUM_STEPS_CURRENT_ROUND in dxo.meta:
            dxo.meta[MetaKey.NUM_STEPS_CURRENT_ROUND] = 1
        return dxo.update_shareable(shareable)


filters: dict[str, FederatedMetricFilter] = {}
"""By site, those of the jobs in this process: where the training script finds its job's filter."""
