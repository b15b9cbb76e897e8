"""Shares and releases: sums that do not depend on order or grouping, of one spec only."""

from __future__ import annotations

import hashlib
import math
import pickle
import tracemalloc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.grids import grid_for
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedCalibration,
    FederatedMetric,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    InputError,
    LocalDP,
    Privacy,
    Query,
    Release,
    ReleaseError,
    ScoreGrid,
    Share,
    Spec,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import (
    DuplicateClientError,
    ImpossibleCountsError,
    RoundMismatchError,
    SpecMismatchError,
    WireError,
)
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.exchange.client import noisy_cells
from torchmetrics_fed.release import ReleaseFlag
from torchmetrics_fed.release.release import contents
from torchmetrics_fed.release.checks import noise_tail
from torchmetrics_fed.release.sum import Sum
from torchmetrics_fed.typing import MultiClass

SPEC = Spec("binary", 1, ScoreGrid(bins=16))
FLAT, TREE = Query(Tree.flat(16)), Query(Tree((4, 4)))


def share(round: str = "") -> Share:
    return Share(SPEC, FLAT, torch.randint(0, 50, (1, 2, 16)), round)


def test_the_sum_does_not_depend_on_order_or_grouping() -> None:
    shares = [share() for _ in range(7)]
    total = Release.sum(shares)
    grouped = Release.sum([Release.sum(shares[4:]), shares[3], Release.sum(shares[:3])])
    assert torch.equal(total.last.cells, grouped.last.cells)
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
        Release.sum([share(), Share(other, FLAT, torch.zeros(1, 2, 16, dtype=torch.int64))])


def test_another_query_is_refused_and_its_place_named() -> None:
    """The same grid, the same number of cells, and even the same leaves: another query is another question."""
    placed = Query(Tree((16,), tuple(range(17))))
    cells = torch.zeros(1, 2, 16, dtype=torch.int64)
    with pytest.raises(ReleaseError, match="share 1, counted from 0, answers another"):
        Release.sum([Share(SPEC, FLAT, cells), Share(SPEC, placed, cells)])


@pytest.mark.parametrize("cells", [torch.zeros(1, 2, 16), torch.zeros(2, 16, dtype=torch.int64)])
def test_cells_must_be_integers_of_the_specs_shape(cells: Tensor) -> None:
    with pytest.raises(InputError, match="int64 of shape"):
        Share(SPEC, FLAT, cells)


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


PRIVATE = Spec("binary", 1, ScoreGrid(bins=16), LocalDP(1.0))


def test_bytes_come_back_and_add_up_as_before() -> None:
    shares = [share("1") for _ in range(5)]
    parts = [Release.sum(shares[:2]), Release.sum(shares[2:])]
    total = Release.sum(Release.from_bytes(bytes(part)) for part in parts)
    straight = Release.sum(Share.from_bytes(bytes(one), SPEC, FLAT) for one in shares)
    assert bytes(total) == bytes(straight) == bytes(Release.sum(reversed(shares)))


def test_a_share_is_counted_once_in_whatever_grouping() -> None:
    a, b, c = (share() for _ in range(3))
    groupings: list[list[Share | Release]] = [
        [a, b, a],
        [Release.sum([a, b]), a],
        [a, Release.sum([b, a])],
    ]
    for shares in groupings:
        with pytest.raises(DuplicateClientError, match="Expected every share once"):
            Release.sum(shares)
    with pytest.raises(
        DuplicateClientError, match="share 1, counted from 0, holds 2 that came before"
    ):
        Release.sum([Release.sum([a, b, c]), Release.sum([b, a])])
    with pytest.raises(DuplicateClientError, match="share 2, counted from 0, holds 1"):
        Release.sum([a, b, Share.from_bytes(bytes(a), SPEC, FLAT)])
    assert Release.sum([Release.sum([a]), Release.sum([b, c])]).shares == 3


def test_the_round_is_the_one_that_is_open() -> None:
    old = [share("1") for _ in range(2)]
    assert Release.sum(old, round="1").round == "1"
    with pytest.raises(
        RoundMismatchError, match="'2', but share 0, counted from 0, is of round '1'"
    ):
        Release.sum(old, round="2")
    with pytest.raises(RoundMismatchError, match="share 2"):
        Release.sum([*old, share("2")])


