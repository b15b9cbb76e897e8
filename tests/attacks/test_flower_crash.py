"""Threat 15, in Flower: every message may find a new process of the node, and none may answer what another answered."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from tests.integrations.flower_grid import RUN_ID, Client, LocalGrid, ask
from torchmetrics_fed import DistributedDP, FederatedROC, PrivacyLedger, SecureAggregationServer
from torchmetrics_fed.aggregation.secure import SecureAggregationClient, Stage
from torchmetrics_fed.aggregation.secure.messages import Request
from torchmetrics_fed.integrations.flower import RECORD
from torchmetrics_fed.integrations.flower.records import Asked

NODES = [11, 12, 13, 14]
VICTIM = NODES[0]
ROUND = "a round"


class Federation:
    """A server that goes through the stages by hand, and nodes that keep notes below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clients = {node: self.client(node) for node in NODES}
        self.grid = LocalGrid({node: client.app for node, client in self.clients.items()})
        self.server = SecureAggregationServer(secure_sum_config(self.clients[VICTIM].metric().spec, ROUND))
        self.boxes: dict[str, bytes] = {}

    def client(self, node: int) -> Client:
        generator = torch.Generator().manual_seed(node)
        preds, target = torch.rand(50, generator=generator), torch.randint(0, 2, (50,), generator=generator)

        def metric() -> FederatedROC:
            ledger = PrivacyLedger(path=self.folder / f"ledger {node}")
            return FederatedROC(quantiles=16, privacy=DistributedDP(epsilon=1.0, min_clients=3), ledger=ledger)

        return Client(metric, preds, target, folder=self.folder / "notes")

    def ask(self, stage: str, node: int, message: bytes = b"") -> Message:
        return ask(self.grid, node, Asked(stage, ROUND, message, self.server.start()))

    def go(self, stage: str, messages: dict[int, bytes], field: str = "answer") -> None:
        for node, message in messages.items():
            answer = self.ask(stage, node, message).content.config_records[RECORD][field]
            assert isinstance(answer, bytes)
            self.server.receive(str(node), answer)

    def exchange_keys(self) -> Federation:
        self.go("advertise", dict.fromkeys(NODES, b""))
        self.go("share_keys", dict.fromkeys(NODES, self.server.keys()))
        self.boxes = self.server.ciphertexts()
        return self

    def evaluate(self, nodes: list[int] = NODES) -> Federation:
        self.go("evaluate", {node: self.boxes[str(node)] for node in nodes}, "masked")
        return self

    def request(self, *survivors: int) -> bytes:
        """What a server sends that has decided on these survivors."""
        roster = self.server._roster
        assert roster is not None
        indices = tuple(sorted(roster.indices[str(node)] for node in survivors))
        return Request(indices, {}).to_bytes(roster, roster.cohort_hash(self.server._cohort))

    @property
    def notes(self) -> Path:
        return self.folder / "notes" / f"{RUN_ID}-{VICTIM}"

    @property
    def stage(self) -> Stage:
        """How far the victim has come, by its notes."""
        (path,) = (path for path in self.notes.iterdir() if path.name != "lock")
        return SecureAggregationClient.from_bytes(path.read_bytes(), self.server.config).stage

    @property
    def entries(self) -> int:
        return len(PrivacyLedger(path=self.folder / f"ledger {VICTIM}"))


