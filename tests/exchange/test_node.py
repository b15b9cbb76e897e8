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
from torchmetrics_fed.errors import (
    FederatedMetricError,
    InputError,
    LedgerConflictError,
    ReleaseError,
)
from torchmetrics_fed.exchange.node import Node
from torchmetrics_fed.exchange.stages import STAGES, Asked
from torchmetrics_fed.privacy.store import Store

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


def asked(options: dict[str, Any], round: str = "1", stage: str = "share") -> Asked:
    coordinator = Coordinator(FederatedROC(**options), round=round)
    start = coordinator.config.to_bytes() if coordinator.spec.hides_shares else b""
    return Asked(
        stage, round, bytes(coordinator.query or b""), b"", start, coordinator.spec.canonical
    )


def notes(path: Path) -> dict[str, int]:
    with Store(str(path / "notes")).transaction(write=False) as tables:
        return {
            name: len(content)
            for name, content in tables.execute("SELECT name, content FROM notes")
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
    with pytest.raises(LedgerConflictError, match="begun by another session"):
        counted(tmp_path, VISIBLE).share(round="1", query=rest)
    last = node(tmp_path, VISIBLE)
    empty = FederatedROC(ledger=PrivacyLedger(9.0, tmp_path / "ledger"), **VISIBLE)
    assert last.answer(replace(second, query=bytes(rest)), empty)
    assert last.left == 0
    assert bool(empty.counts.any())  # those of the first process
    with pytest.raises(ReleaseError, match="it has been answered from"):
        last.answer(second, counted(tmp_path, VISIBLE))


def test_another_round_erases_the_notes_and_nobody_comes_back_to_the_first(tmp_path: Path) -> None:
    answers = node(tmp_path, VISIBLE)
    answers.answer(asked(VISIBLE, "1"), counted(tmp_path, VISIBLE))
    answers.answer(asked(VISIBLE, "2"), counted(tmp_path, VISIBLE))
    kept = notes(tmp_path)
    assert kept["1"] == 0 < kept["2"]
    with pytest.raises(ReleaseError, match="it has finished or left '1'"):
        answers.answer(asked(VISIBLE, "1"), counted(tmp_path, VISIBLE))
    answers.forget("2")
    answers.forget("3")  # which was never begun, and still can be
    assert notes(tmp_path) == {"1": 0, "2": 0}


@pytest.mark.parametrize("options", [HIDDEN, SECURE], ids=["private", "secure"])
def test_an_aggregation_begins_with_keys_and_is_of_one_client(
    options: dict[str, Any], tmp_path: Path
) -> None:
    answers, begin = node(tmp_path, options), asked(options, stage="advertise")
    metric = counted(tmp_path, options)
    for stage in STAGES[2:]:
        with pytest.raises(FederatedMetricError):
            answers.answer(replace(begin, stage=stage), metric)
    with pytest.raises(ReleaseError, match="secure aggregation"):
        answers.answer(replace(begin, stage="share"), metric)
    assert notes(tmp_path) == {}
    answers.answer(begin, metric)
    with pytest.raises(FederatedMetricError, match="that this client has begun"):
        node(tmp_path, options, "ben").answer(replace(begin, stage="share_keys"), metric)
    other = replace(SecureAggregationConfig.from_bytes(begin.start), round_id="1/7")
    with pytest.raises(FederatedMetricError, match="made for another"):
        answers.answer(replace(begin, stage="share_keys", start=other.to_bytes()), metric)
    assert len(PrivacyLedger(path=tmp_path / "ledger")) == 0


def test_a_request_has_one_encoding() -> None:
    request = asked(HIDDEN, stage="advertise")
    assert Asked.from_bytes(request.to_bytes()) == request
    for broken in (request.to_bytes()[:-1], request.to_bytes() + b"x", b""):
        with pytest.raises(ValueError, match="Expected"):
            Asked.from_bytes(broken)
    with pytest.raises(InputError, match="a stage of secure aggregation"):
        replace(request, stage="else").answered_by(None)
