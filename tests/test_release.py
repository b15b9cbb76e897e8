"""Shares and releases: sums that do not depend on order or grouping, of one spec only."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import FederatedROC, InputError, Release, ReleaseError, ScoreGrid, Share, Spec, SpecMismatchError

SPEC = Spec("binary", 1, ScoreGrid(bins=16))


def share() -> Share:
    return Share(SPEC, torch.randint(0, 50, (1, 2, 16)))


def test_the_sum_does_not_depend_on_order_or_grouping() -> None:
    shares = [share() for _ in range(7)]
    total = Release.sum(shares)
    grouped = Release.sum([Release.sum(shares[4:]), shares[3], Release.sum(shares[:3])])
    assert torch.equal(total.cells, grouped.cells)
    assert total.shares == grouped.shares == 7
    assert torch.equal(total.leaf, torch.stack([one.cells for one in shares]).sum(0))


def test_summing_leaves_the_shares_alone() -> None:
    one, other = share(), share()
    before = one.cells.clone()
    Release.sum([one, other])
    assert torch.equal(one.cells, before)


def test_another_spec_is_refused_and_named() -> None:
    other = Spec("binary", 1, ScoreGrid(bins=16, score_range=(-1.0, 1.0)))
    with pytest.raises(SpecMismatchError, match="score_range"):
        Release.sum([share(), Share(other, torch.zeros(1, 2, 16, dtype=torch.int64))])


@pytest.mark.parametrize("cells", [torch.zeros(1, 2, 16), torch.zeros(2, 16, dtype=torch.int64)])
def test_cells_must_be_integers_of_the_specs_shape(cells: Tensor) -> None:
    with pytest.raises(InputError, match="int64 of shape"):
        Share(SPEC, cells)


def test_no_shares_is_an_error_not_an_empty_curve() -> None:
    with pytest.raises(ReleaseError, match="at least one share"):
        Release.sum([])
    with pytest.raises(InputError, match="Share or Release"):
        Release.sum([torch.zeros(1)])  # type: ignore[list-item]


def test_a_share_travels_and_does_not_show_its_counts(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(quantiles=16)
    metric.update(*scored)
    sent = metric.release()
    assert torch.equal(pickle.loads(pickle.dumps(sent)).cells, sent.cells)
    assert "tensor" not in repr(sent)
    assert sent.nbytes == 2 * 64 * 8


def test_a_share_is_a_copy(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(quantiles=16)
    metric.update(*scored)
    sent = metric.release()
    before = sent.cells.clone()
    metric.update(*scored)
    assert torch.equal(sent.cells, before)