@pytest.fixture
def federation() -> Iterator[Federation]:
    """Its notes are in memory where that is possible, for each of them is synced."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Federation(Path(folder))


def refused(reply: Message, because: str) -> bool:
    return (
        reply.has_error() and "SecureAggregationError" in str(reply.error.reason) and because in str(reply.error.reason)
    )


def masked(reply: Message, cells: int) -> Tensor:
    """The masked vector in a reply, as int64 modulo 2^64."""
    sent = reply.content.config_records[RECORD]["masked"]
    assert isinstance(sent, bytes)
    return torch.frombuffer(bytearray(sent[-8 * cells :]), dtype=torch.int64)


def crash_after(stage: str) -> Callable[[Message, Context, ClientAppCallable], Message]:
    """A mod around ours whose process dies at a stage, once the answer is made."""

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        if message.content.config_records[RECORD]["stage"] == stage:
            raise RuntimeError("crash")
        return reply

    return mod


# --- an answer that was made is never made again


def test_who_crashed_with_a_masked_share_does_not_mask_another(federation: Federation) -> None:
    federation.exchange_keys()
    client = federation.clients[VICTIM]
    client.outer = [crash_after("evaluate")]
    assert "crash" in str(federation.ask("evaluate", VICTIM, federation.boxes[str(VICTIM)]).error.reason)
    assert federation.stage is Stage.MASKED
    client.outer = []
    again = federation.ask("evaluate", VICTIM, federation.boxes[str(VICTIM)])
    assert refused(again, "each stage is gone through once")
    assert federation.entries == 1  # and it did not pay again
    federation.evaluate(NODES[1:])
    federation.go("unmask", dict.fromkeys(NODES[1:], federation.server.request()))
    total, names = federation.server.sum()
    assert VICTIM not in map(int, names)
    assert total.tolist() == sum(federation.clients[node].drawn[0] for node in NODES[1:]).tolist()  # type: ignore[union-attr]


def test_who_has_sent_a_masked_share_sends_no_other(federation: Federation) -> None:
    federation.exchange_keys().evaluate()
    again = federation.ask("evaluate", VICTIM, federation.boxes[str(VICTIM)])
    assert refused(again, "each stage is gone through once")
    assert federation.entries == 1
    assert len(federation.clients[VICTIM].drawn) == 1


def test_a_repeated_message_neither_evaluates_nor_drops_the_node(federation: Federation) -> None:
    federation.exchange_keys().evaluate()
    assert federation.ask("evaluate", VICTIM, federation.boxes[str(VICTIM)]).has_error()
    assert federation.clients[VICTIM].evaluations == 1
    assert federation.stage is Stage.MASKED
    federation.go("unmask", dict.fromkeys(NODES, federation.server.request()))
    assert len(federation.server.sum()[1]) == len(NODES)


def test_a_node_without_notes_does_mask_another(federation: Federation) -> None:
    """The naive counterpart: whoever forgets answers twice under one mask, and their difference has none."""
    federation.exchange_keys()
    backup = federation.folder / "backup"
    shutil.copytree(federation.notes, backup)
    cells = federation.server.config.cells
    one = masked(federation.ask("evaluate", VICTIM, federation.boxes[str(VICTIM)]), cells)
    shutil.rmtree(federation.notes)
    shutil.copytree(backup, federation.notes)
    two = masked(federation.ask("evaluate", VICTIM, federation.boxes[str(VICTIM)]), cells)
    drawn = federation.clients[VICTIM].drawn
    assert torch.equal(one - two, drawn[0] - drawn[1])
    assert federation.entries == 2  # the ledger knows


def test_a_crash_before_the_note_has_paid_and_sent_nothing(federation: Federation) -> None:
    federation.exchange_keys()

    def die(content: RecordDict) -> None:
        raise RuntimeError("crash")

    federation.clients[VICTIM].spoil = die
    reply = federation.ask("evaluate", VICTIM, federation.boxes[str(VICTIM)])
    assert reply.has_error()
    assert not reply.has_content()
    assert federation.entries == 1
    assert federation.stage is Stage.PURGED


@pytest.mark.parametrize("stage", ["share_keys", "evaluate", "unmask"])
def test_after_a_failed_evaluation_the_node_knows_nothing(stage: str, federation: Federation) -> None:
    federation.exchange_keys()
    before = len(next(path for path in federation.notes.iterdir() if path.name != "lock").read_bytes())

    def fail(content: RecordDict) -> None:
        raise ValueError("out of memory")

    client = federation.clients[VICTIM]
    client.spoil = fail
    federation.ask("evaluate", VICTIM, federation.boxes[str(VICTIM)])
    client.spoil = lambda content: None
    after = len(next(path for path in federation.notes.iterdir() if path.name != "lock").read_bytes())
    assert after < before
    messages = {
        "share_keys": federation.server.keys(),
        "evaluate": federation.boxes[str(VICTIM)],
        "unmask": federation.request(*NODES),
    }
    assert refused(federation.ask(stage, VICTIM, messages[stage]), "this one is PURGED")


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
        federation.go("unmask", dict.fromkeys(NODES, federation.server.request()))
    before, notes = federation.stage, sorted(federation.notes.iterdir())
    assert refused(federation.ask("advertise", VICTIM), "A retry is a new round")
    assert (federation.stage, sorted(federation.notes.iterdir())) == (before, notes)


def test_keys_are_shared_once(federation: Federation) -> None:
    federation.exchange_keys()
    assert refused(federation.ask("share_keys", VICTIM, federation.server.keys()), "each stage is gone through once")
    assert federation.stage is Stage.SHARED


def test_who_forgot_the_round_stays_out(federation: Federation) -> None:
    federation.exchange_keys()
    shutil.rmtree(federation.notes)
    assert refused(federation.ask("evaluate", VICTIM, federation.boxes[str(VICTIM)]), "It stays out of this round")
    assert federation.clients[VICTIM].evaluations == 0


# --- two lists of survivors


@pytest.mark.parametrize("crash", [False, True])
def test_another_process_answers_for_no_other_survivors(crash: bool, federation: Federation) -> None:
    federation.exchange_keys().evaluate()
    client = federation.clients[VICTIM]
    client.outer = [crash_after("unmask")] if crash else []
    first = federation.ask("unmask", VICTIM, federation.request(*NODES))
    assert first.has_error() == crash
    client.outer = []
    assert refused(federation.ask("unmask", VICTIM, federation.request(*NODES[:3])), "two lists together")
    again = federation.ask("unmask", VICTIM, federation.request(*NODES))
    assert crash or again.content.config_records[RECORD] == first.content.config_records[RECORD]


def test_a_node_without_notes_answers_for_both(federation: Federation) -> None:
    """The naive counterpart."""
    federation.exchange_keys().evaluate()
    shutil.copytree(federation.notes, federation.folder / "backup")
    assert federation.ask("unmask", VICTIM, federation.request(*NODES)).has_content()
    shutil.rmtree(federation.notes)
    shutil.copytree(federation.folder / "backup", federation.notes)
    assert federation.ask("unmask", VICTIM, federation.request(*NODES[:3])).has_content()


# --- who can read the notes


def test_only_the_nodes_user_can_read_its_notes(federation: Federation) -> None:
    before = os.umask(0)
    try:
        federation.exchange_keys().evaluate()
    finally:
        os.umask(before)
    assert stat.S_IMODE(federation.notes.stat().st_mode) == 0o700
    files = list(federation.notes.iterdir())
    assert len(files) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_notes_are_on_disk_before_the_answer_leaves(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Stage] = []
    fsync = os.fsync

    def remember(fd: int) -> None:
        fsync(fd)
        if os.path.samestat(os.fstat(fd), federation.notes.stat()):  # the folder is synced last
            synced.append(federation.stage)

    monkeypatch.setattr(os, "fsync", remember)
    seen = []

    def look(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        seen.append(synced[-1])
        return reply

    federation.clients[VICTIM].outer = [look]
    federation.exchange_keys().evaluate()
    federation.ask("unmask", VICTIM, federation.request(*NODES))
    assert seen == [Stage.ADVERTISED, Stage.SHARED, Stage.MASKED, Stage.ANSWERED]
