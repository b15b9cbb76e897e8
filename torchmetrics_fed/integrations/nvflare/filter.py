"""FederatedMetricFilter: the site's part of a release that the server asks for, and the guard of what else leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from nvflare.apis.dxo import DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from torchmetrics_fed.errors import FederatedMetricError
from torchmetrics_fed.exchange.stages import Asked
from torchmetrics_fed.integrations.nvflare.responder import Responder, responders

__all__ = ["TOPIC", "FederatedMetricFilter"]

TOPIC = "torchmetrics_fed"
"""Of the auxiliary requests, in which the server asks the sites."""


class FederatedMetricFilter(Filter):
    """Answers the aggregator's queries about the data that :func:`attach` has left with it.

    Add it with ``recipe.add_client_output_filter(FederatedMetricFilter(), tasks=["train"])``. The training script must
    be in the same process: ``launch_external_process=False``, which is NVFlare's default. Of results that leave the
    site after private or secure data was attached, the steps are sent as 1 and other metrics stay behind unless
    ``publish`` names them.

    Args:
        publish: names of metrics that may leave as they are, although they are made from raw data.

    Example:
        >>> from torchmetrics_fed.integrations.nvflare import FederatedMetricFilter
        >>> FederatedMetricFilter(publish=["loss"]).publish
        ['loss']
    """

    def __init__(self, publish: Sequence[str] = ()) -> None:
        super().__init__()
        self.publish = list(publish)
        self._responder: Responder | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Be there for the server's questions as long as the job runs, and forget everything at its end."""
        if event_type == EventType.START_RUN:
            site = fl_ctx.get_identity_name()
            self._responder = responders[site] = Responder(site)
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self.answer)
        elif event_type == EventType.END_RUN and self._responder is not None:
            self._responder.forget()
            responders.pop(self._responder.site, None)

    def answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the reply to one stage. An error of ours, which holds nothing of the data, is for the server's log."""
        assert self._responder is not None
        reply = make_reply(ReturnCode.OK)
        try:
            reply["answer"] = self._responder.answer(Asked(*(request.get(field.name) for field in fields(Asked))))
        except FederatedMetricError as error:
            reply["error"] = str(error)
        return reply

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the result without numbers that neither noise nor a sum covers."""
        if self._responder is None or not self._responder.guards:
            return shareable
        dxo = from_shareable(shareable)
        metrics = dxo.data if dxo.data_kind == DataKind.METRICS else dxo.meta.get(MetaKey.INITIAL_METRICS) or {}
        kept_back = [name for name in metrics if name not in self.publish]
        for name in kept_back:
            del metrics[name]
        if kept_back:
            self.log_warning(fl_ctx, f"Kept back {kept_back}, made from raw data. Name them in `publish` to send them.")
        if MetaKey.NUM_STEPS_CURRENT_ROUND in dxo.meta:
            dxo.meta[MetaKey.NUM_STEPS_CURRENT_ROUND] = 1
        return dxo.update_shareable(shareable)
