"""What torchmetrics' users do with a metric gives the same with ours: collections, wrappers,
arithmetic, copies."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    BinaryAveragePrecision,
    MulticlassAUROC,
    MulticlassAveragePrecision,
)
from torchmetrics.wrappers import (
    ClasswiseWrapper,
    MetricTracker,
    MinMaxMetric,
    MultioutputWrapper,
    MultitaskWrapper,
    Running,
)

from tests.ranks import RankPool
from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedROC,
    ReleaseError,
    ScoreGrid,
)
from torchmetrics_fed.functional import auroc

GRID = ScoreGrid.from_edges(ScoreGrid.even(16).edges)  # edges of the user's own: no word of ties
CLASSES: dict[str, Any] = {"task": "multiclass", "num_classes": 3, "grid": GRID}


class Kit(NamedTuple):
    """The same metrics of two makers."""

    auroc: Callable[[], Any]
    precision: Callable[[], Any]
    aurocs: Callable[..., Any]
    precisions: Callable[..., Any]


THEIRS = Kit(
    BinaryAUROC,
    BinaryAveragePrecision,
    lambda **options: MulticlassAUROC(3, **options),
    lambda **options: MulticlassAveragePrecision(3, **options),
)
OURS = Kit(
    lambda: FederatedAUROC(grid=GRID),
    lambda: FederatedAveragePrecision(grid=GRID),
    lambda **options: FederatedAUROC(**CLASSES, **options),
    lambda **options: FederatedAveragePrecision(**CLASSES, **options),
)


def batch(number: int, classes: int = 0) -> tuple[Tensor, Tensor]:
    """Scores on bin centres, so that binning changes nothing, and targets."""
    generator = torch.Generator().manual_seed(number)
    target = torch.randint(0, classes or 2, (300,), generator=generator)
    truth = target.double()
    if classes:
        truth = torch.nn.functional.one_hot(target, classes).double()
    logits = torch.randn(truth.shape, generator=generator, dtype=torch.float64) + truth
    scores = logits.sigmoid()
    if classes:
        scores = logits.softmax(1)
    return ((scores * GRID.bins).floor() + 0.5) / GRID.bins, target


def collection(kit: Kit) -> Any:
    metrics: Any = MetricCollection(
        {"a": kit.auroc(), "p": kit.precision()}, prefix="val_", postfix="_x"
    )
    values = [metrics(*batch(0))]
    for number in (1, 2):
        metrics.update(*batch(number))
    twin = metrics.clone(prefix="test_")
    twin.update(*batch(3))
    values += [metrics.compute(), twin.compute(), list(metrics.keys()), metrics.compute_groups]
    metrics.reset()
    metrics.update(*batch(4))
    return [*values, metrics.compute(), metrics["val_a_x"].update_count]


def collection_of_a_list(kit: Kit) -> Any:
    metrics: Any = MetricCollection([kit.auroc(), kit.precision()], BinaryAccuracy())
    metrics.update(*batch(0))
    return metrics.compute(), [sorted(group) for group in metrics.compute_groups.values()]


def collection_without_groups(kit: Kit) -> Any:
    metrics: Any = MetricCollection({"a": kit.auroc(), "p": kit.precision()}, compute_groups=False)
    metrics.update(*batch(0))
    return metrics.compute(), metrics.compute_groups


def nested_collections(kit: Kit) -> Any:
    inner: Any = MetricCollection({"a": kit.auroc()}, postfix="_1")
    metrics: Any = MetricCollection(
        {"x": inner, "y": MetricCollection({"p": kit.precision()}, prefix="2_")}
    )
    metrics.update(*batch(0))
    return metrics.compute()


def tracker(kit: Kit) -> Any:
    tracked: Any = MetricTracker(kit.auroc(), maximize=True)
    for number in range(3):
        tracked.increment()
        tracked.update(*batch(number))
    return (
        tracked.compute(),
        tracked.compute_all(),
        tracked.best_metric(return_step=True),
        tracked.n_steps,
    )


def tracker_of_a_collection(kit: Kit) -> Any:
    tracked: Any = MetricTracker(
        MetricCollection({"a": kit.auroc(), "p": kit.precision()}), maximize=[True, True]
    )
    steps = []
    for number in range(3):
        tracked.increment()
        steps.append(tracked(*batch(number)))
    return steps, tracked.compute_all(), tracked.best_metric(return_step=True)


def extremes(kit: Kit) -> Any:
    metric: Any = MinMaxMetric(kit.auroc())
    values = []
    for number in range(3):
        metric.update(*batch(number))
        values.append(metric.compute())
    return [*values, metric(*batch(3))]


def classwise(kit: Kit) -> Any:
    named: Any = ClasswiseWrapper(kit.aurocs(average=None), labels=["cat", "dog", "bird"])
    numbered: Any = ClasswiseWrapper(kit.precisions(average="none"), prefix="ap-")
    metrics: Any = MetricCollection({"a": named, "p": numbered})
    values = [metrics(*batch(0, 3))]
    metrics.update(*batch(1, 3))
    return [*values, metrics.compute()]


def multitask(kit: Kit) -> Any:
    metric: Any = MultitaskWrapper(
        {"one": kit.auroc(), "other": MetricCollection([kit.auroc(), kit.precision()])}
    )
    first_scores, first_target = batch(0)
    second_scores, second_target = batch(1)
    metric.update(
        {"one": first_scores, "other": second_scores},
        {"one": first_target, "other": second_target},
    )
    return metric.compute()


def multioutput(kit: Kit) -> Any:
    metric: Any = MultioutputWrapper(kit.auroc(), 2)
    metric.update(*(torch.stack(pair, 1) for pair in zip(batch(0), batch(1), strict=True)))
    return metric.compute()


def arithmetic(kit: Kit) -> Any:
    area = kit.auroc()
    precision = kit.precision()
    formulas = [
        area + precision,
        area - 1,
        2 * area,
        abs(precision - area),
        1 / area,
        area**2,
        -area,
        area > 0.5,
        precision >= area,
        (area > 0.5) & (precision > 0.5),
    ]
    for number in (0, 1):
        area.update(*batch(number))
        precision.update(*batch(number))
    return [formula.compute() for formula in formulas]


def arithmetic_that_updates(kit: Kit) -> Any:
    area = kit.auroc()
    precision = kit.precision()
    by_class = kit.aurocs(average=None)
    total = area + precision
    second = by_class[1]
    total.update(*batch(0))
    second.update(*batch(0, 3))
    values = [total.compute(), second.compute(), total(*batch(1)), area.update_count]
    total.reset()
    return [*values, area.update_count, precision.update_called]


def copies(kit: Kit) -> Any:
    metric = kit.auroc()
    metric.update(*batch(0))
    twin = metric.clone()
    revived = pickle.loads(pickle.dumps(metric))
    for copy in (twin, revived):
        copy.update(*batch(1))
    values = [(copy.compute(), copy.update_count) for copy in (metric, twin, revived)]
    return values, hash(metric) == hash(twin)


def merged(kit: Kit) -> Any:
    first = kit.auroc()
    second = kit.auroc()
    first.update(*batch(0))
    second.update(preds=batch(1)[0], target=batch(1)[1])
    first.merge_state(second)
    return first.compute(), second.compute()


def attributes(kit: Kit) -> Any:
    metric = kit.auroc()
    names = [
        "is_differentiable",
        "higher_is_better",
        "full_state_update",
        "plot_lower_bound",
        "plot_upper_bound",
    ]
    settings = [getattr(metric, name) for name in names]
    with pytest.raises(RuntimeError, match="const") as caught:
        metric.higher_is_better = False
    return settings, str(caught.value), metric.state_dict(), metric.update_called, metric.device


def same(ours: Any, theirs: Any) -> None:
    """Raise unless both are the same values under the same names, but for the names of the
    makers."""
    if isinstance(theirs, dict):
        assert [_name(key) for key in ours] == [_name(key) for key in theirs]
        ours = list(ours.values())
        theirs = list(theirs.values())
    if isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for our_value, their_value in zip(ours, theirs, strict=True):
            same(our_value, their_value)
    elif isinstance(theirs, Tensor | float):
        torch.testing.assert_close(
            torch.as_tensor(ours), torch.as_tensor(theirs), rtol=0, atol=1e-6, check_dtype=False
        )
    else:
        assert _name(ours) == _name(theirs)


def _name(key: Any) -> Any:
    if isinstance(key, str):
        return re.sub("^(binary|multiclass|federated)", "", key.lower())
    return key


@pytest.mark.parametrize(
    "use",
    [
        collection,
        collection_of_a_list,
        collection_without_groups,
        nested_collections,
        tracker,
        tracker_of_a_collection,
        extremes,
        classwise,
        multitask,
        multioutput,
        arithmetic,
        arithmetic_that_updates,
        copies,
        merged,
        attributes,
    ],
    ids=lambda use: use.__name__,
)
def test_it_is_as_with_torchmetrics(use: Callable[[Kit], Any]) -> None:
    same(use(OURS), use(THEIRS))


def test_a_running_window_is_the_pooled_data_in_it() -> None:
    """Torchmetrics' own exact metrics lose it: their states are lists."""
    running: Any = Running(OURS.auroc(), window=2)
    for number in range(3):
        running.update(*batch(number))
    scores, target = (torch.cat(pair) for pair in zip(batch(1), batch(2), strict=True))
    assert torch.equal(running.compute(), auroc(scores, target, grid=GRID))


