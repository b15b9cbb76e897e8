"""Reference scores are calibrated, have the area of their argument, and follow their masses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.grids import even
from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.functional import auroc_from_counts, calibration_from_counts
from torchmetrics_fed.planning import ReferenceScores

GRIDS = pytest.mark.parametrize("make", [ScoreGrid.two_sided, ScoreGrid.even])


@GRIDS
@pytest.mark.parametrize("auroc", [0.6, 0.85, 0.99])
@pytest.mark.parametrize(("n_pos", "n_neg"), [(1000, 9000), (3000, 1000)])
def test_the_area_is_as_asked_and_scores_are_calibrated(
    auroc: float, n_pos: int, n_neg: int, make: Callable[[int], ScoreGrid]
) -> None:
    edges = make(1 << 12).edges
    masses = ReferenceScores(n_pos, n_neg, auroc).masses(edges)
    assert masses.sum(1) == pytest.approx([1, 1])
    leaf = torch.from_numpy(masses * [[n_neg], [n_pos]])
    assert auroc_from_counts(even(leaf)).item() == pytest.approx(auroc, abs=1e-5)
    calibration = calibration_from_counts(leaf, edges)
    assert calibration.expected_calibration_error.item() == pytest.approx(0, abs=1e-4)


@GRIDS
def test_counts_are_drawn_from_the_masses(make: Callable[[int], ScoreGrid]) -> None:
    reference = ReferenceScores(3000, 7000)
    generator = np.random.default_rng(3)
    edges = make(8).edges
    draws = [reference.counts(edges, generator) for _ in range(200)]
    counts = np.sum(draws, axis=0)
    expected = reference.masses(edges) * [[200 * 7000], [200 * 3000]]
    assert counts.sum(1).tolist() == [200 * 7000, 200 * 3000]
    possible = expected > 0  # no score is exactly 0 or exactly 1
    assert not counts[~possible].any()
    squares = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert squares < 62 + 6 * np.sqrt(124)  # chi-square with 62 degrees of freedom


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5), "`n_pos` to be an int of at least 1 but got 0"),
        ((5, 1.5), "`n_neg` to be an int of at least 1 but got 1.5"),
        ((5, 5, 0.5), "`auroc` between 0.5 and 1 but got 0.5"),
        ((5, 5, 1.0), "`auroc` between 0.5 and 1 but got 1.0"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ReferenceScores(*arguments)
