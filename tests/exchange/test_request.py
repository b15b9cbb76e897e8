"""A request has one encoding, and a client replies to it in the stage that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exchange.node_requests import HIDDEN, evaluation, request_for
from torchmetrics_fed import PrivacyLedger
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import InputError, ReleaseError, SecureAggregationError, WireError
from torchmetrics_fed.exchange.request import Request


def test_a_request_has_one_encoding() -> None:
    request = request_for(HIDDEN, stage=Stage.ADVERTISE)
    assert Request.from_bytes(request.to_bytes()) == request
    assert Request.from_fields(request.fields) == request
    for broken in (request.to_bytes()[:-1], request.to_bytes() + b"x", b""):
        with pytest.raises(WireError, match="Expected"):
            Request.from_bytes(broken)


def test_an_unknown_stage_is_refused() -> None:
    request = request_for(HIDDEN, stage=Stage.ADVERTISE)
    encoded = request.to_bytes()
    assert encoded[6] == Stage.ADVERTISE.value
    for number in (7, 255):
        with pytest.raises(WireError, match=f"Expected a stage.*but got {number}"):
            Request.from_bytes(encoded[:6] + bytes([number]) + encoded[7:])
    for stage in (7, -1, "advertise", True, 1.0, None):
        with pytest.raises(WireError, match="Expected a stage"):
            Request.from_fields({**request.fields, "stage": stage})
    for name in ("round", "query", "message", "start", "spec"):
        with pytest.raises(InputError, match="Update both sides"):
            Request.from_fields({**request.fields, name: None})


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage.is_secure], ids=str)
def test_only_a_client_of_an_aggregation_replies_in_its_stages(
    stage: Stage, tmp_path: Path
) -> None:
    request = request_for(HIDDEN, stage=stage)
    with pytest.raises(SecureAggregationError, match=f"Cannot reply in stage {stage}"):
        request.reply(None, evaluation(tmp_path, HIDDEN))
    assert len(PrivacyLedger(path=tmp_path / "ledger")) == 0


@pytest.mark.parametrize("stage", [Stage.SHARE, Stage.MASK], ids=str)
def test_a_stage_that_asks_for_data_needs_data(stage: Stage) -> None:
    with pytest.raises(ReleaseError, match="holds no data"):
        request_for(HIDDEN, stage=stage).reply(None)
