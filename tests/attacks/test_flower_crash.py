"""Threat 15, in Flower: every message may find a new process of the node, and none may answer
what another answered."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from tests.aggregation.secure.federation import request_of
from tests.integrations.flower_grid import RUN_ID, Client, Draws, LocalGrid, ask, stage_of
from torchmetrics_fed import (
    Coordinator,
    DistributedDP,
    FederatedROC,
    PrivacyLedger,
    Query,
    SecureAggregationServer,
)
from torchmetrics_fed.aggregation.secure import SecureAggregationClient, SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.states import ClientState
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange import client as client_module
from torchmetrics_fed.exchange.node import _Note
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.integrations.flower import RECORD
from torchmetrics_fed.privacy.store import NOTE_SECONDS
from torchmetrics_fed.release import rice

NODES = [11, 12, 13, 14]
VICTIM = NODES[0]
ROUND = "a round"
HIDDEN = DistributedDP(epsilon=1.0, min_clients=3)
VISIBLE = DistributedDP(epsilon=1.0, min_clients=3, trusted_aggregator=True)


READ_NOTES = """
import sqlite3, sys
from contextlib import closing
with closing(sqlite3.connect(sys.argv[1])) as tables:
    for round, content in tables.execute("SELECT round, content FROM notes"):
        print(round.encode().hex(), content.hex() or "-")
