"""Flower's own strategies and apps over a grid in this process: what the federation releases is what pooling gives."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torchmetrics import MetricCollection

pytest.importorskip("flwr")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, FedAvgM, Result

from tests.integrations.flower_grid import MEMORY, Client, Cut, Draws, LocalGrid, ask
from torchmetrics_fed import (
    Coordinator,
    DistributedDP,
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedMetric,
    FederatedROC,
    InputError,
    LocalDP,
    PrivacyLedger,
    Query,
    Release,
    ReleaseError,
    federated_collection,
)
from torchmetrics_fed.aggregation.secure import new_signing_keys
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.integrations.flower import (
    RECORD,
    FederatedEvaluationMixin,
    aggregate_fn,
    evaluation_mod,
    state_record,
)
from torchmetrics_fed.typing import MultiClass

NODES = [2**63 + 7 * index for index in range(1, 6)]
Make = Callable[..., FederatedMetric]


class Curves(FederatedEvaluationMixin, FedAvg):
    """What a user writes."""


def roc(**options: Any) -> FederatedROC:
    return FederatedROC(quantiles=64, **options)


def data(nodes: Sequence[int] = NODES, examples: int = 300) -> dict[int, tuple[Tensor, Tensor]]:
    """Scores and labels per node, no two nodes calibrated alike."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for index, node in enumerate(nodes):
        target = (torch.rand(examples + 10 * index, generator=generator) < 0.3).long()
        logits = torch.randn(len(target), generator=generator) + 1.5 * target + index - 2
        found[node] = logits.sigmoid(), target
    return found


def pooled(make: Make, found: dict[int, tuple[Tensor, Tensor]]) -> FederatedMetric:
    """The metric of all the data in one place."""
    metric = make()
    for preds, target in found.values():
        metric.update(preds, target)
    return metric


def clients(make: Make, folder: Path | None = None, **options: Any) -> dict[int, Client]:
    return {
        node: Client(make, *drawn, folder=folder and folder / str(node), **options)
        for node, drawn in data().items()
    }


def grid_of(parties: dict[int, Client]) -> LocalGrid:
    return LocalGrid({node: client.app for node, client in parties.items()})


def start(strategy: FedAvg, grid: LocalGrid, rounds: int = 1) -> Result:
    arrays = ArrayRecord({"weight": Array(torch.ones(3).numpy())})
    return strategy.start(grid, arrays, num_rounds=rounds, timeout=1.0)


def strategy_of(metric: FederatedMetric, kind: type[FedAvg] = Curves, **options: Any) -> Any:
    return kind(metric=metric, min_available_nodes=len(NODES), **options)  # type: ignore[call-arg]


def auroc(release: Release) -> float:
    return float(FederatedAUROC.from_release(release).compute())


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What Flower's logger warns of."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    with caplog.at_level(logging.WARNING, "flwr"):
        yield caplog
    logger.removeHandler(caplog.handler)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where that is possible because every note is synced."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


def warnings(log: pytest.LogCaptureFixture) -> str:
    ours = [r.getMessage() for r in log.records if r.levelno >= logging.WARNING]
    return "\n".join(dict.fromkeys(text for text in ours if "torchmetrics-fed" in text))


# --- plain: one line on the client, one argument on the server


def test_the_release_is_the_pooled_counts_to_the_bit(log: pytest.LogCaptureFixture) -> None:
    curves = aggregate_fn(roc())
    result = start(FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(clients(roc)))
    (release,) = curves.releases
    everyone = pooled(roc, data())
    assert torch.equal(release.leaf, everyone.counts)
    assert release.shares == len(NODES)
    logged = result.evaluate_metrics_clientapp[1]
    assert logged["federated-auroc"] == float(
        FederatedAUROC.from_release(everyone.release()).compute()
    )
    area = FederatedAveragePrecision.from_release(everyone.release()).compute()
    assert logged["federated-average-precision"] == float(area)
    assert not warnings(log)


def test_it_is_not_the_average_of_the_clients() -> None:
    found = data()
    average = sum(
        float(FederatedAUROC.from_release(pooled(roc, {0: one}).release()).compute())
        for one in found.values()
    )
    assert average / len(found) - auroc(pooled(roc, found).release()) > 0.05


