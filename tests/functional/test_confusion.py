"""Confusion matrices and their scores against torchmetrics and scikit-learn on binned scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics.functional.classification as tm
from sklearn.metrics import (
    balanced_accuracy_score,
    class_likelihood_ratios,
    cohen_kappa_score,
    confusion_matrix,
    matthews_corrcoef,
    multilabel_confusion_matrix,
)
from torch import Tensor

from tests.functional.scores import Scored, rounded
from tests.grids import even
from torchmetrics_fed import CentralDP, FederatedROC, InputError, ScoreGrid
from torchmetrics_fed.functional import SCORE_NAMES, confusion_at, count, score_at_threshold
from torchmetrics_fed.functional.confusion import ScoreName

plt = pytest.importorskip("matplotlib.pyplot")

AVERAGED: dict[ScoreName, Any] = {
    "accuracy": tm.multilabel_accuracy,
    "precision": tm.multilabel_precision,
    "recall": tm.multilabel_recall,
    "specificity": tm.multilabel_specificity,
    "negative_predictive_value": tm.multilabel_negative_predictive_value,
    "f1": tm.multilabel_f1_score,
    "jaccard_index": tm.multilabel_jaccard_index,
    "hamming_distance": tm.multilabel_hamming_distance,
}
"""torchmetrics' twins with averages over labels."""

BINARY: dict[ScoreName, Any] = {
    "accuracy": tm.binary_accuracy,
    "precision": tm.binary_precision,
    "recall": tm.binary_recall,
    "specificity": tm.binary_specificity,
    "negative_predictive_value": tm.binary_negative_predictive_value,
    "f1": tm.binary_f1_score,
    "jaccard_index": tm.binary_jaccard_index,
    "matthews_corrcoef": tm.binary_matthews_corrcoef,
    "cohen_kappa": tm.binary_cohen_kappa,
    "hamming_distance": tm.binary_hamming_distance,
}

TOLERANCE = 1e-6
"""torchmetrics computes scores in float32."""


@pytest.mark.parametrize("edge", [0, 1, 20, 32, 63, 64])
def test_the_confusion_matrix_is_scikit_learns_at_an_edge(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
    edge: int,
) -> None:
    target = scored[1]
    at = grid.edges[edge].item()
    matrix, threshold = confusion_at(count(*scored, grid=grid), at)
    assert threshold.item() == at
    assert matrix.dtype == torch.int64
    assert matrix.tolist() == confusion_matrix(target, binned >= at, labels=[0, 1]).tolist()


@pytest.mark.parametrize(
    ("threshold", "edge"),
    [(0.3, 0.25), (0.45, 0.5), (0.375, 0.25), (-7.0, 0.0), (7.0, 1.0)],
)
def test_elsewhere_it_is_that_of_the_nearest_edge(
    threshold: float,
    edge: float,
) -> None:
    leaf = torch.tensor([[4, 3, 2, 1], [1, 2, 3, 4]])
    result = confusion_at(even(leaf), threshold)
    expected = confusion_at(even(leaf), edge)
    assert result.threshold.item() == edge
    assert torch.equal(result.matrix, expected.matrix)


def test_confusion_has_the_leading_axes_of_the_counts_and_keeps_fractions() -> None:
    generator = torch.Generator().manual_seed(1)
    leaf = torch.rand(3, 4, 2, 16, dtype=torch.float64, generator=generator)
    result = confusion_at(even(leaf), 0.25)
    assert result.matrix.shape == (3, 4, 2, 2)
    assert torch.allclose(result.matrix.sum(-1), leaf.sum(-1), rtol=0, atol=1e-12)
    assert torch.equal(result.matrix[1, 2], confusion_at(even(leaf[1, 2]), 0.25).matrix)


def test_a_single_example_and_none() -> None:
    single = confusion_at(even(torch.tensor([[0, 0], [0, 1]])), 0.5)
    assert single.matrix.tolist() == [[0, 0], [0, 1]]
    empty = confusion_at(even(torch.zeros(2, 2, dtype=torch.int64)), 0.5)
    assert empty.matrix.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("threshold", [float("nan"), float("inf")])
def test_a_threshold_is_a_number(threshold: float) -> None:
    with pytest.raises(InputError, match="threshold"):
        confusion_at(even(torch.ones(2, 2)), threshold)


