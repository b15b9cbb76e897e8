"""Attack 5: data loading that counts one person many times, and is charged for one example."""

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
from torchmetrics_fed import CentralDP, FederatedROC, InputError, Privacy, PrivacyLedger
from torchmetrics_fed.integrations.lightning import FederatedEvaluation

pytestmark = QUIET
NINE_EXAMPLES = TensorDataset(*scores(1, 9))
MANY = 64
"""How often a repeating sampler gives the first example."""


class CustomSampler(Sampler[int]):
    """A sampler of the user's own class. By default it gives the first example many times."""

    def __init__(self, *rows: int) -> None:
        self.rows = rows or (0,) * MANY

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class CustomBatchSampler(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0] * MANY])


class CustomRandomSampler(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter([0] * MANY)


class RepeatingDataset(IterableDataset[tuple[Tensor, ...]]):
    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return iter([NINE_EXAMPLES[0]] * MANY)


class CustomLoader(DataLoader[tuple[Tensor, ...]]):
    def __iter__(self) -> Any:
        return iter([[part.repeat(MANY) for part in NINE_EXAMPLES[:1]]])


def sampled(sampler: Any, dataset: Any = NINE_EXAMPLES) -> DataLoader[Any]:
    return DataLoader(dataset, sampler=sampler)


def batched(batch_sampler: Any) -> DataLoader[Any]:
    return DataLoader(NINE_EXAMPLES, batch_sampler=batch_sampler)


REPLACING = WeightedRandomSampler([1.0] + [1e-9] * 8, MANY)
REPEATING = {
    "replacing": sampled(RandomSampler(NINE_EXAMPLES, replacement=True)),
    "weighted": sampled(REPLACING),
    "more than there are": sampled(RandomSampler(NINE_EXAMPLES, num_samples=10)),
    "padded": sampled(DistributedSampler(NINE_EXAMPLES, num_replicas=2, rank=0)),
    "inside batch_sampler": batched(BatchSampler(REPLACING, 9, False)),
    "dealt by Lightning": sampled(DistributedSamplerWrapper(REPLACING, num_replicas=1, rank=0)),
    "padded by Lightning": sampled(
        DistributedSamplerWrapper(SequentialSampler(NINE_EXAMPLES), num_replicas=2, rank=0)
    ),
    "shuffled by ranks": sampled(
        DistributedSamplerWrapper(SubsetRandomSampler(range(8)), num_replicas=2, rank=0)
    ),
    "dictionary": {"only": sampled(REPLACING)},
    "nested": [{"only": [sampled(REPLACING)]}],
}
"""Samplers of torch and Lightning whose public attributes tell that they repeat examples."""


def repeat_batch(rows: list[tuple[Tensor, ...]]) -> list[Tensor]:
    return [torch.stack(column).repeat(2) for column in zip(*rows, strict=True)]


ON_TRUST: dict[str, tuple[Any, int]] = {
    "list": (sampled([0] * MANY), MANY),
    "list of batches": (batched([[0, 1], [2, 0]]), 4),
    "array": (sampled(np.zeros(MANY, int)), MANY),
    "subset of one": (sampled(SubsetRandomSampler([0] * MANY)), MANY),
    "same rows": (DataLoader(Subset(NINE_EXAMPLES, [8, -1])), 2),
    "same data": (DataLoader(ConcatDataset([NINE_EXAMPLES] * 8)), 72),
    "repeating collate_fn": (DataLoader(NINE_EXAMPLES, batch_size=9, collate_fn=repeat_batch), 18),
    "custom sampler": (sampled(CustomSampler()), MANY),
    "custom batch sampler": (
        batched(CustomBatchSampler(SequentialSampler(NINE_EXAMPLES), 9, False)),
        MANY,
    ),
    "custom shuffling": (sampled(CustomRandomSampler(NINE_EXAMPLES)), 9),
    "custom sampler in batches": (batched(BatchSampler(CustomSampler(), 9, False)), MANY),
    "iterable": (DataLoader(RepeatingDataset()), MANY),
    "custom loader": (CustomLoader(NINE_EXAMPLES), MANY),
}
"""Data that repeats examples in ways that no sampler shows, and the number of examples."""

WITHOUT_REPEATS = {
    "plain": DataLoader(NINE_EXAMPLES, batch_size=4),
    "shuffled": DataLoader(NINE_EXAMPLES, shuffle=True),
    "rows": DataLoader(NINE_EXAMPLES, batch_size=None),
    "some": sampled(RandomSampler(NINE_EXAMPLES, num_samples=5)),
    "weighted": sampled(WeightedRandomSampler([1.0] * 9, 9, replacement=False)),
    "list": sampled([3, 1, 2]),
    "batches": batched([[0, 1], [2]]),
    "in batches": batched(BatchSampler(SubsetRandomSampler(range(9)), 2, True)),
    "dealt": sampled(DistributedSampler(NINE_EXAMPLES, num_replicas=3, rank=0)),
    "dropping": sampled(DistributedSampler(NINE_EXAMPLES, num_replicas=2, rank=0, drop_last=True)),
    "unpadded": sampled(UnrepeatedDistributedSampler(NINE_EXAMPLES, num_replicas=2, rank=0)),
    "custom sampler": sampled(CustomSampler(3, 1, 2)),
    "split": DataLoader(ConcatDataset(random_split(NINE_EXAMPLES, [4, 5]))),
    "joined": DataLoader(ConcatDataset([NINE_EXAMPLES, TensorDataset(*scores(2, 9))])),
}


class Single(Scorer):
    """Takes single examples as well as batches, and any number of loaders at once."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        if isinstance(batch[0], Tensor):
            super().validation_step([torch.atleast_1d(part) for part in batch], batch_idx)
        else:
            for part in batch:
                self.validation_step(part, batch_idx)


EPSILON_1 = CentralDP(1.0)


def evaluated(folder: Path, loaders: Any, privacy: Privacy = EPSILON_1) -> FederatedROC:
    """Return the metric after an evaluation, with its data, as a federated client keeps it."""
    metric = FederatedROC(privacy=privacy, ledger=PrivacyLedger())
    runner = trainer(folder, FederatedEvaluation("metrics", federated=True))
    try:
        runner.validate(Single(metric), loaders, verbose=False)
    except InputError:
        assert not metric.counts.any()
        assert len(metric.ledger) == 0
        raise
    return metric


@pytest.mark.parametrize("bound", [1, MANY])
@pytest.mark.parametrize("loaders", REPEATING.values(), ids=REPEATING)
def test_samplers_that_repeat_are_refused_whatever_was_declared(
    loaders: Any, bound: int, tmp_path: Path
) -> None:
    """The bound is one of persons, who may have several examples; a sampler multiplies them."""
    with pytest.raises(InputError, match="every example once"):
        evaluated(tmp_path, loaders, CentralDP(1.0, examples_per_person=bound))


@pytest.mark.parametrize("name", ON_TRUST)
def test_repeats_that_no_sampler_shows_are_the_users_responsibility(
    name: str, tmp_path: Path
) -> None:
    loaders, examples = ON_TRUST[name]
    assert evaluated(tmp_path, loaders).counts.sum() == examples


@pytest.mark.parametrize("loaders", WITHOUT_REPEATS.values(), ids=WITHOUT_REPEATS)
def test_data_that_comes_once_is_counted(loaders: Any, tmp_path: Path) -> None:
    assert evaluated(tmp_path, loaders).counts.any()


def test_exact_metrics_take_any_data(tmp_path: Path) -> None:
    module = Single(FederatedROC())
    runner = trainer(tmp_path, FederatedEvaluation("metrics", federated=True))
    runner.validate(module, sampled(CustomSampler(0, 0, 1)), verbose=False)
    assert module.metrics.counts.sum() == 3


def test_combined_loaders_are_looked_through(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="every example once"):
        evaluated(tmp_path, CombinedLoader([sampled(REPLACING)], "sequential"))
    combined = CombinedLoader([DataLoader(NINE_EXAMPLES)], "sequential")
    assert evaluated(tmp_path, combined).counts.sum() == 9


@pytest.mark.parametrize("mode", ["sequential", "min_size", "max_size_cycle"])
def test_each_loader_has_a_metric_of_its_own_in_every_mode(mode: Any, tmp_path: Path) -> None:
    combined = CombinedLoader([DataLoader(NINE_EXAMPLES), DataLoader(NINE_EXAMPLES)], mode)
    with pytest.raises(InputError, match="got 1 for 2 dataloaders"):
        evaluated(tmp_path, combined)


def test_the_loaders_of_this_evaluation_are_looked_at(tmp_path: Path) -> None:
    """Lightning's own ``trainer.val_dataloaders`` names those of the fit before."""
    module = Single(FederatedROC(privacy=CentralDP(1.0)))
    runner = trainer(tmp_path, FederatedEvaluation("metrics"))
    runner.fit(module, loader(0), DataLoader(NINE_EXAMPLES))
    for evaluate in (runner.validate, runner.test):
        with pytest.raises(InputError, match="every example once"):
            evaluate(module, sampled(REPLACING), verbose=False)
    assert len(module.metrics.ledger) == 2  # epochs


def test_a_fit_without_a_sanity_check_is_refused_before_its_first_step(tmp_path: Path) -> None:
    module = Single(FederatedROC(privacy=CentralDP(1.0)))
    runner = trainer(tmp_path, FederatedEvaluation("metrics"), num_sanity_val_steps=0)
    with pytest.raises(InputError, match="every example once"):
        runner.fit(module, loader(0), sampled(REPLACING))
    assert runner.global_step == 0


def test_the_error_tells_nothing_of_the_data(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refusal:
        evaluated(tmp_path, sampled(RandomSampler(NINE_EXAMPLES, num_samples=4_711)))
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


@pytest.mark.parametrize("bound", [1, 2])
@pytest.mark.parametrize("name", [*REPEATING, *ON_TRUST])
def test_with_ids_repeats_are_bounded_rather_than_refused(
    name: str, bound: int, tmp_path: Path
) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0, examples_per_person=bound, enforced=True))
    if name in REPEATING:
        loaders = REPEATING[name]
    else:
        loaders, _ = ON_TRUST[name]
    runner = trainer(tmp_path, FederatedEvaluation("metrics", federated=True))
    runner.validate(WithIds(metric), loaders, verbose=False)
    assert 0 < int(metric.counts.sum()) <= 9 * bound
    assert metric.counts.sum() > 9 or int(metric.counts.max()) <= bound
    assert metric.persons.bound_enforced


def test_an_enforced_bound_needs_ids_with_every_batch(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`persons` with every batch"):
        evaluated(tmp_path, DataLoader(NINE_EXAMPLES), CentralDP(1.0, enforced=True))
