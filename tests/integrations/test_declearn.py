"""declearn: its server and clients as processes on the loopback interface, and its SecAgg."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torchmetrics_fed import (
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    LocalDP,
    PrivacyLedger,
    Release,
    Spec,
)
from torchmetrics_fed.errors import BudgetExceededError, InputError, ReleaseError, SpecMismatchError
from torchmetrics_fed.exchange import next_query, plan_from

pytest.importorskip("declearn")

from declearn.main.utils import Checkpointer
from declearn.secagg.api import Decrypter, Encrypter
from declearn.secagg.masking import MaskingDecrypter, MaskingEncrypter

from tests.integrations.declearn_program import NAMES, examples
from torchmetrics_fed.integrations.declearn import LIFT, ShareMetric, ShareState

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Deployment:
    """A server and three clients. Each writes a log; each client has a ledger beside its log."""

    def __init__(self, folder: Path, **settings: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder = folder
        self._environment = {
            **os.environ,
            "DECLEARN_PORT": str(port),
            "DECLEARN_FOLDER": str(folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        for name, value in settings.items():
            self._environment[f"DECLEARN_{name}"] = value
        self.processes = {"server": self._start("server")}
        self.wait(lambda: listens(port))  # a client that comes too early tries again after a minute
        for name in NAMES:
            self.processes[name] = self._start(name)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.integrations.declearn_program", name]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command, env=self._environment, cwd=ROOT, stdout=log, stderr=log
            )

    def wait(self, until: Callable[[], bool], seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, self.logs
            time.sleep(0.2)

    def result(self) -> dict[str, Any]:
        """Wait for the server and return its result."""
        try:
            self.wait(lambda: self.processes["server"].poll() is not None)
            result: dict[str, Any] = json.loads((self.folder / "server.json").read_text())
            return result
        finally:
            self.stop()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    @property
    def logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))

    @property
    def releases(self) -> list[Release]:
        return [Release.load(path) for path in sorted(self.folder.glob("*.release"))]

    def charged(self) -> dict[str, list[float]]:
        """Return the epsilons in the ledger of each client that has one."""
        epsilons = {}
        for name in NAMES:
            path = self.folder / name
            if path.exists():
                epsilons[name] = [entry.epsilon for entry in PrivacyLedger(path=path)]
        return epsilons


def pooled(weights: list[Any]) -> Tensor:
    """Return the counts of all clients' scores under the model that the server has trained."""
    metric = FederatedROC()
    weight = torch.tensor(weights[0])
    bias = torch.tensor(weights[1])
    for name in NAMES:
        features, target = examples(name)
        scores = torch.nn.functional.linear(features, weight, bias).sigmoid()
        metric.update(scores, target)
    return metric.counts


def test_an_exact_release_is_the_pooled_counts(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, SETTING="exact", ROUNDS="2", CHECKPOINT="yes")
    result = deployment.result()
    assert result["error"] == "", deployment.logs
    releases = deployment.releases
    assert [release.shares for release in releases] == [3, 3]  # and none of a client by itself
    assert torch.equal(releases[-1].leaf, pooled(result["weights"]))
    logged = Checkpointer(str(tmp_path / "checkpoint")).load_scalar_metrics()
    areas = [float(FederatedAUROC.from_release(release).compute()) for release in releases]
    assert logged["federated_auroc"].tolist() == areas


@pytest.mark.parametrize("setting", ["secure", "distributed"])
def test_secagg_opens_the_sum_alone(setting: str, tmp_path: Path) -> None:
    protocol = {"secure": "grpc", "distributed": "websockets"}[setting]
    deployment = Deployment(
        tmp_path, SETTING=setting, SECAGG="masking", ROUNDS="2", PROTOCOL=protocol
    )
    result = deployment.result()
    assert result["error"] == "", deployment.logs
    releases = deployment.releases
    assert [release.shares for release in releases] == [3, 3]
    exact = pooled(result["weights"])
    if setting == "secure":
        assert torch.equal(releases[-1].leaf, exact)
        return
    assert deployment.charged() == {name: [2.0, 2.0] for name in NAMES}  # one entry a round
    for release in releases:
        assert [query.fraction for query in release.queries] == [1.0]
    spec = Spec("binary", 1, releases[-1].spec.grid)
    area = float(FederatedAUROC.from_release(Release.exact(spec, exact)).compute())
    assert 0 < abs(result["federated_auroc"] - area) < 0.1  # 900 examples at epsilon 2
    assert releases[0].leaf.tolist() != releases[1].leaf.tolist()