def warned(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [re.sub("Binary|Federated", "", str(warning.message)) for warning in caught]


def test_compute_before_update_warns_as_there() -> None:
    (text,) = warned(BinaryAUROC(thresholds=8).compute)
    for call in (OURS.auroc().compute, OURS.auroc().plot):
        assert text in warned(call)
    metric = OURS.auroc()
    metric.update(*batch(0))
    assert not warned(metric.compute)
    metric.reset()
    assert text in warned(metric.compute)
    assert not warned(lambda: FederatedAUROC.from_release(updated_release()).compute())
    with pytest.raises(ReleaseError, match="nothing was counted"):
        FederatedAUROC(privacy=CentralDP(1.0)).compute()


def updated_release() -> Any:
    metric = FederatedROC(grid=GRID)
    metric.update(*batch(0))
    return metric.release()


def computed(rank: int, counting: int | None) -> Any:
    """A collection whose second metric needs every rank again; warnings are errors."""
    metrics: Any = MetricCollection({"a": OURS.auroc(), "p": OURS.precision()})
    if rank == counting:
        metrics.update(*batch(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return {name: value.item() for name, value in metrics.compute().items()}
        except UserWarning as warning:
            return str(warning)


def test_ranks_warn_together_or_not_at_all(ranks: RankPool) -> None:
    texts = ranks.run(computed, None)
    assert len(set(texts)) == 1
    assert "before the ``update`` method" in texts[0]
    values = ranks.run(computed, 2)  # the first rank has no data, which is no reason to warn
    assert values == [{"a": pytest.approx(0.76, abs=0.1), "p": pytest.approx(0.76, abs=0.1)}] * 3
