"""Attack 5: data loading that counts one person many times, and is charged for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch.overrides.distributed import (
    UnrepeatedDistributedSampler,
    UnrepeatedDistributedSamplerWrapper,
)
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from tests.integrations.lightning_scores import QUIET, Scorer, loader, scores, trainer
from torchmetrics_fed import CentralDP, FederatedROC, InputError, PrivacyLedger
from torchmetrics_fed.integrations.lightning import FederatedEvaluation

pytestmark = QUIET
NINE = TensorDataset(*scores(1, 9))
MANY = 64


class Own(Sampler[int]):
    """A sampler whose class nobody knows; this one gives the first example many times."""

    def __init__(self, *rows: int) -> None:
        self.rows = rows or (0,) * MANY

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class OwnBatches(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0] * MANY])


class Shuffled(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter([0] * MANY)


class Endless(IterableDataset[tuple[Tensor, ...]]):
    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return iter([NINE[0]] * MANY)


class OwnLoader(DataLoader[tuple[Tensor, ...]]):
    def __iter__(self) -> Any:
        return iter([[part.repeat(MANY) for part in NINE[:1]]])


def sampled(sampler: Any, dataset: Any = NINE) -> DataLoader[Any]:
    return DataLoader(dataset, sampler=sampler)


def batched(batch_sampler: Any) -> DataLoader[Any]:
    return DataLoader(NINE, batch_sampler=batch_sampler)


REPLACING = WeightedRandomSampler([1.0] + [1e-9] * 8, MANY)
SEEN = {
    "replacing": sampled(RandomSampler(NINE, replacement=True)),
    "weighted": sampled(REPLACING),
    "more than there are": sampled(RandomSampler(NINE, num_samples=10)),
    "padded": sampled(DistributedSampler(NINE, num_replicas=2, rank=0)),
    "inside batch_sampler": batched(BatchSampler(REPLACING, 9, False)),
    "list": sampled([0] * MANY),
    "list of batches": batched([[0, 1], [2, 0]]),
    "array": sampled(np.zeros(MANY, int)),
    "subset of one": sampled(SubsetRandomSampler([0] * MANY)),
    "dealt by Lightning": sampled(DistributedSamplerWrapper(REPLACING, num_replicas=1, rank=0)),
    "padded by Lightning": sampled(
        DistributedSamplerWrapper(SequentialSampler(NINE), num_replicas=2, rank=0)
    ),
    "shuffled by ranks": sampled(
        DistributedSamplerWrapper(SubsetRandomSampler(range(8)), num_replicas=2, rank=0)
    ),
    "dealt unpadded": sampled(
        UnrepeatedDistributedSamplerWrapper(REPLACING, num_replicas=1, rank=0)
    ),
    "dictionary": {"only": sampled(REPLACING)},
    "nested": [{"only": [sampled(REPLACING)]}],
    "same rows": DataLoader(Subset(NINE, [0] * MANY)),
    "same data": DataLoader(ConcatDataset([NINE] * 8)),
    "overlapping": DataLoader(
        ConcatDataset([Subset(NINE, [0, 1, 2]), Subset(Subset(NINE, [5, 2]), [1])])
    ),
}
UNSEEN = {
    "own sampler": sampled(Own()),
    "own batch sampler": batched(OwnBatches(SequentialSampler(NINE), 9, False)),
    "own shuffling": sampled(Shuffled(NINE)),
    "own sampler in batches": batched(BatchSampler(Own(), 9, False)),
    "own sampler dealt": sampled(DistributedSamplerWrapper(Own(), num_replicas=1, rank=0)),
    "iterable": DataLoader(Endless()),
    "own loader": OwnLoader(NINE),
}
INNOCENT = {
    "plain": DataLoader(NINE, batch_size=4),
    "shuffled": DataLoader(NINE, shuffle=True),
    "rows": DataLoader(NINE, batch_size=None),
    "some": sampled(RandomSampler(NINE, num_samples=5)),
    "weighted": sampled(WeightedRandomSampler([1.0] * 9, 9, replacement=False)),
    "list": sampled([3, 1, 2]),
    "batches": batched([[0, 1], [2]]),
    "in batches": batched(BatchSampler(SubsetRandomSampler(range(9)), 2, True)),
    "dealt": sampled(DistributedSampler(NINE, num_replicas=3, rank=0)),
    "dropping": sampled(DistributedSampler(NINE, num_replicas=2, rank=0, drop_last=True)),
    "unpadded": sampled(UnrepeatedDistributedSampler(NINE, num_replicas=2, rank=0)),
    "dealt by Lightning": sampled(DistributedSamplerWrapper([0, 1, 2, 3], num_replicas=2, rank=0)),
    "split": DataLoader(ConcatDataset(random_split(NINE, [4, 5]))),
    "joined": DataLoader(ConcatDataset([NINE, TensorDataset(*scores(2, 9))])),
}


class Single(Scorer):
    """Takes single examples as well as batches, and any number of loaders at once."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        if isinstance(batch[0], Tensor):
            super().validation_step([torch.atleast_1d(part) for part in batch], batch_idx)
        else:
            for part in batch:
                self.validation_step(part, batch_idx)


