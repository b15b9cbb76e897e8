"""A node answers each stage once, repeats its last reply, and keeps no notes longer than it
needs them."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.exchange.node_requests import HIDDEN, SECURE, VISIBLE, counted, evaluation, request_for
from torchmetrics_fed import (
    FederatedROC,
    PrivacyLedger,
    Query,
    SecureAggregationConfig,
)
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import (
    BudgetExceededError,
    FederatedMetricError,
    LedgerConflictError,
    LedgerFileError,
    ReleaseError,
    SpecMismatchError,
    WireError,
)
from torchmetrics_fed.exchange.node import DATA_REFUSED, Node
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.metrics import evaluation_of, terms_of
from torchmetrics_fed.privacy.store import NOTE_SECONDS, Notes, Store
from torchmetrics_fed.release.wire import Kind, frame, pack_block

OVER = "Round '1' is over for this client"


def node(path: Path, options: dict[str, Any], name: str = "ann", *, repeats: bool = True) -> Node:
    """A new process of the node."""
    terms = terms_of(FederatedROC(ledger=PrivacyLedger(9.0, path / "ledger"), **options))
    return Node(name, terms, Store(str(path / "notes")), repeats=repeats)


def second_request(first: Request) -> Request:
    """A request for the rest of epsilon, as a coordinator sends it after the pilot."""
    query = replace(Query.from_bytes(first.query), fraction=0.953125)
    return replace(first, query=bytes(query))


def notes(path: Path) -> dict[str, int]:
    """By round, the length of the note."""
    with Store(str(path / "notes")).transaction(write=False) as tables:
        rows = tables.execute("SELECT round, content FROM notes")
        return {round: len(content) for round, content in rows}


def charges(path: Path) -> int:
    """The number of releases that were charged."""
    return len(PrivacyLedger(path=path / "ledger"))


def test_the_last_reply_is_repeated_by_any_process(tmp_path: Path) -> None:
    request = request_for(VISIBLE)
    process = node(tmp_path, VISIBLE)
    reply = process.reply(request, evaluation(tmp_path, VISIBLE))
    assert process.reply(request) == reply
    assert node(tmp_path, VISIBLE).reply(request) == reply
    assert charges(tmp_path) == 1


def test_a_node_that_does_not_repeat_keeps_no_reply(tmp_path: Path) -> None:
    request = request_for(VISIBLE)
    process = node(tmp_path, VISIBLE, repeats=False)
    process.reply(request, evaluation(tmp_path, VISIBLE))
    with pytest.raises(ReleaseError, match="not answered yet"):
        process.reply(request)
    process = node(tmp_path, VISIBLE, repeats=False)
    process.reply(request_for(VISIBLE, "2"), evaluation(tmp_path, VISIBLE))
    process.reply(second_request(request_for(VISIBLE, "2")))
    assert notes(tmp_path) == {"1": 0, "2": 0}


def test_the_second_query_is_answered_from_the_counts_in_the_note(tmp_path: Path) -> None:
    first = request_for(VISIBLE)
    second = second_request(first)
    node(tmp_path, VISIBLE).reply(first, evaluation(tmp_path, VISIBLE))
    with pytest.raises(LedgerConflictError, match="begun by another client"):
        counted(tmp_path, VISIBLE).share(round="1", query=Query.from_bytes(second.query))
    process = node(tmp_path, VISIBLE)
    assert process.reply(second)
    with pytest.raises(ReleaseError, match="Every query of round '1' has been answered"):
        process.reply(first, evaluation(tmp_path, VISIBLE))


def test_rounds_live_side_by_side_and_none_that_is_over_comes_back(tmp_path: Path) -> None:
    """Two rounds at the same time, each of two queries."""
    process = node(tmp_path, VISIBLE)
    replies = {
        round: process.reply(request_for(VISIBLE, round), evaluation(tmp_path, VISIBLE))
        for round in "12"
    }
    assert all(notes(tmp_path).values())
    for round in "12":
        request = request_for(VISIBLE, round)
        assert process.reply(request) == replies[round]
        assert process.reply(second_request(request))
    process.forget("1")
    process.forget("3")  # which was never begun, and still can be
    lengths = notes(tmp_path)
    assert lengths["1"] == 0 < lengths["2"]
    with pytest.raises(ReleaseError, match=OVER):
        process.reply(request_for(VISIBLE, "1"), evaluation(tmp_path, VISIBLE))
    process.forget("2")
    assert notes(tmp_path) == {"1": 0, "2": 0}
    assert charges(tmp_path) == 2


def test_a_second_study_may_call_its_rounds_as_the_first_did(tmp_path: Path) -> None:
    """With the same ledger and the same notes."""
    other_study: dict[str, Any] = {**VISIBLE, "quantiles": 128}
    for options in (VISIBLE, other_study):
        node(tmp_path, options).reply(request_for(options), evaluation(tmp_path, options))
        node(tmp_path, options).forget("1")
    for options in (VISIBLE, other_study):
        with pytest.raises(ReleaseError, match=OVER):
            node(tmp_path, options).reply(request_for(options), evaluation(tmp_path, options))
    assert charges(tmp_path) == 2


def test_notes_are_erased_by_the_first_process_after_a_day(tmp_path: Path) -> None:
    node(tmp_path, VISIBLE).reply(request_for(VISIBLE), evaluation(tmp_path, VISIBLE))
    assert node(tmp_path, VISIBLE).reply(request_for(VISIBLE))
    with Store(str(tmp_path / "notes")).transaction() as tables:
        tables.execute("UPDATE notes SET time = time - ?", (NOTE_SECONDS + 60,))
    process = node(tmp_path, VISIBLE)
    assert notes(tmp_path) == {"1": 0}
    with pytest.raises(ReleaseError, match=OVER):
        process.reply(request_for(VISIBLE), evaluation(tmp_path, VISIBLE))


def test_a_damaged_note_is_a_typed_error(tmp_path: Path) -> None:
    process = node(tmp_path, VISIBLE)
    process.reply(request_for(VISIBLE), evaluation(tmp_path, VISIBLE))
    for fraction in (b"nan", b"2.0", b"-0x1p-3", b"0x1p99999", b"\xff", b"five"):
        with Store(str(tmp_path / "notes")).transaction() as tables:
            blocks = [pack_block(b"")] * 5
            note = frame(Kind.NOTES, pack_block(fraction), *blocks)
            Notes(tables, FederatedROC(**VISIBLE).spec.digest).write("1", note)
        with pytest.raises(WireError, match="a fraction of epsilon"):
            process.reply(request_for(VISIBLE), evaluation(tmp_path, VISIBLE))


# --- one draw from one note


@pytest.mark.parametrize("options", [VISIBLE, {"quantiles": 64}], ids=["private", "exact"])
def test_no_two_processes_draw_from_one_note(options: dict[str, Any], tmp_path: Path) -> None:
    """Both have read the note, and both have evaluated, before either draws."""
    request = request_for(options)
    first = node(tmp_path, options)
    second = node(tmp_path, options)
    with first.replying(request) as first_draft, second.replying(request) as second_draft:
        assert first_draft.make(evaluation(tmp_path, options))
        with pytest.raises(ReleaseError, match="Another process of this client has gone on"):
            second_draft.make(evaluation(tmp_path, options))
    assert charges(tmp_path) == ("privacy" in options)


def test_a_process_that_ends_between_draw_and_reply_has_dropped_out(tmp_path: Path) -> None:
    class KilledError(BaseException):
        pass

    request = request_for(VISIBLE)
    try:
        with node(tmp_path, VISIBLE).replying(request) as pending:
            pending.make(evaluation(tmp_path, VISIBLE))
            raise KilledError
    except KilledError:
        pass
    assert notes(tmp_path) == {"1": 0}
    with pytest.raises(ReleaseError, match="It stays out of this round"):
        node(tmp_path, VISIBLE).reply(request, evaluation(tmp_path, VISIBLE))
    assert charges(tmp_path) == 1


def test_a_process_that_ends_before_the_draw_goes_on(tmp_path: Path) -> None:
    request = request_for(VISIBLE)
    with pytest.raises(ZeroDivisionError), node(tmp_path, VISIBLE).replying(request):
        _ = 1 / 0  # the evaluation fails
    assert notes(tmp_path) == {}
    assert node(tmp_path, VISIBLE).reply(request, evaluation(tmp_path, VISIBLE))
    assert charges(tmp_path) == 1


def test_a_reply_is_made_once(tmp_path: Path) -> None:
    with node(tmp_path, VISIBLE).replying(request_for(VISIBLE)) as pending:
        pending.make(evaluation(tmp_path, VISIBLE))
        with pytest.raises(ReleaseError, match="Make the reply once"):
            pending.make(evaluation(tmp_path, VISIBLE))


# --- the metric that was agreed on, and its data


def test_the_metric_must_be_the_one_that_was_agreed_on(tmp_path: Path) -> None:
    other_options: dict[str, Any] = {**VISIBLE, "normalization": "sigmoid"}
    with pytest.raises(SpecMismatchError, match="normalization"):
        node(tmp_path, VISIBLE).reply(request_for(VISIBLE), evaluation(tmp_path, other_options))
    assert charges(tmp_path) == 0


def test_the_nodes_ledger_is_charged_and_the_metrics_is_not(tmp_path: Path) -> None:
    metric = FederatedROC(ledger=PrivacyLedger(5.0), **VISIBLE)
    metric.update(torch.rand(500), torch.randint(0, 2, (500,)))
    node(tmp_path, VISIBLE).reply(request_for(VISIBLE), evaluation_of(metric))
    assert charges(tmp_path) == 1
    assert len(metric.ledger) == 0


def test_data_that_was_released_elsewhere_is_refused(tmp_path: Path) -> None:
    metric = FederatedROC(ledger=PrivacyLedger(5.0), **VISIBLE)
    metric.update(torch.rand(500), torch.randint(0, 2, (500,)))
    metric.share()
    with pytest.raises(ReleaseError, match="has sent its share, charged to another ledger"):
        node(tmp_path, VISIBLE).reply(request_for(VISIBLE), evaluation_of(metric))
    assert charges(tmp_path) == 0


@pytest.mark.parametrize("refused", [1, 7])
def test_a_refusal_because_of_the_data_says_the_same_whatever_the_data(
    refused: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metric = FederatedROC(
        ledger=PrivacyLedger(9.0, tmp_path / "ledger"), validate_args="deferred", **VISIBLE
    )
    preds = torch.rand(500)
    preds[:refused] = torch.nan
    metric.update(preds, torch.randint(0, 2, (500,)))
    with caplog.at_level(logging.WARNING), pytest.raises(ReleaseError) as raised:
        node(tmp_path, VISIBLE).reply(request_for(VISIBLE), evaluation_of(metric))
    assert str(raised.value) == DATA_REFUSED
    assert raised.value.__cause__ is None
    assert "could not be counted" in caplog.text
    assert charges(tmp_path) == 0


# --- secure aggregation


@pytest.mark.parametrize("options", [HIDDEN, SECURE], ids=["private", "secure"])
def test_an_aggregation_begins_with_keys_and_is_of_one_client(
    options: dict[str, Any], tmp_path: Path
) -> None:
    process = node(tmp_path, options)
    advertise = request_for(options, stage=Stage.ADVERTISE)
    data = evaluation(tmp_path, options)
    for stage in (Stage.SHARE_KEYS, Stage.MASK, Stage.SIGN, Stage.UNMASK):
        with pytest.raises(FederatedMetricError):
            process.reply(replace(advertise, stage=stage), data)
    with pytest.raises(ReleaseError, match="secure aggregation"):
        process.reply(replace(advertise, stage=Stage.SHARE), data)
    assert notes(tmp_path) == {}
    process.reply(advertise)
    share_keys = replace(advertise, stage=Stage.SHARE_KEYS)
    with pytest.raises(FederatedMetricError, match="that this client has begun"):
        node(tmp_path, options, "ben").reply(share_keys, data)
    config = replace(SecureAggregationConfig.from_bytes(advertise.start), round_id="1/7")
    with pytest.raises(FederatedMetricError, match="made for another"):
        process.reply(replace(share_keys, start=config.to_bytes()), data)
    assert charges(tmp_path) == 0


@pytest.mark.parametrize("repeats", [True, False])
def test_an_aggregation_is_begun_once(repeats: bool, tmp_path: Path) -> None:
    process = node(tmp_path, HIDDEN, repeats=repeats)
    advertise = request_for(HIDDEN, stage=Stage.ADVERTISE)
    reply = process.reply(advertise)
    if repeats:
        assert process.reply(advertise) == reply
    repeated = replace(advertise, message=b"another request")
    with pytest.raises(FederatedMetricError, match="A retry is a new round"):
        process.reply(repeated)


# --- before anybody pays


def reserved(path: Path) -> list[str]:
    """The rounds whose price is reserved."""
    ledger = PrivacyLedger(path=path / "ledger")
    return [reservation.entry.round for reservation in ledger.reservations]


FIRST_REQUESTS = {
    "hidden": (HIDDEN, Stage.ADVERTISE),
    "visible": (VISIBLE, Stage.JOIN),
}


@pytest.mark.parametrize("setting", FIRST_REQUESTS)
@pytest.mark.parametrize("repeats", [True, False])
def test_the_first_reply_reserves_and_charges_nothing(
    setting: str, repeats: bool, tmp_path: Path
) -> None:
    options, stage = FIRST_REQUESTS[setting]
    process = node(tmp_path, options, repeats=repeats)
    process.reply(request_for(options, stage=stage))
    assert reserved(tmp_path) == ["1"]
    assert charges(tmp_path) == 0
    process.forget("1")
    assert reserved(tmp_path) == []
    with pytest.raises(ReleaseError, match=OVER):
        process.reply(request_for(options, stage=stage))


@pytest.mark.parametrize("repeats", [True, False])
def test_a_node_that_has_joined_draws_and_its_reservation_is_the_charge(
    repeats: bool, tmp_path: Path
) -> None:
    process = node(tmp_path, VISIBLE, repeats=repeats)
    join = request_for(VISIBLE, stage=Stage.JOIN)
    assert process.reply(join) == join.digest
    node(tmp_path, VISIBLE, repeats=repeats).reply(
        request_for(VISIBLE), evaluation(tmp_path, VISIBLE)
    )
    assert reserved(tmp_path) == []
    assert charges(tmp_path) == 1


@pytest.mark.parametrize("setting", FIRST_REQUESTS)
def test_a_node_that_cannot_pay_says_so_in_its_first_reply(setting: str, tmp_path: Path) -> None:
    options, stage = FIRST_REQUESTS[setting]
    process = node(tmp_path, options)
    PrivacyLedger(path=tmp_path / "ledger").spend("data", "by hand", 8.5)
    with pytest.raises(BudgetExceededError, match=r"needs epsilon 1\.0, 0\.5 of 9\.0 is left"):
        process.reply(request_for(options, stage=stage))
    assert notes(tmp_path) == {}


@pytest.mark.parametrize("setting", FIRST_REQUESTS)
def test_a_node_that_cannot_write_its_notes_gives_its_reservation_back(
    setting: str, tmp_path: Path
) -> None:
    options, stage = FIRST_REQUESTS[setting]
    process = node(tmp_path, options)
    with closing(sqlite3.connect(tmp_path / "notes")) as tables, tables:
        tables.execute(
            "CREATE TRIGGER full BEFORE INSERT ON notes BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    with pytest.raises(LedgerFileError):
        process.reply(request_for(options, stage=stage))
    assert reserved(tmp_path) == []


def test_a_draw_that_is_refused_gives_the_reservation_back(tmp_path: Path) -> None:
    process = node(tmp_path, VISIBLE)
    process.reply(request_for(VISIBLE, stage=Stage.JOIN))
    refused = evaluation_of(FederatedROC(quantiles=32, privacy=VISIBLE["privacy"]))
    with pytest.raises(SpecMismatchError):
        process.reply(request_for(VISIBLE), refused)
    assert reserved(tmp_path) == []
    assert charges(tmp_path) == 0


def test_exact_counts_reserve_nothing(tmp_path: Path) -> None:
    process = node(tmp_path, SECURE)
    process.reply(request_for(SECURE, stage=Stage.ADVERTISE))
    assert reserved(tmp_path) == []
