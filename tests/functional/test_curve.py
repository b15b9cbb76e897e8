"""The options of every curve, and exact quantiles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from torchmetrics_fed import InputError
from torchmetrics_fed.functional import exact_quantiles
from torchmetrics_fed.functional.curve import choose_grid


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"quantiles": 1}, "quantiles"),
        ({"quantiles": 2.5}, "quantiles"),
        ({"score_range": (1.0, 0.0)}, "low < high"),
        ({"score_range": (0.0, float("inf"))}, "finite"),
        ({"score_range": (1.0, 1.0 + 2**-50)}, "tell apart"),
        ({"score_edges": [0.0, 0.5, 0.5, 1.0]}, "strictly increasing"),
        ({"score_edges": [0.0, 1.0]}, "at least three"),
        ({"thresholds": 200}, "`quantiles`.*`score_edges`"),
        ({"normalization": "softmax"}, "normalization"),
        ({"normalization": "sigmoid", "score_range": (0.2, 0.7)}, "range after normalization"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        choose_grid(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("quantiles", [2, 3, 100, 1024])
def test_exact_quantiles_are_numpys(quantiles: int, scored: tuple[Tensor, Tensor]) -> None:
    scores, target = scored
    result = exact_quantiles(scores, target, quantiles)
    for label, values in enumerate(result):
        expected = np.quantile(scores[target == label].numpy(), np.linspace(0, 1, quantiles))
        assert values.numpy() == pytest.approx(expected, abs=1e-15)


def test_a_single_example_is_all_its_quantiles() -> None:
    result = exact_quantiles(torch.tensor([0.25, 0.75]), torch.tensor([0, 1]), torch.tensor([0.0, 0.3, 1.0]))
    assert result.negative.tolist() == [0.25] * 3


def test_a_class_without_examples_has_no_quantiles() -> None:
    with pytest.raises(InputError, match="both classes"):
        exact_quantiles(torch.rand(4), torch.zeros(4))
    with pytest.raises(InputError, match="one target"):
        exact_quantiles(torch.rand(4), torch.zeros(3))
