"""The options of every curve, the warning about ties, and exact quantiles."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from torchmetrics_fed import InputError, ScoreGrid, paper
from torchmetrics_fed.functional import roc
from torchmetrics_fed.functional.curve import count
from torchmetrics_fed.paper import exact_quantiles


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"quantiles": 1}, "quantiles"),
        ({"quantiles": 2.5}, "quantiles"),
        ({"grid": "uneven"}, r"`grid`.*ScoreGrid\.even.*ScoreGrid\.from_edges"),
        ({"grid": [0.0, 0.5, 1.0]}, r"`grid`.*ScoreGrid\.from_edges"),
        ({"normalization": "softmax"}, "normalization"),
        (
            {"normalization": "sigmoid", "grid": ScoreGrid.even(64, (0.2, 0.7))},
            "range is that after normalization",
        ),
    ],
)
def test_arguments_that_cannot_be_used_are_named(
    arguments: dict[str, object],
    named: str,
) -> None:
    with pytest.raises(InputError, match=named):
        roc(torch.tensor([0.2, 0.8]), torch.tensor([0, 1]), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("quantiles", [16, 1024])
def test_grids_have_names_and_the_two_sided_one_is_the_default(quantiles: int) -> None:
    scores = torch.tensor([0.2, 0.8])
    target = torch.tensor([0, 1])
    default = count(scores, target, quantiles=quantiles)
    assert torch.equal(default.edges, ScoreGrid.two_sided(quantiles).edges)
    even = count(scores, target, quantiles=quantiles, grid="even")
    assert torch.equal(even.edges, ScoreGrid.even(quantiles).edges)


def test_the_papers_reading_asks_for_the_papers_bins() -> None:
    with pytest.raises(InputError, match='Pass `grid="even"`'):
        roc(
            torch.tensor([0.2, 0.8]),
            torch.tensor([0, 1]),
            reconstruction=paper.Quantiles(1024),
        )


def test_ties_that_bins_make_are_warned_of() -> None:
    """Scores of a sure model share the last even bin; a two-sided grid tells them apart."""
    generator = torch.Generator().manual_seed(4)
    target = (torch.rand(2_000, generator=generator) < 0.5).long()
    logits = 12 + 2 * torch.randn(2_000, generator=generator, dtype=torch.float64) + target
    scores = logits.sigmoid()
    with pytest.warns(UserWarning, match=r'share a bin.*`grid="two_sided"`'):
        count(scores, target, grid="even")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        count(scores, target, grid="two_sided")
        count(scores, target, grid=ScoreGrid.from_edges([0.0, 0.5, 1.0]))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ScoreGrid.even(64, (1.0, 0.0)), "low < high"),
        (lambda: ScoreGrid.even(64, (0.0, float("inf"))), "finite"),
        (lambda: ScoreGrid.even(64, (1.0, 1.0 + 2**-50)), "tell apart"),
        (lambda: ScoreGrid.from_edges([0.0, 0.5, 0.5, 1.0]), "strictly increasing"),
        (lambda: ScoreGrid.from_edges([0.0, 1.0]), "at least three"),
    ],
)
def test_grids_that_cannot_be_used_are_named(
    make: Callable[[], ScoreGrid],
    named: str,
) -> None:
    with pytest.raises(InputError, match=named):
        make()


@pytest.mark.parametrize("quantiles", [2, 3, 100, 1024])
def test_exact_quantiles_are_numpys(
    quantiles: int,
    scored: tuple[Tensor, Tensor],
) -> None:
    scores, target = scored
    result = exact_quantiles(scores, target, quantiles)
    for label, values in enumerate(result):
        expected = np.quantile(scores[target == label].numpy(), np.linspace(0, 1, quantiles))
        assert values.numpy() == pytest.approx(expected, abs=1e-15)


def test_a_single_example_is_all_its_quantiles() -> None:
    result = exact_quantiles(
        torch.tensor([0.25, 0.75]),
        torch.tensor([0, 1]),
        torch.tensor([0.0, 0.3, 1.0]),
    )
    assert result.negative.tolist() == [0.25] * 3


def test_a_class_without_examples_has_no_quantiles() -> None:
    with pytest.raises(InputError, match="both classes"):
        exact_quantiles(torch.rand(4), torch.zeros(4))
    with pytest.raises(InputError, match="one target"):
        exact_quantiles(torch.rand(4), torch.zeros(3))
