"""The grid: every score in the bin whose edges hold it, and nothing counted of a batch that is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.counting import kernel, plain
from torchmetrics_fed.counting.binning import Binning
from torchmetrics_fed.counting.validation import Rules

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def next_to(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Each value, and both its neighbours in the dtype."""
    values = values.to(dtype)
    up, down = torch.tensor(torch.inf, dtype=dtype), torch.tensor(-torch.inf, dtype=dtype)
    return torch.cat([values, torch.nextafter(values, up), torch.nextafter(values, down)])


def adversarial(grid: ScoreGrid, dtype: torch.dtype) -> Tensor:
    """Every edge, both neighbours of every edge, both ends, subnormals and random scores."""
    low, high = grid.score_range
    tiny = torch.tensor(
        [0.0, torch.finfo(dtype).tiny, torch.finfo(dtype).smallest_normal], dtype=torch.float64
    )
    tiny = torch.cat([tiny, tiny / 2, tiny / 4, -tiny / 4])
    random = low + (high - low) * torch.rand(40_000, dtype=torch.float64)
    scores = next_to(torch.cat([grid.edges, tiny, random]), dtype)
    return scores[(scores.double() >= low) & (scores.double() <= high)]


def histograms(grid: ScoreGrid, scores: Tensor, target: Tensor) -> Tensor:
    """The same counts by numpy, on the exact edges in float64."""
    exact, edges = scores.double().numpy(), grid.edges.numpy()
    rows = [np.histogram(exact[target.numpy() == label], bins=edges)[0] for label in (0, 1)]
    return torch.from_numpy(np.stack(rows))[None]


