"""Figures: the curve that was computed, on the axes that were given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from torchmetrics_fed import FederatedPrecisionRecallCurve, FederatedROC, InputError, evaluation_report
from torchmetrics_fed.functional import (
    DETCurve,
    area_under_gain,
    auroc_from_curve,
    calibration_from_counts,
    det_from_counts,
    plot_histograms,
    precision_recall_from_counts,
    precision_recall_gain_from_counts,
    roc_from_counts,
)

mpl.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def test_roc_shows_its_auroc_and_the_chance_line(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC()
    metric.update(*scored)
    fig, ax = metric.plot()
    assert ax.figure is fig
    chance, curve = ax.get_lines()
    assert list(chance.get_xdata()) == list(chance.get_ydata()) == [0, 1]
    assert torch.equal(torch.as_tensor(curve.get_ydata()), metric.compute().tpr)
    area = float(curve.get_label().split()[-1].rstrip(")"))
    assert area == pytest.approx(roc_auc_score(scored[1], scored[0]), abs=1e-3)


def test_pr_shows_its_average_precision(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedPrecisionRecallCurve()
    metric.update(*scored)
    _, ax = metric.plot()
    area = float(ax.get_lines()[-1].get_label().split()[-1].rstrip(")"))
    assert area == pytest.approx(average_precision_score(scored[1], scored[0]), abs=1e-3)


def test_axes_curves_and_scores_can_be_given(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC()
    metric.update(*scored)
    curve = metric.compute()
    metric.reset()
    fig, given = plt.subplots()
    assert metric.plot(curve=curve, score=torch.tensor(0.5), ax=given) == (fig, given)
    assert given.get_lines()[-1].get_label() == "ROC (AUROC 0.5000)"


@pytest.fixture
def leaf(scored: tuple[Tensor, Tensor]) -> Tensor:
    preds, target = scored
    return torch.stack([torch.histc(preds[target == row], 1024, 0, 1) for row in (0, 1)])


def _classes(leaf: Tensor, count: int) -> Tensor:
    """Counts of classes that differ: ever more of each example's mirror image."""
    return torch.stack([leaf + (20.0 * index / count) * leaf.flip(-2) for index in range(count)])


