"""A round that breaks off between its queries offers what was paid for, and charges no more."""

from __future__ import annotations

import errno
import logging
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.transports.endpoints import MEMORY
from torchmetrics_fed import (
    Coordinator,
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    PrivacyLedger,
    Release,
    ReleaseError,
)
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.app.folder import run_coordinator, run_site
from torchmetrics_fed.app.folder.files import Files
from torchmetrics_fed.errors import FederatedMetricError
from torchmetrics_fed.exchange.node import Node
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.exchange.stages import (
    BrokenOffError,
    Replies,
    Requests,
    ask_release,
    release_stages,
)
from torchmetrics_fed.metrics import evaluation_of, terms_of
from torchmetrics_fed.privacy.store import Store
from torchmetrics_fed.reconstruct import tuning
from torchmetrics_fed.release import ReleaseFlag

NAMES = ("11", "12", "13", "14")
PRIVACY = {
    "hidden": DistributedDP(1.0, min_clients=3),
    "visible": DistributedDP(1.0, min_clients=3, trusted_aggregator=True),
}

pytestmark = pytest.mark.filterwarnings("ignore:This release is partial:UserWarning")


@pytest.fixture
def home() -> Iterator[Path]:
    with TemporaryDirectory(dir=MEMORY) as path:
        yield Path(path)


def data_of(name: str, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(int(name))
    target = torch.randint(0, classes, (5000,), generator=generator)
    if classes > 2:
        scores = torch.randn(5000, classes, generator=generator)
        scores[torch.arange(5000), target] += 1
        return scores.softmax(1), target
    return (torch.randn(5000, generator=generator) + 2 * target - 1).sigmoid(), target


def ledger_of(home: Path, name: str) -> PrivacyLedger:
    return PrivacyLedger(budget=1.0, path=home / f"ledger-{name}")


def counted(home: Path, name: str, **options: Any) -> FederatedROC:
    metric = FederatedROC(ledger=ledger_of(home, name), **options)
    preds, target = data_of(name, options.get("num_classes", 2))
    metric.update(preds, target)
    return metric


def spent(home: Path) -> list[float]:
    return [ledger_of(home, name).spent().epsilon for name in NAMES]


class Nodes:
    """Nodes in this process, of which all but one are silent in a stage of the second query."""

    def __init__(self, home: Path, silent_stage: Stage, **options: Any) -> None:
        self.metrics = {name: counted(home, name, **options) for name in NAMES}
        self.nodes = {
            name: Node(name, terms_of(metric), Store(str(home / f"notes-{name}")))
            for name, metric in self.metrics.items()
        }
        self.coordinator = Coordinator(FederatedROC(**options), round="1")
        self._silent_stage = silent_stage

    def send(self, requests: Requests) -> Replies:
        replies: dict[str, bytes | FederatedMetricError] = {}
        for name, request in requests.items():
            is_broken = bool(self.coordinator.sums) and request.stage is self._silent_stage
            if not is_broken or name == NAMES[0]:
                data = evaluation_of(self.metrics[name])
                replies[name] = self.nodes[name].reply(request, data)
        return replies

    def broken_off(self) -> BrokenOffError:
        log = logging.getLogger("torchmetrics_fed")
        stages = release_stages(self.coordinator, NAMES, place="round 1", log=log)
        with pytest.raises(BrokenOffError, match="The first query was summed") as raised:
            ask_release(stages, self.send)
        return raised.value

    def forget(self) -> None:
        for node in self.nodes.values():
            node.forget("1")


@pytest.mark.parametrize("visibility", PRIVACY)
def test_what_was_paid_for_is_a_coarse_release(visibility: str, home: Path) -> None:
    stage = Stage.SHARE if visibility == "visible" else Stage.ADVERTISE
    nodes = Nodes(home, stage, privacy=PRIVACY[visibility])
    error = nodes.broken_off()
    release = error.release
    assert release.flags == ReleaseFlag.PARTIAL
    assert (len(release.queries), release.shares) == (1, 4)
    auroc = FederatedAUROC.from_release(Release.from_bytes(bytes(release))).compute()
    assert 0.85 < float(auroc) < 0.99  # .92 of the pooled data, from 24 leaves with much noise
    again = pickle.loads(pickle.dumps(error))
    assert bytes(again.release) == bytes(release)
    assert str(again) == str(error)


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE_KEYS, Stage.MASK])
def test_nodes_that_learn_of_it_are_charged_what_they_have_drawn(stage: Stage, home: Path) -> None:
    nodes = Nodes(home, stage, privacy=PRIVACY["hidden"])
    nodes.broken_off()
    assert spent(home) == [1.0] * 4  # until they know
    nodes.forget()
    drawn = [tuning.PILOT_FRACTION] * 4
    if stage is Stage.MASK:
        drawn[0] = 1.0  # it has drawn for the second query
    assert spent(home) == drawn
    request = Request(
        stage=Stage.ADVERTISE,
        round="1",
        query=bytes(nodes.coordinator.query or b""),
        start=nodes.coordinator.config.to_bytes(),
    )
    for node in nodes.nodes.values():  # nothing more of the round is answered
        with pytest.raises(ReleaseError, match="is over"):
            node.reply(request)