def evaluated(folder: Path, loaders: Any, privacy: Any = None, **options: Any) -> FederatedROC:
    """The metric after an evaluation, with its data, as a federated client keeps it."""
    metric = FederatedROC(privacy=privacy or CentralDP(1.0), ledger=PrivacyLedger())
    runner = trainer(folder, FederatedEvaluation("metrics", federated=True, **options))
    try:
        runner.validate(Single(metric), loaders, verbose=False)
    except InputError:
        assert not metric.counts.any()
        assert len(metric.ledger) == 0
        raise
    return metric


@pytest.mark.parametrize("loaders", SEEN.values(), ids=SEEN)
def test_data_that_repeats_is_refused_whatever_the_user_says(loaders: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="every example once"):
        evaluated(tmp_path, loaders)
    with pytest.raises(InputError, match="every example once"):
        evaluated(tmp_path, loaders, each_example_once=True)


@pytest.mark.parametrize("loaders", UNSEEN.values(), ids=UNSEEN)
def test_data_whose_repeats_nobody_sees_needs_the_users_word(loaders: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="each_example_once=True"):
        evaluated(tmp_path, loaders)
    with pytest.raises(
        InputError, match="each_example_once=True"
    ):  # it is no bound on what is not seen
        evaluated(tmp_path, loaders, CentralDP(1.0, examples_per_person=MANY))


def test_the_users_word_is_taken(tmp_path: Path) -> None:
    metric = evaluated(tmp_path, sampled(Own(3, 1, 2)), each_example_once=True)
    assert metric.counts.sum() == 3


@pytest.mark.parametrize("loaders", INNOCENT.values(), ids=INNOCENT)
def test_data_that_comes_once_is_counted(loaders: Any, tmp_path: Path) -> None:
    assert evaluated(tmp_path, loaders).counts.any()


def test_exact_metrics_take_any_data(tmp_path: Path) -> None:
    module, runner = (
        Single(FederatedROC()),
        trainer(tmp_path, FederatedEvaluation("metrics", federated=True)),
    )
    runner.validate(module, sampled(Own(0, 0, 1)), verbose=False)
    assert module.metrics.counts.sum() == 3


def test_as_many_examples_per_person_as_can_come_are_declared(tmp_path: Path) -> None:
    two = CentralDP(1.0, examples_per_person=2)
    assert evaluated(tmp_path, DataLoader(ConcatDataset([NINE] * 2)), two).counts.sum() == 18
    with pytest.raises(InputError, match="every example once"):
        evaluated(tmp_path, DataLoader(ConcatDataset([NINE] * 3)), two)
    three = sampled(RandomSampler(NINE, replacement=True, num_samples=3))
    assert evaluated(tmp_path, three, CentralDP(1.0, examples_per_person=3)).counts.sum() == 3


