"""What a federation does to a transport: clients that are missing, late, doubled, different, empty,
or killed.

Messages by hand and between processes meet all of it, Flower's grid and NVFlare's requests whatever
a node or a site can do to them; ranks and simulations have no client that could go
(`tests/attacks/test_lost_ranks.py`), and declearn waits for everybody
(`tests/integrations/test_declearn.py`).

The law: a round ends with the release of those who answered in time, each once, or with none.
Whoever drew has paid once, whoever did not draw has paid nothing, and nobody answers the same round
with a second draw.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.transports.endpoints import (
    SECURE_STAGES,
    VISIBLE_STAGES,
    Client,
    Endpoint,
    GoneError,
    Part,
    ProcessClient,
    built,
    carry_query,
)
from torchmetrics_fed import Coordinator, DistributedDP, LocalDP, PrivacyLedger, Release
from torchmetrics_fed.errors import (
    DuplicateClientError,
    FederatedMetricError,
    LedgerConflictError,
    ReleaseError,
    RoundMismatchError,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:No (positive|negative) examples"),
]

EPSILON = 0.5
NAMES = ("ann", "ben", "cem", "dia")
VICTIM = "dia"
SETTINGS: dict[str, dict[str, Any]] = {
    "exact": {},
    "secure": {"secure": True},
    "distributed": {"privacy": DistributedDP(EPSILON, min_clients=3)},
    "trusted": {"privacy": DistributedDP(EPSILON, min_clients=3, trusted_aggregator=True)},
    "local": {"privacy": LocalDP(EPSILON)},
}
PRIVATE = [name for name, options in SETTINGS.items() if "privacy" in options]
Start = Callable[..., Endpoint]

_log = logging.getLogger(__name__)


@pytest.fixture(params=["by hand", "processes"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Starts a client: its name, its options and its data, in this process or in one of its own."""
    started: list[ProcessClient] = []

    def begin(name: str, options: dict[str, Any], part: Part, **kind: Any) -> Endpoint:
        if request.param == "by hand":
            return Client(name, options, part, tmp_path / name, **kind)
        started.append(ProcessClient(name, options, part, tmp_path / name, **kind))
        return started[-1]

    yield begin
    for client in started:
        client.close()


def data(name: str, examples: int = 200) -> Part:
    generator = torch.Generator().manual_seed(NAMES.index(name))
    target = torch.randint(0, 2, (examples,), generator=generator)
    return (torch.randn(examples, generator=generator) + target).sigmoid(), target


def agreed(setting: str) -> dict[str, Any]:
    return {"quantiles": 64, **SETTINGS[setting]}


def charged(folder: Path) -> dict[str, list[float]]:
    """What is in each client's ledger."""
    return {name: [entry.epsilon for entry in PrivacyLedger(path=folder / name)] for name in NAMES}


def pooled(parts: dict[str, Part]) -> Tensor:
    metric = built({"quantiles": 64})
    for part in parts.values():
        metric.update(*part)
    return metric.counts


# by fault: whether the victim's share is in the release, and how often it has paid under privacy
FAULTS = {
    "missing": (False, 0),
    "late": (False, 1),
    "doubled": (True, 1),
    "that counts differently": (False, 0),
    "without data": (True, 1),
    "with one class": (True, 1),
}


def at_fault(fault: str, options: dict[str, Any]) -> tuple[dict[str, Part], dict[str, Any]]:
    """All clients' data, and the options of the one at fault."""
    parts = {name: data(name) for name in NAMES}
    scores, target = parts[VICTIM]
    if fault == "without data":
        parts[VICTIM] = scores[:0], target[:0]
    if fault == "with one class":
        parts[VICTIM] = scores, torch.zeros_like(target)
    if fault == "that counts differently":
        return parts, {**options, "normalization": "sigmoid"}
    return parts, options


def check(
    release: Release,
    fault: str,
    parts: dict[str, Part],
    folder: Path,
    *,
    unasked: bool = False,
    settled: bool = False,
) -> None:
    """The law: who is in the release, and who has paid.

    A client that sends its share without having seen the aggregator's spec has paid before it is
    refused. A late client that has forgotten the round is charged what it has drawn.
    """
    is_counted, paid = FAULTS[fault]
    if unasked and fault == "that counts differently":
        paid = 1
    assert [total.shares for total in release.sums] == [3 + is_counted] * len(release.sums)
    if release.spec.privacy.charges:
        price = EPSILON
        if settled and fault == "late":
            price *= release.queries[0].fraction
        prices = {name: [EPSILON] for name in NAMES}
        prices[VICTIM] = [price] * paid
        assert charged(folder) == prices
        assert len(release.queries) == 2
    else:
        included = {name: part for name, part in parts.items() if name != VICTIM or is_counted}
        assert torch.equal(release.leaf, pooled(included))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("fault", FAULTS)
