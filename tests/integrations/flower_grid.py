"""A Flower grid in this process: real apps and messages, and a wire to cut and listen to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple
from uuid import uuid4

import pytest
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Wire
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from tests.transports.endpoints import MEMORY, named
from torchmetrics_fed import FederatedMetric, Query, Spec
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.exchange import client as client_module
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.integrations.flower import RECORD, evaluation_mod, state_record
from torchmetrics_fed.integrations.flower.client import EVALUATE, FORGET

__all__ = ["MEMORY", "Client", "Cut", "Draws", "LocalGrid", "Passed", "ask", "stage_of"]

RUN_ID = 2**63 + 11
SERVER = 1


class Cut(NamedTuple):
    """Where the wire to a node is cut: its message does not arrive, or its reply does not."""

    node: int
    stage: str
    when: Literal["before", "after"] = "before"


class Passed(NamedTuple):
    """One message that was on the wire, as it was there."""

    node: int
    stage: str
    reply: bool
    data: bytes

    @property
    def message(self) -> Message:
        """The message, read once more."""
        return message_from_proto(Wire.FromString(self.data))


class LocalGrid(Grid):
    """Delivers messages to apps that are made for each of them, as Flower does with processes.

    Args:
        apps: by node id, what makes the node's app.
    """

    def __init__(self, apps: Mapping[int, Callable[[], ClientApp]]) -> None:
        TaskIdentity.run_id = RUN_ID
        TaskIdentity.node_id = SERVER
        TaskIdentity.task_id = 0
        self.cuts: set[Cut] = set()
        self.gone: set[int] = set()
        """Nodes without a heartbeat, for which the SuperLink answers."""
        self.passed: list[Passed] = []
        self.asked: list[tuple[int, str]] = []
        """Every message that was sent, arrived or not: to which node, at which stage."""
        self._apps = dict(apps)
        self._contexts = {
            node: Context(RUN_ID, node, {"partition-id": node}, RecordDict(), {}) for node in apps
        }
        self._run = Run.create_empty(RUN_ID)
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._apps)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            names.append(message.metadata.message_id)
            self._deliver(message)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def replies(self, stage: str) -> list[Message]:
        """The replies of a stage that were on the wire."""
        return [passed.message for passed in self.passed if passed.reply and passed.stage == stage]

    def refusals(self, stage: str) -> list[str]:
        """What nodes said that refused a stage."""
        return [reply.error.reason or "" for reply in self.replies(stage) if reply.has_error()]

    def _deliver(self, message: Message) -> None:
        node = message.metadata.dst_node_id
        stage = stage_of(message)
        self.asked.append((node, stage))
        if Cut(node, stage) in self.cuts:
            return
        if node in self.gone:
            error = create_message_error_unavailable_res_message(message.metadata, "node_unavail")
            self._replies[message.metadata.message_id] = error
            return
        arrived = self._carry(message, node, stage, False)
        reply = self._carry(self._processed(arrived), node, stage, True)
        if Cut(node, stage, "after") not in self.cuts:
            self._replies[message.metadata.message_id] = reply

    def _processed(self, message: Message) -> Message:
        """What the node replies; an exception becomes an error reply as in Flower."""
        node = message.metadata.dst_node_id
        try:
            return self._apps[node]()(message, self._contexts[node])
        except Exception as error:
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    def _carry(self, message: Message, node: int, stage: str, reply: bool) -> Message:
        data = message_to_proto(message).SerializeToString()
        self.passed.append(Passed(node, stage, reply, data))
        return message_from_proto(Wire.FromString(data))


@dataclass
class Client:
    """A node with data, whose app trains nothing and evaluates a metric."""

    metric: Callable[[], FederatedMetric]
    """Makes the metric, at every message."""
    preds: Tensor
    target: Tensor
    third: Tensor | None = None
    """The groups or persons, if the metric has them; of two models this is the target."""
    _: KW_ONLY
    folder: Path | None = None
    """Where notes are kept. The app has the mod if there is one."""
    publish: tuple[str, ...] = ()
    action: str = "default"
    signing_key: bytes | None = None
    verification_keys: Mapping[str, bytes] | None = None
    outer: list[Mod] = field(default_factory=list)
    """Mods around all others."""
    spoil: Callable[[RecordDict], object] = lambda content: None
    """Changes the reply's content before it leaves the evaluation."""
    evaluations: int = 0
    times: int = 1
    """How often every example is counted."""

    def app(self) -> ClientApp:
        """Return the app, as a new process would make it."""
        app = ClientApp(mods=self.outer)

        @app.train()
        def train(message: Message, context: Context) -> Message:
            arrays = message.content.array_records["arrays"]
            return Message(
                RecordDict({"arrays": arrays, "metrics": self.metrics()}), reply_to=message
            )

        @app.evaluate(self.action, mods=self.mods())
        def evaluate(message: Message, context: Context) -> Message:
            self.evaluations += 1
            metric = self.metric()
            third = () if self.third is None else (self.third,)
            metric.update(**named(metric, (self.preds, self.target, *third)))
            metric.counts *= self.times
            content = RecordDict({"metrics": self.metrics()})
            content[RECORD] = state_record(metric, message)
            self.spoil(content)
            return Message(content, reply_to=message)

        return app

    def mods(self) -> list[Mod]:
        """Return the guard, if notes have a folder."""
        if self.folder is None:
            return []
        keys = {"signing_key": self.signing_key, "verification_keys": self.verification_keys}
        return [evaluation_mod(self.metric(), publish=self.publish, folder=self.folder, **keys)]  # type: ignore[arg-type]

    def metrics(self) -> MetricRecord:
        """Return what Flower's users log."""
        return MetricRecord({"num-examples": len(self.target), "loss": float(self.preds.mean())})


class Draws:
    """Records the cells that are drawn in this process, with noise, in their order."""

    def __enter__(self) -> list[Tensor]:
        drawn: list[Tensor] = []
        original = client_module.noisy_cells

        def recording(spec: Spec, query: Query, counts: Tensor) -> Tensor:
            drawn.append(original(spec, query, counts))
            return drawn[-1]

        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(client_module, "noisy_cells", recording)
        return drawn

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def stage_of(message: Message) -> str:
    """The stage of a message, where a query is answered by how, or its type if it is not ours."""
    record = message.content.config_records.get(RECORD, ConfigRecord())
    if FORGET in record:
        return FORGET
    value = record.get("stage")
    if value not in [stage.value for stage in Stage]:
        return str(message.metadata.message_type)
    stage = Stage.of(value)
    if stage.asks_data:
        return "evaluate" if record.get(EVALUATE) else "answer"
    return str(stage)


def ask(grid: LocalGrid, node: int, request: Request, *, evaluate: bool = True) -> Message:
    """Return a node's reply to a message of a server that need not be honest."""
    record = ConfigRecord({**request.fields, EVALUATE: evaluate})
    content = RecordDict({RECORD: record, "arrays": ArrayRecord()})
    (reply,) = grid.send_and_receive([Message(content, node, MessageType.EVALUATE)])
    return reply