def test_a_pilot_of_several_classes_has_no_curve_for_a_class(home: Path) -> None:
    options = {"task": "multiclass", "num_classes": 4, "privacy": PRIVACY["visible"]}
    release = Nodes(home, Stage.SHARE, **options).broken_off().release
    assert release.last.query.pools_classes
    with pytest.raises(ReleaseError, match="Cannot read a curve for each class"):
        FederatedROC.from_release(release).compute()


def test_before_the_first_sum_there_is_nothing_to_offer(home: Path) -> None:
    coordinator = Coordinator(FederatedROC(privacy=PRIVACY["hidden"]), round="1")
    assert coordinator.partial is None
    stages = release_stages(
        coordinator, NAMES, place="round 1", log=logging.getLogger("torchmetrics_fed")
    )
    with pytest.raises(FederatedMetricError) as raised:
        ask_release(stages, lambda requests: {})
    assert not isinstance(raised.value, BrokenOffError)


def test_a_folder_round_that_breaks_off(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disks of two of four sites are full after the first query."""
    write = Files.write

    def write_or_fail(files: Files, path: Path, *parts: bytes) -> bytes:
        is_full = path.parent.parent.name in ("site-12", "site-13")
        if is_full and path.name.startswith("2."):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(files, path, *parts)

    monkeypatch.setattr(Files, "write", write_or_fail)
    shared = home / "shared"
    shared.mkdir()
    metric = FederatedROC(privacy=PRIVACY["hidden"])
    options = {"clients": NAMES, "timeout": 3.0, "poll": 0.01}
    with ThreadPoolExecutor(4) as pool:
        sites = {
            name: pool.submit(
                run_site,
                shared,
                name,
                counted(home, name, privacy=PRIVACY["hidden"]),
                poll=0.01,
                timeout=60.0,
            )
            for name in NAMES
        }
        with pytest.raises(BrokenOffError) as raised:
            run_coordinator(shared, metric, **options)  # type: ignore[arg-type]
        errors = {name: type(site.exception(60)) for name, site in sites.items()}
    assert errors == {"11": ReleaseError, "12": OSError, "13": OSError, "14": ReleaseError}
    with pytest.raises(BrokenOffError, match="is over") as again:
        run_coordinator(shared, metric, **options)  # type: ignore[arg-type]
    assert bytes(again.value.release) == bytes(raised.value.release)
    fraction = tuning.PILOT_FRACTION
    assert spent(home) == [fraction, 1.0, 1.0, fraction]  # two have not heard of it


@pytest.mark.parametrize("visibility", PRIVACY)
def test_a_flower_round_that_breaks_off(visibility: str, home: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from tests.integrations.flower_grid import Client, Cut, LocalGrid
    from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin

    class Curves(FederatedEvaluationMixin, FedAvg):
        pass

    def app_of(name: str) -> Any:
        preds, target = data_of(name, 2)
        privacy = PRIVACY[visibility]
        return Client(
            lambda: FederatedROC(ledger=ledger_of(home, name), privacy=privacy),
            preds,
            target,
            folder=home / "notes",
        ).app

    grid = LocalGrid({int(name): app_of(name) for name in NAMES})
    grid.cuts = {Cut(int(name), "answer") for name in NAMES[1:]}
    strategy = Curves(metric=FederatedROC(privacy=PRIVACY[visibility]), min_available_nodes=4)
    arrays = ArrayRecord({"weight": Array(torch.ones(3).numpy())})
    strategy.start(grid, arrays, num_rounds=1, timeout=1.0)
    assert strategy.releases == {}
    assert strategy.partial_releases[1].flags == ReleaseFlag.PARTIAL
    fraction = tuning.PILOT_FRACTION
    assert spent(home) == [1.0, fraction, fraction, fraction]  # one has drawn twice