def _entries(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def _drawn(ax: Any) -> list[Any]:
    return [line for line in ax.get_lines() if line.get_gid() == "curve"]


def _everything(counts: Tensor, ax: Any = None, **options: Any) -> Iterator[tuple[Any, Any]]:
    yield roc_from_counts(counts).plot(ax=ax, **options)
    yield precision_recall_from_counts(counts).plot(ax=ax, **options)
    yield det_from_counts(counts).plot(ax=ax, **options)
    yield precision_recall_gain_from_counts(counts).plot(ax=ax, **options)
    yield calibration_from_counts(counts).plot(ax=ax, **options)


def _check_whole(fig: Any, *axes: Any) -> None:
    """Nothing leaves the page, and the legends leave the axes their room. Warnings are errors."""
    fig.draw_without_rendering()
    page, ink = fig.bbox, fig.get_tightbbox().transformed(fig.dpi_scale_trans)
    assert page.x0 - 1 <= ink.x0 < ink.x1 <= page.x1 + 1
    assert page.y0 - 1 <= ink.y0 < ink.y1 <= page.y1 + 1
    assert min(ax.get_window_extent().width for ax in axes) / fig.dpi > 2.3


@pytest.mark.parametrize("count", [0, 1, 2, 5, 10, 12])
def test_figures_are_whole(leaf: Tensor, count: int) -> None:
    counts = _classes(leaf, count) if count else leaf
    for fig, ax in (*_everything(counts), plot_histograms(counts, torch.linspace(0, 1, 1025))):
        _check_whole(fig, ax)
        assert not ax.spines["top"].get_visible()
        plt.close(fig)


@pytest.mark.parametrize("name", ["{}", "a class with a long name, number {}"])
@pytest.mark.parametrize("count", [2, 3, 10, 12])
def test_the_summary_figure_of_classes_is_whole(leaf: Tensor, count: int, name: str) -> None:
    fig, axes = evaluation_report(_classes(leaf, count), labels=[name.format(index) for index in range(count)]).plot()
    _check_whole(fig, *axes.flat)


def test_given_axes_are_used_and_no_figure_is_opened(leaf: Tensor) -> None:
    fig, given = plt.subplots()
    for drawn in _everything(leaf, ax=given):
        assert drawn == (fig, given)
    assert plot_histograms(leaf, torch.linspace(0, 1, 1025), given) == (fig, given)
    assert plt.get_fignums() == [fig.number]


def test_a_line_and_an_entry_for_each_class(leaf: Tensor) -> None:
    counts, labels = _classes(leaf, 3), ["cat", "dog", "bird"]
    for _, ax in _everything(counts, labels=labels):
        assert len(_drawn(ax)) == 3
        assert len({line.get_color() for line in _drawn(ax)}) == 3
        assert [entry.split()[0] for entry in _entries(ax)[1:]] == labels
    curve = roc_from_counts(counts)
    _, ax = curve.plot()
    for line, tpr, area in zip(_drawn(ax), curve.tpr, auroc_from_curve(curve), strict=True):
        assert torch.equal(torch.as_tensor(line.get_ydata()), tpr)
        assert line.get_label().endswith(f"(AUROC {area:.4f})")
    assert [entry.split(" (")[0] for entry in _entries(ax)] == ["chance", "class 0", "class 1", "class 2"]


def test_ten_classes_can_be_told_apart(leaf: Tensor) -> None:
    _, ax = roc_from_counts(_classes(leaf, 10)).plot()
    assert len({(line.get_color(), line.get_linestyle()) for line in _drawn(ax)}) == 10


def test_many_classes_are_grey_with_their_mean(leaf: Tensor) -> None:
    counts = _classes(leaf, 12)
    for _, ax in _everything(counts):
        assert len({line.get_color() for line in _drawn(ax)}) == 1
        assert len(_drawn(ax)) == 12
        assert len(_entries(ax)) == 2
    curve = roc_from_counts(counts)
    _, ax = curve.plot()
    assert _entries(ax)[1] == f"12 classes (mean AUROC {auroc_from_curve(curve).mean():.4f})"


@pytest.mark.parametrize("count", [3, 12])
def test_an_average_is_shown_once(leaf: Tensor, count: int) -> None:
    curve = roc_from_counts(_classes(leaf, count))
    _, ax = curve.plot(score=torch.tensor(0.5))
    few = ["chance", "class 0", "class 1", "class 2", "AUROC 0.5000"]
    assert _entries(ax) == (few if count == 3 else ["chance", "12 classes (AUROC 0.5000)"])
    assert len(_drawn(ax)) == count


def test_curves_on_the_same_axes_differ_in_colour_and_share_the_chance_line(leaf: Tensor) -> None:
    _, ax = roc_from_counts(leaf).plot(label="ours")
    roc_from_counts(leaf.flip(-2)).plot(ax=ax, label="theirs")
    assert len({line.get_color() for line in _drawn(ax)}) == 2
    assert [entry.split()[0] for entry in _entries(ax)] == ["chance", "ours", "theirs"]


def test_legend_stands_off_the_curve(leaf: Tensor) -> None:
    for counts in (leaf, leaf.flip(-2), _classes(leaf, 4), _classes(leaf, 12)):
        for fig, ax in (roc_from_counts(counts).plot(), precision_recall_from_counts(counts).plot()):
            fig.canvas.draw()
            box = ax.get_legend().get_window_extent()
            for line in _drawn(ax):
                points = ax.transData.transform(line.get_xydata())
                assert not any(box.contains(*point) for point in points)


def test_det_is_drawn_on_normal_deviates(leaf: Tensor) -> None:
    curve = det_from_counts(leaf)
    _, ax = curve.plot()
    (line,) = _drawn(ax)
    x, y = (torch.as_tensor(values) for values in line.get_data())
    assert bool(x.isfinite().all())
    assert bool(y.isfinite().all())
    inside = (curve.fpr > 0) & (curve.fpr < 1)
    torch.testing.assert_close(x[inside], torch.as_tensor(norm.ppf(curve.fpr[inside])))
    for axis, low_high in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        rates = [float(text.get_text()) / 100 for text in axis.get_ticklabels()]
        assert list(axis.get_ticklocs()) == pytest.approx(norm.ppf(rates))
        assert low_high[0] <= axis.get_ticklocs()[0] < axis.get_ticklocs()[-1] <= low_high[1]


def test_normal_scores_make_a_straight_det_curve_with_the_known_equal_error_rate() -> None:
    edges = torch.linspace(-6, 8, 4097, dtype=torch.float64)
    counts = torch.stack([torch.as_tensor(norm.cdf(edges, mean)).diff() for mean in (0.0, 2.0)])
    _, ax = det_from_counts(counts, edges).plot()
    (line,) = _drawn(ax)
    x, y = (torch.as_tensor(values) for values in line.get_data())
    seen = (x.abs() < 2.5) & (y.abs() < 2.5)
    torch.testing.assert_close((x + y)[seen], torch.full_like(x[seen], -2.0), rtol=0, atol=1e-4)
    assert line.get_label() == f"DET (EER {100 * norm.cdf(-1):.2f}%)"


@pytest.mark.parametrize("good", [True, False])
def test_det_of_perfect_and_of_useless_scores_is_finite(good: bool) -> None:
    fpr, fnr = torch.tensor([[1, 0, 0], [0, 0, 1]] if good else [[1, 1, 0], [0, 1, 1]]).double()
    fig, ax = DETCurve(fpr, fnr, torch.tensor([0, 0.5, 1])).plot()
    fig.canvas.draw()
    assert _entries(ax)[-1] == f"DET (EER {0 if good else 100:.2f}%)"
    assert -10 < ax.get_xlim()[0] < ax.get_xlim()[1] < 10


def test_det_view_keeps_the_curves_drawn_before(leaf: Tensor) -> None:
    _, ax = det_from_counts(leaf).plot()
    before = ax.get_xlim()
    DETCurve(torch.tensor([1, 0, 0]), torch.tensor([0, 0, 1]), torch.tensor([0, 0.5, 1])).plot(ax=ax)
    assert ax.get_xlim()[0] <= before[0] < before[1] <= ax.get_xlim()[1]


def test_reliability_diagram_shows_the_bins_that_have_examples() -> None:
    counts = torch.zeros(2, 15)
    counts[0, 2], counts[1, 2], counts[0, 9], counts[1, 9] = 30, 10, 5, 15
    calibration = calibration_from_counts(counts)
    _, ax = calibration.plot()
    (dots,) = ax.collections
    assert dots.get_offsets().data.tolist() == pytest.approx(torch.tensor([[2.5 / 15, 0.25], [9.5 / 15, 0.75]]).numpy())
    small, large = sorted(dots.get_sizes())
    assert large == pytest.approx(2 * small)
    assert torch.as_tensor(_drawn(ax)[0].get_ydata()).isfinite().sum() == 2
    ece, brier = calibration.expected_calibration_error, calibration.brier_score
    assert _entries(ax) == ["calibrated", f"scores (ECE {ece:.4f},\nBrier {brier:.4f})"]


@pytest.mark.parametrize("edges", [torch.linspace(0, 1, 1025), torch.linspace(0, 1, 1025) ** 2 * 7 - 3])
def test_histograms_are_densities_of_few_bars(leaf: Tensor, edges: Tensor) -> None:
    _, ax = plot_histograms(leaf, edges)
    assert len(ax.patches) == 2
    for patch, row in zip(ax.patches, leaf, strict=True):
        density, ends, _ = patch.get_data()
        assert 8 <= len(density) <= 64
        assert (torch.as_tensor(density) * torch.as_tensor(ends).diff()).sum().item() == pytest.approx(1)
        assert (ends[0], ends[-1]) == pytest.approx((edges[0].item(), edges[-1].item()))
        assert f"n = {row.sum():,.0f}" in patch.get_label()


def test_histograms_of_few_leaves_and_of_no_examples() -> None:
    _, ax = plot_histograms(torch.tensor([[3, 1, 0], [0, 0, 0]]), torch.tensor([0, 0.5, 0.75, 1]))
    negative, positive = ax.patches
    assert list(negative.get_data().values) == pytest.approx([1.5, 1, 0])
    assert list(positive.get_data().values) == [0, 0, 0]


def test_the_summary_figure_has_four_parts(leaf: Tensor) -> None:
    fig, axes = evaluation_report(leaf).plot()
    _check_whole(fig, *axes.flat)
    assert axes.shape == (2, 2)
    assert [ax.get_xlabel() for ax in axes.flat] == ["False positive rate", "Recall", "Mean score", "Score"]
    _, axes = evaluation_report(leaf, torch.linspace(-5, 5, 1025, dtype=torch.float64)).plot()
    assert axes[1, 0].get_xlabel() == "Recall gain"
    assert f"AUPRG {area_under_gain(leaf):.4f}" in _entries(axes[1, 0])[-1]


def test_labels_and_scores_must_fit(leaf: Tensor) -> None:
    curve = roc_from_counts(_classes(leaf, 3))
    with pytest.raises(InputError, match="name 3 curves but got 2"):
        curve.plot(labels=["cat", "dog"])
    with pytest.raises(InputError, match="each of 3 curves, or 1 for all, but got 2"):
        curve.plot(score=torch.tensor([0.5, 0.5]))
    assert plt.get_fignums() == []