@pytest.fixture(params=["plain", "plain in pieces", "columns", "device", "chunked"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on the paths of plain batches, and on those of others, of which the one without chunks serves devices."""
    if request.param == "plain":
        monkeypatch.setattr(plain, "FEW", 10**9)
    elif request.param == "plain in pieces":
        for name, size in (("FEW", 0), ("PIECE", 700), ("GROUP", 1_500), ("CHUNK", 1_500)):
            monkeypatch.setattr(plain, name, size)
    elif request.param == "columns":
        monkeypatch.setattr(kernel, "add_flat", add_one_column)
    else:
        monkeypatch.setattr(kernel, "add_flat", lambda *_: False)
        monkeypatch.setattr(kernel, "CHUNK", 10**9 if request.param == "device" else 1_000)


def add_one_column(
    counts: Tensor, scores: Tensor, labels: Tensor, rules: Rules, binning: Binning
) -> bool:
    """Count a flat batch as the only one of several classes."""
    parts = [values[:, None].split(1_000) for values in (scores, labels)]
    return plain.add_columns(counts, lambda: zip(*parts, strict=True), rules, binning)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantiles", [2, 16, 64, 1024, 16_384])
@pytest.mark.parametrize("make", [ScoreGrid.two_sided, ScoreGrid.even])
def test_counts_are_numpys_on_adversarial_scores(
    make: Callable[[int], ScoreGrid], dtype: torch.dtype, quantiles: int
) -> None:
    grid = make(quantiles)
    scores = adversarial(grid, dtype)
    target = torch.randint(0, 2, scores.shape)
    expected = histograms(grid, scores, target)
    for validate in (True, False):
        assert torch.equal(
            grid.add(grid.empty(), scores, target, Rules(validate=validate)), expected
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [ScoreGrid.two_sided, ScoreGrid.even])
def test_small_batches_count_as_large_ones_do(
    make: Callable[[int], ScoreGrid], dtype: torch.dtype
) -> None:
    grid = make(1024)
    scores = adversarial(grid, dtype)
    target = torch.randint(0, 2, scores.shape)
    counts = grid.empty()
    for some, labels in zip(scores.split(500), target.split(500), strict=True):
        grid.add(counts, some, labels)
    assert torch.equal(counts, histograms(grid, scores, target))


def test_a_grid_too_fine_for_a_table_agrees_as_well() -> None:
    grid = ScoreGrid.two_sided(2**15)
    scores = adversarial(grid, torch.float64)
    target = torch.randint(0, 2, scores.shape)
    assert torch.equal(grid.add(grid.empty(), scores, target), histograms(grid, scores, target))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("make", [ScoreGrid.two_sided, ScoreGrid.even])
def test_every_bfloat16_score_is_in_its_bin(make: Callable[[int], ScoreGrid]) -> None:
    grid = make(1024)
    every = torch.arange(2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    scores = every[every <= 1]
    target = torch.zeros(len(scores), dtype=torch.bool)
    assert torch.equal(grid.add(grid.empty(), scores, target), histograms(grid, scores, target))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "score_range", [(-1.0, 1.0), (-3.7, 11.3), (0.0, 0.1), (1e6, 1e6 + 1), (-1e-3, 0.0)]
)
def test_other_ranges_agree_with_their_own_edges(
    score_range: tuple[float, float], dtype: torch.dtype
) -> None:
    grid = ScoreGrid.even(64, score_range)
    scores = adversarial(grid, dtype)
    target = torch.randint(0, 2, scores.shape)
    assert torch.equal(grid.add(grid.empty(), scores, target), histograms(grid, scores, target))


def test_the_ends_of_a_range_hold_in_the_scores_dtype() -> None:
    grid = ScoreGrid.even(16, (0.1, 0.7))
    ends = torch.tensor(
        [0.1, 0.7], dtype=torch.float32
    )  # one is above, one below its float64 namesake
    counts = grid.add(grid.empty(), ends, torch.tensor([0, 1]))
    assert counts[0, 0, 0] == 1
    assert counts[0, 1, -1] == 1


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "edges",
    [
        [-0.5, 0.1, 0.15, 0.6, 0.61, 2.0],
        torch.linspace(-3, 5, 257).double().sinh(),
        [-1e30, 0.0, 1e30],
        [
            0.0,
            *(0.3 + torch.arange(300).double() * 1e-9).tolist(),
            1.0,
        ],  # too many in a cell for steps to help
    ],
    ids=["few", "curved", "wide", "crowded"],
)
def test_custom_edges_are_numpys_bins(edges: list[float] | Tensor, dtype: torch.dtype) -> None:
    grid = ScoreGrid.from_edges(edges)
    scores = adversarial(grid, dtype)
    target = torch.randint(0, 2, scores.shape)
    assert torch.equal(grid.add(grid.empty(), scores, target), histograms(grid, scores, target))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint64,
    ],
)
def test_targets_may_be_bool_or_any_int(dtype: torch.dtype, scored: tuple[Tensor, Tensor]) -> None:
    scores, target = scored
    grid = ScoreGrid()
    assert torch.equal(
        grid.add(grid.empty(), scores, target.to(dtype)), histograms(grid, scores, target)
    )


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("ignore_index", [-1, -100, 255, 0, 1, 2])
def test_ignored_examples_leave_no_trace_whatever_their_score(
    ignore_index: int, scored: tuple[Tensor, Tensor]
) -> None:
    scores, target = scored[0].clone(), scored[1].clone()
    grid = ScoreGrid()
    target[::7] = ignore_index
    kept = target != ignore_index
    expected = histograms(grid, scores[kept], target[kept])
    assert torch.equal(
        grid.add(grid.empty(), scores, target, Rules(ignore_index=ignore_index)), expected
    )
    scores[~kept] = torch.nan
    assert torch.equal(
        grid.add(grid.empty(), scores, target, Rules(ignore_index=ignore_index)), expected
    )


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("make", [ScoreGrid.two_sided, ScoreGrid.even])
def test_sigmoid_is_applied_to_every_batch_alike(make: Callable[[int], ScoreGrid]) -> None:
    grid = make(1024)
    logits, target = 3 * torch.randn(4_000).double(), torch.randint(0, 2, (4_000,))
    inside = logits.clamp(0.1, 0.9)  # looks like probabilities; torchmetrics would take it for them
    for batch in (logits, inside):
        counts = grid.add(grid.empty(), batch, target, Rules(normalization="sigmoid"))
        assert torch.equal(counts, histograms(grid, batch.sigmoid(), target))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_distinct_where_probabilities_are_not(dtype: torch.dtype) -> None:
    grid = ScoreGrid.two_sided(1024)
    logits = torch.linspace(-28, 28, 400).to(dtype)
    counts = grid.add(
        grid.empty(),
        logits,
        torch.ones(len(logits), dtype=torch.bool),
        Rules(normalization="sigmoid"),
    )
    distance = torch.sigmoid(-logits.double().abs())
    below = (
        np.searchsorted(grid.edges.numpy()[: grid.bins // 2 + 1], distance.numpy(), side="right")
        - 1
    )
    expected = np.sort(np.where(logits.double().numpy() < 0, below, grid.bins - 1 - below))
    found = np.repeat(np.arange(grid.bins), counts[0, 1].numpy())
    assert (
        np.abs(found - expected).max() <= 1
    )  # float32's sigmoid may end up on the other side of an edge
    assert (found != expected).mean() < 0.02
    if dtype in (torch.float32, torch.float64):
        assert (
            counts[0, 1].max() <= 2
        )  # as float32 probabilities they would share a bin by the dozen


def test_shapes_strides_gradients_and_inference_tensors_do_not_matter(
    scored: tuple[Tensor, Tensor],
) -> None:
    grid = ScoreGrid()
    scores, target = scored
    expected = histograms(grid, scores, target)
    wide = torch.stack([scores, torch.full_like(scores, 9.0)], 1)
    with torch.inference_mode():
        inferred = scores.clone()
    for variant, labels in [
        (scores.view(50, 100), target.view(50, 100)),
        (scores.view(50, 100).t(), target.view(50, 100).t()),
        (wide[:, 0], target),
        (scores.clone().requires_grad_(), target),
        (inferred, target),
        (
            torch.complex(scores, -scores).conj().imag,
            target,
        ),  # negated lazily, which numpy cannot see
    ]:
        assert torch.equal(grid.add(grid.empty(), variant, labels), expected)


def test_state_made_in_inference_mode_can_be_updated_outside() -> None:
    grid = ScoreGrid()
    with torch.inference_mode():
        counts = grid.empty()
    counts = grid.add(counts, torch.tensor([0.5]), torch.tensor([1]))
    assert counts.sum() == 1


@pytest.mark.parametrize(
    "grid",
    [
        ScoreGrid(),
        ScoreGrid.even(64),
        ScoreGrid.even(64, (-1.0, 2.0)),
        ScoreGrid.from_edges([number / 300 for number in range(301)]),
    ],
)
def test_batches_come_inside_and_outside_inference_mode(grid: ScoreGrid) -> None:
    """As in Lightning, whose validation is inside, and whose training is not."""
    scores = torch.linspace(0, 1, 777)
    target = torch.arange(777) % 2
    with torch.inference_mode():
        inside = grid.add(grid.empty(), scores, target)
    outside = grid.add(grid.empty(), scores, target)
    assert torch.equal(inside, outside)


def test_empty_batches_count_nothing() -> None:
    grid = ScoreGrid()
    assert grid.add(grid.empty(), torch.empty(0), torch.empty(0, dtype=torch.int64)).sum() == 0


def poisoned(value: float) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return lambda scores, target: (
        scores.index_fill(0, torch.tensor([len(scores) - 1]), value),
        target,
    )


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (poisoned(float("nan")), "NaN"),
        (poisoned(float("inf")), r"\[0.0, 1.0\]"),
        (poisoned(-float("inf")), r"\[0.0, 1.0\]"),
        (poisoned(-1e-7), "normalization"),
        (poisoned(1.0000001), r"scores in \[0.0, 1.0\]"),
        (
            lambda scores, target: (scores, target.index_fill(0, torch.tensor([4_999]), 2)),
            "only 0 and 1",
        ),
        (
            lambda scores, target: (scores, target.index_fill(0, torch.tensor([4_999]), -1)),
            "ignore_index",
        ),
        (
            lambda scores, target: (scores, target.index_fill(0, torch.tensor([4_999]), 2**32)),
            "4294967296",
        ),
        (
            lambda scores, target: (scores, target.index_fill(0, torch.tensor([4_999]), 2**16 + 1)),
            "65537",
        ),
        (lambda scores, target: (scores, target[:-1]), "same shape"),
        (lambda scores, target: (scores, target.to(torch.complex64)), "target.real.long"),
        (lambda scores, target: ((scores * 2).long(), target), "floating"),
        (lambda scores, target: (scores.numpy(), target), "torch.Tensor but got ndarray"),
        (lambda scores, target: (scores, target.tolist()), "torch.Tensor but got list"),
    ],
)
def test_a_bad_batch_is_refused_and_changes_nothing(
    spoil: Callable[[Tensor, Tensor], tuple[Any, Any]], named: str, scored: tuple[Tensor, Tensor]
) -> None:
    grid = ScoreGrid()
    counts = grid.add(grid.empty(), *scored)
    before = counts.clone()
    with pytest.raises(InputError, match=named):
        grid.add(counts, *spoil(*scored))
    assert torch.equal(counts, before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_must_be_finite(value: float) -> None:
    grid = ScoreGrid()
    with pytest.raises(InputError, match="finite logits"):
        grid.add(
            grid.empty(),
            torch.tensor([0.0, value]),
            torch.tensor([0, 1]),
            Rules(normalization="sigmoid"),
        )


@pytest.mark.parametrize(
    ("quantiles", "bins"), [(2, 8), (3, 16), (1000, 4096), (1024, 4096), (1025, 8192)]
)
def test_bins_follow_the_papers_rule(quantiles: int, bins: int) -> None:
    assert ScoreGrid.even(quantiles).bins == bins


def ends_of(dtype: torch.dtype) -> Tensor:
    """Exactly 0 twice, with either sign, then the smallest scores above 0, the largest below 1, and 1 itself."""
    nothing, one = torch.zeros(1, dtype=dtype), torch.ones(1, dtype=dtype)
    smallest = torch.nextafter(nothing, one)
    normal = torch.full((1,), torch.finfo(dtype).tiny, dtype=dtype)
    below = torch.nextafter(one, nothing)
    return torch.cat([nothing, -nothing, smallest, 2 * smallest, normal, below, one])


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bins", [4, 8, 64, 1024, 4096, 1 << 16, 1 << 17])
def test_exactly_0_and_exactly_1_have_bins_of_their_own(bins: int, dtype: torch.dtype) -> None:
    grid = ScoreGrid(bins, kind="two_sided")
    for few in (1, 500):  # small batches and large ones take different ways
        scores = ends_of(dtype).repeat(few)
        target = torch.zeros(len(scores), dtype=torch.int64)
        expected = histograms(grid, scores, target)
        assert expected[0, 0, 0] == 2 * few
        assert expected[0, 0, -1] == few
        for validate in (True, False):
            counts = grid.add(grid.empty(), scores, target, Rules(validate=validate))
            assert torch.equal(counts, expected)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(("dtype", "saturated"), [(torch.float32, 40.0), (torch.float64, 50.0)])
@pytest.mark.parametrize("few", [1, 500])
def test_logits_are_at_an_end_only_where_a_score_or_its_complement_is_0(
    dtype: torch.dtype, saturated: float, few: int
) -> None:
    grid = ScoreGrid.two_sided(1024)
    logits = torch.tensor([-1e4, -saturated, 0.0, saturated, 1e4], dtype=dtype)
    assert logits.sigmoid()[3] == 1  # its complement is not 0
    target = torch.zeros(few * len(logits), dtype=torch.int64)
    counts = grid.add(grid.empty(), logits.repeat(few), target, Rules(normalization="sigmoid"))
    assert counts[0, 0, [0, 1, -2, -1]].tolist() == [few] * 4


@pytest.mark.parametrize("few", [1, 500])
def test_a_softmax_is_at_an_end_only_where_a_score_or_its_complement_is_0(few: int) -> None:
    grid = ScoreGrid.two_sided(1024)
    logits = torch.tensor([[0.0, 40.0], [0.0, 1e4]]).repeat(few, 1)
    target = torch.zeros(len(logits), dtype=torch.int64)
    rules = Rules("multiclass", normalization="softmax")
    low, high = grid.add(grid.empty(2), logits, target, rules).sum(1)
    assert low[:2].tolist() == [few, few]
    assert high[-2:].tolist() == [few, few]


@pytest.mark.parametrize("power", range(2, 23))
def test_edges_ascend_and_only_the_ends_differ_from_smooth_ones(power: int) -> None:
    grid = ScoreGrid(1 << power, kind="two_sided")
    edges, smooth = grid.edges.numpy(), grid.smooth_edges
    assert (np.diff(edges) > 0).all()
    assert (np.diff(smooth) > 0).all()
    assert np.flatnonzero(edges != smooth).tolist() == [1, grid.bins - 1, grid.bins]
    assert edges[1] == np.nextafter(0.0, 1.0)
    assert edges[-2:].tolist() == [1.0, np.nextafter(1.0, 2.0)]
    assert smooth[[0, -1]].tolist() == [0.0, 1.0]
    assert (np.diff(grid.coordinate) > 0).all()
    assert grid.coordinate[[0, -1]].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("bins", [1024, 1 << 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_next_number_above_1_is_refused(bins: int, dtype: torch.dtype) -> None:
    grid = ScoreGrid(bins, kind="two_sided")
    one = torch.ones(1, dtype=dtype)
    above = torch.nextafter(one, 2 * one)
    with pytest.raises(InputError, match=r"\[0.0, 1.0\]"):
        grid.add(grid.empty(), above, torch.tensor([1]))
    refused = torch.zeros(1, dtype=torch.int64)
    counts = grid.add(grid.empty(), torch.cat([one, above]), torch.tensor([1, 1]), refused=refused)
    assert (counts.sum().item(), refused.item()) == (1, 1)


def test_a_two_sided_grid_of_two_bins_is_refused() -> None:
    with pytest.raises(InputError, match="4 to 4194304 bins"):
        ScoreGrid(2, kind="two_sided")
