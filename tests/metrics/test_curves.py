"""Several classes and labels: metrics and averages against torchmetrics and scikit-learn on the
same binned scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from torchmetrics.classification import (
    BinaryPrecisionRecallCurve,
    BinaryROC,
    MulticlassAUROC,
    MulticlassAveragePrecision,
    MulticlassPrecisionRecallCurve,
    MulticlassROC,
    MultilabelAUROC,
    MultilabelAveragePrecision,
    MultilabelROC,
)

from tests.grids import centred
from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedCalibration,
    FederatedDET,
    FederatedPrecisionRecallCurve,
    FederatedPrecisionRecallGain,
    FederatedROC,
    InputError,
    Query,
    Release,
    ScoreGrid,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.functional import auroc

K = 4
GRID = ScoreGrid.two_sided(16)  # what metrics have by default
CLASSES: dict[str, Any] = {"task": "multiclass", "num_classes": K, "quantiles": 16}
LABELS: dict[str, Any] = {"task": "multilabel", "num_labels": K, "quantiles": 16}


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Scores on bin centres, so that binning changes nothing, with classes of different sizes,
    and labels."""
    generator = torch.Generator().manual_seed(8)
    classes = torch.multinomial(
        torch.tensor([0.5, 0.3, 0.15, 0.05]), 3_000, True, generator=generator
    )
    logits = torch.randn(3_000, K, generator=generator, dtype=torch.float64)
    logits += 1.5 * torch.nn.functional.one_hot(classes, K)
    labels = (torch.rand(3_000, K, generator=generator) < logits.sigmoid() ** 2).long()
    return centred(logits.softmax(1), GRID), classes, labels


def updated(kind: Any, target: int, **options: Any) -> Any:
    task = CLASSES if target == 1 else LABELS
    metric = kind(**task, **options)
    for scores, labels in zip(data()[0].chunk(3), data()[target].chunk(3), strict=True):
        metric.update(scores, labels)
    return metric


def reference(kind: Any, target: int, **options: Any) -> Any:
    metric = kind(K, thresholds=GRID.edges[:-1], **options).set_dtype(torch.float64)
    metric.update(data()[0], data()[target])
    return metric.compute()


def micro_reference(kind: Any) -> Any:
    """Every score of every class as a binary one; torchmetrics' own micro-average of thresholds
    fails to update."""
    metric = kind(thresholds=GRID.edges[:-1]).set_dtype(torch.float64)
    metric.update(data()[0].flatten(), torch.nn.functional.one_hot(data()[1], K).flatten())
    return metric.compute()


def close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=0, atol=1e-12)


@pytest.mark.parametrize("average", [None, "micro"])
def test_roc_is_torchmetrics(average: Any) -> None:
    curve = updated(FederatedROC, 1, average=average).compute()
    fpr, tpr, thresholds = reference(MulticlassROC, 1)
    if average:
        fpr, tpr, thresholds = micro_reference(BinaryROC)
    assert close(curve.fpr[..., 1:], fpr)  # ours begins with a point that selects nothing
    assert close(curve.tpr[..., 1:], tpr)
    assert torch.equal(curve.thresholds[1:], thresholds)
    assert bool((curve.fpr[..., 0] == 0).all())


def test_macro_roc_is_torchmetrics_mean() -> None:
    curve = updated(FederatedROC, 1, average="macro").compute()
    fpr, tpr, _ = reference(MulticlassROC, 1, average="macro")
    assert close(curve.fpr[K:], fpr)
    assert close(curve.tpr[K:], tpr)


def test_multilabel_roc_is_torchmetrics() -> None:
    curve = updated(FederatedROC, 2).compute()
    fpr, tpr, _ = reference(MultilabelROC, 2)
    assert close(curve.fpr[..., 1:], fpr)
    assert close(curve.tpr[..., 1:], tpr)


@pytest.mark.parametrize("average", [None, "micro"])
def test_pr_is_torchmetrics(average: Any) -> None:
    curve = updated(FederatedPrecisionRecallCurve, 1, average=average).compute()
    precision, recall, thresholds = reference(MulticlassPrecisionRecallCurve, 1)
    if average:
        precision, recall, thresholds = micro_reference(BinaryPrecisionRecallCurve)
    # where nothing is selected torchmetrics 1.9 has 1 or nan, 1.6.0 has 0
    defined = ~precision.isnan() & ((recall > 0) | (precision > 0))
    assert close(curve.precision[defined], precision[defined])
    assert close(curve.recall, recall)
    assert torch.equal(curve.thresholds, thresholds)


AREAS: list[tuple[Any, int, Any, Any]] = [
    (FederatedAUROC, 1, MulticlassAUROC, roc_auc_score),
    (FederatedAveragePrecision, 1, MulticlassAveragePrecision, average_precision_score),
    (FederatedAUROC, 2, MultilabelAUROC, roc_auc_score),
    (FederatedAveragePrecision, 2, MultilabelAveragePrecision, average_precision_score),
]


