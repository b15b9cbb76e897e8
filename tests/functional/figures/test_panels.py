"""Panels: histograms are densities where the scores are, small multiples share their axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.functional.figures.drawing import check_on_page, classes_of, curves, entries
from tests.grids import even
from torchmetrics_fed import CentralDP, FederatedROC, InputError
from torchmetrics_fed.functional import (
    Histograms,
    calibration_from_counts,
    det_from_counts,
    plot_histograms,
    precision_recall_from_counts,
    read,
    roc_from_counts,
    small_multiples,
)


def histograms_of(
    preds: Tensor,
    target: Tensor,
    **options: Any,
) -> Histograms:
    metric = FederatedROC(**options)
    metric.update(preds, target)
    return read(metric.release())


def normal_logits(scale: float, shift: float, **options: Any) -> Histograms:
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(0, 2, (5_000,), generator=generator)
    logits = (torch.randn(5_000, generator=generator) + target) * scale + shift
    return histograms_of(logits, target, normalization="sigmoid", **options)


def total(stairs: Any) -> float:
    """Return the area of the bars."""
    density, edges, _ = stairs.get_data()
    return float((density * np.diff(edges)).sum())


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (2.0, 12.0), (2.0, -9.0), (10.0, 0.0)])
@pytest.mark.parametrize(
    "options",
    [{}, {"grid": "even"}, {"privacy": CentralDP(1.0)}],
    ids=["exact", "even", "private"],
)
def test_bars_are_densities_of_nearly_all_scores(
    scale: float,
    shift: float,
    options: dict[str, Any],
) -> None:
    source = normal_logits(scale, shift, **options)
    _, ax = plot_histograms(source.leaf, source.edges)
    for stairs in ax.patches:
        assert total(stairs) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("scale", "shift", "label"),
    [
        (1.0, 0.0, "Score"),
        (2.0, 12.0, "Score, by its logit"),
        (2.0, -9.0, "Score, by its logit"),
    ],
)
def test_scores_at_the_ends_are_drawn_by_their_logits(
    scale: float,
    shift: float,
    label: str,
) -> None:
    source = normal_logits(scale, shift)
    _, ax = plot_histograms(source.leaf, source.edges)
    assert ax.get_xlabel() == label
    for stairs in ax.patches:
        density, _, _ = stairs.get_data()
        assert (density > 0).sum() >= 12  # a shape, not a spike
    assert len(ax.get_xticklabels()) >= 2


def test_an_axis_of_logits_names_scores() -> None:
    source = normal_logits(2.0, -9.0)
    _, ax = plot_histograms(source.leaf, source.edges)
    assert "0.0001" in [tick.get_text() for tick in ax.get_xticklabels()]


def test_scores_beyond_probabilities_are_drawn_as_they_are() -> None:
    leaf = torch.tensor([[50, 1, 1, 2], [40, 2, 2, 9]])
    _, ax = plot_histograms(leaf, torch.tensor([-4.0, 0.0, 1.0, 2.0, 3.0]))
    assert ax.get_xlabel() == "Score"


@pytest.mark.parametrize("values", [[0.0], [1.0], [0.0, 1.0]])
def test_scores_that_are_all_at_an_end_are_drawn_within_the_range(values: list[float]) -> None:
    scores = torch.tensor(values).repeat(50)
    source = histograms_of(scores, torch.arange(len(scores)) // len(values) % 2)
    _, ax = plot_histograms(source.leaf, source.edges)
    for stairs in ax.patches:
        assert stairs.get_data().edges[-1] <= 1.0
        assert total(stairs) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "edges",
    [torch.linspace(0, 1, 1025), torch.linspace(0, 1, 1025) ** 2 * 7 - 3],
)
def test_histograms_have_few_bars(leaf: Tensor, edges: Tensor) -> None:
    _, ax = plot_histograms(leaf, edges)
    assert len(ax.patches) == 2
    for stairs, row in zip(ax.patches, leaf, strict=True):
        density, ends, _ = stairs.get_data()
        assert 8 <= len(density) <= 64
        assert total(stairs) == pytest.approx(1)
        assert ends[0] == pytest.approx(edges[0].item())
        assert ends[-1] == pytest.approx(edges[-1].item())
        assert f"n = {row.sum():,.0f}" in stairs.get_label()


def test_histograms_of_few_leaves_and_of_no_examples() -> None:
    _, ax = plot_histograms(torch.tensor([[3, 1, 0], [0, 0, 0]]), torch.tensor([0, 0.5, 0.75, 1]))
    negative, positive = ax.patches
    assert list(negative.get_data().values) == pytest.approx([1.5, 1, 0])
    assert list(positive.get_data().values) == [0, 0, 0]


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(
    "result_of",
    [
        roc_from_counts,
        precision_recall_from_counts,
        det_from_counts,
        calibration_from_counts,
    ],
)
def test_small_multiples_have_a_panel_each_and_the_others_behind(
    leaf: Tensor,
    count: int,
    result_of: Callable[[Histograms], Any],
) -> None:
    parts = classes_of(leaf, count + 1)[:count]
    results = {f"site {index}": result_of(even(part)) for index, part in enumerate(parts)}
    fig, _ = small_multiples(results, caption="exact")
    check_on_page(fig)
    panels = fig.axes
    assert [ax.get_title().split("\n")[0] for ax in panels] == list(results)
    assert len({(ax.get_xlim(), ax.get_ylim()) for ax in panels}) == 1
    for ax in panels:
        assert len(curves(ax)) == 1
        behind = [line for line in ax.get_lines() if line.get_gid() == "behind"]
        assert len(behind) == count - 1


def test_small_multiples_of_classes_share_a_legend(leaf: Tensor) -> None:
    results = {name: roc_from_counts(even(classes_of(leaf, 3))) for name in ("north", "south")}
    fig, _ = small_multiples(results, labels=["cat", "dog", "bird"])
    north, south = fig.axes
    assert north.get_legend() is None
    assert entries(south) == ["cat", "dog", "bird"]


def test_small_multiples_refuse_nothing_and_mixtures(leaf: Tensor) -> None:
    mixture = {"a": roc_from_counts(even(leaf)), "b": det_from_counts(even(leaf))}
    for results in ({}, mixture):
        with pytest.raises(InputError, match="results of one kind"):
            small_multiples(results)
