"""The figure of both classes' scores: densities, on the axis where the scores are."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import Tensor

from torchmetrics_fed import CentralDP, FederatedROC
from torchmetrics_fed.functional import plot_histograms, read


def drawn(scale: float, shift: float, **options: Any) -> tuple[Tensor, Tensor]:
    """Leaf counts and edges of normal logits."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(0, 2, (5_000,), generator=generator)
    metric = FederatedROC(normalization="sigmoid", **options)
    metric.update((torch.randn(5_000, generator=generator) + target) * scale + shift, target)
    source = read(metric.release())
    return source.leaf, source.edges


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (2.0, 12.0), (2.0, -9.0), (10.0, 0.0)])
@pytest.mark.parametrize(
    "options", [{}, {"grid": "even"}, {"privacy": CentralDP(1.0)}], ids=["exact", "even", "private"]
)
def test_bars_are_densities_of_nearly_all_scores(
    scale: float, shift: float, options: dict[str, Any]
) -> None:
    _, ax = plot_histograms(*drawn(scale, shift, **options))
    for stairs in ax.patches:
        values, edges, _ = stairs.get_data()
        area = float((values * (edges[1:] - edges[:-1])).sum())
        assert area == pytest.approx(1, abs=0.02)
    plt.close("all")


def test_scores_at_the_ends_are_shown_by_their_logits() -> None:
    for scale, shift, label in (
        (1.0, 0.0, "Score"),
        (2.0, 12.0, "Score, by its logit"),
        (2.0, -9.0, "Score, by its logit"),
    ):
        _, ax = plot_histograms(*drawn(scale, shift))
        assert ax.get_xlabel() == label
        filled = [sum(value > 0 for value in stairs.get_data()[0]) for stairs in ax.patches]
        assert min(filled) >= 12  # a shape, not a spike
        names = [tick.get_text() for tick in ax.get_xticklabels()]
        assert len(names) >= 2
    assert "0.0001" in names
    plt.close("all")


def test_other_ranges_keep_their_axis() -> None:
    leaf = torch.tensor([[50, 1, 1, 2], [40, 2, 2, 9]])
    _, ax = plot_histograms(leaf, torch.tensor([-4.0, 0.0, 1.0, 2.0, 3.0]))
    assert ax.get_xlabel() == "Score"
    plt.close("all")


@pytest.mark.parametrize("values", [[0.0], [1.0], [0.0, 1.0]])
def test_scores_that_are_all_at_an_end_are_drawn_within_the_range(values: list[float]) -> None:
    scores = torch.tensor(values).repeat(50)
    metric = FederatedROC()
    metric.update(scores, torch.arange(len(scores)) // len(values) % 2)
    source = read(metric.release())
    _, ax = plot_histograms(source.leaf, source.edges)
    drawn_to = max(patch.get_data().edges[-1] for patch in ax.patches)
    assert drawn_to <= 1.0
    for patch in ax.patches:
        density, edges, _ = patch.get_data()
        assert float((density * np.diff(edges)).sum()) == pytest.approx(1.0)
    plt.close("all")
