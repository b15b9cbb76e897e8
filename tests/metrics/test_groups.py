"""Metrics with groups: everybody's answer, each group's, from one release, over ranks and bytes
alike."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ranks import RankPool
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedCalibration,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    InputError,
    PrivacyLedger,
    Release,
    ReleaseError,
    federated_collection,
)
from torchmetrics_fed.exchange.plans import PlanName
from torchmetrics_fed.functional import auroc_from_counts
from torchmetrics_fed.metrics import FederatedMetric

NAMES = ("a", "b")


def examples(size: int = 3_000, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    groups, target = (torch.randint(0, 2, (size,), generator=generator) for _ in range(2))
    return (
        (torch.randn(size, generator=generator) + target + 0.5 * groups).sigmoid(),
        target,
        groups,
    )


@pytest.mark.parametrize(
    "kind", [FederatedROC, FederatedPrecisionRecallCurve, FederatedAUROC, FederatedCalibration]
)
def test_exact_answers_are_those_of_separate_metrics_to_the_bit(
    kind: type[FederatedMetric],
) -> None:
    scores, target, groups = examples()
    metric = kind(groups=NAMES)
    everybody = kind()
    metric.update(scores, target, groups)
    everybody.update(scores, target)
    answers = {"all": (metric.compute(), everybody.compute())}
    for number, (name, answer) in enumerate(metric.by_group().items()):
        separate = kind()
        separate.update(scores[groups == number], target[groups == number])
        answers[name] = answer, separate.compute()
    assert list(answers) == ["all", *NAMES]
    for mine, theirs in answers.values():
        if isinstance(mine, Tensor):
            assert torch.equal(mine, theirs)
        else:
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("plan", [None, "adaptive", "single", "carry_over", "paper"])
def test_a_private_release_costs_once_and_answers_alike_from_its_bytes(
    plan: PlanName | None, tmp_path: Path
) -> None:
    ledger = PrivacyLedger()
    grid: Any = "even" if plan == "paper" else "two_sided"
    metric = FederatedAUROC(
        groups=NAMES, privacy=CentralDP(1.0), plan=plan, ledger=ledger, grid=grid, quantiles=64
    )
    for number in range(1, 3):
        metric.reset()
        metric.update(*examples())
        area = metric.compute()
        by_group = metric.by_group()
        assert len(ledger) == number
        assert ledger.spent().epsilon == number
        metric.release().save(tmp_path / "one.release")
        read = FederatedAUROC.from_release(Release.load(tmp_path / "one.release"))
        assert read.spec == metric.spec
        assert torch.equal(read.compute(), area)
        assert {name: float(value) for name, value in read.by_group().items()} == {
            k: float(v) for k, v in by_group.items()
        }


def test_the_sum_of_groups_has_the_noise_of_each() -> None:
    metric = FederatedROC(groups=4, privacy=CentralDP(1.0))
    scores, target, _ = examples()
    metric.update(scores, target, torch.arange(3_000) % 4)
    release = metric.release()
    pilot, last = release.sums
    assert pilot.query.pools_groups
    assert pilot.cells.shape[0] == 1
    assert last.cells.shape[0] == 4
    assert last.overall.noise_variance == pytest.approx(4 * last.noise_variance)
    assert pilot.overall.noise_variance == pilot.noise_variance
    assert torch.equal(last.overall.cells, last.cells.sum(0, keepdim=True))
    assert last.of_group(2).noise_variance == last.noise_variance
    overall = release.overall
    # a release of its own, with the noise that is really there
    decoded = Release.from_bytes(bytes(overall))
    assert decoded.last.noise_variance == overall.last.noise_variance
    with pytest.raises(ReleaseError, match="one group's part"):
        bytes(release.by_group["0"])


def test_sums_with_other_noise_do_not_add_up() -> None:
    exact = FederatedROC(groups=NAMES)
    exact.update(*examples(10))
    overall = exact.release().overall
    plain = FederatedROC()
    plain.update(*examples(10)[:2])
    with pytest.raises(ReleaseError, match="the same noise"):
        Release.sum([overall, plain.release()])


def test_a_group_with_hardly_any_data_has_the_shape_of_everybody() -> None:
    scores, target, _ = examples(20_000)
    groups = (torch.arange(20_000) >= 60).long()
    metric = FederatedAUROC(groups=NAMES, privacy=CentralDP(0.3))
    off = 0.0
    for _ in range(12):
        metric.reset()
        metric.update(scores, target, groups)
        small_group = metric.release().by_group["a"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            off += abs(float(auroc_from_counts(small_group) - metric.compute())) / 12
    # leaves of 4 examples with noise of standard deviation 5 would give any order
    assert off < 0.25


def on_a_rank(rank: int, privacy: Any) -> tuple[bytes, dict[str, float]]:
    metric = FederatedAUROC(groups=NAMES, privacy=privacy)
    scores, target, groups = examples(600, rank)
    rows = slice(None) if rank else slice(0)  # the first rank has no data
    metric.update(scores[rows], target[rows], groups[rows])
    values = {name: float(value) for name, value in metric.by_group().items()}
    return bytes(metric.release()), values


@pytest.mark.slow
@pytest.mark.parametrize(
    "privacy", [None, CentralDP(1.0), DistributedDP(1.0, min_clients=3)], ids=str
)
def test_ranks_have_one_release_with_all_groups(ranks: RankPool, privacy: Any) -> None:
    results = ranks.run(on_a_rank, privacy)
    assert all(isinstance(result, tuple) and result == results[0] for result in results)
    if privacy is None:
        pooled = FederatedAUROC(groups=NAMES)
        for rank in range(1, ranks.size):
            pooled.update(*examples(600, rank))
        assert results[0][1] == {name: float(value) for name, value in pooled.by_group().items()}


def test_a_collection_makes_one_release_for_all_groups() -> None:
    ledger = PrivacyLedger()
    collection = federated_collection(
        groups=NAMES, privacy=CentralDP(1.0), ledger=ledger, metrics=["auroc", "roc"]
    )
    for start in range(0, 3_000, 1_000):
        collection.update(*(values[start : start + 1_000] for values in examples()))
    collection.compute()
    auroc, roc = (collection[name] for name in ("auroc", "roc"))
    assert isinstance(auroc, FederatedAUROC)
    assert isinstance(roc, FederatedROC)
    assert float(auroc.by_group()["a"]) == pytest.approx(
        float(roc.by_group()["a"].scalars["auroc"])
    )
    assert len(ledger) == 1


def test_copies_and_pickles_answer_alike(tmp_path: Path) -> None:
    metric = FederatedAUROC(
        groups=NAMES, privacy=CentralDP(1.0), ledger=PrivacyLedger(path=tmp_path / "ledger")
    )
    metric.update(*examples())
    expected = metric.by_group()
    for twin in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert {name: float(value) for name, value in twin.by_group().items()} == {
            k: float(v) for k, v in expected.items()
        }


def test_groups_are_agreed_on() -> None:
    with pytest.raises(Exception, match=r"groups: expected \['a', 'b'\], got \['a', 'c'\]"):
        FederatedROC(groups=NAMES).spec.check(FederatedROC(groups=("a", "c")).spec)
    with pytest.raises(InputError, match="Expected a metric with `groups`"):
        FederatedROC().by_group()
