"""The client's part: the share in a model's metadata, and the ledger that it is charged to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchmetrics_fed import FederatedROC, LocalDP, PrivacyLedger
from torchmetrics_fed.errors import (
    BudgetExceededError,
    FederatedMetricError,
    InputError,
    ReleaseError,
)
from torchmetrics_fed.privacy import Privacy

pytest.importorskip("nvflare")

from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs

from tests.integrations.nvflare.models import JOB, TRUSTED, counted, ledger_of, model
from torchmetrics_fed.integrations.nvflare import META_KEY, attach
from torchmetrics_fed.integrations.nvflare.client import payload


def private(folder: Path) -> FederatedROC:
    """A private metric of site 1, as each of its processes makes it."""
    return counted(1, privacy=TRUSTED, ledger=ledger_of(folder, 1))


def lasting(kind: str, folder: Path) -> PrivacyLedger | None:
    """A ledger with a budget and a path, or without those that its kind names."""
    if kind == "no ledger":
        return None
    budget = None
    if "budget" not in kind:
        budget = 20.0
    path = None
    if "path" not in kind:
        path = folder / "ledger"
    return PrivacyLedger(budget, path)


@pytest.mark.parametrize("privacy", [TRUSTED, LocalDP(epsilon=5.0)], ids=["trusted", "local"])
@pytest.mark.parametrize("kind", ["no ledger", "no budget", "no path", "no budget, no path"])
def test_a_private_metric_needs_a_limit_that_lasts(
    kind: str, privacy: Privacy, tmp_path: Path
) -> None:
    """The server sets the number of rounds, and the next process must know of earlier ones."""
    metric = counted(1, privacy=privacy, ledger=lasting(kind, tmp_path))
    reason = "a ledger with a budget and a path because here the server decides"
    with pytest.raises(InputError, match=reason):
        payload(metric, 0, job=JOB)
    with pytest.raises(InputError, match="a ledger with a budget and a path"):
        attach(FLModel(params={"w": 1}), metric, round=0, job=JOB)
    assert len(metric.ledger) == 0  # nothing was drawn or charged
    limited = counted(1, privacy=privacy, ledger=lasting("all", tmp_path))
    assert payload(limited, 0, job=JOB)
    exact = counted(1, ledger=lasting(kind, tmp_path))
    assert payload(exact, 0, job=JOB)  # exact counts spend nothing


def test_the_budget_ends_the_rounds_of_a_site_and_its_next_process_knows(tmp_path: Path) -> None:
    for round in range(4):  # epsilon 5 each, of 20; every round another process
        payload(private(tmp_path), round, job=JOB)
    with pytest.raises(BudgetExceededError):
        payload(private(tmp_path), 4, job=JOB)
    # nor does an old round get a new draw
    with pytest.raises(FederatedMetricError, match="A retry is a new round"):
        payload(private(tmp_path), 3, job=JOB)
    assert len(ledger_of(tmp_path, 1)) == 4


def test_the_same_round_gets_the_same_bytes(tmp_path: Path) -> None:
    metric = private(tmp_path)
    assert payload(metric, 0, job=JOB) == payload(metric, 0, job=JOB)
    with pytest.raises(ReleaseError, match="the same noise in two sums"):
        payload(metric, 1, job=JOB)
    assert len(metric.ledger) == 1


def test_a_share_survives_the_wire_of_nvflare() -> None:
    update = model(1)
    received = FLModelUtils.from_shareable(
        fobs.loads(fobs.dumps(FLModelUtils.to_shareable(update)))
    )
    assert received.meta[META_KEY] == update.meta[META_KEY]


def test_attach_adds_one_entry_and_says_what_it_lacks(tmp_path: Path) -> None:
    update = FLModel(params={"w": 1}, metrics={"loss": 1.0}, meta={"mine": 2}, current_round=4)
    attach(update, private(tmp_path), job=JOB)
    assert set(update.meta) == {"mine", META_KEY}
    assert (update.params, update.metrics) == ({"w": 1}, {"loss": 1.0})
    with pytest.raises(InputError, match=r"received\.current_round"):
        attach(FLModel(params={"w": 1}), counted(1), job=JOB)
    with pytest.raises(InputError, match="federated metric"):
        payload(torch.nn.Linear(1, 1), 0, job=JOB)  # type: ignore[arg-type]