def test_without_secagg_hidden_shares_are_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, SETTING="distributed")
    result = deployment.result()
    assert "declearn's SecAgg is off" in result["error"], deployment.logs
    assert deployment.releases == []
    assert deployment.charged() == {name: [] for name in NAMES}


def test_a_client_of_another_spec_refuses_to_evaluate(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, SETTING="local", SETTING_ben="exact")
    result = deployment.result()
    assert "ben: evaluation failed: SpecMismatchError" in result["error"], deployment.logs
    assert "privacy: expected Exact, got" in result["error"]
    assert deployment.releases == []
    assert deployment.charged() == {"ann": [2.0], "ben": [], "cem": [2.0]}  # the others have drawn


def test_a_client_that_is_killed_before_it_answers_leaves_the_sum_closed(tmp_path: Path) -> None:
    """declearn waits for all clients: two have drawn and paid, and their shares open nothing."""
    deployment = Deployment(tmp_path, SETTING="distributed", SECAGG="masking", DIES="ben")
    try:
        deployment.wait(lambda: deployment.processes["ben"].poll() is not None)
        deployment.wait(lambda: all(deployment.charged().get(name) for name in ("ann", "cem")))
        time.sleep(5)
        assert deployment.processes["server"].poll() is None
        assert deployment.releases == []
        assert deployment.charged() == {"ann": [2.0], "ben": [], "cem": [2.0]}
    finally:
        deployment.stop()


# The tests below need no network: they use declearn's classes in this process.


class Exact(ShareMetric):
    name = "exact"

    def build(self, ledger: PrivacyLedger | None) -> FederatedROC:
        return FederatedROC(quantiles=64, ledger=ledger)


class Noisy(ShareMetric):
    name = "noisy"
    privacy: Any = DistributedDP(0.01, min_clients=3)
    plan: Any = None

    def build(self, ledger: PrivacyLedger | None) -> FederatedROC:
        return FederatedROC(quantiles=64, privacy=self.privacy, plan=self.plan, ledger=ledger)


class WithSecAgg:
    secagg = "on"


BuildClient = Callable[[type[ShareMetric], str], ShareMetric]


@pytest.fixture
def client_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildClient:
    """Build a client's metric, as declearn does when the server's configuration has come."""

    def build(kind: type[ShareMetric], name: str) -> ShareMetric:
        monkeypatch.setattr(kind, "client", WithSecAgg())
        monkeypatch.setattr(kind, "ledger", PrivacyLedger(budget=100.0, path=tmp_path / name))
        metric: ShareMetric = kind.from_config(kind().get_config())
        features, target = examples(name)
        metric.update(target.numpy(), features[:, :1].sigmoid().numpy())
        return metric

    return build


def masking(bitsize: int = 64, clients: int = 3) -> tuple[list[Encrypter], Decrypter]:
    """Return declearn's encrypters, with one seed for each pair of clients, and its decrypter."""
    seeds = {}
    for high in range(clients):
        for low in range(high):
            seeds[low, high] = 1000 * low + high
    encrypters = []
    for client in range(clients):
        positive = [seed for (low, _), seed in seeds.items() if low == client]
        negative = [seed for (_, high), seed in seeds.items() if high == client]
        encrypters.append(MaskingEncrypter(positive, negative, bitsize=bitsize))
    return encrypters, MaskingDecrypter(clients, bitsize=bitsize)


def open_round(server: ShareMetric, states: list[ShareState], bitsize: int = 64) -> None:
    """Take a round through declearn's masks, as its server and clients do."""
    encrypters, decrypter = masking(bitsize, len(states))
    encrypted = [
        encrypter.encrypt_aggregate(state)
        for encrypter, state in zip(encrypters, states, strict=True)
    ]
    total = sum(encrypted[1:], encrypted[0])
    server.reset()
    server.set_states(server.get_states() + decrypter.decrypt_aggregate(total))