def test_the_place_of_another_spec_is_named() -> None:
    other = Spec("binary", 1, ScoreGrid(bins=16, score_range=(-1.0, 1.0)))
    with pytest.raises(SpecMismatchError, match=r"score_range.*share 1"):
        Release.sum([share(), Share(other, FLAT, torch.zeros(1, 2, 16, dtype=torch.int64))])


def test_a_refused_share_leaves_the_sum_as_it_was() -> None:
    one = share()
    total = Release.sum([one, share()])
    before = bytes(total)
    for bad in (one, share("2"), Share(SPEC, FLAT, torch.full((1, 2, 16), -1))):
        with pytest.raises(ReleaseError):
            Release.sum([total, bad])
    assert bytes(total) == before
    assert Release.sum([total, share()]).shares == 3


def test_exact_counts_are_such_that_data_can_have_them() -> None:
    leaf = torch.randint(0, 50, (1, 2, 16))
    good = SPEC.cells(TREE, leaf)
    assert Release.sum([Share(SPEC, TREE, good)]).leaf.equal(leaf)
    negative, disagreeing = good.clone(), good.clone()
    negative[0, 0, 5] = -1
    disagreeing[0, 1, 2] += 1
    for cells, named in ((negative, "at least 0"), (disagreeing, "levels that agree")):
        for bad in (Share(SPEC, TREE, cells), Release((Sum(SPEC, TREE, cells),))):
            with pytest.raises(ImpossibleCountsError, match=named):
                Release.sum([Share(SPEC, TREE, good), bad])


@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
def test_classes_agree_on_the_number_of_examples(multi_class: MultiClass) -> None:
    metric = FederatedROC("multiclass", num_classes=3, multi_class=multi_class)
    metric.update(torch.rand(100, 3).softmax(1), torch.randint(0, 3, (100,)))
    sent = metric.share()
    Release.sum([sent, Share(sent.spec, sent.query, sent.cells)], max_examples=100)
    sent.cells[1, 0, 0] += 1
    with pytest.raises(ImpossibleCountsError, match="classes that agree"):
        Release.sum([sent])


def test_a_sum_does_not_overflow() -> None:
    huge = torch.zeros(1, 2, 16, dtype=torch.int64)
    huge[0, 0, 0] = 2**58 - 1
    sent = [Share(SPEC, FLAT, huge) for _ in range(40)]
    assert Release.sum(sent[:32]).leaf.max() == 32 * (2**58 - 1)
    for too_many in (sent[:33], [Share(SPEC, FLAT, huge + 1)]):
        with pytest.raises(ImpossibleCountsError, match="63 bits"):
            Release.sum(too_many)


def test_more_examples_than_a_client_can_have() -> None:
    full = torch.zeros(1, 2, 16, dtype=torch.int64)
    full[0, 0, 3], full[0, 1, 7] = 60, 40
    over = full.clone()
    over[0, 1, 15] = 1
    assert Release.sum([Share(SPEC, FLAT, full) for _ in range(3)], max_examples=100).shares == 3
    assert (
        Release.sum([Release((Sum(SPEC, FLAT, full + over, shares=3),))], max_examples=100).shares
        == 3
    )
    for bad in (Share(SPEC, FLAT, over), Release((Sum(SPEC, FLAT, 2 * over, shares=2),))):
        with pytest.raises(ImpossibleCountsError, match="max_examples=100"):
            Release.sum([Share(SPEC, FLAT, full), bad], max_examples=100)
    with pytest.raises(InputError, match="max_examples"):
        Release.sum([Share(SPEC, FLAT, full)], max_examples=0)


