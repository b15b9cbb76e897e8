"""Threat: a refusal that depends on one person's data tells others about that person.

Others hear one text for every such refusal, whatever the data; the reason is in the client's own
log.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import DistributedDP, FederatedROC, LocalDP, PrivacyLedger
from torchmetrics_fed.exchange.node import DATA_REFUSED
from torchmetrics_fed.typing import Validation

pytest.importorskip("flwr")

from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from tests.integrations.flower_grid import Client, LocalGrid
from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin

NODES = (11, 12, 13, 14)
VICTIM = NODES[0]
SETTINGS: dict[str, dict[str, Any]] = {
    "visible": {"privacy": LocalDP(1.0)},
    "hidden": {"privacy": DistributedDP(1.0, min_clients=3)},
}


class Curves(FederatedEvaluationMixin, FedAvg):
    pass


def bad_data(kind: str) -> tuple[Tensor, Tensor]:
    """Two hundred examples, some of which cannot be counted."""
    preds = torch.rand(200)
    target = torch.randint(0, 2, (200,))
    if kind == "one NaN":
        preds[3] = torch.nan
    elif kind == "many NaNs":
        preds[:50] = torch.nan
    elif kind == "a score of 7":
        preds[5] = 7.0
    elif kind == "a label of 3":
        target[9] = 3
    return preds, target


def refusal(kind: str, setting: str, checks: Validation, folder: Path) -> str:
    """The text that the server gets from a node with such data, whose evaluation counts them."""

    def metric() -> FederatedROC:
        ledger = PrivacyLedger(budget=9.0)
        return FederatedROC(quantiles=64, ledger=ledger, validate_args=checks, **SETTINGS[setting])

    apps = {}
    for node in NODES:
        preds, target = bad_data(kind if node == VICTIM else "good")
        apps[node] = Client(metric, preds, target, folder=folder).app
    grid = LocalGrid(apps)
    strategy: Any = Curves(metric=metric(), min_available_nodes=4)
    from flwr.app import Array, ArrayRecord

    arrays = ArrayRecord({"weight": Array(torch.ones(1).numpy())})
    strategy.start(grid, arrays, num_rounds=1, timeout=1.0)
    replies: list[Message] = [reply for reply in grid.replies("evaluate") if reply.has_error()]
    (reply,) = replies
    assert PrivacyLedger(path=folder / str(VICTIM) / "ledger").spent().epsilon == 0
    return str(reply.error.reason)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("checks", [True, "deferred"])
def test_all_refusals_because_of_data_say_the_same(
    setting: str, checks: Validation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = ("one NaN", "many NaNs", "a score of 7", "a label of 3")
    with caplog.at_level(logging.WARNING):
        texts = {kind: refusal(kind, setting, checks, tmp_path / kind) for kind in kinds}
    assert len(set(texts.values())) == 1
    assert DATA_REFUSED in texts["one NaN"]
    assert caplog.text.count("this client refused because of its data. Expected") == len(kinds)


def test_the_naive_text_tells_neighbours_apart() -> None:
    """The counterpart: the local error names what is wrong with the data."""
    texts = set()
    for kind in ("one NaN", "a label of 3"):
        metric = FederatedROC(quantiles=64, **SETTINGS["visible"])
        with pytest.raises(ValueError, match="Expected") as raised:
            metric.update(*bad_data(kind))
        texts.add(str(raised.value))
    assert len(texts) == 2
