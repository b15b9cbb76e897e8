"""A simulated federation is a real one in one process: the same sum, the same noise, one entry in the ledger."""

from __future__ import annotations

import math
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC

from torchmetrics_fed import (
    BudgetExceededError,
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    LocalDP,
    Privacy,
    PrivacyLedger,
    Query,
    Release,
    ReleaseError,
    ScoreGrid,
    federated_collection,
    functional,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import LedgerConflictError, SpecMismatchError
from torchmetrics_fed.release import ReleaseFlag
from torchmetrics_fed.simulate import simulate

ALPHA = 1e-6

TASKS: dict[str, dict[str, Any]] = {
    "binary": {},
    "own edges": {"grid": ScoreGrid.from_edges([0.0, 0.3, 0.7, 1.0])},
    "one-vs-rest": {"task": "multiclass", "num_classes": 3},
    "one-vs-one": {"task": "multiclass", "num_classes": 3, "multi_class": "ovo"},
    "multilabel": {"task": "multilabel", "num_labels": 2},
}


def data(options: dict[str, Any], clients: int = 7) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    made = []
    for client in range(clients):
        size = 20 + 5 * client  # uneven, so that weighted and unweighted means differ
        if options.get("task") == "multiclass":
            scores = torch.rand(size, 3, generator=generator).softmax(-1)
            made.append((scores, torch.randint(0, 3, (size,), generator=generator)))
        else:
            shape = (size, 2) if options.get("task") == "multilabel" else (size,)
            made.append(
                (
                    torch.rand(shape, generator=generator),
                    torch.randint(0, 2, shape, generator=generator),
                )
            )
    return made


def empty(clients: int) -> Iterator[tuple[Tensor, Tensor]]:
    return ((torch.zeros(0), torch.zeros(0, dtype=torch.int64)) for _ in range(clients))


@pytest.mark.parametrize("options", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("compare", [False, True])
def test_it_is_the_sum_of_real_clients_shares(options: dict[str, Any], compare: bool) -> None:
    shares = []
    for preds, target in data(options):
        client = FederatedROC(quantiles=64, **options)
        client.update(preds, target)
        shares.append(client.share(round="first"))
    real = Release.sum(shares)
    ours = simulate(
        data(options), FederatedROC(quantiles=64, **options), compare=compare, round="first"
    )
    assert torch.equal(ours.release.last.cells, real.last.cells)
    assert ours.release.queries == real.queries
    assert (ours.release.spec, ours.release.round, ours.release.shares) == (
        real.spec,
        real.round,
        real.shares,
    )
    assert ours.clients == len(shares)


def test_a_named_round_is_charged_once_under_its_name() -> None:
    metric = FederatedROC(quantiles=4, privacy=LocalDP(epsilon=1.0))
    for name in ("7", "8", "", ""):
        simulate(empty(3), metric, round=name)
    assert [entry.round for entry in metric.ledger][:2] == ["7", "8"]
    assert len(metric.ledger) == 4  # a round without a name has one of its own
    with pytest.raises(LedgerConflictError, match=r"round '7'.*A retry is a new round"):
        simulate(empty(3), metric, round="7")
    assert len(metric.ledger) == 4


@pytest.mark.parametrize("options", TASKS.values(), ids=TASKS)
@pytest.mark.filterwarnings("ignore:epsilon=40")
def test_noise_apart_the_private_cells_are_the_exact_ones(options: dict[str, Any]) -> None:
    # at this epsilon hardly a cell has any noise, so that a wrong tree or a client too few would show
    noisy = simulate(
        data(options), FederatedROC(quantiles=4, privacy=LocalDP(epsilon=40.0), **options)
    ).release
    exact = simulate(data(options), FederatedROC(quantiles=4, **options)).release
    levels = noisy.last.query.tree.levels(exact.leaf)
    differences = torch.cat(
        [(a - b).abs().flatten() for a, b in zip(noisy.levels, levels, strict=True)]
    )
    assert differences.double().mean() < 0.5


def z_value(noise: Tensor, epsilon: float, shares: float) -> float:
    """How far the mean square of noise is from that of ``shares`` two-sided geometrics, in standard deviations.

    With q = exp(-epsilon / levels) and p = 1 - q a geometric has variance q / p^2 and fourth cumulant
    q (6 q + p^2) / p^4; cumulants add up, and the mean square of N cells has variance (fourth + 2 variance^2) / N.
    """
    q = math.exp(-epsilon / 3)
    variance, fourth = (
        2 * shares * q / (1 - q) ** 2,
        2 * shares * q * (6 * q + (1 - q) ** 2) / (1 - q) ** 4,
    )
    square = noise.double().square().mean().item()
    return (square - variance) / math.sqrt((fourth + 2 * variance**2) / noise.numel())


@pytest.mark.parametrize(
    ("privacy", "clients", "shares"),
    [
        (DistributedDP(epsilon=1.0, min_clients=5), 5, 5 / 4),
        (
            DistributedDP(epsilon=1.0, min_clients=3, max_colluding=0, trusted_aggregator=True),
            5,
            5 / 3,
        ),
        (
            DistributedDP(epsilon=1.0, min_clients=31),
            45,
            45 / 30,
        ),  # sparse noise, in a block of 30 and a half
        (LocalDP(epsilon=1.0), 5, 5),
        (CentralDP(epsilon=1.0), 5, 1),
    ],
    ids=["hidden", "trusted", "many", "local", "central"],
)
def test_the_variance_of_the_sum_is_that_of_its_clients_noise(
    privacy: Privacy, clients: int, shares: float
) -> None:
    query = Query(Tree.balanced(4096))
    noise = simulate(empty(clients), FederatedROC(privacy=privacy, plan=query)).release.last.cells
    assert noise.numel() == 2 * 4368
    critical = stats.norm.isf(ALPHA / 2)
    assert abs(z_value(noise, 1.0, shares)) < critical
    # and the test would see an epsilon that is off, or a third of the draws too many or too few
    assert z_value(noise, 0.8, shares) < -critical
    assert z_value(noise, 1.25, shares) > critical
    assert z_value(noise, 1.0, shares * 4 / 3) < -critical
    assert z_value(noise, 1.0, shares * 2 / 3) > critical
    assert abs(noise.double().mean()) < critical * noise.double().std() / math.sqrt(noise.numel())


def test_two_simulations_draw_anew_and_charge_each() -> None:
    metric = FederatedROC(
        privacy=DistributedDP(epsilon=0.5, min_clients=3), ledger=PrivacyLedger(budget=1.0)
    )
    first, second = (simulate(empty(10), metric).release for _ in range(2))
    assert not torch.equal(first.last.cells, second.last.cells)
    assert [entry.epsilon for entry in metric.ledger] == [0.5, 0.5]
    with pytest.raises(BudgetExceededError):
        simulate(empty(10), metric)
    assert len(metric.ledger) == 2


def test_the_round_is_charged_once_for_all_clients_and_metrics() -> None:
    ledger = PrivacyLedger()
    privacy = DistributedDP(epsilon=1.0, min_clients=10)
    collection = federated_collection(metrics=["roc", "auroc"], privacy=privacy, ledger=ledger)
    release = simulate(data({}, clients=25), collection).release
    assert [(entry.epsilon, entry.data) for entry in ledger] == [(1.0, "data")]
    assert release.shares == 25
    assert 0 < FederatedAUROC.from_release(release).compute() < 1


def test_exact_counts_cost_nothing() -> None:
    metric = FederatedROC()
    simulate(data({}), metric)
    assert len(metric.ledger) == 0


@pytest.mark.parametrize("clients", [0, 9])
def test_too_few_clients_open_nothing(clients: int) -> None:
    metric = FederatedROC(privacy=DistributedDP(epsilon=1.0, min_clients=10))
    with pytest.raises(ReleaseError, match=f"at least 10 clients but got {clients}"):
        simulate(empty(clients), metric)
    assert len(metric.ledger) == 0
    with pytest.raises(ReleaseError, match="at least 1 client but got 0"):
        simulate(empty(0), FederatedROC())


def test_a_client_that_fails_is_named_and_costs_nothing() -> None:
    metric = FederatedROC(privacy=LocalDP(epsilon=1.0))
    clients = data({})
    clients[4] = (clients[4][0] + 1, clients[4][1])
    with pytest.raises(InputError, match=r"Client 4.*scores in \[0"):
        simulate(clients, metric)
    assert len(metric.ledger) == 0


@pytest.mark.parametrize(
    "client", [3, torch.rand(4), [torch.rand(4)], (torch.rand(4), [0, 1]), ["ab"]]
)
def test_what_is_no_client_is_refused(client: Any) -> None:
    with pytest.raises(InputError, match=r"Client 0.*tensors or a mapping each"):
        simulate([client], FederatedROC())


def test_batches_of_any_kind_are_one_client() -> None:
    preds, target = data({})[0]
    whole = simulate([(preds, target)], FederatedROC()).release
    pieces = list(zip(preds.split(6), target.split(6), strict=True))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(preds, target), batch_size=6
    )
    for client in (pieces, iter(pieces), loader, [preds, target]):
        assert torch.equal(simulate([client], FederatedROC()).release.leaf, whole.leaf)
    assert simulate([pieces[:2], loader], FederatedROC()).clients == 2


def test_the_template_is_fresh_and_stays_so() -> None:
    metric = FederatedROC()
    simulate(data({}), metric)
    assert not metric.update_called
    assert metric.counts.sum() == 0
    metric.update(*data({})[0])
    with pytest.raises(InputError, match="counted nothing"):
        simulate(data({}), metric)


def test_only_metrics_that_count_alike_are_simulated_together() -> None:
    with pytest.raises(InputError, match="BinaryAUROC"):
        simulate(data({}), MetricCollection([BinaryAUROC()]))
    with pytest.raises(SpecMismatchError, match="ignore_index"):
        simulate(
            data({}), MetricCollection({"a": FederatedROC(), "b": FederatedROC(ignore_index=1)})
        )
    with pytest.raises(InputError, match="federated_collection"):
        simulate(data({}), MetricCollection({"a": FederatedROC(), "b": FederatedROC(data="b")}))


def test_the_comparison_is_that_of_real_metrics() -> None:
    clients = data({})
    local = []
    for preds, target in clients:
        client = FederatedAUROC()
        client.update(preds, target)
        local.append(client.compute().item())
    sizes = [len(preds) for preds, _ in clients]
    one_sided = (torch.rand(9), torch.ones(9, dtype=torch.int64))
    result = simulate(
        [*clients, one_sided], FederatedAUROC(privacy=LocalDP(epsilon=1.0)), compare=True
    ).comparison
    assert result is not None
    assert result.local == pytest.approx(sum(local) / 7, abs=1e-12)
    weighted = sum(area * size for area, size in zip(local, sizes, strict=True)) / sum(sizes)
    assert result.local_weighted == pytest.approx(weighted, abs=1e-12)
    assert result.local_weighted != result.local
    assert result.undefined == 1
    exact = simulate([*clients, one_sided], FederatedAUROC(), compare=True)
    pooled = FederatedAUROC()
    pooled.update(*(torch.cat(sides) for sides in zip(*clients, one_sided, strict=True)))
    assert exact.comparison == result
    assert result.pooled == pooled.compute() == FederatedAUROC.from_release(exact.release).compute()


@pytest.mark.parametrize("name", ["one-vs-rest", "one-vs-one", "multilabel"])
def test_classes_that_a_client_lacks_are_left_out_of_its_area(name: str) -> None:
    options = TASKS[name]
    clients = data(options)
    preds, target = clients[0]
    mine = (
        target < 2 if options["task"] == "multiclass" else torch.ones(len(target), dtype=torch.bool)
    )
    if options["task"] == "multilabel":
        target[:, 1] = 0
    result = simulate(
        [(preds[mine], target[mine]), *clients[1:]], FederatedROC(**options), compare=True
    ).comparison
    alone = simulate(
        [(preds[mine], target[mine])], FederatedROC(**options), compare=True
    ).comparison
    assert result is not None
    assert alone is not None
    assert (result.undefined, alone.undefined) == (0, 0)
    areas = [
        functional.auroc(
            preds[mine][:, column],
            (target[:, column] if target.ndim == 2 else target == column)[mine],
        )
        for column in range(1 if target.ndim == 2 else 2)
    ]
    assert alone.local == alone.pooled == pytest.approx(sum(areas).item() / len(areas), abs=1e-12)  # type: ignore[union-attr]


def test_nothing_exact_is_given_unasked() -> None:
    result = simulate(data({}), FederatedROC(privacy=LocalDP(epsilon=1.0)))
    assert result.comparison is None
    nobody = simulate(empty(3), FederatedROC(), compare=True).comparison
    assert nobody is not None
    assert math.isnan(nobody.local)
    assert nobody.undefined == 3


def test_clients_are_taken_one_by_one() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def clients() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(20):
            assert sum(ref() is not None for ref in alive) <= 1
            preds = torch.rand(5)
            alive.append(weakref.ref(preds))
            yield preds, torch.ones(5, dtype=torch.int64)
            del preds

    assert simulate(clients(), FederatedROC(privacy=LocalDP(epsilon=1.0))).clients == 20


@pytest.mark.slow
def test_memory_is_flat() -> None:
    """What Python and numpy hold, noise included: clients are drawn by the hundred. Torch: `benchmarks/simulate.py`."""
    peaks = []
    for count in (300, 300, 3_000):  # the first fills caches
        metric = FederatedROC(privacy=DistributedDP(epsilon=1.0, min_clients=60), plan="single")
        tracemalloc.start()
        simulate(empty(count), metric)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 100_000


def test_progress_is_shown_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    metric = FederatedROC(privacy=LocalDP(epsilon=1.0))
    simulate(empty(3), metric)
    assert capsys.readouterr().err == ""
    simulate(empty(3), metric, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "counted 3 clients in" in shown.err
    assert "drew noise for 3 clients in" in shown.err


def test_a_simulated_release_says_so_and_a_real_one_does_not(tmp_path: Path) -> None:
    """All that reads it, also from its file, knows that nothing was hidden from this process."""
    clients = data({})
    release = simulate(clients, FederatedROC()).release
    release.save(tmp_path / "a.release")
    assert ReleaseFlag.SIMULATED in release.flags
    assert ReleaseFlag.SIMULATED in Release.load(tmp_path / "a.release").flags
    metric = FederatedROC()
    for client in clients:
        metric.update(*client)
    assert torch.equal(metric.release().leaf, release.leaf)
    assert not metric.release().flags