def test_one_client_at_fault(start: Start, fault: str, setting: str, tmp_path: Path) -> None:
    options = agreed(setting)
    parts, victim_options = at_fault(fault, options)
    clients = {
        name: start(name, victim_options if name == VICTIM else options, part)
        for name, part in parts.items()
    }
    for client in clients.values():
        client.count()
    if fault == "missing":
        del clients[VICTIM]
    coordinator = Coordinator(built(options), round="1")
    refused = dict[str, Exception]()
    how = {"late": {"late": [VICTIM]}, "doubled": {"doubled": [VICTIM]}}.get(fault, {})
    while coordinator.query is not None:
        refused = carry_query(coordinator, clients, **how)[1] | refused
    visible = not coordinator.spec.hides_shares
    check(coordinator.release, fault, parts, tmp_path, unasked=visible)
    if fault in ("late", "that counts differently"):
        assert isinstance(refused[VICTIM], FederatedMetricError)
    if fault == "doubled" and not coordinator.spec.hides_shares:
        assert isinstance(refused[f"{VICTIM} again"], DuplicateClientError)


@pytest.mark.parametrize("setting", SETTINGS)
# a message has one reply
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "doubled"])
def test_one_node_at_fault(fault: str, setting: str, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from tests.integrations.flower_grid import Client as Node
    from tests.integrations.flower_grid import Cut, LocalGrid
    from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin

    class Curves(FederatedEvaluationMixin, FedAvg):
        pass

    options = agreed(setting)
    parts, victim_options = at_fault(fault, options)
    ids = {name: 11 + number for number, name in enumerate(NAMES)}
    nodes = {
        ids[name]: Node(
            lambda name=name: built(victim_options if name == VICTIM else options, tmp_path / name),  # type: ignore[misc]
            *part,
            folder=tmp_path / "notes",
        )
        for name, part in parts.items()
    }
    grid = LocalGrid({node: client.app for node, client in nodes.items()})
    if fault == "missing":
        grid.cuts = {Cut(ids[VICTIM], stage) for stage in ("advertise", "evaluate")}
    if fault == "late":  # later than the server waits
        grid.cuts = {Cut(ids[VICTIM], "evaluate", "after")}
    strategy = Curves(metric=built(options), min_available_nodes=len(NAMES))
    strategy.start(
        grid, ArrayRecord({"weight": Array(torch.ones(3).numpy())}), num_rounds=1, timeout=1.0
    )
    check(strategy.releases[1], fault, parts, tmp_path)


@pytest.mark.parametrize("setting", SETTINGS)
# a request has one reply
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "doubled"])
def test_one_nvflare_site_at_fault(fault: str, setting: str, tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    from tests.integrations.nvflare_sites import JOB, Cut, Federation, Site

    if (fault, setting) == ("late", "exact"):
        pytest.skip("exact counts come with the model, for which NVFlare waits")
    options = agreed(setting)
    parts, victim_options = at_fault(fault, options)
    sites = [
        Site(name, built(victim_options if name == VICTIM else options, tmp_path / name), *part)
        for name, part in parts.items()
        if name != VICTIM or fault != "missing"
    ]
    federation = Federation(sites, tmp_path / "releases", **options)
    if fault == "late":  # later than the server waits
        federation.cuts = {Cut(VICTIM, stage, 1, "after") for stage in ("share", "mask")}
    federation.round()
    for site in sites:
        site.end()
    release = Release.load(tmp_path / "releases" / JOB / "round-0000.release")
    check(release, fault, parts, tmp_path, settled=True)


# by stage: whether what it sent is in the first sum, whether it has paid; it is in no later one
STAGES = {
    "local": dict(zip(VISIBLE_STAGES, [(0, 0), (0, 0), (0, 1), (0, 1), (1, 1)], strict=True)),
    "distributed": dict(
        zip(
            SECURE_STAGES,
            [(0, 0), (0, 0), (0, 0), (0, 0), (0, 1), (0, 1), (1, 1), (1, 1)],
            strict=True,
        )
    ),
}


@pytest.mark.parametrize(
    ("setting", "stage"), [(setting, stage) for setting in STAGES for stage in STAGES[setting]]
)
def test_a_client_is_killed(
    setting: str,
    stage: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    """Real processes and SIGKILL. The others' release is made; the victim, restarted, never
    draws twice for a round."""
    caplog.set_level(logging.INFO)
    options = agreed(setting)
    summed, paid = STAGES[setting][stage]

    def begin(name: str, dies: str = "") -> ProcessClient:
        client = ProcessClient(name, options, data(name), tmp_path / name, dies=dies)
        request.addfinalizer(client.close)
        return client

    clients: dict[str, Endpoint] = {
        name: begin(name, stage if name == VICTIM else "") for name in NAMES
    }
    for client in clients.values():
        with suppress(GoneError):  # it is asked all the same, and does not answer
            client.count()
    coordinator = Coordinator(built(options), round="1")
    first = coordinator.query
    while coordinator.query is not None:
        carry_query(coordinator, clients)
    release = coordinator.release
    assert [total.shares for total in release.sums] == [3 + summed, 3]
    assert f"at {stage!r}" in caplog.text
    assert "signal -9" in caplog.text
    assert charged(tmp_path) == {
        name: [EPSILON] * (paid if name == VICTIM else 1) for name in NAMES
    }
    _log.info("%s was killed at %s: %d + 3 shares, then 3; restarted", VICTIM, stage, summed)
    restarted = begin(VICTIM)
    restarted.count()
    if setting == "local":
        assert first is not None
        if paid:
            with pytest.raises(LedgerConflictError, match="begun by another client"):
                restarted.share("1", bytes(first))
        else:
            restarted.share("1", bytes(first))
            restarted.count()
        restarted.share("2", bytes(first))
        assert charged(tmp_path)[VICTIM] == [EPSILON, EPSILON]
    else:  # a whole new round, with the victim in it
        for name in NAMES[:-1]:
            clients[name].count()
        second = Coordinator(built(options), round="2")
        while second.query is not None:
            assert carry_query(second, {**clients, VICTIM: restarted})[1] == {}
        assert second.release.shares == 4
        assert charged(tmp_path) == {
            name: [EPSILON] * (1 + (paid if name == VICTIM else 1)) for name in NAMES
        }


@pytest.mark.parametrize("setting", SETTINGS)
def test_too_few_are_left(start: Start, setting: str, tmp_path: Path) -> None:
    """Two clients of the three that privacy needs, or secure aggregation: nothing is opened, now
    or later."""
    options = agreed(setting)
    clients = {name: start(name, options, data(name)) for name in NAMES[:2]}
    for client in clients.values():
        client.count()
    coordinator = Coordinator(built(options), round="1")
    if setting in ("exact", "local"):  # for which one client is enough
        while coordinator.query is not None:
            carry_query(coordinator, clients)
        assert coordinator.release.shares == 2
        return
    with pytest.raises(FederatedMetricError, match=r"[Ee]xpected"):
        carry_query(coordinator, clients)
    with pytest.raises(ReleaseError):
        _ = coordinator.release
    assert coordinator.sums == ()


@pytest.mark.parametrize("setting", SETTINGS)
def test_two_rounds_at_once(start: Start, setting: str, tmp_path: Path) -> None:
    """A client's data is in one of them; what is meant for one round is refused by the other."""
    options = agreed(setting)
    hidden = built(options).spec.hides_shares
    clients = {name: start(name, options, data(name)) for name in NAMES}
    for client in clients.values():
        client.count()
    first, second = (Coordinator(built(options), round=name) for name in ("one", "two"))
    query = bytes(first.query or b"")
    assert query == bytes(second.query or b"")
    if not hidden:
        share = clients["ann"].share("one", query)
        with pytest.raises(RoundMismatchError):
            second.receive("ann", share)
        if setting in PRIVATE:
            with pytest.raises(ReleaseError, match="the same noise in two sums"):
                clients["ann"].share("two", query)
    carry_query(first, clients)
    assert first.sums[0].shares == 4
    # one draw is for one round, and exact counts for one aggregation
    if setting in (
        "secure",
        "trusted",
        "local",
    ):
        with pytest.raises(FederatedMetricError):
            carry_query(second, clients)
    else:  # exact shares are the same again; a fresh draw is a new charge, and ends round one for this client
        carry_query(second, clients)
        assert second.sums[0].shares == 4
    if setting == "distributed":
        assert charged(tmp_path) == {name: [EPSILON, EPSILON] for name in NAMES}
        with pytest.raises(FederatedMetricError):
            carry_query(first, clients)
        assert len(first.sums) == 1
        return
    while first.query is not None:
        carry_query(first, clients)
    assert first.release.shares == 4
    assert charged(tmp_path) == {name: [EPSILON] * (setting in PRIVATE) for name in NAMES}
