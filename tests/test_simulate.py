"""A simulated federation is a real one in one process: same sum, same noise, one ledger entry."""

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
"""The probability that a statistical test fails although the law is right."""

TASKS: dict[str, dict[str, Any]] = {
    "binary": {},
    "own edges": {"grid": ScoreGrid.from_edges([0.0, 0.3, 0.7, 1.0])},
    "one-vs-rest": {"task": "multiclass", "num_classes": 3},
    "one-vs-one": {"task": "multiclass", "num_classes": 3, "multi_class": "ovo"},
    "multilabel": {"task": "multilabel", "num_labels": 2},
}


def data(options: dict[str, Any], clients: int = 7) -> list[tuple[Tensor, Tensor]]:
    """Return scores and targets of clients of different sizes."""
    generator = torch.Generator().manual_seed(3)
    task = options.get("task", "binary")
    batches = []
    for client in range(clients):
        size = 20 + 5 * client  # uneven, so that weighted and unweighted means differ
        if task == "multiclass":
            preds = torch.rand(size, 3, generator=generator).softmax(-1)
            target = torch.randint(0, 3, (size,), generator=generator)
        elif task == "multilabel":
            preds = torch.rand(size, 2, generator=generator)
            target = torch.randint(0, 2, (size, 2), generator=generator)
        else:
            preds = torch.rand(size, generator=generator)
            target = torch.randint(0, 2, (size,), generator=generator)
        batches.append((preds, target))
    return batches


