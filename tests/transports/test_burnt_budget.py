"""One exhausted ledger costs nobody else anything, whatever the transport."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.transports.endpoints import MEMORY
from torchmetrics_fed import Coordinator, DistributedDP, FederatedROC, PrivacyLedger, Release
from torchmetrics_fed.app.folder import run_coordinator, run_site
from torchmetrics_fed.errors import BudgetExceededError, FederatedMetricError
from torchmetrics_fed.exchange.node import Node
from torchmetrics_fed.exchange.stages import Replies, Requests, ask_release, release_stages
from torchmetrics_fed.metrics import evaluation_of, terms_of
from torchmetrics_fed.privacy.store import Store

EPSILON = 1.0
NAMES = ("11", "12", "13", "14")
BURNT = NAMES[1]
PRIVACY = {
    "hidden": {4: DistributedDP(EPSILON, min_clients=4), 3: DistributedDP(EPSILON, min_clients=3)},
    "visible": {
        4: DistributedDP(EPSILON, min_clients=4, trusted_aggregator=True),
        3: DistributedDP(EPSILON, min_clients=3, trusted_aggregator=True),
    },
}
"""By whether the server sees shares, and by the fewest clients of a release."""

FIRST_STAGES = {"hidden": "advertise", "visible": "join"}

Transport = Callable[[Path, DistributedDP], Release | None]
"""Makes the release of one round, or returns None where training goes on without one."""


def data_of(name: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(int(name))
    preds = torch.rand(200, generator=generator)
    return preds, torch.randint(0, 2, (200,), generator=generator)


def ledger_of(home: Path, name: str) -> PrivacyLedger:
    return PrivacyLedger(budget=EPSILON, path=home / f"ledger-{name}")


def built(home: Path, name: str, privacy: DistributedDP) -> FederatedROC:
    return FederatedROC(quantiles=64, privacy=privacy, ledger=ledger_of(home, name))


def counted(home: Path, name: str, privacy: DistributedDP) -> FederatedROC:
    metric = built(home, name, privacy)
    preds, target = data_of(name)
    metric.update(preds, target)
    return metric


def over_nodes(home: Path, privacy: DistributedDP) -> Release:
    """Nodes in this process, and requests as bytes."""
    metrics = {name: counted(home, name, privacy) for name in NAMES}
    nodes = {
        name: Node(name, terms_of(metric), Store(str(home / f"notes-{name}")))
        for name, metric in metrics.items()
    }

    def send(requests: Requests) -> Replies:
        replies: dict[str, bytes | FederatedMetricError] = {}
        for name, request in requests.items():
            try:
                replies[name] = nodes[name].reply(request, evaluation_of(metrics[name]))
            except FederatedMetricError as error:  # noqa: PERF203
                replies[name] = error
        return replies

    coordinator = Coordinator(FederatedROC(quantiles=64, privacy=privacy), round="1")
    stages = release_stages(
        coordinator, NAMES, place="round 1", log=logging.getLogger("torchmetrics_fed")
    )
    try:
        return ask_release(stages, send)
    finally:
        for node in nodes.values():
            node.forget("1")


def over_folder(home: Path, privacy: DistributedDP) -> Release:
    """Files, with each site in a thread."""
    shared = home / "shared"
    shared.mkdir()
    with ThreadPoolExecutor(len(NAMES)) as pool:
        sites: dict[str, Future[None]] = {
            name: pool.submit(
                run_site, shared, name, counted(home, name, privacy), poll=0.01, timeout=60.0
            )
            for name in NAMES
        }
        try:
            return run_coordinator(
                shared,
                FederatedROC(quantiles=64, privacy=privacy),
                clients=NAMES,
                timeout=60.0,
                poll=0.01,
            )
        finally:
            assert isinstance(sites[BURNT].exception(60), BudgetExceededError)
            for name in NAMES:
                sites[name].exception(60)


def over_flower(home: Path, privacy: DistributedDP) -> Release | None:
    """Flower's strategy and mod over a grid in this process."""
    pytest.importorskip("flwr")
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from tests.integrations.flower_grid import Client, LocalGrid
    from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin

    class Curves(FederatedEvaluationMixin, FedAvg):
        pass

    def app_of(name: str) -> Any:
        preds, target = data_of(name)
        return Client(lambda: built(home, name, privacy), preds, target, folder=home / "notes").app

    grid = LocalGrid({int(name): app_of(name) for name in NAMES})
    metric = FederatedROC(quantiles=64, privacy=privacy)
    strategy = Curves(metric=metric, min_available_nodes=len(NAMES))
    arrays = ArrayRecord({"weight": Array(torch.ones(3).numpy())})
    strategy.start(grid, arrays, num_rounds=1, timeout=1.0)
    return strategy.releases.get(1)


def over_nvflare(home: Path, privacy: DistributedDP) -> Release | None:
    """NVFlare's aggregator and filters, without its processes."""
    pytest.importorskip("nvflare")
    from tests.integrations.nvflare_sites import JOB, Federation, Site

    sites = []
    for name in NAMES:
        preds, target = data_of(name)
        sites.append(Site(name, built(home, name, privacy), preds, target))
    try:
        Federation(sites, home, quantiles=64, privacy=privacy).round(0)
    finally:
        for site in sites:
            site.end()
    path = home / JOB / "round-0000.release"
    if not path.exists():
        return None
    return Release.load(path)


TRANSPORTS: dict[str, Transport] = {
    "nodes": over_nodes,
    "folder": over_folder,
    "flower": over_flower,
    "nvflare": over_nvflare,
}


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder in memory, where the ledger of one client is used up."""
    with TemporaryDirectory(dir=MEMORY) as path:
        ledger_of(Path(path), BURNT).spend("data", "an earlier round", EPSILON)
        yield Path(path)


@pytest.mark.parametrize("visibility", PRIVACY)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_where_too_few_can_pay_nobody_pays(
    transport: str, visibility: str, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = None
    failure = "the release never began"
    if transport == "flower":
        logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        release = TRANSPORTS[transport](home, PRIVACY[visibility][4])
    except FederatedMetricError as error:
        failure = str(error)
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert release is None
    assert "never began" in failure
    for name in NAMES:
        ledger = ledger_of(home, name)
        assert ledger.spent().epsilon == (EPSILON if name == BURNT else 0.0)
        assert ledger.reservations == ()  # given back, when the round was over
    reason = f"{FIRST_STAGES[visibility]}: dropped out: {BURNT}. "
    assert reason in caplog.text
    assert "needs epsilon 1.0, 0.0 of 1.0 is left" in caplog.text


@pytest.mark.parametrize("visibility", PRIVACY)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_where_enough_can_pay_the_release_is_made_without_the_others(
    transport: str, visibility: str, home: Path
) -> None:
    release = TRANSPORTS[transport](home, PRIVACY[visibility][3])
    assert release is not None
    assert release.shares == 3
    assert [ledger_of(home, name).spent().epsilon for name in NAMES] == [EPSILON] * 4
    assert [len(ledger_of(home, name)) for name in NAMES] == [1] * 4