"""


class Federation:
    """A server that goes through the stages by hand, and nodes that keep notes below a folder.

    The default metric has so few bins that a release takes one query; with 64 quantiles it takes
    two.
    """

    def __init__(self, folder: Path, quantiles: int = 16, **options: Any) -> None:
        self.folder = folder
        self.options: dict[str, Any] = {"quantiles": quantiles, "privacy": HIDDEN, **options}
        self.clients = {node: self.client(node) for node in NODES}
        self.grid = LocalGrid({node: client.app for node, client in self.clients.items()})
        self.open(ROUND)

    def client(self, node: int) -> Client:
        generator = torch.Generator().manual_seed(node)
        preds = torch.rand(2000, generator=generator)
        target = torch.randint(0, 2, (2000,), generator=generator)

        def metric() -> FederatedROC:
            return FederatedROC(
                ledger=PrivacyLedger(10.0, self.folder / f"ledger {node}"), **self.options
            )

        return Client(metric, preds, target, folder=self.folder / "notes")

    def open(self, round: str) -> Federation:
        """Begin a round."""
        self.coordinator = Coordinator(self.clients[VICTIM].metric(), round=round)
        return self.aggregate()

    def aggregate(self, query: Query | None = None) -> Federation:
        """Begin the aggregation of the answers to a query; to the coordinator's if not given."""
        self.query = query or self.coordinator.query
        spec = self.coordinator.spec
        self.boxes: dict[str, bytes] = {}
        if spec.hides_shares:
            assert self.query is not None
            name = self.coordinator.config.round_id
            self.server = SecureAggregationServer(
                SecureAggregationConfig.for_query(spec, self.query, name)
            )
        return self

    @property
    def hides(self) -> bool:
        return self.coordinator.spec.hides_shares

    def stage(self, name: str) -> Stage:
        """Return the stage of a message; nodes draw in the stage of the setting."""
        if name not in ("evaluate", "answer"):
            return Stage[name.upper()]
        if self.hides:
            return Stage.MASK
        return Stage.SHARE

    def ask(self, stage: str, node: int, message: bytes = b"", round: str | None = None) -> Message:
        assert self.query is not None
        start = b""
        if self.hides:
            start = self.server.start()
        request = Request(
            stage=self.stage(stage),
            round=round or self.coordinator.round,
            query=bytes(self.query),
            message=message,
            start=start,
        )
        return ask(self.grid, node, request, evaluate=stage == "evaluate")

    def go(self, stage: str, messages: dict[int, bytes]) -> None:
        for node, message in messages.items():
            answer = self.ask(stage, node, message).content.config_records[RECORD]["answer"]
            assert isinstance(answer, bytes)
            self.server.receive(str(node), answer)

    def exchange_keys(self) -> Federation:
        self.go("advertise", dict.fromkeys(NODES, b""))
        self.go("share_keys", dict.fromkeys(NODES, self.server.keys()))
        self.boxes = self.server.ciphertexts()
        return self

    def evaluate(self, nodes: list[int] = NODES) -> Federation:
        self.go("evaluate", {node: self.boxes[str(node)] for node in nodes})
        return self

    def unmask(self, nodes: list[int] = NODES) -> tuple[Tensor, list[int]]:
        """Return the sum, and who is in it."""
        self.go("unmask", dict.fromkeys(nodes, self.server.request()))
        total, names = self.server.sum()
        return torch.from_numpy(total), sorted(map(int, names))

    def keys(self) -> Federation:
        """Exchange keys where shares are hidden."""
        if self.hides:
            self.exchange_keys()
        return self

    def answer(self, stage: Literal["evaluate", "answer"], node: int = VICTIM) -> Message:
        """Return a node's answer to the query, after keys were exchanged."""
        return self.ask(stage, node, self.boxes.get(str(node), b""))

    def first_query(self) -> Federation:
        """Let all answer the first query of a release that has a second, which is then open."""
        self.keys()
        for node in NODES:
            answer = self.answer("evaluate", node).content.config_records[RECORD]["answer"]
            assert isinstance(answer, bytes)
            if self.hides:
                self.server.receive(str(node), answer)
            else:
                self.coordinator.receive(str(node), answer)
        if self.hides:
            self.unmask()
            self.coordinator.accept(self.server)
        self.coordinator.advance()
        return self.aggregate()

    def request(self, *survivors: int) -> bytes:
        """What a server sends that has decided on these survivors."""
        roster = self.server._roster
        indices = tuple(sorted(roster.indices[str(node)] for node in survivors))
        return request_of(roster, roster.cohort_hash(self.server._cohort), indices)

    @property
    def home(self) -> Path:
        """The victim's own folder."""
        return self.folder / "notes" / str(VICTIM)

    @property
    def notes(self) -> dict[str, bytes]:
        """The victim's notes of aggregations by name, as another process finds them on disk now."""
        command = [sys.executable, "-c", READ_NOTES, str(self.home / "notes")]
        lines = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()
        rows = (line.split() for line in lines)
        return {
            bytes.fromhex(name).decode(): bytes.fromhex(content.strip("-"))
            for name, content in rows
        }

    @property
    def note(self) -> bytes:
        """What the victim has kept of the round."""
        return self.notes[self.coordinator.round]

    @property
    def state(self) -> ClientState | None:
        """How far the victim has come, by its notes; None if they hold nothing to go on from."""
        content = self.note
        if not content:
            return None
        aggregation = _Note.from_bytes(content).aggregation
        return SecureAggregationClient.from_bytes(aggregation, self.server.config).state

    def back_up(self) -> None:
        shutil.copytree(self.home, self.folder / "backup")

    def restore(self) -> None:
        shutil.rmtree(self.home)
        shutil.copytree(self.folder / "backup", self.home)

    @property
    def entries(self) -> int:
        return len(PrivacyLedger(path=self.folder / f"ledger {VICTIM}"))

    @property
    def counts(self) -> Tensor:
        """The raw counts of the victim's data, as int64."""
        client = self.clients[VICTIM]
        metric = FederatedROC(quantiles=self.options["quantiles"])
        metric.update(client.preds, client.target)
        return metric.counts.long()

    def traces(self, counts: Tensor) -> float:
        """How much of some raw counts can be read in the files of the federation: a fraction of
        their bytes."""
        _, packed = rice.pack(counts.reshape(-1).numpy())
        pieces = [packed[start : start + 16] for start in range(len(packed) - 15)]
        files = [path.read_bytes() for path in self.folder.rglob("*") if path.is_file()]
        return sum(any(piece in data for data in files) for piece in pieces) / len(pieces)


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where that is possible because every note is synced."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as path:
        yield Path(path)


@pytest.fixture
def federation(folder: Path) -> Federation:
    return Federation(folder)


@pytest.fixture
def exact(folder: Path) -> Federation:
    return Federation(folder, privacy=None, secure=True)


@pytest.fixture(params=["private", "exact"])
def either(request: pytest.FixtureRequest, folder: Path) -> Federation:
    if request.param == "private":
        return Federation(folder)
    return Federation(folder, privacy=None, secure=True)


@pytest.fixture(params=[HIDDEN, VISIBLE], ids=["hidden", "visible"])
def asked_twice(request: pytest.FixtureRequest, folder: Path) -> Federation:
    """Releases of two queries, through secure aggregation or not."""
    return Federation(folder, quantiles=64, privacy=request.param)


@pytest.fixture
def drawn() -> Iterator[list[Tensor]]:
    """The cells that were drawn, in their order."""
    with Draws() as cells:
        yield cells