def test_noise_is_not_taken_for_examples() -> None:
    counts = torch.zeros(1, 2, 16, dtype=torch.int64)
    counts[0, 0, 3] = 100
    honest = [Share(PRIVATE, TREE, noisy_cells(PRIVATE, TREE, counts)) for _ in range(300)]
    assert Release.sum(honest, max_examples=100).shares == 300
    for place, amount in (
        (0, 200),
        (9, 200),
        (9, -200),
    ):  # on an upper level, on a leaf, below zero
        poisoned = honest[0].cells.clone()
        poisoned[0, 1, place] += amount
        with pytest.raises(ImpossibleCountsError, match="because of noise"):
            Release.sum([Share(PRIVATE, TREE, poisoned)], max_examples=100)


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
    """Of a share that was added nothing is left but its id."""
    cells, alive, most = torch.randint(0, 50, (1, 2, 16)), weakref.WeakSet[Share](), 0

    def sent() -> Iterator[Share]:
        nonlocal most
        for _ in range(20_000):
            one = Share(SPEC, FLAT, cells)
            alive.add(one)
            most = max(most, len(alive))
            yield one

    tracemalloc.start()
    total = Release.sum(sent())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total.shares == 20_000
    assert len(total.last.ids) == 16 * 20_000
    assert most <= 2
    assert peak < 20_000 * 400  # an id, in a set and in lists of ids


class Task:
    """A kind of targets, with the arguments of its metrics, and scores that have something to tell."""

    def __init__(self, task: str, **arguments: object) -> None:
        self.arguments: dict[str, Any] = {"task": task, "quantiles": 64} | arguments
        self.classes = 1 if task == "binary" else 3
        self.bands = "multi_class" not in arguments

    def scored(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(3)
        task = self.arguments["task"]
        if task == "multiclass":
            target = torch.randint(0, 3, (900,), generator=generator)
            logits = torch.randn(900, 3, generator=generator) + 2 * torch.nn.functional.one_hot(
                target, 3
            )
            return logits.softmax(1), target
        shape = (900,) if task == "binary" else (900, 3)
        target = torch.randint(0, 2, shape, generator=generator)
        return (torch.randn(shape, generator=generator) + 2 * target - 1).sigmoid(), target


TASKS = {
    "binary": Task("binary"),
    "multiclass": Task("multiclass", num_classes=3),
    "multilabel": Task("multilabel", num_labels=3),
    "ovo": Task("multiclass", num_classes=3, multi_class="ovo"),
}
PLANS: list[tuple[Privacy | None, PlanName | None]] = [
    (None, None),
    *((privacy, plan) for privacy in (CentralDP(2.0), LocalDP(2.0)) for plan in get_args(PlanName)),
]


def answers(release: Release, bands: bool) -> list[Tensor]:
    """Everything that is read from a release, for each class by itself."""
    kinds: tuple[type[FederatedMetric], ...] = (
        FederatedROC,
        FederatedPrecisionRecallCurve,
        FederatedAUROC,
        FederatedAveragePrecision,
        FederatedCalibration,
    )
    values: list[Tensor] = []
    for kind in kinds:
        metric = kind.from_release(
            release, **({"average": None} if release.spec.multi_class == "ovr" else {})
        )
        value = metric.compute()
        values += [value] if isinstance(value, Tensor) else list(value)
    if bands:
        curves = FederatedROC, FederatedPrecisionRecallCurve
        for curve in (kind.from_release(release, confidence=0.9) for kind in curves):
            values += list(curve.band())
        areas = FederatedAUROC, FederatedAveragePrecision
        for area in (kind.from_release(release, confidence=0.9, average=None) for kind in areas):
            values += list(area.interval())
    return values


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("privacy", "plan"), PLANS, ids=[f"{type(privacy).__name__}-{plan}" for privacy, plan in PLANS]
)
def test_a_saved_release_answers_as_it_did(
    task: str, privacy: Privacy | None, plan: PlanName | None, tmp_path: Path
) -> None:
    """Whatever the plan: a loaded release has the same spec, queries and sums, and the same answers to the bit."""
    metric = FederatedROC(**TASKS[task].arguments, grid=grid_for(plan), privacy=privacy, plan=plan)
    for _ in range(
        2 if plan == "carry_over" else 1
    ):  # the first time there is nothing to carry over
        metric.reset()
        metric.update(*TASKS[task].scored())
        release = metric.release()
    assert len(release.queries) == (2 if plan == "adaptive" else 1)
    release.save(tmp_path / "saved")
    loaded = Release.load(tmp_path / "saved")
    assert bytes(loaded) == bytes(release) == (tmp_path / "saved").read_bytes()
    assert (loaded.spec, loaded.queries, loaded.round) == (
        release.spec,
        release.queries,
        release.round,
    )
    for mine, theirs in zip(release.sums, loaded.sums, strict=True):
        assert torch.equal(mine.cells, theirs.cells)
        assert (mine.shares, mine.ids) == (theirs.shares, theirs.ids)
    bands = TASKS[task].bands
    for before, after in zip(answers(release, bands), answers(loaded, bands), strict=True):
        assert torch.equal(before, after)