def test_other_metrics_are_aggregated_as_flower_does() -> None:
    results = []
    for options in ({}, {"evaluate_metrics_aggr_fn": aggregate_fn(roc())}):
        random.seed(0)  # Flower samples nodes with it, and floats depend on the order
        strategy = FedAvg(**options)  # type: ignore[arg-type]
        results.append(start(strategy, grid_of(clients(roc))).evaluate_metrics_clientapp[1])
    assert results[0]["loss"] == results[1]["loss"]
    own = aggregate_fn(roc(), inner=lambda records, key: MetricRecord({"seen": len(records)}))
    logged = start(
        FedAvg(evaluate_metrics_aggr_fn=own), grid_of(clients(roc))
    ).evaluate_metrics_clientapp[1]
    assert set(logged) == {"seen", "federated-auroc", "federated-average-precision"}


def test_every_round_has_its_release() -> None:
    curves = aggregate_fn(roc())
    start(FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(clients(roc)), rounds=3)
    assert len({bytes(release) for release in curves.releases}) == 3


def without_share(content: RecordDict) -> None:
    del content[RECORD]


def with_garbage(content: RecordDict) -> None:
    content[RECORD] = ConfigRecord({"share": b"garbage"})


def with_text(content: RecordDict) -> None:
    content[RECORD] = ConfigRecord({"share": "text"})


@pytest.mark.parametrize("spoil", [without_share, with_garbage, with_text])
def test_what_cannot_be_read_is_left_out_and_the_round_goes_on(
    spoil: Callable[[RecordDict], None], log: pytest.LogCaptureFixture
) -> None:
    parties = clients(roc)
    parties[NODES[1]].spoil = spoil
    curves = aggregate_fn(roc())
    result = start(FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(parties))
    rest = {node: drawn for node, drawn in data().items() if node != NODES[1]}
    assert torch.equal(curves.releases[0].leaf, pooled(roc, rest).counts)
    assert {"loss", "federated-auroc"} <= set(result.evaluate_metrics_clientapp[1])
    assert "left out" in warnings(log)


def test_another_spec_is_left_out(log: pytest.LogCaptureFixture) -> None:
    parties = clients(roc)
    parties[NODES[1]].metric = lambda: FederatedROC(quantiles=32)
    curves = aggregate_fn(roc())
    start(FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(parties))
    assert curves.releases[0].shares == 4
    assert "left out a share" in warnings(log)


def test_a_share_that_comes_twice_counts_once(log: pytest.LogCaptureFixture) -> None:
    sent: list[ConfigRecord] = []

    def repeat(content: RecordDict) -> None:
        if len(sent) == 1:
            content[RECORD] = sent[0]
        sent.append(content.config_records[RECORD])

    curves = aggregate_fn(roc())
    start(FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(clients(roc, spoil=repeat)))
    assert curves.releases[0].shares == 4
    assert "Keep one of the two" in warnings(log)


@pytest.mark.parametrize("mixed_in", [False, True])
def test_a_share_of_another_round_keeps_nobody_else_out(mixed_in: bool) -> None:
    old = ConfigRecord({"share": bytes(pooled(roc, data()).share(round="an older round"))})
    parties = clients(roc)

    def replay(content: RecordDict) -> None:
        if sum(client.evaluations for client in parties.values()) == 1:  # the first reply of all
            content[RECORD] = old

    for client in parties.values():
        client.spoil = replay
    curves = aggregate_fn(roc())
    strategy: Any = strategy_of(roc()) if mixed_in else FedAvg(evaluate_metrics_aggr_fn=curves)
    start(strategy, grid_of(parties))
    assert (strategy.releases[1] if mixed_in else curves.releases[0]).shares == 4


def test_a_client_that_fails_is_left_out() -> None:
    parties = clients(roc)

    def fail(content: RecordDict) -> None:
        raise ValueError("no data here")

    parties[NODES[2]].spoil = fail
    curves, grid = aggregate_fn(roc()), grid_of(parties)
    start(FedAvg(evaluate_metrics_aggr_fn=curves), grid)
    assert curves.releases[0].shares == 4
    assert "no data here" in grid.refusals(MessageType.EVALUATE)[0]


def test_no_share_at_all_is_no_curve_and_no_error(log: pytest.LogCaptureFixture) -> None:
    curves = aggregate_fn(roc())
    result = start(
        FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(clients(roc, spoil=without_share))
    )
    assert not curves.releases
    assert set(result.evaluate_metrics_clientapp[1]) == {"loss"}
    assert "no curve of this round" in warnings(log)


