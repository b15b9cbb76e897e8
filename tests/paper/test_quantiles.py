"""Quantiles by descent: a plain walk of the tree, one fraction at a time, gives the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import FederatedROC, InputError
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.functional import auroc
from torchmetrics_fed.paper import Quantiles, exact_quantiles, quantiles
from torchmetrics_fed.paper.quantiles import tree_quantiles
from torchmetrics_fed.reconstruct import Aligned

EVEN_64 = torch.linspace(0, 1, 65, dtype=torch.float64)


def walked(levels: list[Tensor], leaves: int, q: float) -> float:
    """Return one quantile on [0, 1] by the paper's walk: slow, plain, with its early stop."""
    edge = 0.0
    width = 1.0
    node = 0
    cumulated = 0.0
    size_above = 1
    for level in levels:
        branching = len(level) // size_above
        size_above = len(level)
        node *= branching
        width /= branching
        for _ in range(branching - 1):
            fraction = max(level[node].item() / level.sum().item(), 0.0)
            if not cumulated + fraction < q:
                break
            cumulated += fraction
            node += 1
            edge += width
        if abs(q - cumulated) < 1 / (2 * leaves):
            break
    return edge


@pytest.mark.parametrize("tree", [Tree.binary(64), Tree((4, 4, 4)), Tree.flat(64), Tree((8, 2, 4))])
def test_descent_equals_the_plain_walk(tree: Tree) -> None:
    """Also of levels as noise leaves them: inconsistent, and some cells negative."""
    generator = torch.Generator().manual_seed(3)
    q = torch.linspace(0, 1, 40, dtype=torch.float64)
    for _ in range(20):
        exact = tree.levels(torch.randint(0, 20, (64,), generator=generator))
        levels = [level + torch.randint(-5, 6, level.shape, generator=generator) for level in exact]
        if min(level.sum() for level in levels) <= 0:
            continue
        expected = [walked(levels, 64, fraction) for fraction in q.tolist()]
        assert tree_quantiles(levels, EVEN_64, q).tolist() == pytest.approx(expected, abs=1e-15)


def test_quantiles_bracket_the_fraction() -> None:
    edges = torch.linspace(0, 1, 257, dtype=torch.float64)
    leaf = torch.randint(0, 30, (256,))
    distribution = torch.cat([torch.zeros(1), leaf.cumsum(0) / leaf.sum()]).double()
    q = torch.linspace(0, 1, 101, dtype=torch.float64)
    scores = tree_quantiles(Tree.binary(256).levels(leaf), edges, q)
    places = (scores * 256).round().long()
    tolerance = 1 / 512 + 1e-9
    assert bool((distribution[places] <= q + tolerance).all())
    assert bool((distribution[(places + 1).clamp(max=256)] >= q - tolerance).all())


def test_an_empty_histogram_has_its_quantiles_at_the_lowest_edge() -> None:
    edges = torch.linspace(-1, 1, 9, dtype=torch.float64)
    levels = Tree.binary(8).levels(torch.zeros(8))
    assert tree_quantiles(levels, edges, torch.tensor([0.0, 0.5, 1.0])).tolist() == [-1, -1, -1]


def test_quantiles_of_a_release_have_the_shape_of_the_fractions() -> None:
    metric = FederatedROC(quantiles=64, grid="even")
    metric.update(torch.rand(500), torch.randint(0, 2, (500,)))
    release = metric.release()
    scores = quantiles(release, [0.1, 0.5, 0.9])
    assert scores.negative.shape == (3,)
    assert quantiles(release, 0.5).positive == scores.positive[1]


@pytest.mark.parametrize("q", [-0.1, 1.5, [0.5, 2.0]])
def test_fractions_outside_0_and_1_are_refused(q: float | list[float]) -> None:
    metric = FederatedROC(quantiles=64, grid="even")
    metric.update(torch.rand(500), torch.randint(0, 2, (500,)))
    with pytest.raises(InputError, match="`q`"):
        quantiles(metric.release(), q)


def test_quantiles_of_a_release_are_near_the_exact_ones() -> None:
    generator = torch.Generator().manual_seed(1)
    preds = torch.rand(20_000, generator=generator)
    target = torch.randint(0, 2, (20_000,), generator=generator)
    metric = FederatedROC(quantiles=256, grid="even")
    metric.update(preds, target)
    fractions = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    binned = quantiles(metric.release(), fractions)
    exact = exact_quantiles(preds, target, fractions)
    assert binned.negative == pytest.approx(exact.negative, abs=2 / 1024)
    assert binned.positive == pytest.approx(exact.positive, abs=2 / 1024)


def test_exact_quantiles_need_both_classes_and_one_target_each() -> None:
    scores = torch.rand(10)
    with pytest.raises(InputError, match="both classes"):
        exact_quantiles(scores, torch.zeros(10))
    with pytest.raises(InputError, match="one target for each score"):
        exact_quantiles(scores, torch.zeros(9))


def test_more_quantiles_come_closer_to_the_counts() -> None:
    leaf = torch.randint(50, 150, (1, 1024), generator=torch.Generator().manual_seed(5))
    edges = torch.linspace(0, 1, 1025, dtype=torch.float64)
    exact = Aligned().tails([leaf], edges)
    errors = []
    for number in (8, 32, 128, 512):
        tails = Quantiles(number).tails([leaf], edges)
        places = torch.searchsorted(-tails.thresholds, -exact.thresholds)
        places = places.clamp(max=len(tails.thresholds) - 1)
        errors.append((tails.tail[0, places] - exact.tail[0]).abs().mean().item())
    assert errors == sorted(errors, reverse=True)


def test_combined_tails_are_read_from_all_examples_together() -> None:
    leaf = torch.randint(0, 50, (2, 64), generator=torch.Generator().manual_seed(2))
    combined = Quantiles(32, strategy="combine").tails([leaf], EVEN_64)
    separate = Quantiles(32).tails([leaf], EVEN_64)
    together = Quantiles(32).tails([leaf.sum(0, keepdim=True)], EVEN_64)
    assert torch.equal(combined.tail, separate.tail)
    assert combined.of_all is not None
    assert torch.equal(combined.of_all, together.tail[0])
    assert separate.of_all is None


def test_the_papers_reading_has_the_area_of_the_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 2, (5_000,), generator=generator)
    preds = (torch.randn(5_000, generator=generator) + target).sigmoid()
    area = auroc(preds, target, grid="even", reconstruction=Quantiles(256))
    assert area == pytest.approx(float(auroc(preds, target)), abs=0.01)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="`quantiles`"):
        Quantiles(1)
    with pytest.raises(InputError, match="one of"):
        Quantiles(16, interpolation="cubic")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one of"):
        Quantiles(16, strategy="both")  # type: ignore[arg-type]
