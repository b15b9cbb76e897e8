"""pfl's own simulation: real algorithm, backend, model and callbacks, over users with noise of their own."""

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
from torchmetrics_fed.exchange import next_query
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


def users(number: int, examples: int = 60) -> tuple[Tensor, Tensor]:
    """One user's features and targets; the first user has one class only."""
    generator = torch.Generator().manual_seed(number)
    target = torch.randint(0, 2, (examples,), generator=generator).float() * (number > 0)
    features = torch.randn(examples, 2, generator=generator) + target[:, None] * torch.tensor(
        [1.5, -0.5]
    )
    return features, target


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


class Kept(TrainingProcessCallback):
    """Reads what other callbacks log, and keeps the releases."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        logged = aggregate_metrics.to_simple_dict(to_lowercase=True)
        found = {key: aggregate_metrics[name] for key, name in NAMES.items()}
        assert all(logged[NAMES[key]] == value.overall_value for key, value in found.items())
        self.rounds.append({key: value.release for key, value in found.items()})
        return False, Metrics()


def run(metric: FederatedAUROC, rounds: int = 1, batch: int = 25) -> tuple[Kept, Net]:
    """Train with FedAvg on a simulated cohort of all users; every user is evaluated in three batches."""
    torch.manual_seed(0)
    net, kept = Net(UserShares(metric)), Kept()
    ids = list(range(USERS))
    data = [
        FederatedDataset(
            lambda number: Dataset([part.numpy() for part in users(number)], user_id=str(number)),
            get_user_sampler("minimize_reuse", ids),
        )
        for _ in range(2)
    ]
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=1,
            train_cohort_size=USERS,
            val_cohort_size=USERS,
        ),
        SimulatedBackend(training_data=data[0], val_data=data[1]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None),
        NNEvalHyperParams(local_batch_size=batch),
        callbacks=[kept],
    )
    return kept, net


def pooled(weights: Callable[[Tensor], Tensor]) -> Tensor:
    metric = FederatedAUROC()
    for number in range(USERS):
        features, target = users(number)
        metric.update(weights(features).detach(), target)
    return metric.counts


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Query]:
    """The queries that noise is drawn for, from here on."""
    drawn, draw = list[Query](), client_module.noisy_cells

    def drawing(spec: Spec, query: Query, counts: Tensor) -> Tensor:
        drawn.append(query)
        return draw(spec, query, counts)

    monkeypatch.setattr(client_module, "noisy_cells", drawing)
    return drawn


def test_the_sum_is_the_pooled_counts() -> None:
    kept, _ = run(FederatedAUROC())
    before, after, val = (kept.rounds[0][key] for key in NAMES)
    start = Net(UserShares(FederatedAUROC()))
    assert torch.equal(before.leaf, pooled(start))
    assert torch.equal(val.leaf, before.leaf)  # the same users, as the validation population
    assert not torch.equal(after.leaf, before.leaf)
    assert before.shares == after.shares == USERS


@pytest.mark.parametrize(
    "privacy", [DistributedDP(2.0, min_clients=USERS), LocalDP(2.0)], ids=["distributed", "local"]
)
def test_each_user_draws_once_and_a_release_is_charged_once(
    privacy: DistributedDP | LocalDP, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = watched(monkeypatch)
    ledger = PrivacyLedger(budget=100.0)
    kept, _ = run(FederatedAUROC(privacy=privacy, ledger=ledger), rounds=2)
    sums = 2 * len(NAMES)
    assert len(drawn) == sums * USERS  # of three batches each
    assert [entry.epsilon for entry in ledger] == [2.0] * sums
    for releases in kept.rounds:
        for release in releases.values():
            assert release.shares == USERS
            assert [query.fraction for query in release.queries] == [1.0]


def test_the_private_area_is_near_the_pooled_one() -> None:
    kept, _ = run(FederatedAUROC(privacy=DistributedDP(4.0, min_clients=USERS)))
    exact = FederatedAUROC.from_release(run(FederatedAUROC())[0].rounds[0]["before"]).compute()
    found = FederatedAUROC.from_release(kept.rounds[0]["before"]).compute()
    assert 0 < abs(found - exact) < 0.06  # 1,800 examples


def test_carry_over_places_the_next_query() -> None:
    metric = FederatedAUROC(privacy=DistributedDP(4.0, min_clients=USERS), plan="carry_over")
    kept, _ = run(metric, rounds=2)
    first, second = (
        {release.last.query for release in releases.values()} for releases in kept.rounds
    )
    assert first == {next_query("single", (), spec=metric.spec)}
    placed = [
        next_query("carry_over", (), spec=metric.spec, previous=one)
        for one in kept.rounds[0].values()
    ]
    assert len(second) == 1
    assert second < set(placed)
    assert not first & second


def test_too_few_users_are_not_opened() -> None:
    value = shared(UserShares(FederatedAUROC(privacy=DistributedDP(1.0, min_clients=3))), 2)
    assert math.isnan(value.overall_value)
    with pytest.raises(ReleaseError, match="at least min_clients=3"):
        _ = value.release


def test_a_budget_stops_the_simulation_before_anything_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = watched(monkeypatch)
    curves = UserShares(FederatedAUROC(privacy=LocalDP(1.0), ledger=PrivacyLedger(budget=1.5)))
    shared(curves, 2)
    with pytest.raises(BudgetExceededError):
        shared(curves, 2)
    assert len(drawn) == 2


def shared(curves: UserShares, number: int) -> ShareValue:
    """The sum over some users, as pfl's backend adds them up."""
    found = []
    for user in range(1, number + 1):
        features, target = users(user)
        value, of_user = curves(features[:, 0].sigmoid(), target)
        found.append(of_user(value))
    total = found[0]
    for value in found[1:]:
        total = total + value
    return total


