"""FederatedModelComparison: what it counts, refuses, sums and keeps."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.grids import bin_of
from torchmetrics_fed import (
    CentralDP,
    Coordinator,
    FederatedModelComparison,
    FederatedROC,
    InputError,
    LocalDP,
    PrivacyLedger,
    Release,
    ReleaseError,
    ScoreGrid,
)
from torchmetrics_fed.errors import SpecMismatchError
from torchmetrics_fed.exchange.client import Evaluation
from torchmetrics_fed.metrics import evaluation_of, terms_of
from torchmetrics_fed.simulate import simulate

pytestmark = pytest.mark.filterwarnings("ignore:About", "ignore:Too few")


def batch(size: int = 200, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(2, size, generator=generator)
    return scores[0], scores[1], torch.randint(0, 2, (size,), generator=generator)


@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.float64), (torch.float16, torch.bfloat16)]
)
@pytest.mark.parametrize("grid", ["two_sided", "even", ScoreGrid.from_edges([0, 0.2, 0.5, 1])])
def test_each_example_is_in_the_cell_of_its_two_bins(
    grid: Any, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    metric = FederatedModelComparison(grid=grid, ignore_index=-1)
    first, second, target = batch()
    target[::7] = -1
    first = first.to(dtypes[0])
    second = second.to(dtypes[1])
    metric.update(first.reshape(20, 10), second.reshape(20, 10), target.reshape(20, 10))
    expected = torch.zeros_like(metric.counts)
    agreed_grid = metric.spec.grid
    rows = bin_of(first, agreed_grid)
    columns = bin_of(second, agreed_grid)
    for row, column, label in zip(rows, columns, target, strict=True):
        if label >= 0:
            expected[0, label, row * agreed_grid.bins + column] += 1
    assert torch.equal(metric.counts, expected)


def test_logits_are_counted_as_their_probabilities() -> None:
    first, second, target = batch()
    first_logits = first.double().logit()
    second_logits = second.double().logit()
    of_logits = FederatedModelComparison(normalization="sigmoid")
    of_logits.update(first_logits, second_logits, target.bool())
    of_probabilities = FederatedModelComparison()
    of_probabilities.update(first_logits.sigmoid(), second_logits.sigmoid(), target.float())
    assert torch.equal(of_logits.counts, of_probabilities.counts)


REFUSED: list[tuple[Any, Any, Any, str]] = [
    (torch.tensor([0.1, 1.5]), torch.tensor([0.1, 0.5]), torch.tensor([0, 1]), "preds"),
    (torch.tensor([0.1, 0.5]), torch.tensor([0.1, torch.nan]), torch.tensor([0, 1]), "NaN"),
    (torch.tensor([0.1, 0.5]), torch.tensor([0.1, 0.5]), torch.tensor([0, 2]), "target"),
    (torch.tensor([0.1, 0.5]), torch.tensor([0.1, 0.5]), torch.tensor([0, 0.5]), "no whole"),
    (torch.tensor([0.1, 0.5]), torch.tensor([0.1]), torch.tensor([0, 1]), "each model"),
    (torch.tensor([0, 1]), torch.tensor([0.1, 0.5]), torch.tensor([0, 1]), "floating"),
    ([0.1, 0.5], torch.tensor([0.1, 0.5]), torch.tensor([0, 1]), "torch.Tensor"),
]


@pytest.mark.parametrize(("first", "second", "target", "word"), REFUSED)
@pytest.mark.parametrize("privacy", [None, CentralDP(epsilon=1.0)])
def test_a_batch_that_is_refused_changes_nothing(
    first: Any, second: Any, target: Any, word: str, privacy: Any
) -> None:
    metric = FederatedModelComparison(privacy=privacy)
    metric.update(*batch())
    before = metric.counts.clone()
    with pytest.raises(InputError, match=word) as error:
        metric.update(first, second, target)
    assert torch.equal(metric.counts, before)
    assert metric.update_count == 1
    if privacy is not None:
        assert "1.5" not in str(error.value)


def test_deferred_checks_raise_before_anything_leaves() -> None:
    metric = FederatedModelComparison(validate_args="deferred", privacy=CentralDP(epsilon=1.0))
    metric.update(torch.tensor([0.1, 1.5]), torch.tensor([0.2, 0.3]), torch.tensor([0, 1]))
    assert metric.counts.sum() == 1
    with pytest.raises(InputError):
        metric.compute()
    assert not list(metric.ledger)


@pytest.mark.parametrize(
    "options",
    [
        {"models": "ab"},
        {"models": ("a", "a")},
        {"thresholds": (0.5, 1.5)},
        {"thresholds": (0.5, torch.nan)},
        {"thresholds": ("0.5", 0.5)},
        {"confidence": 1.5},
        {"grid": ScoreGrid.even(1024)},
        {"privacy": CentralDP(epsilon=1.0), "plan": "paper"},
    ],
)
def test_bad_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="Expected"):
        FederatedModelComparison(**options)


@pytest.mark.parametrize("options", [{"task": "multilabel"}, {"groups": 2}, {"quantiles": 1024}])
def test_settings_of_a_single_model_are_no_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Unexpected keyword"):
        FederatedModelComparison(**options)


def test_clients_that_agree_add_up_and_others_are_named() -> None:
    parts = [batch(seed=seed) for seed in range(3)]
    clients = [FederatedModelComparison() for _ in parts]
    for client, part in zip(clients, parts, strict=True):
        client.update(*part)
    pooled = FederatedModelComparison()
    pooled.update(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
    total = FederatedModelComparison.from_release(Release.sum(client.share() for client in clients))
    assert total.compute().difference == pooled.compute().difference
    stranger = FederatedModelComparison(thresholds=(0.5, 0.25))
    stranger.update(*parts[0])
    with pytest.raises(SpecMismatchError, match="models"):
        Release.sum([clients[0].share(), stranger.share()])
    with pytest.raises(SpecMismatchError, match="models"):
        FederatedROC.from_release(Release.sum([clients[0].share()]))


def test_two_queries_through_bytes_and_one_charge() -> None:
    options: dict[str, Any] = {"privacy": LocalDP(epsilon=2.0), "thresholds": (0.5, 0.3)}
    clients = [FederatedModelComparison(**options) for _ in range(3)]
    for seed, client in enumerate(clients):
        client.update(*batch(2000, seed))
    coordinator = Coordinator(FederatedModelComparison(**options), round="1")
    fractions = []
    while (query := coordinator.query) is not None:
        fractions.append(query.fraction)
        for number, client in enumerate(clients):
            coordinator.receive(str(number), bytes(client.share(round="1", query=query)))
        coordinator.advance()
    assert fractions == [5 / 64, 59 / 64]
    assert [entry.epsilon for entry in clients[0].ledger] == [2.0]
    release = Release.from_bytes(bytes(coordinator.release))
    result = FederatedModelComparison.from_release(release).compute()
    assert -1 < float(result.interval.low) <= float(result.difference)
    assert float(result.difference) <= float(result.interval.high) < 1


def test_carry_over_places_by_the_previous_table() -> None:
    metric = FederatedModelComparison(privacy=CentralDP(epsilon=1.0), plan="carry_over")
    for queries in (2, 1):
        metric.update(*batch(3000))
        assert len(metric.release().queries) == queries
        assert bool(metric.compute().interval.low > -1)
        metric.reset()


def test_few_bins_are_all_asked_for() -> None:
    grid = ScoreGrid.from_edges([-0.1, 0.1, 0.5, 0.9, 1.1])  # of a model with four values
    metric = FederatedModelComparison(grid=grid, privacy=CentralDP(epsilon=1.0))
    first, second, target = batch(3000)
    metric.update((first * 3).round() / 3, (second * 3).round() / 3, target)
    (query,) = metric.release().queries
    assert query.tree.branching == (4, 4)
    assert abs(float(metric.compute().difference)) < 0.2


def test_pickles_and_copies_hold_no_raw_counts(tmp_path: Path) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    metric = FederatedModelComparison(privacy=CentralDP(epsilon=1.0), ledger=ledger)
    metric.update(*batch())
    with pytest.raises(ReleaseError):
        pickle.dumps(metric)
    result = metric.compute()
    unpickled = pickle.loads(pickle.dumps(metric))
    assert not unpickled.counts.any()
    difference = unpickled.compute().difference.item()
    assert difference == pytest.approx(result.difference.item(), nan_ok=True)
    assert copy.deepcopy(metric).compute().interval == result.interval


def test_results_follow_device_and_dtype() -> None:
    metric = FederatedModelComparison().set_dtype(torch.float32)
    metric.update(*batch())
    result = metric.compute()
    for value in (result.difference, result.curves[1].tpr, result.interval.low):
        assert value.dtype == torch.float32
    batch_result = metric(*batch())  # torchmetrics' forward
    assert batch_result.difference.dtype == torch.float32


def test_an_evaluation_can_be_suspended_between_two_queries() -> None:
    metric = FederatedModelComparison(privacy=LocalDP(epsilon=1.0))
    metric.update(*batch())
    coordinator = Coordinator(metric, round="1")
    assert coordinator.query is not None
    metric.share(round="1", query=coordinator.query)
    note = evaluation_of(metric).suspended()
    resumed = Evaluation.resumed(note, terms_of(metric))
    assert torch.equal(resumed.counts, metric.counts)


def test_no_person_is_counted_more_often_than_the_bound() -> None:
    privacy = CentralDP(epsilon=1.0, examples_per_person=2, enforced=True)
    metric = FederatedModelComparison(privacy=privacy)
    first, second, target = batch(30)
    with pytest.raises(InputError, match="persons"):
        metric.update(first, second, target)
    metric.update(first, second, target, persons=torch.arange(30) % 10)
    assert metric.counts.sum() == 20
    expected = FederatedModelComparison()
    expected.update(first[:20], second[:20], target[:20])
    assert torch.equal(metric.counts, expected.counts)
    with pytest.raises(InputError, match="each model"):
        metric.update(first[:5], second, target[:5], persons=torch.arange(5))
    assert metric.counts.sum() == 20


def test_a_simulation_counts_pairs() -> None:
    metric = FederatedModelComparison()
    clients = [batch(seed=seed) for seed in range(3)]
    release = simulate(clients, FederatedModelComparison()).release
    for client in clients:
        metric.update(*client)
    assert torch.equal(release.leaf, metric.counts)


def test_a_grid_with_other_thresholds_still_ends_at_0_and_1() -> None:
    metric = FederatedModelComparison(thresholds=(0.3, 0.5))
    assert metric.spec.grid.kind == "custom"
    assert metric.spec.grid.score_range == (0.0, 1.0)
    assert 0.3 in metric.spec.grid.edges.tolist()
    two_sided = FederatedModelComparison(thresholds=(1.0, 0.5))
    assert two_sided.spec.grid.kind == "two_sided"