@pytest.mark.parametrize("threshold", [1e-300, 1e-20, 1.0])
def test_the_ends_of_a_two_sided_grid_are_exact(threshold: float) -> None:
    scores = torch.tensor([0.0, 0.0, 0.0, 0.5, 1.0, 1.0])
    target = torch.tensor([0, 0, 1, 1, 0, 1])
    result = confusion_at(count(scores, target), threshold)
    expected = confusion_matrix(target.numpy(), (scores.double() >= threshold).numpy())
    assert result.matrix.tolist() == expected.tolist()
    above_all = confusion_at(count(scores, target), 2.0)
    assert above_all.matrix[:, 1].sum() == 0


@pytest.mark.parametrize("threshold", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("name", BINARY)
def test_scores_are_torchmetrics(
    scored: Scored, grid: ScoreGrid, binned: Tensor, name: ScoreName, threshold: float
) -> None:
    histograms = count(*scored, grid=grid)
    expected = BINARY[name](binned, scored[1], threshold=threshold).item()
    value = score_at_threshold(histograms, name, threshold)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(expected, abs=TOLERANCE)
    assert torch.equal(value, confusion_at(histograms, threshold).scalars[name])


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_fbeta_is_torchmetrics(
    scored: Scored, grid: ScoreGrid, binned: Tensor, beta: float
) -> None:
    value = score_at_threshold(count(*scored, grid=grid), "fbeta", beta=beta)
    expected = tm.binary_fbeta_score(binned, scored[1], beta=beta).item()
    assert value.item() == pytest.approx(expected, abs=TOLERANCE)


def test_the_rest_is_scikit_learns(scored: Scored, grid: ScoreGrid, binned: Tensor) -> None:
    scalars = confusion_at(count(*scored, grid=grid), 0.5).scalars
    target = scored[1].numpy()
    calls = (binned >= 0.5).numpy()
    positive, negative = class_likelihood_ratios(target, calls)
    assert scalars["positive_likelihood_ratio"].item() == rounded(positive)
    assert scalars["negative_likelihood_ratio"].item() == rounded(negative)
    assert scalars["balanced_accuracy"].item() == rounded(balanced_accuracy_score(target, calls))
    assert scalars["matthews_corrcoef"].item() == rounded(matthews_corrcoef(target, calls))
    assert scalars["cohen_kappa"].item() == rounded(cohen_kappa_score(target, calls))


@pytest.mark.parametrize("average", [None, "micro", "macro", "weighted"])
@pytest.mark.parametrize("name", AVERAGED)
def test_averages_are_torchmetrics(name: ScoreName, average: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    preds = torch.rand(500, 3, generator=generator)
    target = (torch.rand(500, 3, generator=generator) < preds * torch.tensor([0.3, 0.6, 1])).long()
    histograms = count(preds, target, "multilabel", num_labels=3)
    expected = AVERAGED[name](preds, target, num_labels=3, average=average)
    value = score_at_threshold(histograms, name, average=average)
    torch.testing.assert_close(value.float(), expected, rtol=0, atol=TOLERANCE)


def test_matthews_correlation_of_labels_is_torchmetrics_with_micro() -> None:
    generator = torch.Generator().manual_seed(4)
    preds = torch.rand(500, 3, generator=generator)
    target = (torch.rand(500, 3, generator=generator) < preds).long()
    histograms = count(preds, target, "multilabel", num_labels=3)
    value = score_at_threshold(histograms, "matthews_corrcoef", average="micro").item()
    expected = tm.multilabel_matthews_corrcoef(preds, target, num_labels=3).item()
    assert value == pytest.approx(expected, abs=TOLERANCE)


def test_classes_are_called_one_by_one_not_by_the_largest_score() -> None:
    generator = torch.Generator().manual_seed(5)
    classes = torch.randint(0, 4, (800,), generator=generator)
    logits = torch.randn(800, 4, generator=generator) + torch.nn.functional.one_hot(classes, 4)
    preds = logits.softmax(1)
    matrix = confusion_at(count(preds, classes, "multiclass", num_classes=4), 0.25).matrix
    one_hot = torch.nn.functional.one_hot(classes, 4)
    expected = multilabel_confusion_matrix(one_hot, preds >= 0.25)
    assert matrix.tolist() == expected.tolist()
    called_positive = matrix[:, :, 1].sum()
    assert called_positive != len(classes)  # as the arg-max would have it


def test_a_score_that_is_the_threshold_is_called_positive() -> None:
    preds = torch.tensor([0.5, 0.5, 0.75])
    target = torch.tensor([1, 0, 1])
    assert confusion_at(count(preds, target), 0.5).matrix.tolist() == [[0, 1], [0, 2]]
    # torchmetrics calls it negative
    assert tm.binary_confusion_matrix(preds, target).tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("counts", "correlation", "kappa"),
    [
        ([[5, 0], [0, 3]], 1.0, 1.0),
        ([[0, 5], [3, 0]], -1.0, None),
        ([[5, 0], [3, 0]], 0.0, 0.0),
        ([[0, 5], [0, 3]], 0.0, 0.0),
        ([[5, 0], [0, 0]], 1.0, float("nan")),
        ([[0, 0], [0, 0]], 0.0, float("nan")),
    ],
)
def test_degenerate_matrices(
    counts: list[list[int]], correlation: float, kappa: float | None
) -> None:
    scalars = confusion_at(even(torch.tensor(counts)), 0.5).scalars
    assert scalars["matthews_corrcoef"].item() == correlation
    if kappa is not None:
        assert scalars["cohen_kappa"].item() == pytest.approx(kappa, nan_ok=True)
    fractions = [name for name in AVERAGED if name != "hamming_distance"]
    assert all(0 <= scalars[name].item() <= 1 for name in fractions)


def test_balanced_accuracy_leaves_an_absent_class_out() -> None:
    scalars = confusion_at(even(torch.tensor([[0, 0], [1, 3]])), 0.5).scalars
    assert scalars["balanced_accuracy"].item() == 0.75


def test_large_releases_do_not_overflow() -> None:
    counts = torch.tensor([[3e15, 1e15], [1e15, 3e15]], dtype=torch.float64)
    assert confusion_at(even(counts), 0.5).scalars["matthews_corrcoef"].item() == rounded(0.5)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"score": "f2"}, "score"), ({"score": "fbeta", "beta": 0.0}, "beta")],
)
def test_unknown_scores_are_refused(options: Any, named: str) -> None:
    with pytest.raises(InputError, match=f"`{named}`"):
        score_at_threshold(even(torch.ones(2, 2)), **options)