def test_a_release_spends_all_of_epsilon_and_no_more() -> None:
    """Queries whose fractions leave something, or take more than there is, make no release."""

    def part(fraction: float) -> Sum:
        return Sum(PRIVATE, Query(Tree((4, 4)), fraction), torch.zeros(1, 2, 20, dtype=torch.int64))

    assert len(Release((part(5 / 64), part(59 / 64))).queries) == 2
    wrong = (0.5,), (1.0, 0.5), (0.5, 511 / 1024), (1 / 1024, 1.0)
    for parts in (tuple(map(part, fractions)) for fractions in wrong):
        with pytest.raises(ReleaseError, match="spend all of epsilon"):
            Release(parts)
    with pytest.raises(InputError, match="at least one query"):
        Release(())
    with pytest.raises(ReleaseError, match="summed by a Coordinator"):
        Release.sum(
            [Share(PRIVATE, Query(Tree((4, 4)), 0.5), torch.zeros(1, 2, 20, dtype=torch.int64))]
        )


def test_a_release_that_is_too_small_does_not_travel() -> None:
    """What secure aggregation must hide stays where it is, as bytes, as a file and as a pickle."""
    spec = Spec("binary", 1, ScoreGrid(bins=16), DistributedDP(1.0, min_clients=3))
    few, enough = (
        Release((Sum(spec, FLAT, torch.zeros(1, 2, 16, dtype=torch.int64), shares),))
        for shares in (2, 3)
    )
    for way in (bytes, pickle.dumps):
        with pytest.raises(ReleaseError, match="secure aggregation"):
            way(few)
    assert torch.equal(
        Release.from_bytes(bytes(enough)).leaf, pickle.loads(pickle.dumps(enough)).leaf
    )


FEW = Spec("binary", 1, ScoreGrid(bins=16), DistributedDP(1.0, 3, trusted_aggregator=True))


def few(shares: int, prior: int | None = None) -> Release:
    """A release of this many shares where three are needed, and with a prior of this many."""

    def part(holds: int) -> Sum:
        return Sum(FEW, FLAT, torch.zeros(1, 2, 16, dtype=torch.int64), holds)

    return Release((part(shares),), prior=None if prior is None else part(prior))


@pytest.mark.parametrize("shares", [1, 2])
def test_fewer_shares_than_needed_are_neither_saved_nor_read(shares: int, tmp_path: Path) -> None:
    """A trusted aggregator may see single shares. Whoever gets a file may not: the noise does not add up."""
    for release in (few(shares), few(3, prior=shares)):
        for way in (bytes, pickle.dumps, lambda each: each.save(tmp_path / "a.release")):
            with pytest.raises(ReleaseError, match="min_clients=3"):
                way(release)
    for way in (pickle.dumps, lambda part: part.levels, lambda part: part.leaf):
        with pytest.raises(ReleaseError, match="min_clients=3"):
            way(few(shares).last)
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_claim_fewer_shares_than_needed_are_refused() -> None:
    body = bytes(few(3, prior=3))[:-32]
    holds = (3).to_bytes(8, "little") + (1).to_bytes(2, "little")
    assert body.count(holds) == 2
    for place in (body.index(holds), body.rindex(holds)):
        changed = body[:place] + b"\2" + body[place + 1 :]
        data = changed + hashlib.sha256(changed).digest()
        for read in (Release.from_bytes, contents):
            with pytest.raises(WireError, match="min_clients=3 clients but the sum holds 2"):
                read(data)


