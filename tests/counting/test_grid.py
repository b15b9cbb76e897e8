"""Every score is counted in the bin whose edges hold it, as numpy does on the exact edges."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.counting import batch, fast
from torchmetrics_fed.counting.validation import Rules

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

CUSTOM_EDGES: dict[str, list[float]] = {
    "few": [-0.5, 0.1, 0.15, 0.6, 0.61, 2.0],
    "curved": torch.linspace(-3, 5, 257).double().sinh().tolist(),
    "wide": [-1e30, 0.0, 1e30],
    "crowded": [0.0, *(0.3 + torch.arange(300).double() * 1e-9).tolist(), 1.0],
}


def next_to(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return each value and both its neighbours in the dtype."""
    values = values.to(dtype)
    infinity = torch.tensor(torch.inf, dtype=dtype)
    above = torch.nextafter(values, infinity)
    below = torch.nextafter(values, -infinity)
    return torch.cat([values, above, below])


def adversarial(grid: ScoreGrid, dtype: torch.dtype) -> Tensor:
    """Return every edge and its neighbours, both ends, subnormals and random scores."""
    low, high = grid.score_range
    limits = torch.finfo(dtype)
    tiny = torch.tensor([0.0, limits.tiny, limits.smallest_normal], dtype=torch.float64)
    tiny = torch.cat([tiny, tiny / 2, tiny / 4, -tiny / 4])
    random = low + (high - low) * torch.rand(40_000, dtype=torch.float64)
    scores = next_to(torch.cat([grid.edges, tiny, random]), dtype)
    return scores[(scores.double() >= low) & (scores.double() <= high)]


def histograms(grid: ScoreGrid, scores: Tensor, target: Tensor) -> Tensor:
    """Return the counts by numpy, on the exact edges in float64."""
    exact = scores.double()
    edges = grid.edges.numpy()
    negatives, _ = np.histogram(exact[target == 0].numpy(), bins=edges)
    positives, _ = np.histogram(exact[target == 1].numpy(), bins=edges)
    return torch.from_numpy(np.stack([negatives, positives]))[None]


