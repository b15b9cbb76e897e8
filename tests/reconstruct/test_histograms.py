"""Histograms: what is read of a release is what was counted, by class, row and leaf."""

from __future__ import annotations

import math

import pytest
import torch

from torchmetrics_fed import CentralDP, FederatedROC, InputError, Release
from torchmetrics_fed.paper import Quantiles
from torchmetrics_fed.reconstruct import Aligned, Reconstruction, histograms
from torchmetrics_fed.reconstruct.histograms import are_probabilities, nearest_edge, read
from torchmetrics_fed.release import ReleaseFlag

GENERATOR = torch.Generator().manual_seed(4)
SCORES = torch.rand(400, generator=GENERATOR)
LABELS = torch.randint(0, 2, (400,), generator=GENERATOR)
CLASS_SCORES = torch.rand(400, 3, generator=GENERATOR).softmax(1)
CLASSES = torch.randint(0, 3, (400,), generator=GENERATOR)


def test_a_binary_release_has_no_axis_of_classes() -> None:
    metric = FederatedROC()
    metric.update(SCORES, LABELS)
    histograms = read(metric.release())
    assert torch.equal(histograms.leaf, metric.counts[0])
    assert torch.equal(histograms.edges, metric.spec.grid.edges)
    assert not histograms.exclusive


def test_a_multiclass_release_has_negatives_and_positives_of_each_class() -> None:
    metric = FederatedROC("multiclass", num_classes=3)
    metric.update(CLASS_SCORES, CLASSES)
    histograms = read(metric.release())
    assert torch.equal(histograms.leaf, metric.counts)
    assert histograms.exclusive
    assert torch.equal(histograms.pooled().leaf, metric.counts.sum(0))
    assert histograms.pooled("macro") is histograms


def test_one_vs_one_counts_give_the_one_vs_rest_histograms_too() -> None:
    pairs = FederatedROC("multiclass", num_classes=3, multi_class="ovo")
    rest = FederatedROC("multiclass", num_classes=3)
    for metric in (pairs, rest):
        metric.update(CLASS_SCORES, CLASSES)
    histograms = read(pairs.release())
    assert torch.equal(histograms.leaf, rest.counts)
    assert histograms.pairs is not None
    assert torch.equal(histograms.pairs[-1], pairs.counts)


def test_plain_counts_lie_on_even_edges_unless_edges_are_passed() -> None:
    counts = torch.tensor([[3, 1], [1, 3]])
    edges = torch.tensor([0.0, 0.9, 1.0], dtype=torch.float64)
    assert read(counts).edges.tolist() == [0.0, 0.5, 1.0]
    assert read(counts, edges).edges is edges


def test_histograms_are_returned_as_they_are() -> None:
    histograms = read(torch.tensor([[3, 1], [1, 3]]))
    assert read(histograms) is histograms
    assert histograms.reconstruction == Aligned()


def test_flat_counts_are_floats_of_each_class_without_negative_ones() -> None:
    histograms = read(torch.tensor([[3, -1], [1, 3]]))
    assert histograms.flat.tolist() == [[[3.0, 0.0], [1.0, 3.0]]]
    assert histograms.shaped(histograms.flat[:, 0]).shape == (2,)


def test_a_partial_release_is_read_with_a_warning() -> None:
    metric = FederatedROC(privacy=CentralDP(1.0), plan="adaptive")
    metric.update(SCORES, LABELS)
    pilot, _ = metric.release().sums
    partial = Release((pilot,), flags=ReleaseFlag.PARTIAL)
    with pytest.warns(UserWarning, match="partial"):
        assert read(partial).leaf.shape[0] == 2


def test_a_grid_that_the_reconstruction_cannot_read_is_refused() -> None:
    metric = FederatedROC()
    metric.update(SCORES, LABELS)
    with pytest.raises(InputError, match="even bins"):
        read(metric.release(), reconstruction=Quantiles(16))


def test_an_object_without_counts_is_refused() -> None:
    with pytest.raises(InputError):
        read("counts")  # type: ignore[arg-type]


def test_edges_of_probabilities_end_at_1_or_just_above() -> None:
    assert are_probabilities(FederatedROC().spec.grid.edges)
    assert are_probabilities(torch.tensor([0.0, 1.0]))
    assert not are_probabilities(torch.tensor([0.0, 1.5]))
    assert not are_probabilities(torch.tensor([-0.5, 1.0]))


@pytest.mark.parametrize(
    ("threshold", "place"),
    [(-1.0, 0), (0.0, 0), (0.1, 0), (0.125, 0), (0.13, 1), (0.25, 1), (0.9, 2), (7.0, 2)],
)
def test_the_nearest_edge_is_the_lower_one_of_two(threshold: float, place: int) -> None:
    edges = torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)
    assert nearest_edge(edges, threshold) == place


def test_a_threshold_above_0_does_not_select_exact_zeros() -> None:
    edges = FederatedROC().spec.grid.edges
    smallest = math.ulp(0.0)
    assert nearest_edge(edges, 0.0) == 0
    assert nearest_edge(edges, smallest) == 1


@pytest.mark.parametrize(
    "reconstruction",
    [Aligned(), Quantiles(16), Quantiles(16, strategy="combine")],
    ids=["aligned", "separate", "combine"],
)
def test_tails_of_some_classes_at_a_time_are_the_tails_of_all(
    reconstruction: Reconstruction, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = torch.randint(0, 5, (7, 2, 64), generator=GENERATOR)
    counts[3, 1] = 0
    source = read(counts, reconstruction=reconstruction)
    at_once = source.tails
    monkeypatch.setattr(histograms, "CELLS_OF_BLOCK", 2 * 2 * 64)
    assert len(source.blocks) == 4
    in_blocks = source.tails
    assert torch.equal(in_blocks.tail, at_once.tail)
    assert torch.equal(in_blocks.total, at_once.total)
    assert torch.equal(in_blocks.thresholds, at_once.thresholds)
    assert (in_blocks.of_all is None) == (at_once.of_all is None)