def test_a_part_of_few_shares_is_added_in_its_process_and_goes_elsewhere_as_shares() -> None:
    """Sums of sums work as before; between processes go the bytes of shares."""
    shares = [Share(FEW, FLAT, torch.randint(-5, 50, (1, 2, 16))) for _ in range(4)]
    parts = [Release.sum(shares[:1]), Release.sum(shares[1:])]
    sent = [Share.from_bytes(bytes(share), FEW, FLAT) for share in shares]
    assert bytes(Release.sum(parts)) == bytes(Release.sum(sent)) == bytes(Release.sum(shares))


FLAGS = [ReleaseFlag(number) for number in range(8)]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_flags_come_back(flags: ReleaseFlag) -> None:
    fraction = 0.5 if ReleaseFlag.PARTIAL in flags else 1.0
    query = Query(Tree((4, 4)), fraction)
    part = Sum(PRIVATE, query, torch.zeros(1, 2, 20, dtype=torch.int64))
    release = Release((part,), "7", flags=flags)
    for read in (Release.from_bytes(bytes(release)), pickle.loads(pickle.dumps(release))):
        assert read.flags == flags
        assert bytes(read) == bytes(release)
        assert read.remarks == flags.remarks
        assert len(read.remarks) == flags.value.bit_count()
        shown = contents(bytes(read))
        assert all(f"note: {remark}" in shown and remark in repr(read) for remark in read.remarks)
        assert ("note: " in shown) == bool(flags)


def test_what_one_sender_leaves_out_is_a_flag_of_the_release() -> None:
    honest, careless = share("1"), replace(share("1"), skips_bad=True)
    assert not Release.sum([honest]).flags
    groupings: list[list[Share | Release]] = [
        [honest, careless],
        [careless, honest],
        [Release.sum([careless]), honest],
    ]
    for shares in groupings:
        release = Release.sum(shares)
        assert release.flags == ReleaseFlag.ROWS_SKIPPED
        assert Release.from_bytes(bytes(release)).last.skips_bad
    prior = replace(few(3).last, skips_bad=True)
    assert not Release(few(3).sums, prior=prior).flags  # it is said of this release


def test_a_sum_with_a_simulated_part_is_simulated() -> None:
    part = replace(Release.sum([share()]), flags=ReleaseFlag.SIMULATED)
    assert Release.sum([share(), part]).flags == ReleaseFlag.SIMULATED


def test_only_a_partial_release_spends_less_than_epsilon() -> None:
    def part(fraction: float) -> Sum:
        return Sum(PRIVATE, Query(Tree((4, 4)), fraction), torch.zeros(1, 2, 20, dtype=torch.int64))

    assert Release((part(0.25),), flags=ReleaseFlag.PARTIAL).spent_fraction == 0.25
    for parts in ((part(1.0),), (part(0.25), part(0.75))):
        with pytest.raises(ReleaseError, match="Leave out the flag PARTIAL"):
            Release(parts, flags=ReleaseFlag.PARTIAL)


def test_groups_of_a_release_that_was_broken_off_before_they_were_counted() -> None:
    """The pilot counts all groups together: nothing is known of each, and everybody is not taken for a group."""
    spec = Spec("binary", 1, ScoreGrid(bins=16), LocalDP(1.0), groups=("a", "b"))
    pilot = Query(Tree((4, 4)), 0.25, pools_groups=True)
    part = Sum(spec, pilot, torch.ones(1, 2, 20, dtype=torch.int64))
    release = Release((part,), flags=ReleaseFlag.PARTIAL)
    with pytest.raises(ReleaseError, match="counts all groups together"):
        _ = release.by_group
    with pytest.warns(UserWarning, match="This release is partial"):
        FederatedROC.from_release(release).compute()


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    Release.sum([share("1")]).save(path)
    before = path.read_bytes()
    alone = Release(
        (
            Sum(
                Spec("binary", 1, ScoreGrid(bins=16), secure=True),
                FLAT,
                torch.zeros(1, 2, 16).long(),
            ),
        )
    )
    with pytest.raises(ReleaseError):
        alone.save(path)
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [path]
