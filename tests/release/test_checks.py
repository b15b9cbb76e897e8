"""Checks of trees whose levels are counted several times: the same counts pass, and no others."""

from __future__ import annotations

import pytest
import torch

from tests.queries import weighted
from torchmetrics_fed import DistributedDP, LocalDP, Query, Release, ScoreGrid, Share, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import ImpossibleCountsError
from torchmetrics_fed.exchange.client import noisy_cells
from torchmetrics_fed.release.checks import check_counts

EXACT = Spec("binary", 1, ScoreGrid(bins=16))
PRIVATE = Spec("binary", 1, ScoreGrid(bins=16), LocalDP(1.0))
QUERY = Query(Tree((4, 4)))


def test_levels_of_exact_cells_agree() -> None:
    query = QUERY
    counts = torch.randint(0, 50, (1, 2, 16))
    good = EXACT.cells(query, counts)
    assert check_counts(Share(EXACT, query, good), "ann") == int(good.max())
    assert torch.equal(Release.sum([Share(EXACT, query, good)]).leaf.long(), counts)
    for place in range(good.shape[-1]):
        for more in (1, 2):  # than the level below says
            bad = good.clone()
            bad[0, 1, place] += more
            with pytest.raises(ImpossibleCountsError, match="levels that agree"):
                check_counts(Share(EXACT, query, bad), "ann")


def test_a_client_may_have_so_many_examples_however_often_they_are_counted() -> None:
    full = torch.zeros(1, 2, 16, dtype=torch.int64)
    full[0, 0, 3], full[0, 1, 7] = 60, 40
    check_counts(Share(EXACT, QUERY, EXACT.cells(QUERY, full)), "ann", max_examples=100)
    full[0, 1, 15] = 1
    with pytest.raises(ImpossibleCountsError, match="max_examples=100"):
        check_counts(Share(EXACT, QUERY, EXACT.cells(QUERY, full)), "ann", max_examples=100)


@pytest.mark.parametrize("weights", [(8, 1), (1, 8)])
@pytest.mark.parametrize(
    "privacy", [LocalDP(1.0), DistributedDP(1.0, min_clients=3, trusted_aggregator=True)]
)
def test_noise_is_not_taken_for_examples_on_any_level(
    privacy: LocalDP, weights: tuple[int, ...]
) -> None:
    spec, query = (
        Spec("binary", 1, ScoreGrid(bins=16), privacy),
        weighted(Tree((4, 4)), *weights),
    )
    counts = torch.zeros(1, 2, 16, dtype=torch.int64)
    counts[0, 0, 3] = 100
    for _ in range(300):
        check_counts(Share(spec, query, noisy_cells(spec, query, counts)), "ann", max_examples=100)


def test_a_level_that_is_counted_more_often_is_checked_more_closely() -> None:
    """Of noise that is 8 times less there, 200 examples more stand out; where a level is counted once they do not."""
    query = weighted(Tree((4, 4)), 8, 1)
    noisy = noisy_cells(PRIVATE, query, torch.zeros(1, 2, 16, dtype=torch.int64))
    top, leaf = noisy.clone(), noisy.clone()
    top[0, 1, 2] += 8 * 200
    leaf[0, 1, 4 + 5] += 200
    with pytest.raises(ImpossibleCountsError, match="because of noise"):
        check_counts(Share(PRIVATE, query, top), "ann", max_examples=100)
    check_counts(Share(PRIVATE, query, leaf), "ann", max_examples=100)