def refused(reply: Message, because: str, kind: str = "Error") -> bool:
    return (
        reply.has_error() and kind in str(reply.error.reason) and because in str(reply.error.reason)
    )


def masked(reply: Message, cells: int) -> Tensor:
    """The masked vector in a reply, as int64 modulo 2^64."""
    answer = reply.content.config_records[RECORD]["answer"]
    assert isinstance(answer, bytes)
    return torch.frombuffer(bytearray(answer[-8 * cells :]), dtype=torch.int64)


def crash_after(stage: str) -> Callable[[Message, Context, ClientAppCallable], Message]:
    """A mod around ours whose process dies at a stage, once the answer is made."""

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        if stage_of(message) == stage:
            raise RuntimeError("crash")
        return reply

    return mod


def kill(*_: object) -> None:
    """End this process as a power cut does: no handler, no ``finally``."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed(call: Callable[[], object]) -> None:
    """Make a call in another process, which must be killed in the middle of it."""
    with warnings.catch_warnings():
        # of forks beside threads; the child uses none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            call()
        finally:
            os._exit(1)
    deadline = time.monotonic() + 60
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.WIFSIGNALED(status)
            assert os.WTERMSIG(status) == signal.SIGKILL
            return
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
            raise AssertionError("the process neither ended nor was killed")
        time.sleep(0.01)


# --- an answer that was made is never made again


def test_who_crashed_with_a_masked_share_does_not_mask_another(
    federation: Federation, drawn: list[Tensor]
) -> None:
    federation.exchange_keys()
    client = federation.clients[VICTIM]
    client.outer = [crash_after("evaluate")]
    assert "crash" in str(federation.answer("evaluate").error.reason)
    assert federation.state is ClientState.MASKED
    client.outer = []
    assert refused(federation.answer("evaluate"), "each stage is gone through once")
    assert federation.entries == 1  # and it did not pay again
    federation.evaluate(NODES[1:])
    total, names = federation.unmask(NODES[1:])
    assert names == NODES[1:]
    assert len(drawn) == len(NODES)
    assert total.tolist() == torch.stack(drawn[1:]).sum(0).reshape(-1).tolist()


def test_who_has_sent_a_masked_share_sends_no_other(
    either: Federation, drawn: list[Tensor]
) -> None:
    either.exchange_keys().evaluate()
    before = len(drawn)
    assert refused(either.answer("evaluate"), "each stage is gone through once")
    private = either.options["privacy"] is not None
    assert (either.entries, before, len(drawn)) == (private, len(NODES) * private, before)


def test_a_repeated_message_neither_evaluates_nor_drops_the_node(either: Federation) -> None:
    either.exchange_keys().evaluate()
    assert either.answer("evaluate").has_error()
    assert either.clients[VICTIM].evaluations == 1
    assert either.state is ClientState.MASKED
    assert either.unmask()[1] == NODES


def test_a_restored_backup_of_a_private_node_masks_nothing_more(
    federation: Federation, drawn: list[Tensor]
) -> None:
    """The notes know nothing of the first answer, but the ledger does."""
    federation.exchange_keys().back_up()
    assert federation.answer("evaluate").has_content()
    federation.restore()
    assert federation.state is ClientState.SHARED
    reply = federation.answer("evaluate")
    assert refused(reply, "begun by another client", "LedgerConflictError")
    assert not reply.has_content()
    assert (federation.entries, len(drawn)) == (1, 1)


def test_a_restored_backup_of_a_node_without_privacy_masks_again(exact: Federation) -> None:
    """The naive counterpart, and a documented limit: two answers under one mask, and their
    difference has none.

    Without a ledger nobody but the notes knows of the first answer. The difference is what the data
    of the second evaluation has more: one example, in the open.
    """
    exact.exchange_keys().back_up()
    cells = exact.server.config.cells
    client = exact.clients[VICTIM]
    before = exact.counts
    first_vector = masked(exact.answer("evaluate"), cells)
    exact.restore()
    client.preds = torch.cat([client.preds, torch.tensor([0.7])])
    client.target = torch.cat([client.target, torch.tensor([1])])
    second_vector = masked(exact.answer("evaluate"), cells)
    assert torch.equal(second_vector - first_vector, (exact.counts - before).reshape(-1))
    assert (second_vector - first_vector).sum() == 1


def test_a_crash_before_the_note_has_paid_and_sent_nothing(federation: Federation) -> None:
    federation.exchange_keys()

    def die(content: RecordDict) -> None:
        raise RuntimeError("crash")

    federation.clients[VICTIM].spoil = die
    reply = federation.answer("evaluate")
    assert reply.has_error()
    assert not reply.has_content()
    assert federation.entries == 1
    assert federation.state is None


def test_who_was_killed_with_an_answer_in_its_hands_has_dropped_out(
    federation: Federation, drawn: list[Tensor]
) -> None:
    """Nobody can tell whether that answer has left, so there is none again, and the round goes
    on without it."""
    federation.exchange_keys()
    client = federation.clients[VICTIM]
    client.spoil = kill
    killed(lambda: federation.answer("evaluate"))
    client.spoil = lambda content: None
    assert federation.entries == 1
    assert refused(federation.answer("evaluate"), "It stays out of this round")
    # nothing was drawn in this process
    assert (client.evaluations, federation.entries, len(drawn)) == (
        0,
        1,
        0,
    )
    federation.evaluate(NODES[1:])
    total, names = federation.unmask(NODES[1:])
    assert names == NODES[1:]
    assert total.tolist() == torch.stack(drawn).sum(0).reshape(-1).tolist()


def test_no_two_processes_go_on_from_one_note(either: Federation) -> None:
    """The same message, once more while the first is being answered."""
    either.exchange_keys()
    client = either.clients[VICTIM]
    replies = []

    def ask_again(content: RecordDict) -> None:
        replies.append(either.answer("evaluate"))

    client.spoil = ask_again
    first = either.answer("evaluate")
    assert first.has_content()
    (reply,) = replies
    assert refused(reply, "It stays out of this round")
    assert client.evaluations == 1
    assert either.state is ClientState.MASKED  # the second has undone nothing of the first


@pytest.mark.parametrize("stage", ["share_keys", "evaluate", "unmask"])
def test_after_a_failed_evaluation_the_node_knows_nothing(stage: str, either: Federation) -> None:
    either.exchange_keys()
    assert len(either.note) > 100

    def fail(content: RecordDict) -> None:
        raise ValueError("out of memory")

    client = either.clients[VICTIM]
    client.spoil = fail
    assert "out of memory" in str(either.answer("evaluate").error.reason)
    client.spoil = lambda content: None
    assert set(either.notes.values()) == {b""}
    messages = {
        "share_keys": either.server.keys(),
        "evaluate": either.boxes[str(VICTIM)],
        "unmask": either.request(*NODES),
    }
    assert refused(either.ask(stage, VICTIM, messages[stage]), "It stays out of this round")


# --- replays


@pytest.mark.parametrize("stage", ["advertise", "share_keys", "evaluate", "unmask"])
def test_a_round_that_is_known_is_never_begun_again(stage: str, federation: Federation) -> None:
    federation.go("advertise", dict.fromkeys(NODES, b""))
    if stage != "advertise":
        federation.go("share_keys", dict.fromkeys(NODES, federation.server.keys()))
    if stage in ("evaluate", "unmask"):
        federation.boxes = federation.server.ciphertexts()
        federation.evaluate()
    if stage == "unmask":
        federation.unmask()
    before = federation.notes
    assert refused(federation.ask("advertise", VICTIM), "A retry is a new round")
    assert federation.notes == before


# the second is what a node calls a note of its own
@pytest.mark.parametrize("name", ["a round", "session of a round"])
def test_a_round_is_known_after_others_have_been_begun(name: str, either: Federation) -> None:
    either.open(name).exchange_keys().evaluate()
    first = either.server
    either.open("another").exchange_keys().evaluate()
    either.server = first
    either.coordinator = Coordinator(either.clients[VICTIM].metric(), round=name)
    assert refused(either.ask("advertise", VICTIM), "A retry is a new round")


def test_a_run_of_another_id_begins_no_round_again(federation: Federation) -> None:
    """The server chooses the ids of runs, so notes are the node's."""
    federation.exchange_keys()
    federation.grid._contexts[VICTIM] = Context(
        RUN_ID + 1, VICTIM, {"partition-id": VICTIM}, RecordDict(), {}
    )
    assert refused(federation.ask("advertise", VICTIM), "A retry is a new round")
    federation.evaluate()
    assert refused(federation.answer("evaluate"), "each stage is gone through once")
    assert federation.entries == 1


