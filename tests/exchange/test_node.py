"""A node answers each stage once, what it answered last again, and keeps no notes longer than it needs them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from torchmetrics_fed import (
    Coordinator,
    DistributedDP,
    FederatedROC,
    LocalDP,
    PrivacyLedger,
    Query,
    SecureAggregationConfig,
)
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import (
    FederatedMetricError,
    InputError,
    LedgerConflictError,
    ReleaseError,
    SecureAggregationError,
    WireError,
)
from torchmetrics_fed.exchange.node import Node
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.privacy.store import NOTE_SECONDS, Notes, Store
from torchmetrics_fed.release.wire import Kind, frame, pack_block

VISIBLE: dict[str, Any] = {"quantiles": 64, "privacy": LocalDP(1.0)}
HIDDEN: dict[str, Any] = {"quantiles": 64, "privacy": DistributedDP(1.0, min_clients=3)}
SECURE: dict[str, Any] = {"quantiles": 64, "secure": True}


def counted(path: Path, options: dict[str, Any]) -> FederatedROC:
    metric = FederatedROC(ledger=PrivacyLedger(9.0, path / "ledger"), **options)
    generator = torch.Generator().manual_seed(1)
    metric.update(
        torch.rand(500, generator=generator), torch.randint(0, 2, (500,), generator=generator)
    )
    return metric


def node(path: Path, options: dict[str, Any], name: str = "ann") -> Node:
    """A new process of the node."""
    return Node(name, FederatedROC(**options).spec, Store(str(path / "notes")))


def asked(options: dict[str, Any], round: str = "1", stage: Stage = Stage.SHARE) -> Request:
    coordinator = Coordinator(FederatedROC(**options), round=round)
    start = coordinator.config.to_bytes() if coordinator.spec.hides_shares else b""
    return Request(
        stage, round, bytes(coordinator.query or b""), b"", start, coordinator.spec.canonical
    )


def notes(path: Path) -> dict[str, int]:
    with Store(str(path / "notes")).transaction(write=False) as tables:
        return {
            round: len(content)
            for round, content in tables.execute("SELECT round, content FROM notes")
        }


def test_what_was_answered_last_is_answered_again_by_any_process(tmp_path: Path) -> None:
    request, first = asked(VISIBLE), node(tmp_path, VISIBLE)
    answer = first.answer(request, counted(tmp_path, VISIBLE))
    assert first.left < 1
    for other in (first, node(tmp_path, VISIBLE)):
        assert other.answer(request, None) == answer
    assert len(PrivacyLedger(path=tmp_path / "ledger")) == 1


def test_another_question_in_the_same_round_goes_on_from_the_session_that_was_kept(
    tmp_path: Path,
) -> None:
    node(tmp_path, VISIBLE).answer(asked(VISIBLE), counted(tmp_path, VISIBLE))
    second = asked(VISIBLE)
    rest = replace(Query.from_bytes(second.query), fraction=0.953125)
    with pytest.raises(LedgerConflictError, match="begun by another client"):
        counted(tmp_path, VISIBLE).share(round="1", query=rest)
    last = node(tmp_path, VISIBLE)
    empty = FederatedROC(ledger=PrivacyLedger(9.0, tmp_path / "ledger"), **VISIBLE)
    assert last.answer(replace(second, query=bytes(rest)), empty)
    assert last.left == 0
    assert bool(empty.counts.any())  # those of the first process
    with pytest.raises(ReleaseError, match="it has been answered from"):
        last.answer(second, counted(tmp_path, VISIBLE))


def test_rounds_live_side_by_side_and_none_that_is_over_comes_back(tmp_path: Path) -> None:
    """Two rounds at the same time, each of two queries, with one metric or with a new one."""
    answers = node(tmp_path, VISIBLE)
    metrics = {round: counted(tmp_path, VISIBLE) for round in "12"}
    first = {round: answers.answer(asked(VISIBLE, round), metrics[round]) for round in "12"}
    assert all(notes(tmp_path).values())
    for round in "12":
        request = asked(VISIBLE, round)
        assert answers.answer(request, metrics[round]) == first[round]
        rest = replace(Query.from_bytes(request.query), fraction=0.953125)
        assert answers.answer(replace(request, query=bytes(rest)), metrics["1"])
        assert answers.left == 0
    answers.forget("1")
    answers.forget("3")  # which was never begun, and still can be
    kept = notes(tmp_path)
    assert kept["1"] == 0 < kept["2"]
    with pytest.raises(ReleaseError, match="it has finished or left '1'"):
        answers.answer(asked(VISIBLE, "1"), counted(tmp_path, VISIBLE))
    answers.forget("2")
    assert notes(tmp_path) == {"1": 0, "2": 0}
    assert len(PrivacyLedger(path=tmp_path / "ledger")) == 2


def test_a_second_study_may_call_its_rounds_as_the_first_did(tmp_path: Path) -> None:
    """With the same ledger and the same notes."""
    other: dict[str, Any] = {**VISIBLE, "quantiles": 128}
    for options in (VISIBLE, other):
        node(tmp_path, options).answer(asked(options, "1"), counted(tmp_path, options))
        node(tmp_path, options).forget("1")
    for options in (VISIBLE, other):
        with pytest.raises(ReleaseError, match="it has finished or left '1'"):
            node(tmp_path, options).answer(asked(options, "1"), counted(tmp_path, options))
    assert len(PrivacyLedger(path=tmp_path / "ledger")) == 2


def test_notes_are_erased_by_the_first_process_after_a_day(tmp_path: Path) -> None:
    node(tmp_path, VISIBLE).answer(asked(VISIBLE), counted(tmp_path, VISIBLE))
    assert node(tmp_path, VISIBLE).answer(asked(VISIBLE), None)
    with Store(str(tmp_path / "notes")).transaction() as tables:
        tables.execute("UPDATE notes SET time = time - ?", (NOTE_SECONDS + 60,))
    late = node(tmp_path, VISIBLE)
    assert notes(tmp_path) == {"1": 0}
    with pytest.raises(ReleaseError, match="it has finished or left '1'"):
        late.answer(asked(VISIBLE), counted(tmp_path, VISIBLE))


def test_a_damaged_note_is_a_typed_error(tmp_path: Path) -> None:
    answers = node(tmp_path, VISIBLE)
    answers.answer(asked(VISIBLE), counted(tmp_path, VISIBLE))
    for left in (b"nan", b"2.0", b"-0x1p-3", b"0x1p99999", b"\xff", b"five"):
        with Store(str(tmp_path / "notes")).transaction() as tables:
            note = frame(Kind.NOTES, pack_block(left), *[pack_block(b"")] * 4)
            Notes(tables, FederatedROC(**VISIBLE).spec.digest).write("1", note)
        with pytest.raises(WireError, match="a fraction of epsilon"):
            answers.answer(asked(VISIBLE), counted(tmp_path, VISIBLE))


@pytest.mark.parametrize("options", [HIDDEN, SECURE], ids=["private", "secure"])
def test_an_aggregation_begins_with_keys_and_is_of_one_client(
    options: dict[str, Any], tmp_path: Path
) -> None:
    answers, begin = node(tmp_path, options), asked(options, stage=Stage.ADVERTISE)
    metric = counted(tmp_path, options)
    for stage in (Stage.SHARE_KEYS, Stage.MASK, Stage.SIGN, Stage.UNMASK):
        with pytest.raises(FederatedMetricError):
            answers.answer(replace(begin, stage=stage), metric)
    with pytest.raises(ReleaseError, match="secure aggregation"):
        answers.answer(replace(begin, stage=Stage.SHARE), metric)
    assert notes(tmp_path) == {}
    answers.answer(begin, metric)
    with pytest.raises(FederatedMetricError, match="that this client has begun"):
        node(tmp_path, options, "ben").answer(replace(begin, stage=Stage.SHARE_KEYS), metric)
    other = replace(SecureAggregationConfig.from_bytes(begin.start), round_id="1/7")
    with pytest.raises(FederatedMetricError, match="made for another"):
        answers.answer(replace(begin, stage=Stage.SHARE_KEYS, start=other.to_bytes()), metric)
    assert len(PrivacyLedger(path=tmp_path / "ledger")) == 0


def test_a_request_has_one_encoding() -> None:
    request = asked(HIDDEN, stage=Stage.ADVERTISE)
    assert Request.from_bytes(request.to_bytes()) == request
    assert Request.from_fields(request.fields) == request
    for broken in (request.to_bytes()[:-1], request.to_bytes() + b"x", b""):
        with pytest.raises(WireError, match="Expected"):
            Request.from_bytes(broken)


def test_an_unknown_stage_is_refused() -> None:
    request = asked(HIDDEN, stage=Stage.ADVERTISE)
    encoded = request.to_bytes()
    assert [encoded[6]] == [Stage.ADVERTISE.value]
    for number in (6, 255):
        with pytest.raises(WireError, match=f"Expected a stage.*but got {number}"):
            Request.from_bytes(encoded[:6] + bytes([number]) + encoded[7:])
    for stage in (6, -1, "advertise", True, 1.0, None):
        with pytest.raises(WireError, match="Expected a stage"):
            Request.from_fields({**request.fields, "stage": stage})
    for name in ("round", "query", "message", "start", "spec"):
        with pytest.raises(InputError, match="Update both sides"):
            Request.from_fields({**request.fields, name: None})


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.SHARE], ids=str)
def test_only_a_client_of_an_aggregation_answers_its_stages(stage: Stage, tmp_path: Path) -> None:
    request = asked(HIDDEN, stage=stage)
    with pytest.raises(SecureAggregationError, match=f"Cannot answer stage {stage}"):
        request.reply(None, counted(tmp_path, HIDDEN))
    assert len(PrivacyLedger(path=tmp_path / "ledger")) == 0
