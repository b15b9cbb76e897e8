"""pfl's simulation, with its algorithm, backend, model and callbacks: each user draws noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torchmetrics_fed import CentralDP, DistributedDP, FederatedAUROC, LocalDP, PrivacyLedger, Query
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import BudgetExceededError, InputError, ReleaseError
from torchmetrics_fed.exchange import next_query, plan_from
from torchmetrics_fed.release import Spec

pytest.importorskip("pfl")

from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from torchmetrics_fed.exchange import client as client_module
from torchmetrics_fed.integrations.pfl import ShareValue, UserShares

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:No (positive|negative) examples"),
]

USERS = 30
NAMES = {
    "before": "train population | auroc before local training",
    "after": "train population | auroc after local training",
    "val": "val population | auroc before local training",
}


def user_data(number: int, examples: int = 60) -> tuple[Tensor, Tensor]:
    """Return one user's features and targets. The first user has negatives only."""
    generator = torch.Generator().manual_seed(number)
    target = torch.randint(0, 2, (examples,), generator=generator).float()
    if number == 0:
        target = torch.zeros_like(target)
    noise = torch.randn(examples, 2, generator=generator)
    return noise + target[:, None] * torch.tensor([1.5, -0.5]), target


class Net(torch.nn.Module):
    def __init__(self, curves: UserShares) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.curves = curves
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.layer(features)[:, 0].sigmoid()
        return scores

    def loss(self, features: Tensor, target: Tensor, eval: bool = False) -> Tensor:
        return torch.nn.functional.binary_cross_entropy(self(features), target)

    def metrics(self, features: Tensor, target: Tensor, eval: bool = False) -> dict[str, Any]:
        return {"auroc": self.curves(self(features), target)}


class ReleaseKeeper(TrainingProcessCallback):
    """Keeps the releases, and checks that pfl logs their areas."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        logged = aggregate_metrics.to_simple_dict(to_lowercase=True)
        releases = {}
        for key, name in NAMES.items():
            value = aggregate_metrics[name]
            assert logged[name] == value.overall_value
            releases[key] = value.release
        self.rounds.append(releases)
        return False, Metrics()


def federated_dataset() -> FederatedDataset:
    return FederatedDataset(
        lambda number: Dataset([part.numpy() for part in user_data(number)], user_id=str(number)),
        get_user_sampler("minimize_reuse", list(range(USERS))),
    )


def run(metric: FederatedAUROC, rounds: int = 1, batch: int = 25) -> ReleaseKeeper:
    """Train with FedAvg on a simulated cohort of all users. Each is evaluated in three batches."""
    torch.manual_seed(0)
    net = Net(UserShares(metric))
    keeper = ReleaseKeeper()
    backend = SimulatedBackend(training_data=federated_dataset(), val_data=federated_dataset())
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=1,
            train_cohort_size=USERS,
            val_cohort_size=USERS,
        ),
        backend,
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None),
        NNEvalHyperParams(local_batch_size=batch),
        callbacks=[keeper],
    )
    return keeper


def pooled(model: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the counts of all users' scores under a model."""
    metric = FederatedAUROC()
    for number in range(USERS):
        features, target = user_data(number)
        metric.update(model(features).detach(), target)
    return metric.counts


def recorded_draws(monkeypatch: pytest.MonkeyPatch) -> list[Query]:
    """Return a list that fills with the query of every draw of noise from here on."""
    drawn: list[Query] = []
    draw = client_module.noisy_cells

    def drawing(spec: Spec, query: Query, counts: Tensor) -> Tensor:
        drawn.append(query)
        return draw(spec, query, counts)

    monkeypatch.setattr(client_module, "noisy_cells", drawing)
    return drawn


def test_the_sum_is_the_pooled_counts() -> None:
    releases = run(FederatedAUROC()).rounds[0]
    before = releases["before"]
    after = releases["after"]
    val = releases["val"]
    initial_model = Net(UserShares(FederatedAUROC()))
    assert torch.equal(before.leaf, pooled(initial_model))
    assert torch.equal(val.leaf, before.leaf)  # the same users, as the validation population
    assert not torch.equal(after.leaf, before.leaf)
    assert before.shares == after.shares == USERS


