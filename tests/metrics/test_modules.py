"""Modules that hold a metric: compiled, scripted, built without memory, sharded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh

from tests.metrics.test_devices import GRIDS, TASKS, drawn
from tests.ranks import RankPool
from torchmetrics_fed import CentralDP, FederatedAUROC, FederatedROC, InputError, Release


class Scored(nn.Module):
    """A model that counts its own scores."""

    def __init__(self, metric: Any, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, outputs)
        self.metric = metric

    def forward(self, examples: Tensor, target: Tensor) -> Tensor:
        logits = self.layer(examples)
        scores = logits.softmax(-1)
        if logits.shape[1] == 1:
            scores = logits.squeeze(1).sigmoid()
        self.metric.update(scores, target)
        total: Tensor = scores.sum()
        return total


# the compiler's own look at what is given to the break
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("binary", {}),
        ("binary", {"grid": "even", "ignore_index": -1}),
        ("binary", {"grid": GRIDS[2], "validate_args": "deferred"}),
        ("binary", {"privacy": CentralDP(1.0)}),
        ("multiclass", {"num_classes": 3}),
    ],
)
def test_a_compiled_module_counts_as_it_does_uncompiled(task: Any, options: dict[str, Any]) -> None:
    outputs = 1 if task == "binary" else 3
    examples = torch.randn(64, 4)
    target = torch.randint(0, max(outputs, 2), (64,))
    module = Scored(FederatedROC(task, **options), outputs)
    compiled = torch.compile(module, backend="eager")
    for _ in range(2):
        compiled(examples, target)
    compiled_counts = module.metric.counts.clone()
    module.metric.reset()
    for _ in range(2):
        module(examples, target)
    assert torch.equal(module.metric.counts, compiled_counts)
    assert compiled_counts[0].sum() == 128


@pytest.mark.parametrize("task", TASKS)
def test_metrics_are_built_without_memory_and_given_some_later(task: str) -> None:
    name: Any = task if task in ("binary", "multilabel") else "multiclass"
    with torch.device("meta"):
        module = nn.ModuleDict(
            {"layer": nn.Linear(4, 1), "metric": FederatedROC(name, quantiles=64, **TASKS[task])}
        )
    metric: Any = module["metric"]
    assert metric.counts.is_meta
    with pytest.raises(InputError, match="to_empty"):
        metric.update(*drawn(task, 10))
    # what memory may be handed over with
    junk = [torch.full_like(metric.counts, 7, device="cpu") for _ in range(3)]
    del junk
    module.to_empty(device="cpu")
    for _ in range(2):
        assert metric.counts.sum() == 0
        metric.update(*drawn(task, 10))
        assert metric.counts[0].sum() == 10
        metric.reset()
    fresh = FederatedROC(name, quantiles=64, **TASKS[task])
    fresh.merge_state(metric)  # the same layout
    module.to_empty(device="cpu")  # of a module that had memory
    assert metric.counts.sum() == 0


def test_moving_a_metric_keeps_its_counts() -> None:
    metric: Any = FederatedROC()
    metric.update(torch.rand(10), torch.randint(0, 2, (10,)))
    for twin in (metric.to("cpu"), metric.half(), metric.double(), metric.to(torch.float16)):
        assert twin.counts.sum() == 10


def _sharded(rank: int) -> tuple[int, int]:
    with torch.device("meta"):
        module: Any = Scored(FederatedAUROC(), 1)
    sharded: Any = fsdp.fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    sharded.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in sharded.parameters():
            parameter.fill_(0.1)
    sharded(torch.randn(8, 4), torch.randint(0, 2, (8,)))
    metric = module.metric
    rank_total = int(metric.counts.sum())
    metric.compute()
    with metric.sync_context():
        return rank_total, int(metric.counts.sum())


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(fsdp, "fully_shard"), reason="this torch has no torch.distributed.fsdp.fully_shard"
)
def test_a_sharded_module_built_without_memory_counts_and_sums(ranks: RankPool) -> None:
    assert ranks.run(_sharded) == [(8, 8 * ranks.size)] * ranks.size


def test_curves_are_float32_where_the_device_has_no_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metric = FederatedROC()
    assert metric.dtype == torch.float64
    monkeypatch.setattr(FederatedROC, "device", torch.device("mps"))
    assert metric.dtype == torch.float32


def test_a_release_is_read_the_same_wherever_it_was_counted() -> None:
    metric = FederatedROC(validate_args="deferred")
    metric.update(torch.rand(100), torch.randint(0, 2, (100,)))
    total = Release.sum([metric.share()])
    assert torch.equal(FederatedROC.from_release(total).compute().tpr, metric.compute().tpr)