@pytest.mark.parametrize(("ours", "target", "torchmetrics", "sklearn"), AREAS)
def test_areas_and_their_averages(ours: Any, target: int, torchmetrics: Any, sklearn: Any) -> None:
    """Scikit-learn gives the areas of each class in float64, torchmetrics the averages, in
    float32."""
    scores = data()[0]
    truth = data()[target]
    labels = truth
    if target == 1:
        labels = torch.nn.functional.one_hot(truth, K)
    areas = updated(ours, target, average=None).compute()
    expected = torch.tensor(
        [sklearn(labels[:, k], scores[:, k]) for k in range(K)], dtype=torch.float64
    )
    assert close(areas, expected)
    weights = labels.sum(0).double() / labels.sum()
    assert close(updated(ours, target).compute(), expected.mean())
    assert close(updated(ours, target, average="weighted").compute(), (expected * weights).sum())
    micro = torch.tensor(sklearn(labels.flatten(), scores.flatten()), dtype=torch.float64)
    assert close(updated(ours, target, average="micro").compute(), micro)
    for average in (None, "macro", "weighted"):
        exact = torchmetrics(K, average=average)
        exact.update(scores, truth)
        result = updated(ours, target, average=average).compute()
        assert torch.allclose(result, exact.compute().double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("average", ["macro", "weighted"])
def test_one_vs_one_is_scikit_learns(average: Any) -> None:
    generator = torch.Generator().manual_seed(8)
    scores, classes, _ = data()
    # scikit-learn wants rows that sum to 1 and ranks the scores as they are
    metric = FederatedAUROC(**CLASSES, multi_class="ovo", average=average)
    metric.update(scores, classes)
    areas = []
    sizes = []
    for a in range(K):
        for b in range(a + 1, K):
            mask = (classes == a) | (classes == b)
            score = [roc_auc_score(classes[mask] == c, scores[mask, c]) for c in (a, b)]
            areas.append(sum(score) / 2)
            sizes.append(mask.double().mean().item())
    weights = torch.ones(len(areas))
    if average == "weighted":
        weights = torch.tensor(sizes)
    expected = (torch.tensor(areas, dtype=torch.float64) * weights).sum() / weights.sum()
    assert metric.compute().item() == pytest.approx(expected.item(), abs=1e-7)
    exact = torch.randn(500, K, generator=generator, dtype=torch.float64).softmax(1)
    target = torch.randint(0, K, (500,), generator=generator)
    fine = FederatedAUROC(
        "multiclass", num_classes=K, multi_class="ovo", average=average, quantiles=65_536
    )
    fine.update(exact, target)
    assert fine.compute().item() == pytest.approx(
        roc_auc_score(target, exact, multi_class="ovo", average=average), abs=1e-4
    )


@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
@pytest.mark.parametrize("average", ["macro", "weighted", "micro", None])
def test_areas_are_those_of_the_functional_twin(multi_class: Any, average: Any) -> None:
    scores, classes, _ = data()
    metric = updated(FederatedAUROC, 1, multi_class=multi_class, average=average)
    assert torch.equal(
        metric.compute(),
        auroc(scores, classes, **CLASSES, multi_class=multi_class, average=average),
    )


def test_one_vs_one_counts_answer_one_vs_rest_as_well() -> None:
    for kind in (FederatedROC, FederatedPrecisionRecallCurve, FederatedDET):
        rest = updated(kind, 1).compute()
        pairs = updated(kind, 1, multi_class="ovo").compute()
        assert all(torch.equal(a, b) for a, b in zip(rest, pairs, strict=True))


@pytest.mark.parametrize(
    "kind",
    [
        FederatedROC,
        FederatedPrecisionRecallCurve,
        FederatedAUROC,
        FederatedAveragePrecision,
        FederatedDET,
        FederatedPrecisionRecallGain,
        FederatedCalibration,
    ],
)
@pytest.mark.parametrize("privacy", [None, CentralDP(5.0)], ids=["exact", "private"])
def test_every_metric_reads_the_same_release(kind: Any, privacy: Any) -> None:
    sums_to_one = None if privacy is None else False  # of bin centres, which round the scores
    metric = updated(kind, 1, privacy=privacy, sums_to_one=sums_to_one)
    answer = metric.compute()
    twin = kind.from_release(metric.release()).compute()
    if isinstance(answer, Tensor):
        assert torch.equal(twin, answer)
    else:
        assert all(torch.equal(a, b) for a, b in zip(twin, answer, strict=True))
    figure, _ = metric.plot()
    assert figure is not None
    if privacy is not None:
        assert len(metric.ledger) == 1


def test_clients_of_many_classes_add_up() -> None:
    scores, classes, _ = data()
    shares = []
    for some_scores, some_classes in zip(scores.chunk(7), classes.chunk(7), strict=True):
        metric = FederatedAUROC(**CLASSES, average=None)
        metric.update(some_scores, some_classes)
        shares.append(metric.share())
    total = Release.sum(shares)
    pooled = updated(FederatedAUROC, 1, average=None).compute()
    assert torch.equal(FederatedAUROC.from_release(total, average=None).compute(), pooled)


def test_averages_that_a_metric_does_not_have_are_refused() -> None:
    with pytest.raises(InputError, match="average"):
        FederatedROC(**CLASSES, average="weighted")
    with pytest.raises(InputError, match="num_classes"):
        FederatedROC("multiclass")
    with pytest.raises(InputError, match="num_labels"):
        FederatedROC("multilabel")
    with pytest.raises(InputError, match="softmax"):
        FederatedROC(**CLASSES, normalization="sigmoid")


def test_sensitivity_follows_the_classes() -> None:
    """An example of K classes is in K times as many cells, which is as much noise as K times
    smaller an epsilon."""
    query = Query(Tree.flat(64))
    binary_noise = FederatedROC(privacy=CentralDP(0.5)).spec.noise(query)
    multiclass_noise = FederatedROC(**CLASSES, privacy=CentralDP(0.5 * K)).spec.noise(query)
    assert binary_noise is not None
    assert multiclass_noise is not None
    assert multiclass_noise.variance == pytest.approx(binary_noise.variance, rel=1e-12)