@pytest.mark.parametrize("kind", [Exact, Noisy])
def test_negative_cells_are_summed_exactly(kind: type[ShareMetric], client_of: BuildClient) -> None:
    server = kind()
    states = [client_of(kind, name).get_states() for name in NAMES]
    open_round(server, states)
    lifted = np.stack([state.cells[:-1] for state in states])
    expected = (lifted.astype(np.int64) - LIFT).sum(0)
    assert server.releases[-1].last.cells.reshape(-1).tolist() == expected.tolist()
    if kind is Noisy:
        assert expected.min() < 0
    else:
        assert expected.min() >= 0
        assert server.get_result() == {"federated_auroc": pytest.approx(pooled_area())}


def pooled_area() -> float:
    metric = FederatedAUROC(quantiles=64)
    for name in NAMES:
        features, target = examples(name)
        metric.update(features[:, 0].sigmoid(), target[:, 0])
    return float(metric.compute())


def test_a_draw_leaves_once(client_of: BuildClient) -> None:
    client = client_of(Noisy, "ben")
    encrypters, _ = masking()
    state = client.get_states()
    with pytest.raises(ReleaseError, match="the share must be hidden"):
        state.to_dict()
    encrypters[0].encrypt_aggregate(state)
    with pytest.raises(ReleaseError, match="A retry is a new round"):
        client.get_states()
    assert len(client.one.ledger) == 1
    client.reset()  # the next evaluation is a release of its own
    encrypters[0].encrypt_aggregate(client.get_states())
    assert len(client.one.ledger) == 2


def test_the_servers_query_is_answered(
    client_of: BuildClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Noisy()
    open_round(server, [client_of(Noisy, name).get_states() for name in NAMES])
    spec = server.terms.spec
    plan = plan_from("carry_over", spec)
    placed = next_query(plan, (), spec=spec, previous=server.releases[-1])
    monkeypatch.setattr(Noisy, "plan", placed)
    later = Noisy()
    monkeypatch.setattr(Noisy, "plan", None)
    config = later.get_config()
    monkeypatch.setattr(Noisy, "get_config", lambda metric: config)
    open_round(later, [client_of(Noisy, name).get_states() for name in NAMES])
    assert later.releases[-1].queries == (placed,)


def test_a_secagg_without_room_opens_nothing(
    client_of: BuildClient, caplog: pytest.LogCaptureFixture
) -> None:
    server = Exact()
    open_round(server, [client_of(Exact, name).get_states() for name in NAMES], bitsize=32)
    assert server.releases == []
    assert server.get_result() == {}
    assert "SecAgg had no room" in caplog.text


def test_too_few_clients_open_nothing(
    client_of: BuildClient, caplog: pytest.LogCaptureFixture
) -> None:
    server = Noisy()
    open_round(server, [client_of(Noisy, name).get_states() for name in NAMES[:2]])
    assert server.releases == []
    assert server.get_result() == {}
    assert "no curve of this round" in caplog.text


def test_visible_shares_are_checked_and_summed_once(
    client_of: BuildClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Noisy, "privacy", LocalDP(1.0))
    server = Noisy()
    states = []
    for name in NAMES:
        message = client_of(Noisy, name).get_states().to_dict()
        states.append(ShareState.from_dict(message))
    server.set_states(states[0])  # as its checkpointer looks at each client
    assert server.releases == []
    assert server.get_result() == {}
    server.reset()
    server.set_states(server.get_states() + states[0] + states[1] + states[2])
    assert [release.shares for release in server.releases] == [3]
    server.set_states(states[0] + states[1] + states[0])
    assert len(server.releases) == 1
    assert "no curve of this round" in caplog.text


def test_clients_insist_on_their_own_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`get_states` raises, in an evaluation, because declearn tells the server of its errors."""
    config = Noisy().get_config()
    with pytest.raises(InputError, match="ledger"):
        Noisy.from_config(config).get_states()
    monkeypatch.setattr(Noisy, "ledger", PrivacyLedger(budget=0.001, path=tmp_path / "ledger"))
    with pytest.raises(ReleaseError, match="declearn's SecAgg is off"):
        Noisy.from_config(config).get_states()
    with pytest.raises(SpecMismatchError, match="privacy"):
        Exact.from_config(config).get_states()
    monkeypatch.setattr(Noisy, "client", WithSecAgg())
    with pytest.raises(BudgetExceededError):
        Noisy.from_config(config).get_states()
