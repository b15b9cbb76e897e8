"""Release: it is saved and read to the bit, spends all of epsilon, and is closed if too small."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import torch
from torch import Tensor

from tests.grids import grid_for
from tests.release.examples import EXACT, FLAT, NOISY, PRIVATE, cells, exact_share, release_of
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
from torchmetrics_fed.errors import RoundMismatchError, WireError
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.release import ReleaseFlag, Sum
from torchmetrics_fed.release.release import contents, no_release
from torchmetrics_fed.typing import Task


def part_of(fraction: float, spec: Spec = PRIVATE) -> Sum:
    """Return an empty sum whose query spends a fraction of epsilon."""
    query = Query(Tree((4, 4)), fraction)
    return Sum(spec, query, torch.zeros(spec.shape(query), dtype=torch.int64))


def noisy_release() -> Release:
    shares = [
        Share(NOISY, FLAT, cells(NOISY, FLAT, range(-number, 32 - number)), "Zürich")
        for number in range(3)
    ]
    return Release.sum(shares)


def two_queries() -> Release:
    pilot = Query(Tree((2,), (0, 3, 16)), 0.25)
    second = Query(Tree((4, 2), (0, 1, 2, 3, 5, 8, 11, 13, 16)), 0.75)
    sums = (
        Sum(NOISY, pilot, cells(NOISY, pilot, range(4)), 3),
        Sum(NOISY, second, cells(NOISY, second, range(24)), 3),
    )
    return Release(sums, "round-3")


def assert_same(release: Release, expected: Release) -> None:
    assert release.spec == expected.spec
    assert release.queries == expected.queries
    assert release.round == expected.round
    for total, expected_total in zip(release.sums, expected.sums, strict=True):
        assert torch.equal(total.cells, expected_total.cells)
        assert total.shares == expected_total.shares
        assert total.ids == expected_total.ids
    assert bytes(release) == bytes(expected)


@pytest.mark.parametrize(
    "release",
    [noisy_release(), Release.exact(EXACT, cells(EXACT, FLAT, range(32))), two_queries()],
    ids=["noisy", "exact", "two queries"],
)
def test_bytes_come_back(release: Release) -> None:
    assert_same(Release.from_bytes(bytes(release)), release)
    assert_same(pickle.loads(pickle.dumps(release)), release)


def test_bytes_add_up_as_before() -> None:
    shares = [exact_share("1") for _ in range(5)]
    parts = [Release.sum(shares[:2]), Release.sum(shares[2:])]
    total = Release.sum(Release.from_bytes(bytes(part)) for part in parts)
    straight = Release.sum(Share.from_bytes(bytes(share), EXACT, FLAT) for share in shares)
    assert bytes(total) == bytes(straight) == bytes(Release.sum(reversed(shares)))


def test_the_round_is_the_one_that_is_open() -> None:
    shares = [exact_share("1") for _ in range(2)]
    assert Release.sum(shares, round="1").round == "1"
    with pytest.raises(
        RoundMismatchError, match="'2', but share 0, counted from 0, is of round '1'"
    ):
        Release.sum(shares, round="2")
    with pytest.raises(RoundMismatchError, match="share 2"):
        Release.sum([*shares, exact_share("2")])


class Example(NamedTuple):
    """A task, and the arguments of its metrics."""

    name: Task
    arguments: dict[str, Any]
    has_bands: bool = True

    def metric(self, **options: Any) -> FederatedROC:
        return FederatedROC(self.name, quantiles=64, **self.arguments, **options)

    def scored(self) -> tuple[Tensor, Tensor]:
        """Return the scores of a fair classifier, and their targets."""
        generator = torch.Generator().manual_seed(3)
        if self.name == "multiclass":
            target = torch.randint(0, 3, (900,), generator=generator)
            logits = torch.randn(900, 3, generator=generator)
            logits += 2 * torch.nn.functional.one_hot(target, 3)
            return logits.softmax(1), target
        shape = (900,) if self.name == "binary" else (900, 3)
        target = torch.randint(0, 2, shape, generator=generator)
        logits = torch.randn(shape, generator=generator) + 2 * target - 1
        return logits.sigmoid(), target


TASKS = {
    "binary": Example("binary", {}),
    "multiclass": Example("multiclass", {"num_classes": 3}),
    "multilabel": Example("multilabel", {"num_labels": 3}),
    "ovo": Example("multiclass", {"num_classes": 3, "multi_class": "ovo"}, has_bands=False),
}
PRIVATE_PLANS = [
    (privacy, plan) for privacy in (CentralDP(2.0), LocalDP(2.0)) for plan in get_args(PlanName)
]
PLANS: list[tuple[Privacy | None, PlanName | None]] = [(None, None), *PRIVATE_PLANS]


def readings(release: Release, has_bands: bool) -> list[Tensor]:
    """Return everything that is read from a release, for each class by itself."""
    kinds: tuple[type[FederatedMetric], ...] = (
        FederatedROC,
        FederatedPrecisionRecallCurve,
        FederatedAUROC,
        FederatedAveragePrecision,
        FederatedCalibration,
    )
    options: dict[str, Any] = {}
    if release.spec.multi_class == "ovr":
        options["average"] = None
    values: list[Tensor] = []
    for kind in kinds:
        value = kind.from_release(release, **options).compute()
        values += [value] if isinstance(value, Tensor) else list(value)
    if not has_bands:
        return values
    for curve in (FederatedROC, FederatedPrecisionRecallCurve):
        values += list(curve.from_release(release, confidence=0.9).band())
    for area in (FederatedAUROC, FederatedAveragePrecision):
        values += list(area.from_release(release, confidence=0.9, average=None).interval())
    return values


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    ("privacy", "plan"), PLANS, ids=[f"{type(privacy).__name__}-{plan}" for privacy, plan in PLANS]
)
def test_a_saved_release_is_read_as_it_was(
    name: str, privacy: Privacy | None, plan: PlanName | None, tmp_path: Path
) -> None:
    """With every plan, a loaded release has the same spec, queries, sums and curves to the bit."""
    task = TASKS[name]
    metric = task.metric(grid=grid_for(plan), privacy=privacy, plan=plan)
    evaluations = 2 if plan == "carry_over" else 1  # the first one has nothing to carry over
    for _ in range(evaluations):
        metric.reset()
        metric.update(*task.scored())
        release = metric.release()
    assert len(release.queries) == (2 if plan == "adaptive" else 1)
    release.save(tmp_path / "saved")
    loaded = Release.load(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == bytes(release)
    assert_same(loaded, release)
    before = readings(release, task.has_bands)
    after = readings(loaded, task.has_bands)
    for first, second in zip(before, after, strict=True):
        assert torch.equal(first.isnan(), second.isnan())  # noise may leave nothing of a class
        assert torch.equal(first.nan_to_num(), second.nan_to_num())


@pytest.mark.parametrize(
    "fractions", [(0.5,), (1.0, 0.5), (0.5, 511 / 1024), (1 / 1024, 1.0)], ids=str
)
def test_a_release_spends_all_of_epsilon_and_no_more(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ReleaseError, match="spend all of epsilon"):
        Release(tuple(part_of(fraction) for fraction in fractions))
    assert len(Release((part_of(5 / 64), part_of(59 / 64))).queries) == 2


def test_a_release_has_a_query() -> None:
    with pytest.raises(InputError, match="at least one query"):
        Release(())


def test_shares_of_a_fraction_are_summed_by_a_coordinator() -> None:
    query = Query(Tree((4, 4)), 0.5)
    share = Share(PRIVATE, query, torch.zeros(1, 2, 20, dtype=torch.int64))
    with pytest.raises(ReleaseError, match="summed by a Coordinator"):
        Release.sum([share])


def test_only_a_partial_release_spends_less_than_epsilon() -> None:
    assert Release((part_of(0.25),), flags=ReleaseFlag.PARTIAL).spent_fraction == 0.25
    for parts in ((part_of(1.0),), (part_of(0.25), part_of(0.75))):
        with pytest.raises(ReleaseError, match="Leave out the flag PARTIAL"):
            Release(parts, flags=ReleaseFlag.PARTIAL)


def test_a_release_that_is_too_small_does_not_travel() -> None:
    """A sum that secure aggregation must hide has neither bytes nor a pickle."""
    spec = Spec("binary", 1, ScoreGrid(bins=16), DistributedDP(1.0, min_clients=3))
    counts = torch.zeros(1, 2, 16, dtype=torch.int64)
    small = Release((Sum(spec, FLAT, counts, shares=2),))
    for write in (bytes, pickle.dumps):
        with pytest.raises(ReleaseError, match="secure aggregation"):
            write(small)
    enough = Release((Sum(spec, FLAT, counts, shares=3),))
    assert_same(Release.from_bytes(bytes(enough)), enough)


@pytest.mark.parametrize("shares", [1, 2])
def test_fewer_shares_than_needed_are_neither_saved_nor_read(shares: int, tmp_path: Path) -> None:
    """A trusted aggregator may see single shares; the reader of a file may not."""
    ways: list[Callable[[Release], object]] = [
        bytes,
        pickle.dumps,
        lambda release: release.save(tmp_path / "a.release"),
    ]
    for way in ways:
        for release in (release_of(shares), release_of(3, prior=shares)):
            with pytest.raises(ReleaseError, match="min_clients=3"):
                way(release)
    readers: list[Callable[[Sum], object]] = [
        pickle.dumps,
        lambda total: total.levels,
        lambda total: total.leaf,
    ]
    for read in readers:
        with pytest.raises(ReleaseError, match="min_clients=3"):
            read(release_of(shares).last)
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_claim_fewer_shares_than_needed_are_refused() -> None:
    body = bytes(release_of(3, prior=3))[:-32]
    three_shares = (3).to_bytes(8, "little") + (1).to_bytes(2, "little")
    assert body.count(three_shares) == 2
    for place in (body.index(three_shares), body.rindex(three_shares)):
        changed = body[:place] + b"\2" + body[place + 1 :]
        data = changed + hashlib.sha256(changed).digest()
        for read in (Release.from_bytes, contents):
            with pytest.raises(WireError, match="min_clients=3 clients but the sum holds 2"):
                read(data)


def test_a_part_of_few_shares_is_added_in_its_process_and_travels_as_shares() -> None:
    """Sums of sums work as before; between processes, the bytes of shares travel."""
    shares = [Share(NOISY, FLAT, torch.randint(-5, 50, (1, 2, 16))) for _ in range(4)]
    parts = [Release.sum(shares[:1]), Release.sum(shares[1:])]
    received = [Share.from_bytes(bytes(share), NOISY, FLAT) for share in shares]
    total = bytes(Release.sum(shares))
    assert bytes(Release.sum(parts)) == bytes(Release.sum(received)) == total


def test_a_release_that_ended_before_its_groups_were_counted_has_no_groups() -> None:
    """The pilot counts all groups together: its sum is not taken for the sum of a group."""
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
    Release.sum([exact_share("1")]).save(path)
    before = path.read_bytes()
    secure = Spec("binary", 1, ScoreGrid(bins=16), secure=True)
    hidden = Release((Sum(secure, FLAT, torch.zeros(1, 2, 16).long()),))
    with pytest.raises(ReleaseError):
        hidden.save(path)
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ([], "Release.sum(shares)"),
        (exact_share(), "Release.sum([share])"),
        (b"", "Release.from_bytes(data)"),
        ("a.release", "Release.load(path)"),
        (Path("a.release"), "Release.load(path)"),
        (None, "metric.release()"),
    ],
    ids=["list", "Share", "bytes", "str", "Path", "None"],
)
def test_the_error_for_another_value_says_how_to_make_a_release(value: object, remedy: str) -> None:
    assert f"Pass `{remedy}`." in str(no_release(value))


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (bytes(noisy_release()), ["round 'Zürich', 3 shares", "query: 16 leaves", "task: binary"]),
        (bytes(FLAT), ["query, ", "16 leaves, levels of 16, 1 of epsilon"]),
        (bytes(exact_share()), ["share, ", "pass --study to check it"]),
    ],
    ids=["release", "query", "share"],
)
def test_contents_say_what_a_message_is(data: bytes, lines: list[str]) -> None:
    description = contents(data)
    for line in lines:
        assert line in description


def test_contents_of_a_share_are_checked_against_the_study() -> None:
    data = bytes(exact_share("7"))
    assert "round '7', one of this study" in contents(data, (EXACT, FLAT))
    with pytest.raises(WireError, match="answers another"):
        contents(data, (EXACT, Query(Tree((4, 4)))))


def test_a_notebook_shows_what_a_release_is_and_no_name_breaks_out() -> None:
    names = ["<script>alert(1)</script>", "b&c"]
    metric = FederatedROC(groups=names)
    metric.update(torch.rand(10), torch.randint(0, 2, (10,)), torch.randint(0, 2, (10,)))
    shown = metric.release()._repr_html_()
    assert "<script" not in shown
    assert "b&amp;c" in shown
    assert "binary" in shown