def empty(clients: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return clients without examples: the cells of their sum are the noise."""
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
    metric = FederatedROC(quantiles=64, **options)
    simulation = simulate(data(options), metric, compare=compare, round="first")
    release = simulation.release
    assert torch.equal(release.last.cells, real.last.cells)
    assert release.queries == real.queries
    assert release.spec == real.spec
    assert release.round == real.round
    assert release.shares == real.shares
    assert simulation.clients == len(shares)


def test_a_named_round_is_charged_once_under_its_name() -> None:
    metric = FederatedROC(quantiles=4, privacy=LocalDP(epsilon=1.0))
    for name in ("7", "8", "", ""):
        simulate(empty(3), metric, round=name)
    assert [entry.round for entry in metric.ledger][:2] == ["7", "8"]
    assert len(metric.ledger) == 4  # a round without a name gets a random name
    with pytest.raises(LedgerConflictError, match=r"round '7'.*A retry is a new round"):
        simulate(empty(3), metric, round="7")
    assert len(metric.ledger) == 4


@pytest.mark.parametrize("options", TASKS.values(), ids=TASKS)
@pytest.mark.filterwarnings("ignore:epsilon=40")
def test_noise_apart_the_private_cells_are_the_exact_ones(options: dict[str, Any]) -> None:
    # at this epsilon few cells have noise, so a wrong tree or a missing client would show
    private_metric = FederatedROC(quantiles=4, privacy=LocalDP(epsilon=40.0), **options)
    private = simulate(data(options), private_metric).release
    exact = simulate(data(options), FederatedROC(quantiles=4, **options)).release
    exact_levels = private.last.query.tree.levels(exact.leaf)
    differences = []
    for noisy_level, exact_level in zip(private.levels, exact_levels, strict=True):
        differences.append((noisy_level - exact_level).abs().flatten())
    assert torch.cat(differences).double().mean() < 0.5


def z_value(noise: Tensor, epsilon: float, shares: float) -> float:
    """Return the deviation of noise's mean square from that of ``shares`` two-sided geometrics.

    The unit is its standard deviation. With q = exp(-epsilon / levels) and p = 1 - q, a geometric
    has variance q / p^2 and fourth cumulant q (6 q + p^2) / p^4. Cumulants add up, and the mean
    square of N cells has variance (fourth + 2 variance^2) / N.
    """
    q = math.exp(-epsilon / 3)
    p = 1 - q
    variance = 2 * shares * q / p**2
    fourth = 2 * shares * q * (6 * q + p**2) / p**4
    square = noise.double().square().mean().item()
    return (square - variance) / math.sqrt((fourth + 2 * variance**2) / noise.numel())


LAWS: dict[str, tuple[Privacy, int, float]] = {
    "hidden": (DistributedDP(epsilon=1.0, min_clients=5), 5, 5 / 4),
    "trusted": (
        DistributedDP(epsilon=1.0, min_clients=3, max_colluding=0, trusted_aggregator=True),
        5,
        5 / 3,
    ),
    # sparse noise, in a block of 30 shares and one of 15
    "many": (DistributedDP(epsilon=1.0, min_clients=31), 45, 45 / 30),
    "local": (LocalDP(epsilon=1.0), 5, 5),
    "central": (CentralDP(epsilon=1.0), 5, 1),
}
"""Privacy, number of clients, and how many whole geometrics their noise adds up to."""


@pytest.mark.parametrize(("privacy", "clients", "shares"), LAWS.values(), ids=LAWS)
def test_the_variance_of_the_sum_is_that_of_its_clients_noise(
    privacy: Privacy, clients: int, shares: float
) -> None:
    query = Query(Tree.balanced(4096))
    metric = FederatedROC(privacy=privacy, plan=query)
    noise = simulate(empty(clients), metric).release.last.cells
    assert noise.numel() == 2 * 4368
    critical = stats.norm.isf(ALPHA / 2)
    assert abs(z_value(noise, 1.0, shares)) < critical
    # the test has power: it sees a wrong epsilon, and a third of the draws too many or too few
    assert z_value(noise, 0.8, shares) < -critical
    assert z_value(noise, 1.25, shares) > critical
    assert z_value(noise, 1.0, shares * 4 / 3) < -critical
    assert z_value(noise, 1.0, shares * 2 / 3) > critical
    assert abs(noise.double().mean()) < critical * noise.double().std() / math.sqrt(noise.numel())


def test_two_simulations_draw_anew_and_charge_each() -> None:
    metric = FederatedROC(
        privacy=DistributedDP(epsilon=0.5, min_clients=3), ledger=PrivacyLedger(budget=1.0)
    )
    first = simulate(empty(10), metric).release
    second = simulate(empty(10), metric).release
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
def test_an_argument_that_is_no_client_is_refused(client: Any) -> None:
    with pytest.raises(InputError, match=r"Client 0.*tensors or a mapping each"):
        simulate([client], FederatedROC())


def test_batches_of_any_kind_are_one_client() -> None:
    preds, target = data({})[0]
    in_one_batch = simulate([(preds, target)], FederatedROC()).release
    pieces = list(zip(preds.split(6), target.split(6), strict=True))
    dataset = torch.utils.data.TensorDataset(preds, target)
    loader = torch.utils.data.DataLoader(dataset, batch_size=6)
    for client in (pieces, iter(pieces), loader, [preds, target]):
        assert torch.equal(simulate([client], FederatedROC()).release.leaf, in_one_batch.leaf)
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
    two_specs = MetricCollection({"a": FederatedROC(), "b": FederatedROC(ignore_index=1)})
    with pytest.raises(SpecMismatchError, match="ignore_index"):
        simulate(data({}), two_specs)
    two_data_sets = MetricCollection({"a": FederatedROC(), "b": FederatedROC(data="b")})
    with pytest.raises(InputError, match="federated_collection"):
        simulate(data({}), two_data_sets)


def test_the_comparison_is_that_of_real_metrics() -> None:
    clients = data({})
    areas = []
    sizes = []
    for preds, target in clients:
        client = FederatedAUROC()
        client.update(preds, target)
        areas.append(client.compute().item())
        sizes.append(len(preds))
    positives_only = (torch.rand(9), torch.ones(9, dtype=torch.int64))
    clients.append(positives_only)
    private = FederatedAUROC(privacy=LocalDP(epsilon=1.0))
    result = simulate(clients, private, compare=True).comparison
    assert result is not None
    assert result.local == pytest.approx(sum(areas) / 7, abs=1e-12)
    weighted = sum(area * size for area, size in zip(areas, sizes, strict=True)) / sum(sizes)
    assert result.local_weighted == pytest.approx(weighted, abs=1e-12)
    assert result.local_weighted != result.local
    assert result.undefined == 1
    exact = simulate(clients, FederatedAUROC(), compare=True)
    pooled = FederatedAUROC()
    for preds, target in clients:
        pooled.update(preds, target)
    assert exact.comparison == result
    assert result.pooled == pooled.compute()
    assert result.pooled == FederatedAUROC.from_release(exact.release).compute()


@pytest.mark.parametrize("name", ["one-vs-rest", "one-vs-one"])
def test_classes_without_examples_are_left_out_of_a_clients_area(name: str) -> None:
    options = TASKS[name]
    clients = data(options)
    preds, target = clients[0]
    preds = preds[target < 2]
    target = target[target < 2]
    clients[0] = (preds, target)
    areas = [functional.auroc(preds[:, label], target == label) for label in (0, 1)]
    check_areas_of_first_client(options, clients, areas)


def test_labels_without_positives_are_left_out_of_a_clients_area() -> None:
    options = TASKS["multilabel"]
    clients = data(options)
    preds, target = clients[0]
    target[:, 1] = 0
    areas = [functional.auroc(preds[:, 0], target[:, 0])]
    check_areas_of_first_client(options, clients, areas)


def check_areas_of_first_client(
    options: dict[str, Any], clients: list[tuple[Tensor, Tensor]], areas: list[Tensor]
) -> None:
    """Check that the area of the first client is the mean of these areas."""
    together = simulate(clients, FederatedROC(**options), compare=True).comparison
    alone = simulate(clients[:1], FederatedROC(**options), compare=True).comparison
    assert together is not None
    assert alone is not None
    assert together.undefined == 0
    assert alone.undefined == 0
    mean = float(torch.stack(areas).mean())
    assert alone.local == alone.pooled == pytest.approx(mean, abs=1e-12)


def test_nothing_exact_is_given_unasked() -> None:
    result = simulate(data({}), FederatedROC(privacy=LocalDP(epsilon=1.0)))
    assert result.comparison is None
    without_data = simulate(empty(3), FederatedROC(), compare=True).comparison
    assert without_data is not None
    assert math.isnan(without_data.local)
    assert without_data.undefined == 3


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
    """Python's and numpy's memory, noise included. `benchmarks/simulate.py` measures torch's."""
    peaks = []
    for clients in (300, 300, 3_000):  # the first run fills caches
        metric = FederatedROC(privacy=DistributedDP(epsilon=1.0, min_clients=60), plan="single")
        tracemalloc.start()
        simulate(empty(clients), metric)
        _, peak = tracemalloc.get_traced_memory()
        peaks.append(peak)
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 100_000


def test_progress_is_shown_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    metric = FederatedROC(privacy=LocalDP(epsilon=1.0))
    simulate(empty(3), metric)
    assert capsys.readouterr().err == ""
    simulate(empty(3), metric, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "counted 3 clients in" in captured.err
    assert "drew noise for 3 clients in" in captured.err


def test_a_simulated_release_is_marked_and_a_real_one_is_not(tmp_path: Path) -> None:
    """A reader of the file, too, learns that nothing was hidden from this process."""
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
