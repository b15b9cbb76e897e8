"""NVFlare's server and sites in this process: real messages, and a wire to cut and listen to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLMetaKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs
from nvflare.private.aux_runner import AuxRunner
from torch import Tensor

from tests.transports.endpoints import named
from torchmetrics_fed import FederatedMetric, SecureAggregationConfig
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.integrations.nvflare import (
    FederatedMetricAggregator,
    FederatedMetricFilter,
    attach,
)
from torchmetrics_fed.integrations.nvflare.client import TOPIC, filters

__all__ = ["JOB", "Cut", "Federation", "Site"]

JOB = "simulate_job"


class Cut(NamedTuple):
    """Where the wire to a site is cut: a request does not arrive, or its reply does not."""

    site: str
    stage: str
    query: int = 1
    when: Literal["before", "after"] = "before"


class Site:
    """A site with data and the filter: what its job's process does.

    Args:
        name: its name.
        metric: its metric.
        preds: its scores.
        target: its targets.
        third: groups or persons, if the metric has them; of two models this is the target.
        times: how often every example is counted.
        publish: the filter's argument.
    """

    def __init__(
        self,
        name: str,
        metric: FederatedMetric,
        preds: Tensor,
        target: Tensor,
        third: Tensor | None = None,
        *,
        times: int = 1,
        publish: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.metric = metric
        self.times = times
        self.preds = preds
        self.target = target
        self.third = third
        self.runner = AuxRunner(self)
        self.filter = FederatedMetricFilter(publish)
        self.filter.handle_event(EventType.START_RUN, self.context())

    def context(self) -> FLContext:
        """Return what NVFlare hands to components."""
        context = FLContext()
        context.set_prop(ReservedKey.ENGINE, self, private=True, sticky=False)
        context.set_prop(ReservedKey.IDENTITY_NAME, self.name, private=False, sticky=False)
        return context

    def register_aux_message_handler(self, topic: str, message_handle_func: Any) -> None:
        """Do as a site's engine does."""
        self.runner.register_aux_message_handler(topic, message_handle_func)

    def fire_event(self, event: str, context: FLContext) -> None:
        """Take what the filter tells NVFlare's other components."""

    def evaluate(self) -> None:
        """Count the site's data."""
        third = () if self.third is None else (self.third,)
        self.metric.update(**named(self.metric, (self.preds, self.target, *third)))
        self.metric.counts *= self.times

    def result(self, round: int) -> Shareable:
        """Return what leaves the site after a round: attached, filtered, reset."""
        model = FLModel(
            params={"w": 1.0},
            metrics={"loss": float(self.preds.sum()), "accuracy": 0.5},
            meta={FLMetaKey.NUM_STEPS_CURRENT_ROUND: len(self.target)},
        )
        attach(model, self.metric, round, job=JOB, site=self.name)
        self.metric.reset()
        result: Shareable = self.filter.process(FLModelUtils.to_shareable(model), self.context())
        return result

    def end(self) -> None:
        """End the job here."""
        self.filter.handle_event(EventType.END_RUN, self.context())
        assert self.name not in filters


class Federation:
    """The server's engine, its aggregator, and the sites that it reaches.

    Args:
        sites: those that take part.
        folder: for the releases.
        options: of the aggregator.
    """

    def __init__(self, sites: list[Site], folder: Path, **options: Any) -> None:
        self.sites = {site.name: site for site in sites}
        self.cuts: set[Cut] = set()
        self.sent: list[tuple[str, str, bytes]] = []
        """Site, stage and bytes of all that left one."""
        self.asked: list[tuple[str, Request]] = []
        self.aggregator = FederatedMetricAggregator(
            folder=str(folder), stage_timeout=1.0, **options
        )
        self.aggregator.fl_ctx = FLContext()
        for key, value in ((ReservedKey.ENGINE, self), (ReservedKey.RUN_NUM, JOB)):
            self.aggregator.fl_ctx.set_prop(key, value, private=True, sticky=False)

    def round(self, number: int = 0) -> FLModel:
        """Return what the aggregator makes of a round."""
        self.aggregator.fl_ctx.set_prop(
            AppConstants.CURRENT_ROUND, number, private=True, sticky=False
        )
        self.aggregator.reset_stats()
        for name, site in self.sites.items():
            site.evaluate()
            data = fobs.dumps(site.result(number))
            self.sent.append((name, "model", data))
            model = FLModelUtils.from_shareable(fobs.loads(data))
            model.meta["client_name"] = name  # as NVFlare's controller does, which knows the sender
            self.aggregator.accept_model(model)
        return self.aggregator.aggregate_model()

    def send_aux_request(
        self,
        targets: list[str],
        topic: str,
        request: Shareable,
        timeout: float,
        fl_ctx: FLContext,
        **_: Any,
    ) -> dict[str, Shareable]:
        """Deliver a request as the server's engine does."""
        (name,) = targets
        question = Request.from_fields(request)
        self.asked.append((name, question))
        query = 1
        if question.start:
            query = int(SecureAggregationConfig.from_bytes(question.start).round_id[-1])
        if Cut(name, str(question.stage), query) in self.cuts:
            return {name: make_reply(ReturnCode.TIMEOUT)}
        data = fobs.dumps(self.ask(name, question))
        self.sent.append((name, str(question.stage), data))
        if Cut(name, str(question.stage), query, "after") in self.cuts:
            return {name: make_reply(ReturnCode.TIMEOUT)}
        return {name: fobs.loads(data)}

    def ask(self, name: str, request: Request) -> Shareable:
        """Return a site's reply to a server that need not be honest."""
        shareable = Shareable()
        shareable.update(request.fields)
        shareable.set_peer_props({"server": "here"})
        site = self.sites[name]
        reply: Shareable = site.runner.dispatch(
            TOPIC, fobs.loads(fobs.dumps(shareable)), site.context()
        )
        return reply

    def fire_event(self, event: str, context: FLContext) -> None:
        """Take what the aggregator tells NVFlare's other components."""

    def get_workspace(self) -> Any:
        """Return the server's workspace; releases go to an absolute folder."""
        return SimpleNamespace(get_run_dir=lambda job: "unused")