@pytest.fixture(params=["fast", "table in chunks", "search", "device", "plain in chunks"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on every way to count. The one without chunks serves devices."""
    if request.param == "table in chunks":
        monkeypatch.setattr(fast, "FEW", 0)
        monkeypatch.setattr(batch, "CHUNK", 700)
    elif request.param == "search":
        monkeypatch.setattr(fast, "FEW", 10**9)
    elif request.param == "device":
        monkeypatch.setattr(batch, "has_fast_way", lambda *_: False)
        monkeypatch.setattr(batch, "CHUNK", 10**9)
    elif request.param == "plain in chunks":
        monkeypatch.setattr(batch, "has_fast_way", lambda *_: False)
        monkeypatch.setattr(batch, "CHUNK", 1_000)


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
        counts = grid.add(grid.empty(), scores, target, Rules(validate=validate))
        assert torch.equal(counts, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [ScoreGrid.two_sided, ScoreGrid.even])
def test_small_batches_count_as_large_ones_do(
    make: Callable[[int], ScoreGrid], dtype: torch.dtype
) -> None:
    grid = make(1024)
    scores = adversarial(grid, dtype)
    target = torch.randint(0, 2, scores.shape)
    counts = grid.empty()
    for some_scores, labels in zip(scores.split(500), target.split(500), strict=True):
        grid.add(counts, some_scores, labels)
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
    values = torch.arange(2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    scores = values[values <= 1]
    target = torch.zeros(len(scores), dtype=torch.bool)
    assert torch.equal(grid.add(grid.empty(), scores, target), histograms(grid, scores, target))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "score_range", [(-1.0, 1.0), (-3.7, 11.3), (0.0, 0.1), (1e6, 1e6 + 1), (-1e-3, 0.0)]
)
def test_scores_of_another_range_are_in_their_bins(
    score_range: tuple[float, float], dtype: torch.dtype
) -> None:
    grid = ScoreGrid.even(64, score_range)
    scores = adversarial(grid, dtype)
    target = torch.randint(0, 2, scores.shape)
    assert torch.equal(grid.add(grid.empty(), scores, target), histograms(grid, scores, target))


def test_the_ends_of_a_range_hold_in_the_scores_dtype() -> None:
    grid = ScoreGrid.even(16, (0.1, 0.7))
    # In float32, the low end is above its value in float64, and the high end below.
    ends = torch.tensor([0.1, 0.7], dtype=torch.float32)
    counts = grid.add(grid.empty(), ends, torch.tensor([0, 1]))
    assert counts[0, 0, 0] == 1
    assert counts[0, 1, -1] == 1


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CUSTOM_EDGES)
def test_custom_edges_are_numpys_bins(name: str, dtype: torch.dtype) -> None:
    grid = ScoreGrid.from_edges(CUSTOM_EDGES[name])
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
    counts = grid.add(grid.empty(), scores, target.to(dtype))
    assert torch.equal(counts, histograms(grid, scores, target))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("ignore_index", [-1, -100, 255, 0, 1, 2])
def test_ignored_examples_leave_no_trace_whatever_their_score(
    ignore_index: int, scored: tuple[Tensor, Tensor]
) -> None:
    scores, target = scored
    target[::7] = ignore_index
    is_counted = target != ignore_index
    grid = ScoreGrid()
    rules = Rules(ignore_index=ignore_index)
    expected = histograms(grid, scores[is_counted], target[is_counted])
    assert torch.equal(grid.add(grid.empty(), scores, target, rules), expected)
    scores[~is_counted] = torch.nan
    assert torch.equal(grid.add(grid.empty(), scores, target, rules), expected)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("make", [ScoreGrid.two_sided, ScoreGrid.even])
def test_sigmoid_is_applied_to_every_batch_alike(make: Callable[[int], ScoreGrid]) -> None:
    grid = make(1024)
    logits = 3 * torch.randn(4_000).double()
    target = torch.randint(0, 2, (4_000,))
    inside = logits.clamp(0.1, 0.9)  # torchmetrics would take them for probabilities
    for preds in (logits, inside):
        counts = grid.add(grid.empty(), preds, target, Rules(normalization="sigmoid"))
        assert torch.equal(counts, histograms(grid, preds.sigmoid(), target))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_distinct_where_probabilities_are_not(dtype: torch.dtype) -> None:
    grid = ScoreGrid.two_sided(1024)
    logits = torch.linspace(-28, 28, 400).to(dtype)
    target = torch.ones(len(logits), dtype=torch.bool)
    counts = grid.add(grid.empty(), logits, target, Rules(normalization="sigmoid"))[0, 1]
    expected = bins_of_logits(grid, logits.double())
    bins = torch.arange(grid.bins).repeat_interleave(counts)
    # The sigmoid in float32 may end up on the other side of an edge.
    assert (bins - expected).abs().max() <= 1
    assert (bins != expected).double().mean() < 0.02
    if dtype in (torch.float32, torch.float64):
        assert counts.max() <= 2  # as probabilities in float32, dozens would share a bin


def bins_of_logits(grid: ScoreGrid, logits: Tensor) -> Tensor:
    """Return the bins of logits, sorted, from the distance of their scores to the nearer end."""
    distance = torch.sigmoid(-logits.abs())
    lower_edges = grid.edges[: grid.bins // 2 + 1]
    bins = torch.searchsorted(lower_edges, distance, right=True) - 1
    return torch.where(logits < 0, bins, grid.bins - 1 - bins).sort().values


def test_shapes_strides_gradients_and_inference_tensors_do_not_matter(
    scored: tuple[Tensor, Tensor],
) -> None:
    grid = ScoreGrid()
    scores, target = scored
    expected = histograms(grid, scores, target)
    two_columns = torch.stack([scores, torch.full_like(scores, 9.0)], 1)
    lazily_negated = torch.complex(scores, -scores).conj().imag  # numpy cannot see the sign
    with torch.inference_mode():
        inferred = scores.clone()
    batches = [
        (scores.view(50, 100), target.view(50, 100)),
        (scores.view(50, 100).t(), target.view(50, 100).t()),
        (two_columns[:, 0], target),
        (scores.clone().requires_grad_(), target),
        (inferred, target),
        (lazily_negated, target),
    ]
    for preds, labels in batches:
        assert torch.equal(grid.add(grid.empty(), preds, labels), expected)


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


@pytest.mark.parametrize(
    ("quantiles", "bins"), [(2, 8), (3, 16), (1000, 4096), (1024, 4096), (1025, 8192)]
)
def test_bins_follow_the_papers_rule(quantiles: int, bins: int) -> None:
    assert ScoreGrid.even(quantiles).bins == bins


def ends_of(dtype: torch.dtype) -> Tensor:
    """Return scores at and next to the ends: 0 with either sign, three above 0, one below 1, 1."""
    zero = torch.zeros(1, dtype=dtype)
    unit = torch.ones(1, dtype=dtype)
    smallest = torch.nextafter(zero, unit)
    normal = torch.full((1,), torch.finfo(dtype).tiny, dtype=dtype)
    below_one = torch.nextafter(unit, zero)
    return torch.cat([zero, -zero, smallest, 2 * smallest, normal, below_one, unit])


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bins", [4, 8, 64, 1024, 4096, 1 << 16, 1 << 17])
def test_exactly_0_and_exactly_1_have_bins_of_their_own(bins: int, dtype: torch.dtype) -> None:
    grid = ScoreGrid(bins, kind="two_sided")
    for times in (1, 500):  # small and large batches take different paths
        scores = ends_of(dtype).repeat(times)
        target = torch.zeros(len(scores), dtype=torch.int64)
        expected = histograms(grid, scores, target)
        assert expected[0, 0, 0] == 2 * times
        assert expected[0, 0, -1] == times
        for validate in (True, False):
            counts = grid.add(grid.empty(), scores, target, Rules(validate=validate))
            assert torch.equal(counts, expected)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(("dtype", "saturated"), [(torch.float32, 40.0), (torch.float64, 50.0)])
@pytest.mark.parametrize("times", [1, 500])
def test_logits_are_at_an_end_only_where_a_score_or_its_complement_is_0(
    dtype: torch.dtype, saturated: float, times: int
) -> None:
    grid = ScoreGrid.two_sided(1024)
    logits = torch.tensor([-1e4, -saturated, 0.0, saturated, 1e4], dtype=dtype)
    assert logits.sigmoid()[3] == 1  # its complement is not 0
    target = torch.zeros(times * len(logits), dtype=torch.int64)
    counts = grid.add(grid.empty(), logits.repeat(times), target, Rules(normalization="sigmoid"))
    assert counts[0, 0, [0, 1, -2, -1]].tolist() == [times] * 4


@pytest.mark.parametrize("times", [1, 500])
def test_a_softmax_is_at_an_end_only_where_a_score_or_its_complement_is_0(times: int) -> None:
    grid = ScoreGrid.two_sided(1024)
    logits = torch.tensor([[0.0, 40.0], [0.0, 1e4]]).repeat(times, 1)
    target = torch.zeros(len(logits), dtype=torch.int64)
    rules = Rules("multiclass", normalization="softmax")
    low, high = grid.add(grid.empty(2), logits, target, rules).sum(1)
    assert low[:2].tolist() == [times, times]
    assert high[-2:].tolist() == [times, times]


@pytest.mark.parametrize("power", range(2, 23))
def test_edges_ascend_and_only_the_ends_differ_from_smooth_ones(power: int) -> None:
    grid = ScoreGrid(1 << power, kind="two_sided")
    edges = grid.edges.numpy()
    smooth = grid.smooth_edges
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
    unit = torch.ones(1, dtype=dtype)
    above_one = torch.nextafter(unit, 2 * unit)
    with pytest.raises(InputError, match=r"\[0.0, 1.0\]"):
        grid.add(grid.empty(), above_one, torch.tensor([1]))
    refused = torch.zeros(1, dtype=torch.int64)
    scores = torch.cat([unit, above_one])
    counts = grid.add(grid.empty(), scores, torch.tensor([1, 1]), refused=refused)
    assert counts.sum() == 1
    assert refused.item() == 1


def test_a_two_sided_grid_of_two_bins_is_refused() -> None:
    with pytest.raises(InputError, match="4 to 4194304 bins"):
        ScoreGrid(2, kind="two_sided")


GRIDS = {
    "two-sided": ScoreGrid.two_sided(64),
    "even": ScoreGrid.even(64, (-3.7, 11.3)),
    "custom": ScoreGrid.from_edges([-0.1, 0.1, 0.5, 1.1]),
}


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_is_its_fields(name: str) -> None:
    grid = GRIDS[name]
    fields = json.loads(json.dumps(grid.fields))
    assert ScoreGrid.from_fields(fields) == grid
    assert torch.equal(ScoreGrid.from_fields(fields).edges, grid.edges)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "log"}, "`kind`"),
        ({"kind": "custom"}, "`kind`"),
        ({"bins": 3}, "power of two"),
        ({"bins": 1}, "power of two"),
        ({"score_range": (1.0, 0.0)}, "`score_range`"),
        ({"score_range": (0.0, math.inf)}, "`score_range`"),
        ({"score_range": (1.0, 1.0 + 1e-15)}, "float64 can tell apart"),
        ({"kind": "two_sided", "score_range": (0.0, 2.0)}, r"on \[0, 1\]"),
    ],
)
def test_an_impossible_grid_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ScoreGrid(**arguments)


@pytest.mark.parametrize("edges", [[0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 1.0, math.nan]])
def test_impossible_edges_are_refused(edges: list[float]) -> None:
    with pytest.raises(InputError, match="`edges`"):
        ScoreGrid.from_edges(edges)


def test_a_claim_of_many_bins_is_refused() -> None:
    fields = {**ScoreGrid().fields, "bins": 1 << 40}
    with pytest.raises(InputError, match="bins"):
        ScoreGrid.from_fields(fields)