def test_combined_loaders_are_looked_through(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="every example once"):
        evaluated(tmp_path, CombinedLoader([sampled(REPLACING)], "sequential"))
    assert evaluated(tmp_path, CombinedLoader([DataLoader(NINE)], "sequential")).counts.sum() == 9
    with pytest.raises(InputError, match="got CombinedLoader"):  # one inside another is not
        evaluated(tmp_path, {"only": CombinedLoader([DataLoader(NINE)], "max_size_cycle")})


def test_loaders_that_feed_one_metric_together_are_added_up(tmp_path: Path) -> None:
    def zipped(mode: Any, *loaders: Any) -> CombinedLoader:
        return CombinedLoader(list(loaders), mode)

    one, other, short = (
        DataLoader(NINE),
        DataLoader(TensorDataset(*scores(2, 9))),
        DataLoader(Subset(NINE, [0])),
    )
    assert evaluated(tmp_path, zipped("min_size", one, other)).counts.sum() == 18
    with pytest.raises(InputError, match="every example once"):
        evaluated(tmp_path, zipped("min_size", *[DataLoader(NINE) for _ in range(8)]))
    with pytest.raises(InputError, match="cycles"):
        evaluated(tmp_path, zipped("max_size_cycle", other, short))


def test_the_loaders_of_this_evaluation_are_looked_at(tmp_path: Path) -> None:
    """Lightning's own ``trainer.val_dataloaders`` names those of the fit before."""
    module = Single(FederatedROC(privacy=CentralDP(1.0)))
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    runner.fit(module, loader(0), DataLoader(NINE))
    for evaluate in (runner.validate, runner.test):
        with pytest.raises(InputError, match="every example once"):
            evaluate(module, sampled(REPLACING), verbose=False)
    assert len(module.metrics.ledger) == 2  # epochs


def test_a_fit_without_a_sanity_check_is_refused_before_its_first_step(tmp_path: Path) -> None:
    runner = trainer(tmp_path, FederatedEvaluation("metrics"), num_sanity_val_steps=0)
    with pytest.raises(InputError, match="every example once"):
        runner.fit(Single(FederatedROC(privacy=CentralDP(1.0))), loader(0), sampled(REPLACING))
    assert runner.global_step == 0


def test_the_error_tells_nothing_of_the_data(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refusal:
        evaluated(tmp_path, DataLoader(Subset(NINE, [0] * 4_711)))
    assert "4711" not in str(refusal.value)


class WithIds(Single):
    """Gives the metric the person of each example: the score itself says who it is."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        if not isinstance(batch[0], Tensor):
            for part in batch:
                self.validation_step(part, batch_idx)
            return
        preds, target = (torch.atleast_1d(part) for part in batch)
        self.metrics.update(preds, target, persons=preds.view(torch.int32))


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("name", [*SEEN, *UNSEEN])
def test_with_ids_what_repeats_is_bounded_rather_than_refused(
    name: str, most: int, tmp_path: Path
) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0, examples_per_person=most, enforced=True))
    runner = trainer(tmp_path, FederatedEvaluation("metrics", federated=True))
    runner.validate(WithIds(metric), {**SEEN, **UNSEEN}[name], verbose=False)
    assert 0 < int(metric.counts.sum()) <= 9 * most
    assert metric.counts.sum() > 9 or int(metric.counts.max()) <= most
    assert metric.bound_enforced


def test_one_person_in_several_loaders_is_counted_as_often_as_allowed(tmp_path: Path) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0, examples_per_person=3, enforced=True))
    loaders = CombinedLoader([DataLoader(NINE) for _ in range(8)], "max_size_cycle")
    trainer(tmp_path, FederatedEvaluation("metrics", federated=True)).validate(
        WithIds(metric), loaders, verbose=False
    )
    assert (int(metric.counts.sum()), metric.left_out) == (9 * 3, 9 * 5)


def test_an_enforced_bound_is_not_the_users_word(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`persons` with every batch"):
        evaluated(tmp_path, DataLoader(NINE), CentralDP(1.0, enforced=True))