@pytest.mark.parametrize(
    "privacy", [DistributedDP(2.0, min_clients=USERS), LocalDP(2.0)], ids=["distributed", "local"]
)
def test_each_user_draws_once_and_a_release_is_charged_once(
    privacy: DistributedDP | LocalDP, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = recorded_draws(monkeypatch)
    ledger = PrivacyLedger(budget=100.0)
    keeper = run(FederatedAUROC(privacy=privacy, ledger=ledger), rounds=2)
    sums = 2 * len(NAMES)
    assert len(drawn) == sums * USERS  # of three batches each
    assert [entry.epsilon for entry in ledger] == [2.0] * sums
    for releases in keeper.rounds:
        for release in releases.values():
            assert release.shares == USERS
            assert [query.fraction for query in release.queries] == [1.0]


def test_the_private_area_is_near_the_pooled_one() -> None:
    exact_release = run(FederatedAUROC()).rounds[0]["before"]
    privacy = DistributedDP(4.0, min_clients=USERS)
    private_release = run(FederatedAUROC(privacy=privacy)).rounds[0]["before"]
    exact = FederatedAUROC.from_release(exact_release).compute()
    private = FederatedAUROC.from_release(private_release).compute()
    assert 0 < abs(private - exact) < 0.06  # 1,800 examples


def test_carry_over_places_the_next_query() -> None:
    metric = FederatedAUROC(privacy=DistributedDP(4.0, min_clients=USERS), plan="carry_over")
    first_round, second_round = run(metric, rounds=2).rounds
    first = {release.last.query for release in first_round.values()}
    second = {release.last.query for release in second_round.values()}
    spec = metric.spec
    assert first == {next_query(plan_from("single", spec), (), spec=spec)}
    carry_over = plan_from("carry_over", spec)
    placed = {
        next_query(carry_over, (), spec=spec, previous=release) for release in first_round.values()
    }
    assert len(second) == 1
    assert second < placed
    assert not first & second


def test_too_few_users_are_not_opened() -> None:
    curves = UserShares(FederatedAUROC(privacy=DistributedDP(1.0, min_clients=3)))
    value = summed_value(curves, 2)
    assert math.isnan(value.overall_value)
    with pytest.raises(ReleaseError, match="min_clients=3"):
        _ = value.release


def test_a_budget_stops_the_simulation_before_anything_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = recorded_draws(monkeypatch)
    curves = UserShares(FederatedAUROC(privacy=LocalDP(1.0), ledger=PrivacyLedger(budget=1.5)))
    summed_value(curves, 2)
    with pytest.raises(BudgetExceededError):
        summed_value(curves, 2)
    assert len(drawn) == 2


def summed_value(curves: UserShares, number: int) -> ShareValue:
    """Return the sum over this many users, as pfl's backend adds them up."""
    values = []
    for user in range(1, number + 1):
        features, target = user_data(user)
        value, of_user = curves(features[:, 0].sigmoid(), target)
        values.append(of_user(value))
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


@pytest.mark.parametrize("privacy", [None, LocalDP(1e-6)], ids=["exact", "large noise"])
def test_vectors_of_processes_add_up_exactly(privacy: LocalDP | None) -> None:
    curves = UserShares(FederatedAUROC(privacy=privacy, quantiles=64))
    parts = [summed_value(curves, 3) for _ in range(4)]
    vectors = [part.to_vector() for part in parts]
    assert all(vector.dtype == np.float32 for vector in vectors)
    total = parts[0].from_vector(np.stack(vectors).sum(0))
    cells = torch.stack([part.answer().cells for part in parts])
    assert torch.equal(total.answer().cells, cells.sum(0))
    assert total.answer().shares == 12
    # limbs are needed: float32 alone does not hold large noise
    plain = cells.numpy().astype(np.float32).sum(0).astype(np.int64)
    is_exact = bool((plain == cells.sum(0).numpy()).all())
    assert is_exact == (privacy is None)


def test_processes_that_asked_other_queries_are_not_added_up() -> None:
    metric = FederatedAUROC(privacy=LocalDP(1.0), plan="carry_over")
    parts = []
    for _ in range(2):
        curves = UserShares(metric)
        _ = summed_value(curves, 3).release  # its noise places the next query
        parts.append(summed_value(curves, 3))
    assert parts[0].answer().query != parts[1].answer().query
    with pytest.raises(ReleaseError, match="different queries"):
        parts[0].from_vector(parts[0].to_vector() + parts[1].to_vector())


def test_raw_counts_are_not_read_and_plans_that_ask_twice_are_refused() -> None:
    features, target = user_data(1)
    curves = UserShares(FederatedAUROC(privacy=LocalDP(1.0)))
    value, of_user = curves(features[:, 0].sigmoid(), target)
    for read in (lambda: value.overall_value, value.to_vector, lambda: value + of_user(value)):
        with pytest.raises(InputError, match="Expected a user's share but got counts"):
            read()
    user = of_user(value)
    assert user == user
    assert bool(value.counts.any())
    assert not bool(user.counts.any())  # they were left behind with the draw
    for plan in ("adaptive", Query(Tree.flat(4096), 0.5)):
        with pytest.raises(InputError, match="one query"):
            UserShares(FederatedAUROC(privacy=LocalDP(1.0), plan=plan))
    with pytest.raises(InputError, match="Expected noise of each user"):
        UserShares(FederatedAUROC(privacy=CentralDP(1.0)))