def test_keys_are_shared_once(federation: Federation) -> None:
    federation.exchange_keys()
    assert refused(
        federation.ask("share_keys", VICTIM, federation.server.keys()),
        "each stage is gone through once",
    )
    assert federation.state is ClientState.SHARED


def test_who_forgot_the_round_stays_out(federation: Federation) -> None:
    federation.exchange_keys()
    shutil.rmtree(federation.home)
    assert refused(federation.answer("evaluate"), "It stays out of this round")
    assert federation.clients[VICTIM].evaluations == 0


@pytest.mark.parametrize("stage", ["advertise", "share_keys", "evaluate", "unmask"])
@pytest.mark.parametrize("name", ["another", "a roun", "a round/1", "/"])
def test_an_aggregation_is_of_one_round(name: str, stage: str, federation: Federation) -> None:
    """Else a share of one round could be masked, and charged, as one of another."""
    federation.exchange_keys()
    before = federation.notes
    reply = federation.ask(stage, VICTIM, federation.boxes[str(VICTIM)], round=name)
    assert refused(reply, f"Expected an aggregation of round {name!r}")
    assert (federation.notes, federation.entries) == (before, 0)


# --- two lists of survivors


@pytest.mark.parametrize("crash", [False, True])
def test_another_process_answers_for_no_other_survivors(
    crash: bool, federation: Federation
) -> None:
    federation.exchange_keys().evaluate()
    client = federation.clients[VICTIM]
    client.outer = [crash_after("unmask")] if crash else []
    first = federation.ask("unmask", VICTIM, federation.request(*NODES))
    assert first.has_error() == crash
    client.outer = []
    assert refused(
        federation.ask("unmask", VICTIM, federation.request(*NODES[:3])), "two lists together"
    )
    repeated = federation.ask("unmask", VICTIM, federation.request(*NODES))
    assert repeated.has_content()
    assert crash or repeated.content.config_records[RECORD] == first.content.config_records[RECORD]