@pytest.mark.parametrize("privacy", [None, LocalDP(1e-6)], ids=["exact", "large noise"])
def test_vectors_of_processes_add_up_exactly(privacy: LocalDP | None) -> None:
    curves = UserShares(FederatedAUROC(privacy=privacy, quantiles=64))
    parts = [shared(curves, 3) for _ in range(4)]
    vectors = [part.to_vector() for part in parts]
    assert all(vector.dtype == np.float32 for vector in vectors)
    total = parts[0].from_vector(np.stack(vectors).sum(0))
    assert torch.equal(
        total.answer().cells, torch.stack([part.answer().cells for part in parts]).sum(0)
    )
    assert total.answer().shares == 12
    plain = np.sum([part.answer().cells.numpy().astype(np.float32) for part in parts], axis=0)
    assert (plain.astype(np.int64) == total.answer().cells.numpy()).all() == (
        privacy is None
    )  # what limbs are for


def test_processes_that_asked_other_queries_are_not_added_up() -> None:
    metric, parts = FederatedAUROC(privacy=LocalDP(1.0), plan="carry_over"), []
    for _ in range(2):
        curves = UserShares(metric)
        _ = shared(curves, 3).release  # which places its next query, each by noise of its own
        parts.append(shared(curves, 3))
    assert parts[0].answer().query != parts[1].answer().query
    with pytest.raises(ReleaseError, match="processes have asked others"):
        parts[0].from_vector(parts[0].to_vector() + parts[1].to_vector())


def test_raw_counts_are_not_read_and_plans_that_ask_twice_are_refused() -> None:
    features, target = users(1)
    value, of_user = UserShares(FederatedAUROC(privacy=LocalDP(1.0)))(
        features[:, 0].sigmoid(), target
    )
    for read in (lambda: value.overall_value, value.to_vector, lambda: value + of_user(value)):
        with pytest.raises(InputError, match="Expected a user's share but got counts"):
            read()
    user = of_user(value)
    assert user == user
    assert bool(value.counts.any())
    assert not bool(user.counts.any())  # they were left behind with the draw
    for plan in ("adaptive", Query(Tree.flat(4096), 0.5)):
        with pytest.raises(InputError, match="Expected a plan of one query"):
            UserShares(FederatedAUROC(privacy=LocalDP(1.0), plan=plan))
    with pytest.raises(InputError, match="Expected noise of each user"):
        UserShares(FederatedAUROC(privacy=CentralDP(1.0)))
