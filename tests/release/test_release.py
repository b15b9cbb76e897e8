"""Shares and releases: sums that do not depend on order or grouping, of one spec only."""

from __future__ import annotations

import math
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from torchmetrics_fed import FederatedROC, InputError, LocalDP, Release, ReleaseError, ScoreGrid, Share, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import DuplicateClientError, ImpossibleCountsError, RoundMismatchError, SpecMismatchError
from torchmetrics_fed.release.checks import noise_tail
from torchmetrics_fed.typing import MultiClass

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
    sent = metric.share()
    assert torch.equal(pickle.loads(pickle.dumps(sent)).cells, sent.cells)
    assert "tensor" not in repr(sent)
    assert sent.nbytes == 2 * 64 * 8


def test_a_share_is_a_copy(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(quantiles=16)
    metric.update(*scored)
    sent = metric.share()
    before = sent.cells.clone()
    metric.update(*scored)
    assert torch.equal(sent.cells, before)


PRIVATE = Spec("binary", 1, ScoreGrid(bins=16), Tree((4, 4)), LocalDP(1.0))
LEVELS = Spec("binary", 1, ScoreGrid(bins=16), Tree((4, 4)))


def named(client: str, round: str = "") -> Share:
    return Share(SPEC, torch.randint(0, 50, (1, 2, 16)), round, client)


def test_bytes_come_back_and_add_up_as_before() -> None:
    shares = [named(client, "1") for client in "abcde"]
    parts = [Release.sum(shares[:2]), Release.sum(shares[2:])]
    total = Release.sum(Release.from_bytes(bytes(part), SPEC) for part in parts)
    straight = Release.sum(Share.from_bytes(bytes(one), SPEC) for one in shares)
    assert bytes(total) == bytes(straight) == bytes(Release.sum(reversed(shares)))


def test_a_client_is_counted_once_in_whatever_grouping() -> None:
    a, b, c = (named(client) for client in "abc")
    groupings: list[list[Share | Release]] = [[a, b, a], [Release.sum([a, b]), a], [a, Release.sum([b, a])]]
    for shares in groupings:
        with pytest.raises(DuplicateClientError, match="again"):
            Release.sum(shares)
    with pytest.raises(DuplicateClientError, match="a sum of 2 shares counts 2 of them"):
        Release.sum([Release.sum([a, b, c]), Release.sum([b, a])])
    with pytest.raises(DuplicateClientError, match="client 'a'"):
        Release.sum([a, b, Share.from_bytes(bytes(a), SPEC)])
    assert Release.sum([share(), share(), a]).shares == 3  # without a name nobody can tell


def test_the_round_is_the_one_that_is_open() -> None:
    old = [named(client, "1") for client in "ab"]
    assert Release.sum(old, round="1").round == "1"
    with pytest.raises(RoundMismatchError, match="'2', but got the share of client 'a' of round '1'"):
        Release.sum(old, round="2")
    with pytest.raises(RoundMismatchError, match="client 'c'"):
        Release.sum([*old, named("c", "2")])


def test_the_sender_of_another_spec_is_named() -> None:
    other = Spec("binary", 1, ScoreGrid(bins=16, score_range=(-1.0, 1.0)))
    with pytest.raises(SpecMismatchError, match=r"score_range.*client 'b'"):
        Release.sum([named("a"), Share(other, torch.zeros(1, 2, 16, dtype=torch.int64), client="b")])


def test_a_refused_share_leaves_the_sum_as_it_was() -> None:
    total = Release.sum([named("a"), named("b")])
    before = bytes(total)
    for bad in (named("b"), named("c", "2"), Share(SPEC, torch.full((1, 2, 16), -1), client="d")):
        with pytest.raises(ReleaseError):
            Release.sum([total, bad])
    assert bytes(total) == before
    assert Release.sum([total, named("c")]).shares == 3


def test_exact_counts_are_such_that_data_can_have_them() -> None:
    leaf = torch.randint(0, 50, (1, 2, 16))
    good = LEVELS.cells(leaf)
    assert Release.sum([Share(LEVELS, good)]).leaf.equal(leaf)
    negative, disagreeing = good.clone(), good.clone()
    negative[0, 0, 5] = -1
    disagreeing[0, 1, 2] += 1
    for cells, told in ((negative, "at least 0"), (disagreeing, "levels that agree")):
        for bad in (Share(LEVELS, cells, client="m"), Release(LEVELS, cells)):
            with pytest.raises(ImpossibleCountsError, match=told):
                Release.sum([Share(LEVELS, good), bad])


@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
def test_classes_agree_on_the_number_of_examples(multi_class: MultiClass) -> None:
    metric = FederatedROC("multiclass", num_classes=3, multi_class=multi_class)
    metric.update(torch.rand(100, 3).softmax(1), torch.randint(0, 3, (100,)))
    sent = metric.share()
    Release.sum([sent, sent], max_examples=100)
    sent.cells[1, 0, 0] += 1
    with pytest.raises(ImpossibleCountsError, match="classes that agree"):
        Release.sum([sent])


def test_a_sum_does_not_overflow() -> None:
    huge = torch.zeros(1, 2, 16, dtype=torch.int64)
    huge[0, 0, 0] = 2**58 - 1
    sent = [Share(SPEC, huge, client=str(client)) for client in range(40)]
    assert Release.sum(sent[:32]).leaf.max() == 32 * (2**58 - 1)
    for too_many in (sent[:33], [Share(SPEC, huge + 1)]):
        with pytest.raises(ImpossibleCountsError, match="63 bits"):
            Release.sum(too_many)


def test_more_examples_than_a_client_can_have() -> None:
    full = torch.zeros(1, 2, 16, dtype=torch.int64)
    full[0, 0, 3], full[0, 1, 7] = 60, 40
    over = full.clone()
    over[0, 1, 15] = 1
    assert Release.sum([Share(SPEC, full)] * 3, max_examples=100).shares == 3
    assert Release.sum([Release(SPEC, full + over, shares=3)], max_examples=100).shares == 3
    for bad in (Share(SPEC, over, client="m"), Release(SPEC, 2 * over, shares=2)):
        with pytest.raises(ImpossibleCountsError, match="max_examples=100"):
            Release.sum([Share(SPEC, full), bad], max_examples=100)
    with pytest.raises(InputError, match="max_examples"):
        Release.sum([Share(SPEC, full)], max_examples=0)


def test_noise_is_not_taken_for_examples() -> None:
    counts = torch.zeros(1, 2, 16, dtype=torch.int64)
    counts[0, 0, 3] = 100
    honest = [Share(PRIVATE, PRIVATE.noisy_cells(counts)) for _ in range(300)]
    assert Release.sum(honest, max_examples=100).shares == 300
    for place, amount in ((0, 200), (9, 200), (9, -200)):  # on an upper level, on a leaf, below zero
        poisoned = honest[0].cells.clone()
        poisoned[0, 1, place] += amount
        with pytest.raises(ImpossibleCountsError, match="for noise"):
            Release.sum([Share(PRIVATE, poisoned)], max_examples=100)


@pytest.mark.parametrize("weight", [1 / 7, 1.0, 50.0])
@pytest.mark.parametrize("rate", [0.05, 1.0])
def test_the_tail_of_the_noise_bounds_it_and_is_not_wide(weight: float, rate: float) -> None:
    """The exact quantile of the difference of two negative binomials, from its pmf."""
    size = int((400 + 60 * weight**0.5) / rate)
    half = stats.nbinom(weight, -math.expm1(-rate)).pmf(np.arange(size))
    tail = np.convolve(half, half[::-1])[size - 1 :][::-1].cumsum()[::-1]
    variance = 2 * math.exp(-rate) / math.expm1(-rate) ** 2
    for probability in (1e-3, 1e-9):
        quantile = int(np.flatnonzero(tail > probability)[-1])
        assert quantile <= noise_tail(variance, weight, probability) <= 2 * quantile + 5


@pytest.mark.slow
def test_memory_is_flat_over_many_clients() -> None:
    cells = torch.randint(0, 50, (1, 2, 16))
    tracemalloc.start()
    total = Release.sum(Share(SPEC, cells, client=str(client)) for client in range(20_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total.shares == 20_000
    assert len(total.clients) == 160_000
    assert peak < 1_500_000