def test_a_restored_backup_answers_for_both(either: Federation) -> None:
    """The naive counterpart, and a documented limit under privacy, too: no ledger hears of
    survivors."""
    either.exchange_keys().evaluate()
    either.back_up()
    assert either.ask("unmask", VICTIM, either.request(*NODES)).has_content()
    either.restore()
    assert either.ask("unmask", VICTIM, either.request(*NODES[:3])).has_content()


# --- who can read the notes


def test_only_the_nodes_user_can_read_its_notes(asked_twice: Federation) -> None:
    asked_twice.home.mkdir(parents=True)
    asked_twice.home.chmod(0o755)
    before = os.umask(0)
    try:
        asked_twice.first_query()
    finally:
        os.umask(before)
    assert asked_twice.traces(asked_twice.counts) == 1  # there is something to read
    assert stat.S_IMODE(asked_twice.home.stat().st_mode) == 0o700
    files = list(asked_twice.home.iterdir())
    assert [path.name for path in files] == ["notes"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_notes_are_on_disk_before_the_answer_leaves(either: Federation) -> None:
    states = []

    def look(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        states.append(either.state)
        return reply

    either.clients[VICTIM].outer = [look]
    either.exchange_keys().evaluate()
    either.ask("unmask", VICTIM, either.request(*NODES))
    assert states == [
        ClientState.ADVERTISED,
        ClientState.SHARED,
        ClientState.MASKED,
        ClientState.ANSWERED,
    ]


def test_a_note_is_taken_out_before_it_is_used(either: Federation) -> None:
    either.exchange_keys()
    states = []
    either.clients[VICTIM].spoil = lambda content: states.append(either.state)
    either.evaluate()
    assert states == [None]
    assert either.state is ClientState.MASKED


# --- how long a node keeps raw counts


def test_counts_are_kept_between_two_queries_and_erased_with_the_second_answer(
    asked_twice: Federation,
) -> None:
    asked_twice.first_query()
    assert asked_twice.traces(asked_twice.counts) == 1
    asked_twice.keys()
    assert asked_twice.traces(asked_twice.counts) == 1
    assert asked_twice.answer("answer").has_content()
    assert asked_twice.traces(asked_twice.counts) == 0
    assert asked_twice.clients[VICTIM].evaluations == 1


def test_erased_counts_cannot_be_answered_from(asked_twice: Federation) -> None:
    asked_twice.first_query().keys()
    assert asked_twice.answer("answer").has_content()
    reply = asked_twice.answer("answer")
    because = "It stays out of this round"
    if asked_twice.hides:
        because = "each stage is gone through once"
    assert refused(reply, because)
    assert asked_twice.entries == 1


def test_what_is_deleted_without_care_can_be_read(asked_twice: Federation) -> None:
    """The naive counterpart: a row that SQLite deletes is in the file until something else is
    written there."""
    asked_twice.first_query()
    with closing(sqlite3.connect(asked_twice.home / "notes")) as tables, tables:
        tables.execute("PRAGMA secure_delete=OFF")
        tables.execute("DELETE FROM notes")
    assert not asked_twice.notes
    assert asked_twice.traces(asked_twice.counts) > 0.5


def test_counts_of_a_round_are_gone_with_the_first_message_of_the_next_day(
    asked_twice: Federation,
) -> None:
    asked_twice.first_query()
    old = asked_twice.counts
    client = asked_twice.clients[VICTIM]
    traces = []
    assert asked_twice.traces(old) == 1
    with closing(sqlite3.connect(asked_twice.home / "notes")) as tables, tables:
        tables.execute("UPDATE notes SET time = time - ?", (NOTE_SECONDS + 60,))
    client.preds = 1 - client.preds
    client.spoil = lambda content: traces.append(asked_twice.traces(old))
    asked_twice.open("another").keys()
    assert asked_twice.answer("evaluate").has_content()
    assert asked_twice.traces(old) == 0
    assert asked_twice.traces(asked_twice.counts) == 1
    assert traces == [0]  # from the beginning: the evaluation may be killed


@pytest.mark.parametrize("asks", ["the same again", "all of epsilon again"])
def test_a_refused_second_answer_erases_the_counts(
    asks: str, asked_twice: Federation, drawn: list[Tensor]
) -> None:
    query = asked_twice.query
    reason = "not answered yet"
    if asked_twice.hides:
        reason = "give a client away"
    if asks == "all of epsilon again":
        query = Query(Tree.balanced(asked_twice.coordinator.spec.grid.bins))
        reason = "they would spend"
    asked_twice.first_query()
    before = len(drawn)
    assert asked_twice.traces(asked_twice.counts) == 1
    asked_twice.aggregate(query).keys()
    reply = asked_twice.answer("answer")
    assert reason in str(reply.error.reason)
    assert asked_twice.traces(asked_twice.counts) == 0
    assert (asked_twice.entries, len(drawn)) == (1, before)


def test_a_second_answer_that_cannot_be_masked_erases_the_counts(
    folder: Path, drawn: list[Tensor]
) -> None:
    federation = Federation(folder, quantiles=64).first_query().keys()
    before = len(drawn)
    boxes = federation.boxes[str(VICTIM)]
    assert federation.traces(federation.counts) == 1
    federation.boxes[str(VICTIM)] = boxes[:-1] + bytes([boxes[-1] ^ 1])
    assert federation.answer("answer").has_error()
    assert federation.traces(federation.counts) == 0
    assert len(drawn) == before


def test_who_was_killed_with_a_second_answer_has_erased_the_counts(
    asked_twice: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_twice.first_query().keys()
    with monkeypatch.context() as patch:
        patch.setattr(client_module, "noisy_cells", kill)
        killed(lambda: asked_twice.answer("answer"))
    assert asked_twice.traces(asked_twice.counts) == 0
    assert refused(asked_twice.answer("answer"), "It stays out of this round")
    assert asked_twice.entries == 1


def test_a_backup_of_the_counts_gets_no_second_draw(
    asked_twice: Federation, drawn: list[Tensor]
) -> None:
    asked_twice.first_query().keys().back_up()
    assert asked_twice.answer("answer").has_content()
    before = len(drawn)
    asked_twice.restore()
    assert asked_twice.traces(asked_twice.counts) == 1
    assert refused(
        asked_twice.answer("answer"),
        "a second draw would average the noise away",
        "LedgerConflictError",
    )
    assert (asked_twice.entries, len(drawn)) == (1, before)


@pytest.mark.parametrize("privacy", [HIDDEN, VISIBLE, None], ids=["hidden", "visible", "exact"])
def test_a_release_of_one_query_keeps_no_counts(
    privacy: DistributedDP | None, folder: Path
) -> None:
    federation = Federation(folder, quantiles=32, privacy=privacy, secure=privacy is None)
    traces = []
    federation.clients[VICTIM].spoil = lambda content: traces.append(
        federation.traces(federation.counts)
    )
    federation.keys()
    assert federation.answer("evaluate").has_content()
    assert [*traces, federation.traces(federation.counts)] == [0, 0]
