"""A federated metric as a torchmetrics Metric: nothing is lost, nothing is counted twice, counts
stay int64."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.wrappers import MetricTracker

from torchmetrics_fed import (
    CentralDP,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    InputError,
    Release,
    ReleaseError,
    ScoreGrid,
)
from torchmetrics_fed.errors import SpecMismatchError, SyncError
from torchmetrics_fed.functional import ROCCurve, roc
from torchmetrics_fed.paper import Quantiles
from torchmetrics_fed.reconstruct import Aligned, Reconstruction


def updated(*batch: Tensor, **options: Any) -> Any:
    metric: Any = FederatedROC(quantiles=16, **options)
    metric.update(*batch)
    return metric


def same(first: ROCCurve, second: ROCCurve) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_class_and_functional_twin_agree(scored: tuple[Tensor, Tensor]) -> None:
    readings: list[Reconstruction] = [Aligned(), Quantiles(64)]
    for reading in readings:
        metric = FederatedROC(quantiles=64, grid="even", reconstruction=reading)
        for preds, target in zip(scored[0].chunk(7), scored[1].chunk(7), strict=True):
            metric.update(preds, target)
        pooled = roc(*scored, quantiles=64, grid="even", reconstruction=reading)
        assert same(metric.compute(), pooled)


def test_compute_follows_later_updates_and_reset_forgets(scored: tuple[Tensor, Tensor]) -> None:
    metric = updated(*scored)
    first = metric.compute()
    assert same(first, metric.compute())
    metric.update(1 - scored[0], scored[1])
    assert not same(first, metric.compute())
    metric.reset()
    assert metric.counts.sum() == 0
    metric.update(*scored)
    assert same(first, metric.compute())


def test_a_refused_update_changes_nothing(scored: tuple[Tensor, Tensor]) -> None:
    metric = updated(*scored)
    before = metric.counts.clone()
    value = metric.compute()
    for call in (metric.update, metric.forward):
        with pytest.raises(InputError):
            call(torch.tensor([2.0]), torch.tensor([1]))
        assert torch.equal(metric.counts, before)
        assert metric.update_count == 1
        assert same(metric.compute(), value)


def test_forward_returns_the_batch_and_adds_it(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(quantiles=16)
    halves = [(scored[0][:2_000], scored[1][:2_000]), (scored[0][2_000:], scored[1][2_000:])]
    for half in halves:
        assert same(metric(*half), roc(*half, quantiles=16))
    assert same(metric.compute(), roc(*scored, quantiles=16))
    assert metric.update_count == 2


def test_merging_adds_counts_and_is_seen_by_compute(scored: tuple[Tensor, Tensor]) -> None:
    metric = updated(scored[0][:99], scored[1][:99])
    addend = updated(scored[0][99:], scored[1][99:])
    metric.compute()
    metric.merge_state(addend)
    assert same(metric.compute(), roc(*scored, quantiles=16))
    assert metric.update_count == 2
    by_dict = updated(scored[0][:99], scored[1][:99])
    by_dict.merge_state(addend.metric_state)
    assert same(by_dict.compute(), metric.compute())


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ({}, InputError),
        ({"counts": torch.zeros(1, 2, 64, dtype=torch.int64)}, InputError),
        ("counts", InputError),
    ],
)
def test_states_that_are_none_are_refused(
    state: Any, error: type[Exception], scored: tuple[Tensor, Tensor]
) -> None:
    metric = updated(*scored)
    with pytest.raises(error):
        metric.merge_state(state)
    assert metric.counts.sum() == 5_000


@pytest.mark.parametrize(
    "spoil",
    [
        lambda counts: counts[:, :, :1],
        lambda counts: counts.double(),
        lambda counts: torch.full_like(counts, torch.nan, dtype=torch.float64),
        lambda counts: -counts,
    ],
)
def test_impossible_counts_are_refused_without_being_shown(
    spoil: Any, scored: tuple[Tensor, Tensor]
) -> None:
    metric = updated(*scored)
    state = dict(metric.metric_state)
    state["counts"] = spoil(state["counts"])
    with pytest.raises(InputError) as caught:
        metric.merge_state(state)
    assert "tensor(" not in str(caught.value)


def test_another_spec_cannot_be_merged(scored: tuple[Tensor, Tensor]) -> None:
    metric = updated(*scored)
    with pytest.raises(SpecMismatchError, match="bins"):
        metric.merge_state(FederatedROC(quantiles=32))
    with pytest.raises(SpecMismatchError, match="ignore_index"):
        metric.merge_state(FederatedROC(quantiles=16, ignore_index=-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_the_curves_and_never_the_counts(
    dtype: torch.dtype, scored: tuple[Tensor, Tensor]
) -> None:
    metric = updated(*scored)
    for _ in range(20):
        metric.update(torch.full((10_000,), 0.3), torch.ones(10_000, dtype=torch.bool))
    exact = metric.compute()
    counts = metric.counts.clone()
    metric = metric.set_dtype(dtype).half().to(torch.float16).float()
    assert metric.counts.dtype == torch.int64
    assert torch.equal(metric.counts, counts)
    curve = metric.compute()
    assert curve.tpr.dtype == metric.dtype == dtype
    assert torch.allclose(curve.tpr.double(), exact.tpr, atol=0.01)


def test_the_state_moves_with_the_metric() -> None:
    """`meta` stands for any other device: nothing can be counted there, but tensors can lie
    there."""
    metric = FederatedROC().to("meta")
    assert metric.counts.device.type == metric._layout.device.type == metric.device.type == "meta"
    metric.reset()
    assert metric.counts.device.type == "meta"


def test_copies_are_independent(scored: tuple[Tensor, Tensor]) -> None:
    metric = updated(*scored)
    value = metric.compute()
    for twin in (metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        twin.update(1 - scored[0], scored[1])
        assert twin.counts.sum() == 10_000
        assert metric.counts.sum() == 5_000
    assert same(metric.compute(), value)


def test_checkpoints_hold_counts_only_when_asked(scored: tuple[Tensor, Tensor]) -> None:
    metric = updated(*scored)
    assert len(metric.state_dict()) == 0
    metric.persistent(True)
    file = io.BytesIO()
    torch.save(metric.state_dict(), file)
    file.seek(0)
    fresh = FederatedROC(quantiles=16)
    saved = torch.load(file)
    fresh.load_state_dict(saved)
    assert same(fresh.compute(), metric.compute())
    fresh.update(*scored)
    assert metric.counts.sum() == 5_000  # and the checkpoint was not counted into
    with pytest.raises(RuntimeError, match="layout"):
        FederatedROC(quantiles=32).load_state_dict(metric.state_dict())
    spoiled = dict(metric.state_dict())
    spoiled["counts"] = -spoiled["counts"]
    with pytest.raises(RuntimeError, match="non-negative"):
        fresh.load_state_dict(spoiled)
    assert fresh.counts.sum() == 10_000


def test_a_model_with_a_metric_loads_its_own_checkpoint(scored: tuple[Tensor, Tensor]) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.metric = updated(*scored)

    assert "metric.counts" not in Model().state_dict()
    Model().load_state_dict(Model().state_dict())


def test_updates_inside_and_outside_inference_mode(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(quantiles=16)
    with torch.inference_mode():
        metric.update(*scored)
        metric.reset()
        metric.update(*scored)
    metric.update(*scored)
    with torch.inference_mode():
        metric.update(*scored)
    assert metric.counts.sum() == 15_000
    assert not metric.compute().tpr.is_inference()


def test_from_release(scored: tuple[Tensor, Tensor]) -> None:
    batches = list(zip(scored[0].chunk(3), scored[1].chunk(3), strict=True))
    even = Release.sum(updated(*batch, grid="even").share() for batch in batches)
    reading = Quantiles(16)
    assert same(
        FederatedROC.from_release(even, reconstruction=reading).compute(),
        roc(*scored, quantiles=16, grid="even", reconstruction=reading),
    )
    clients = [updated(*batch) for batch in batches]
    total = Release.sum(client.share() for client in clients)
    with pytest.raises(InputError, match='Pass `grid="even"`'):
        FederatedROC.from_release(total, reconstruction=reading)
    metric = FederatedROC.from_release(total)
    assert same(metric.compute(), roc(*scored, quantiles=16))
    for refused in (lambda: metric.update(*scored), lambda: metric(*scored), metric.share):
        with pytest.raises(ReleaseError):
            refused()
    with pytest.raises(ReleaseError):
        clients[0].merge_state(metric)
    metric.reset()
    metric.update(*scored)
    assert same(metric.compute(), roc(*scored, quantiles=16))


def test_from_release_keeps_custom_edges_and_ranges() -> None:
    for grid in (ScoreGrid.from_edges([0.0, 0.1, 0.5, 1.0]), ScoreGrid.even(8, (-1.0, 1.0))):
        client = FederatedPrecisionRecallCurve(grid=grid)
        client.update(torch.tensor([0.05, 0.3, 0.7]), torch.tensor([0, 1, 1]))
        total = Release.sum([client.share()])
        curve = FederatedPrecisionRecallCurve.from_release(total).compute()
        assert torch.equal(curve.precision, client.compute().precision)


def test_the_release_is_what_curves_are_read_from(scored: tuple[Tensor, Tensor]) -> None:
    metric = updated(*scored)
    release = metric.release()
    assert same(FederatedROC.from_release(release).compute(), metric.compute())
    assert FederatedROC.from_release(release).release() is release
    summed = updated(
        *scored,
        dist_sync_fn=lambda tensor, group=None: [tensor] * 3,
        distributed_available_fn=lambda: True,
    )
    assert summed.release().leaf.sum() == 15_000


def test_arguments_are_checked() -> None:
    for name, value, instead in (
        ("thresholds", 200, r"`quantiles`.*from_edges"),
        ("score_range", (0, 2), r"grid=ScoreGrid\.even"),
        ("score_edges", [0, 0.5, 1], r"grid=ScoreGrid\.from_edges"),
        ("epsilon", 1.0, r"privacy=CentralDP.epsilon=1.0"),
        ("method", "quantile", r"reconstruction=paper\.Quantiles\(1024\)"),
        ("strategy", "combine", r"reconstruction=paper\.Quantiles\(1024, strategy"),
    ):
        with pytest.raises(InputError, match=f"no argument `{name}`.*{instead}"):
            FederatedROC(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="`grid` to be one of"):
        FederatedROC(grid="uneven")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="`reconstruction` to be a Reconstruction"):
        FederatedROC(reconstruction="quantile")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="task"):
        FederatedROC("regression")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ignore_index"):
        FederatedROC(ignore_index=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Unexpected keyword"):
        FederatedROC(quantile=3)  # type: ignore[call-arg]


def test_an_error_inside_compute_gives_the_local_counts_back(scored: tuple[Tensor, Tensor]) -> None:
    class Broken(FederatedROC):
        def compute(self) -> ROCCurve:
            raise ArithmeticError("inside compute")

    metric = Broken(
        quantiles=16,
        dist_sync_fn=lambda tensor, group=None: [tensor, tensor],
        distributed_available_fn=lambda: True,
    )
    metric.update(*scored)
    with pytest.raises(ArithmeticError):
        metric.compute()
    assert metric.counts.sum() == 5_000
    metric.update(*scored)


def test_dist_sync_fn_moves_everything(scored: tuple[Tensor, Tensor]) -> None:
    metric = updated(
        *scored,
        dist_sync_fn=lambda tensor, group=None: [tensor] * 3,
        distributed_available_fn=lambda: True,
    )
    assert same(metric.compute(), roc(*scored, quantiles=16))
    assert metric.share().cells.sum() == 15_000
    assert metric.counts.sum() == 5_000
    metric.sync()
    assert metric.counts.sum() == 15_000
    with pytest.raises(TorchMetricsUserError, match="unsync"):
        metric.update(*scored)
    metric.unsync()
    assert metric.counts.sum() == 5_000


@pytest.mark.filterwarnings("ignore:epsilon=40")
def test_one_draw_for_all_goes_through_dist_sync_fn_too(scored: tuple[Tensor, Tensor]) -> None:
    metric = updated(
        *scored,
        privacy=CentralDP(40.0),  # hardly any noise
        dist_sync_fn=lambda tensor, group=None: [tensor] * 3,
        distributed_available_fn=lambda: True,
    )
    assert abs(int(metric.release().leaf.sum()) - 15_000) < 100
    assert metric.counts.sum() == 5_000
    assert len(metric.ledger) == 1


def test_a_sync_without_process_group_is_refused(scored: tuple[Tensor, Tensor]) -> None:
    metric = updated(*scored, distributed_available_fn=lambda: True)
    with pytest.raises(SyncError, match="init_process_group"):
        metric.compute()
    assert metric.counts.sum() == 5_000


def test_collections_group_what_counts_alike_and_nothing_else(
    scored: tuple[Tensor, Tensor],
) -> None:
    metrics: dict[str, Metric] = {
        "roc": FederatedROC(quantiles=16),
        "pr": FederatedPrecisionRecallCurve(quantiles=16),
        "ignoring": FederatedROC(quantiles=16, ignore_index=0),
        "elsewhere": FederatedROC(grid=ScoreGrid.even(16, (0.0, 2.0))),
    }
    collection: Any = MetricCollection(dict(metrics))
    # a first batch that tells nothing apart
    collection.update(torch.empty(0), torch.empty(0, dtype=torch.int64))
    for preds, target in zip(scored[0].chunk(3), scored[1].chunk(3), strict=True):
        collection.update(preds, target)
    groups = sorted(sorted(group) for group in collection.compute_groups.values())
    assert groups == [["elsewhere"], ["ignoring"], ["pr", "roc"]]
    assert same(collection["roc"].compute(), roc(*scored, quantiles=16))
    assert collection["ignoring"].counts.sum() == int(scored[1].sum())
    assert collection["pr"].counts.sum() == 5_000


# torchmetrics 1.6
@pytest.mark.filterwarnings("ignore:The default value for `maximize`:FutureWarning")
def test_trackers_keep_one_value_per_step(scored: tuple[Tensor, Tensor]) -> None:
    tracker: Any = MetricTracker(FederatedROC(quantiles=16), maximize=True)
    for flip in (False, True):
        tracker.increment()
        preds = 1 - scored[0] if flip else scored[0]
        tracker.update(preds, scored[1])
    first, second = (step.compute() for step in list(tracker)[-2:])
    assert same(first, roc(*scored, quantiles=16))
    assert not same(first, second)