@pytest.mark.parametrize("there", [4, 5])
def test_fewer_than_min_clients_give_no_scalars(
    there: int, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    def make(**options: Any) -> FederatedROC:
        return roc(
            privacy=DistributedDP(epsilon=1.0, min_clients=5, trusted_aggregator=True), **options
        )

    parties = charged(make, tmp_path)
    for client in parties.values():
        client.folder = None
    curves, grid = aggregate_fn(make()), grid_of(parties)
    grid.cuts = {Cut(node, MessageType.EVALUATE) for node in NODES[there:]}
    logged = start(FedAvg(evaluate_metrics_aggr_fn=curves), grid).evaluate_metrics_clientapp[1]
    assert len(curves.releases) == (there == 5)
    assert ("federated-auroc" in logged) == (there == 5)
    assert "loss" in logged
    assert ("min_clients=5" in warnings(log)) == (there < 5)
    assert "epsilon does not cover" in warnings(
        log
    )  # every client has sent how many examples it has


def test_the_mod_guards_plain_federations_too(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    def make(**options: Any) -> FederatedROC:
        return roc(privacy=LocalDP(epsilon=1.0), **options)

    grid, curves = grid_of(charged(make, tmp_path)), aggregate_fn(make())
    logged = start(FedAvg(evaluate_metrics_aggr_fn=curves), grid).evaluate_metrics_clientapp[1]
    sent = [reply.content.metric_records["metrics"] for reply in grid.replies(MessageType.EVALUATE)]
    assert [dict(record) for record in sent] == [{"num-examples": 1}] * 5
    assert set(logged) == {"federated-auroc", "federated-average-precision"}
    assert "kept back loss" in warnings(log)
    assert "epsilon does not cover" not in warnings(log)


def test_a_collection_and_any_of_its_metrics_give_the_share_of_all() -> None:
    collection = federated_collection(metrics=("roc", "average_precision"), quantiles=64)
    collection.update(*data()[NODES[0]])
    for metric in (collection, *collection.values()):
        assert isinstance(metric, FederatedMetric | MetricCollection)
        sent = RecordDict(
            {RECORD: state_record(metric), "metrics": MetricRecord({"num-examples": 1})}
        )
        curves = aggregate_fn(metric)
        curves([sent], "num-examples")
        assert torch.equal(curves.releases[0].leaf, pooled(roc, {0: data()[NODES[0]]}).counts)


@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
def test_multiclass_equals_pooled(multi_class: MultiClass) -> None:
    def make() -> FederatedAUROC:
        return FederatedAUROC("multiclass", num_classes=3, multi_class=multi_class, quantiles=64)

    generator = torch.Generator().manual_seed(5)
    parties, everyone = {}, make()
    for node in NODES:
        target = torch.randint(0, 3, (200,), generator=generator)
        preds = (torch.randn(200, 3, generator=generator) + torch.eye(3)[target]).softmax(-1)
        parties[node] = Client(make, preds, target)
        everyone.update(preds, target)
    curves = aggregate_fn(make())
    logged = start(
        FedAvg(evaluate_metrics_aggr_fn=curves), grid_of(parties)
    ).evaluate_metrics_clientapp[1]
    assert torch.equal(curves.releases[0].leaf, everyone.counts)
    assert logged["federated-auroc"] == float(
        FederatedAUROC.from_release(everyone.release()).compute()
    )


# --- shares that may only travel through secure aggregation


@pytest.mark.parametrize(
    "make", [lambda: roc(secure=True), lambda: roc(privacy=DistributedDP(1.0, 5))]
)
def test_without_the_mod_nothing_leaves_that_must_be_hidden(
    make: Callable[[], FederatedROC],
) -> None:
    metric = pooled(make, data())
    with pytest.raises(ReleaseError, match="Expected secure aggregation for this metric's shares"):
        state_record(metric)
    assert not len(metric.ledger)
    grid, curves = grid_of(clients(make)), aggregate_fn(make())
    start(FedAvg(evaluate_metrics_aggr_fn=curves), grid)
    assert len(grid.refusals(MessageType.EVALUATE)) == 5
    assert not curves.releases


def secure() -> FederatedROC:
    return roc(secure=True)


KEPT_BACK = (
    "torchmetrics-fed: kept back loss, made from raw data and not protected as the counts are. Name them in `publish` "
    "if they may leave."
)


def test_the_aggregated_sum_is_the_pooled_counts_to_the_bit(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    strategy = strategy_of(secure())
    result = start(strategy, grid_of(clients(secure, tmp_path)), rounds=2)
    everyone = pooled(secure, data())
    for server_round in (1, 2):
        release = strategy.releases[server_round]
        assert torch.equal(release.leaf, everyone.counts)
        assert release.shares == 5
        assert result.evaluate_metrics_clientapp[server_round]["federated-auroc"] == auroc(release)
    assert warnings(log) == KEPT_BACK


STAGES = ["advertise", "share_keys", "evaluate", "unmask"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("stage", STAGES)
def test_survivors_of_any_drop_are_summed_to_the_bit(
    stage: str, when: Literal["before", "after"], tmp_path: Path
) -> None:
    grid, strategy = grid_of(clients(secure, tmp_path)), strategy_of(secure())
    grid.cuts = {Cut(NODES[3], stage, when)}
    start(strategy, grid)
    there = {node: drawn for node, drawn in data().items() if node != NODES[3] or stage == "unmask"}
    assert torch.equal(strategy.releases[1].leaf, pooled(secure, there).counts)
    assert strategy.releases[1].shares == len(there)


@pytest.mark.parametrize("stage", STAGES)
def test_below_min_clients_nothing_is_opened_and_training_goes_on(
    stage: str, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    parties = clients(secure, tmp_path)
    grid, strategy = grid_of(parties), strategy_of(secure())
    grid.cuts = {Cut(node, stage) for node in NODES[:3]}
    result = start(strategy, grid)
    assert not strategy.releases
    assert 1 in result.train_metrics_clientapp
    assert "federated-auroc" not in result.evaluate_metrics_clientapp.get(1, {})
    assert "no curve of round 1" in warnings(log)
    if stage in ("advertise", "share_keys"):
        assert sum(client.evaluations for client in parties.values()) == 0
    grid.cuts = set()
    start(strategy, grid)
    assert strategy.releases[1].shares == 5


def test_a_node_without_the_mod_drops_out(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    parties = clients(secure, tmp_path)
    parties[NODES[0]].folder = None
    grid, strategy = grid_of(parties), strategy_of(secure())
    start(strategy, grid)
    assert strategy.releases[1].shares == 4
    assert f"dropped out: {NODES[0]}. ReleaseError: Expected secure aggregation" in warnings(log)


def test_an_evaluation_that_forgets_the_record_drops_out(tmp_path: Path) -> None:
    parties = clients(secure, tmp_path)
    parties[NODES[0]].spoil = without_share
    grid, strategy = grid_of(parties), strategy_of(secure())
    start(strategy, grid)
    assert strategy.releases[1].shares == 4


# --- differential privacy


def private(**options: Any) -> Callable[..., FederatedROC]:
    return lambda **more: roc(privacy=DistributedDP(epsilon=2.0, min_clients=4), **options, **more)


def charged(make: Make, folder: Path, **options: Any) -> dict[int, Client]:
    """Clients whose ledgers are files of their own."""
    parties = clients(make, folder, **options)
    for node, client in parties.items():
        client.folder = folder / f"notes {node}"
        path = folder / f"ledger {node}"
        client.metric = lambda path=path: make(ledger=PrivacyLedger(budget=99.0, path=path))  # type: ignore[misc]
    return parties


def ledgers(folder: Path) -> list[PrivacyLedger]:
    return [PrivacyLedger(path=folder / f"ledger {node}") for node in NODES]


def test_distributed_noise_is_summed_exactly_and_charged_once_per_client(tmp_path: Path) -> None:
    parties = charged(private(plan="single"), tmp_path)
    grid, strategy = grid_of(parties), strategy_of(private(plan="single")())
    grid.cuts = {Cut(NODES[4], "evaluate", "after")}
    with Draws() as drawn:
        start(strategy, grid)
    release = strategy.releases[1]
    order = [passed.node for passed in grid.passed if passed.reply and passed.stage == "evaluate"]
    summed = [cells for node, cells in zip(order, drawn, strict=True) if node != NODES[4]]
    assert torch.equal(release.last.cells, torch.stack(summed).sum(0))
    assert release.shares == 4
    assert [(len(ledger), ledger.spent().epsilon) for ledger in ledgers(tmp_path)] == [(1, 2.0)] * 5
    rest = {node: found for node, found in data().items() if node != NODES[4]}
    assert (release.leaf - pooled(roc, rest).counts).any()


def test_no_share_is_on_the_wire(tmp_path: Path) -> None:
    parties = charged(private(), tmp_path)
    grid, strategy = grid_of(parties), strategy_of(private()())
    with Draws() as drawn:
        start(strategy, grid)
    masked = {
        reply.metadata.src_node_id: reply.content.config_records
        for reply in grid.replies("evaluate")
    }
    for (node, client), cells in zip(
        ((node, parties[node]) for node in masked), drawn, strict=False
    ):
        vector = cells.flatten()
        raw = pooled(roc, {0: (client.preds, client.target)}).counts
        for secret in (vector, vector.reshape(2, -1)[0], raw, raw[0, 0], raw[0, 1]):
            assert not any(secret.numpy().tobytes() in passed.data for passed in grid.passed)
        sent = masked[node][RECORD]["answer"]
        assert isinstance(sent, bytes)
        seen = torch.frombuffer(bytearray(sent[-8 * vector.numel() :]), dtype=torch.int64)
        assert float((seen == vector).double().mean()) < 0.01


def test_plain_shares_are_on_the_wire() -> None:
    """The power of the test above: it finds what is there."""
    grid = grid_of(clients(roc))
    start(FedAvg(evaluate_metrics_aggr_fn=aggregate_fn(roc())), grid)
    for reply in grid.replies(MessageType.EVALUATE):
        share = reply.content.config_records[RECORD]["share"]
        assert isinstance(share, bytes)
        assert any(share in passed.data for passed in grid.passed)


@pytest.mark.parametrize("publish", [(), ("loss",)])
def test_other_metrics_leave_only_if_published(publish: tuple[str, ...], tmp_path: Path) -> None:
    grid, strategy = (
        grid_of(charged(private(), tmp_path, publish=publish)),
        strategy_of(private()()),
    )
    result = start(strategy, grid)
    assert ("loss" in result.evaluate_metrics_clientapp[1]) == bool(publish)
    for reply in grid.replies("evaluate"):
        assert reply.content.metric_records["metrics"]["num-examples"] == 1
        assert set(reply.content.metric_records["metrics"]) == {"num-examples", *publish}


def trusted(**options: Any) -> Callable[..., FederatedROC]:
    privacy = DistributedDP(epsilon=2.0, min_clients=4, trusted_aggregator=True)
    return lambda **more: roc(privacy=privacy, **options, **more)


@pytest.mark.parametrize("make", [private(), trusted()], ids=["hidden", "trusted"])
def test_two_queries_are_one_evaluation_one_entry_and_one_release(
    make: Make, tmp_path: Path
) -> None:
    parties = charged(make, tmp_path)
    grid, strategy = grid_of(parties), strategy_of(make())
    with Draws() as drawn:
        result = start(strategy, grid)
    release = strategy.releases[1]
    assert len(release.queries) == 2
    assert release.last.query.tree.edges is not None
    for number, each in enumerate(release.sums):
        assert torch.equal(each.cells, torch.stack(drawn[5 * number : 5 * number + 5]).sum(0))
    assert [client.evaluations for client in parties.values()] == [1] * 5
    assert [(len(ledger), ledger.spent().epsilon) for ledger in ledgers(tmp_path)] == [(1, 2.0)] * 5
    exact = auroc(pooled(roc, data()).release())
    assert result.evaluate_metrics_clientapp[1]["federated-auroc"] == pytest.approx(exact, abs=0.1)


def test_the_second_query_carries_no_model(tmp_path: Path) -> None:
    grid, strategy = grid_of(charged(private(), tmp_path)), strategy_of(private()())
    start(strategy, grid)
    second = [
        passed.message for passed in grid.passed if passed.stage == "answer" and not passed.reply
    ]
    assert len(second) == 5
    assert not any(message.content.array_records for message in second)


@pytest.mark.parametrize("make", [private(), trusted()], ids=["hidden", "trusted"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_who_drops_out_between_two_queries_is_not_in_the_second_sum(
    make: Make, when: Literal["before", "after"], tmp_path: Path
) -> None:
    grid, strategy = grid_of(charged(make, tmp_path)), strategy_of(make())
    grid.cuts = {Cut(NODES[2], "answer", when)}
    start(strategy, grid)
    assert [each.shares for each in strategy.releases[1].sums] == [5, 4]
    assert [ledger.spent().epsilon for ledger in ledgers(tmp_path)] == [2.0] * 5


@pytest.mark.parametrize("make", [private(), trusted()], ids=["hidden", "trusted"])
def test_without_a_second_answer_there_is_no_release(
    make: Make, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    parties = charged(make, tmp_path)
    grid, strategy = grid_of(parties), strategy_of(make())
    grid.cuts = {Cut(node, "answer") for node in NODES[:2]}
    start(strategy, grid)
    assert not strategy.releases
    assert "no curve of round 1" in warnings(log)
    assert all(ledger.spent().epsilon == 2.0 for ledger in ledgers(tmp_path))  # nothing is refunded
    grid.cuts = set()
    start(strategy, grid)
    assert strategy.releases[1].shares == 5


def test_a_plan_of_two_queries_needs_the_mixin() -> None:
    for plan in ("adaptive", "carry_over"):
        with pytest.raises(InputError, match="nobody can ask again"):
            aggregate_fn(roc(privacy=LocalDP(epsilon=1.0), plan=plan))
    assert not aggregate_fn(roc(privacy=LocalDP(epsilon=1.0))).terms.plan.asks_twice


@pytest.mark.parametrize("make", [private(), trusted()], ids=["hidden", "trusted"])
def test_a_server_cannot_make_queries_spend_more_than_epsilon(make: Make, tmp_path: Path) -> None:
    parties = charged(make, tmp_path)
    grid, strategy = grid_of(parties), strategy_of(make())
    start(strategy, grid)
    second = [
        passed.message for passed in grid.passed if passed.stage == "answer" and not passed.reply
    ]
    name = second[0].content.config_records[RECORD]["round"]
    for query in (Query(Tree((16,)), 0.5), Query(Tree((16,)), 1.0), *strategy.releases[1].queries):
        asked = Request(Stage.SHARE, str(name), bytes(query))
        reply = ask(grid, NODES[0], asked, evaluate=False)
        assert reply.has_error()
    assert [client.evaluations for client in parties.values()] == [1] * 5
    assert [(len(ledger), ledger.spent().epsilon) for ledger in ledgers(tmp_path)] == [(1, 2.0)] * 5


def test_leaves_are_carried_over_to_the_next_round(tmp_path: Path) -> None:
    make = private(plan="carry_over")
    parties = charged(make, tmp_path)
    strategy = strategy_of(make())
    start(strategy, grid_of(parties), rounds=2)
    assert [len(strategy.releases[number].queries) for number in (1, 2)] == [2, 1]
    assert strategy.releases[2].last.query.tree.edges is not None
    assert [(len(ledger), ledger.spent().epsilon) for ledger in ledgers(tmp_path)] == [(2, 4.0)] * 5
    assert [client.evaluations for client in parties.values()] == [2] * 5


@pytest.mark.parametrize(
    "ledger", [{}, {"budget": 3.0}, {"path": "ledger"}], ids=["none", "no path", "no budget"]
)
def test_where_the_server_asks_a_private_metric_needs_a_budget_that_lasts(
    ledger: dict[str, Any], tmp_path: Path
) -> None:
    options = ledger | ({"path": tmp_path / "ledger"} if "path" in ledger else {})
    metric = roc(privacy=LocalDP(epsilon=1.0), ledger=PrivacyLedger(**options))
    if "budget" in ledger:
        evaluation_mod(metric)  # it has a path for every node
    else:
        with pytest.raises(InputError, match="a budget and a path"):
            evaluation_mod(metric)
    metric.update(*data()[NODES[0]])
    with pytest.raises(InputError, match="a budget and a path"):
        state_record(metric)
    assert len(metric.ledger) == 0


def test_a_spent_budget_keeps_a_client_out(tmp_path: Path) -> None:
    parties = charged(private(), tmp_path)
    path = tmp_path / f"ledger {NODES[0]}"
    parties[NODES[0]].metric = lambda: private()(ledger=PrivacyLedger(budget=1.0, path=path))
    grid, strategy = grid_of(parties), strategy_of(private()())
    start(strategy, grid)
    assert strategy.releases[1].shares == 4
    assert "1.0 is left" in grid.refusals("evaluate")[0]


# --- other strategies and ways to evaluate


def test_evaluation_only(tmp_path: Path) -> None:
    grid, strategy = grid_of(clients(secure, tmp_path)), strategy_of(secure(), fraction_train=0.0)
    result = start(strategy, grid)
    assert not result.train_metrics_clientapp
    assert not grid.replies(MessageType.TRAIN)
    assert torch.equal(strategy.releases[1].leaf, pooled(secure, data()).counts)


def test_without_evaluation_there_is_no_sum(tmp_path: Path) -> None:
    grid, strategy = (
        grid_of(clients(secure, tmp_path)),
        strategy_of(secure(), fraction_evaluate=0.0),
    )
    start(strategy, grid)
    assert {passed.stage for passed in grid.passed} == {MessageType.TRAIN}
    assert not strategy.releases


def test_any_strategy_can_be_mixed_in(tmp_path: Path) -> None:
    class Momentum(FederatedEvaluationMixin, FedAvgM):
        pass

    strategy = strategy_of(secure(), Momentum)
    start(strategy, grid_of(clients(secure, tmp_path)))
    assert torch.equal(strategy.releases[1].leaf, pooled(secure, data()).counts)


def test_evaluations_may_have_an_action_of_their_own(tmp_path: Path) -> None:
    class Action(FedAvg):
        def configure_evaluate(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            messages = list(super().configure_evaluate(server_round, arrays, config, grid))
            for message in messages:
                message.metadata.message_type = "evaluate.curves"
            return messages

    class ActionCurves(FederatedEvaluationMixin, Action):
        pass

    strategy = strategy_of(secure(), ActionCurves)
    start(strategy, grid_of(clients(secure, tmp_path, action="curves")))
    assert strategy.releases[1].shares == 5


def test_a_sum_that_cannot_be_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match="min_clients"):
        strategy_of(roc(privacy=DistributedDP(epsilon=1.0, min_clients=2)))


def test_the_mixin_sums_plain_counts_too(tmp_path: Path) -> None:
    for folder in (None, tmp_path):  # plain counts need no mod
        strategy = strategy_of(roc())
        start(strategy, grid_of(clients(roc, folder)))
        assert torch.equal(strategy.releases[1].leaf, pooled(roc, data()).counts)


# --- signed aggregations


def signed(folder: Path) -> tuple[dict[int, Client], dict[str, bytes]]:
    keys = {node: new_signing_keys() for node in NODES}
    verification = {str(node): pair.verification for node, pair in keys.items()}
    parties = clients(secure, folder, verification_keys=verification)
    for node, client in parties.items():
        client.signing_key = keys[node].signing
    return parties, verification


def test_a_signed_aggregation_is_the_pooled_counts_to_the_bit(tmp_path: Path) -> None:
    parties, verification = signed(tmp_path)
    grid, strategy = grid_of(parties), strategy_of(secure(), verification_keys=verification)
    grid.cuts = {Cut(NODES[0], "evaluate")}
    start(strategy, grid)
    rest = {node: found for node, found in data().items() if node != NODES[0]}
    assert torch.equal(strategy.releases[1].leaf, pooled(secure, rest).counts)
    assert len(grid.replies("sign")) == 4


@pytest.mark.parametrize("own", [True, False])
def test_a_wrong_key_is_refused(own: bool, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    parties, verification = signed(tmp_path)
    stranger, node = new_signing_keys(), NODES[0]
    parties[node].signing_key = stranger.signing
    if own:  # it believes in its key, and so only others can refuse it
        parties[node].verification_keys = verification | {str(node): stranger.verification}
    grid, strategy = grid_of(parties), strategy_of(secure(), verification_keys=verification)
    start(strategy, grid)
    assert strategy.releases[1].shares == 4
    assert f"query 1, advertise: dropped out: {node}. " in warnings(log)


def test_clients_do_not_believe_the_servers_keys(tmp_path: Path) -> None:
    parties, verification = signed(tmp_path)
    stranger, node = new_signing_keys(), NODES[0]
    forged = verification | {str(node): stranger.verification}
    parties[node].signing_key, parties[node].verification_keys = stranger.signing, forged
    grid, strategy = grid_of(parties), strategy_of(secure(), verification_keys=forged)
    start(strategy, grid)
    assert not strategy.releases
    assert (
        sum("Expected keys signed by client" in reason for reason in grid.refusals("share_keys"))
        == 4
    )


# --- servers that ask for something else than what was agreed


def test_another_spec_is_refused(tmp_path: Path) -> None:
    parties = charged(private(), tmp_path)
    for other in (
        secure(),
        roc(privacy=DistributedDP(2.0, 3)),
        roc(privacy=DistributedDP(20.0, 4)),
    ):
        grid, strategy = grid_of(parties), strategy_of(other)
        start(strategy, grid)
        assert len(grid.refusals("advertise")) == 5
        assert "Build every metric with the same arguments" in grid.refusals("advertise")[0]
        assert not strategy.releases
    assert sum(client.evaluations for client in parties.values()) == 0
    assert not any(len(ledger) for ledger in ledgers(tmp_path))


def test_fewer_clients_than_agreed_are_refused(tmp_path: Path) -> None:
    grid, coordinator = grid_of(charged(private(), tmp_path)), Coordinator(private()(), round="r")
    honest, query = coordinator.config, bytes(coordinator.query or b"")
    for asked_for, refused in (
        (honest, False),
        (replace(honest, min_clients=3), True),
        (replace(honest, min_clients=5), False),
        (replace(honest, max_colluding=0), True),
        (replace(honest, cells=honest.cells - 1), True),
        (replace(honest, round_id="another"), True),
        (replace(honest, binding=secure().spec.digest), True),
        (replace(honest, signed=True), True),
    ):
        grid.passed.clear()
        node = NODES[1] if asked_for.min_clients == 5 else NODES[0]
        reply = ask(grid, node, Request(Stage.ADVERTISE, "r", query, start=asked_for.to_bytes()))
        assert reply.has_error() == refused, asked_for
        assert not refused or "both sides" in str(reply.error.reason)
    grid.passed.clear()
    ask(grid, NODES[0], Request(Stage.ADVERTISE, "r2", query, start=b""))
    assert grid.refusals("advertise")


def test_an_unsigned_aggregation_is_refused_where_signed_ones_were_agreed(tmp_path: Path) -> None:
    parties, _ = signed(tmp_path)
    grid, strategy = grid_of(parties), strategy_of(secure())
    start(strategy, grid)
    assert not strategy.releases
    assert all("Expected a signed aggregation" in reason for reason in grid.refusals("advertise"))
    assert len(grid.refusals("advertise")) == 5


def test_a_signed_aggregation_is_refused_without_keys(tmp_path: Path) -> None:
    _, verification = signed(tmp_path)
    grid, strategy = (
        grid_of(clients(secure, tmp_path)),
        strategy_of(secure(), verification_keys=verification),
    )
    start(strategy, grid)
    assert len(grid.refusals("advertise")) == 5


FLAT = bytes(Query(Tree.flat(256)))


@pytest.mark.parametrize(
    "record",
    [
        ConfigRecord(),
        ConfigRecord({"stage": Stage.UNMASK.value}),
        ConfigRecord({**Request(Stage.UNMASK, "r", FLAT).fields, "stage": 6}),
        ConfigRecord({**Request(Stage.UNMASK, "r", FLAT).fields, "stage": "unmask"}),
        ConfigRecord({**Request(Stage.UNMASK, "r", FLAT).fields}),
        ConfigRecord({**Request(Stage.SHARE, "r", FLAT).fields}),
        ConfigRecord({"forget": 1}),
    ],
)
def test_messages_that_make_no_sense_are_refused(record: ConfigRecord, tmp_path: Path) -> None:
    grid = grid_of(clients(secure, tmp_path))
    (reply,) = grid.send_and_receive(
        [Message(RecordDict({RECORD: record}), NODES[0], MessageType.EVALUATE)]
    )
    assert reply.has_error()
    assert "torchmetrics_fed.errors" in str(reply.error.reason)


def test_a_server_cannot_ask_for_a_plain_share(tmp_path: Path) -> None:
    grid = grid_of(clients(secure, tmp_path))
    reply = ask(grid, NODES[0], Request(Stage.SHARE, "r", FLAT))
    assert "because shares travel through secure aggregation here" in str(reply.error.reason)
    (bare,) = grid.send_and_receive([Message(RecordDict(), NODES[0], MessageType.EVALUATE)])
    assert "Expected secure aggregation" in str(bare.error.reason)


def test_only_our_metrics_are_taken() -> None:
    for call in (state_record, aggregate_fn, evaluation_mod):
        with pytest.raises(InputError, match="Expected a federated metric"):
            call(object())  # type: ignore[arg-type]