def test_a_private_release_has_every_score(scored: Scored) -> None:
    metric = FederatedROC(privacy=CentralDP(epsilon=5.0))
    metric.update(*scored)
    private = confusion_at(metric.release(), 0.5).scalars
    exact = confusion_at(count(*scored), 0.5).scalars
    assert list(private) == [name for name in SCORE_NAMES if name != "fbeta"]
    for name in ("accuracy", "precision", "recall", "specificity", "f1"):
        assert private[name].item() == pytest.approx(exact[name].item(), abs=0.05)


@pytest.mark.parametrize("classes", [0, 3, 30])
def test_the_figure_shows_every_count_of_few_classes(classes: int) -> None:
    leaf = torch.randint(1, 90, (2, 8), generator=torch.Generator().manual_seed(1))
    rows = 2
    if classes:
        leaf = leaf.expand(classes, 2, 8)
        rows = classes
    confusion = confusion_at(even(leaf), 0.5)
    fig, ax = confusion.plot(label="model")
    assert ax.get_images()[0].get_array().shape[0] == rows
    texts = [text.get_text() for text in ax.texts]
    for count_of_cell in confusion.matrix.flatten().tolist():
        has_text = any(text.startswith(f"{count_of_cell}\n") for text in texts)
        assert has_text == (rows <= 20)
    assert ax.get_title(loc="left").startswith("model, accuracy")
    plt.close(fig)


def test_the_figure_takes_axes_labels_and_keywords_of_the_image() -> None:
    leaf = torch.ones(3, 2, 4)
    fig, ax = plt.subplots()
    drawn_fig, drawn_ax = confusion_at(even(leaf), 0.5).plot(
        score=False, ax=ax, labels=["a", "b", "c"], cmap="Greys"
    )
    assert drawn_fig is fig
    assert drawn_ax is ax
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b", "c"]
    assert ax.get_images()[0].get_cmap().name == "Greys"
    assert ax.get_title(loc="left") == ""
    plt.close(fig)
