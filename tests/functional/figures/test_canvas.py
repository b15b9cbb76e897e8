"""Figures: the curve that was computed, on the axes and with the keywords of the caller."""

from __future__ import annotations

import math
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from tests.functional.figures.drawing import check_whole, classes_of, curves, entries, every_figure
from tests.functional.scores import Scored
from tests.grids import even
from torchmetrics_fed import (
    CentralDP,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    InputError,
    evaluation_report,
)
from torchmetrics_fed.functional import (
    Band,
    CalibrationLine,
    DETCurve,
    PrecisionRecallCurve,
    area_under_gain,
    auroc_from_curve,
    calibration_from_counts,
    cumulative_gains,
    det_from_counts,
    least_cost,
    net_benefit,
    plot_histograms,
    precision_recall_from_counts,
    predictive_values,
    roc_from_counts,
)
from torchmetrics_fed.functional.figures.page import caption


def test_roc_shows_its_auroc_and_the_chance_line(scored: Scored) -> None:
    metric = FederatedROC()
    metric.update(*scored)
    fig, ax = metric.plot()
    assert ax.figure is fig
    chance, curve = ax.get_lines()
    assert list(chance.get_xdata()) == list(chance.get_ydata()) == [0, 1]
    assert torch.equal(torch.as_tensor(curve.get_ydata()), metric.compute().tpr)
    area = float(curve.get_label().split()[-1].rstrip(")"))
    assert area == pytest.approx(roc_auc_score(scored[1], scored[0]), abs=1e-3)


def test_pr_shows_its_average_precision(scored: Scored) -> None:
    metric = FederatedPrecisionRecallCurve()
    metric.update(*scored)
    _, ax = metric.plot()
    area = float(ax.get_lines()[-1].get_label().split()[-1].rstrip(")"))
    assert area == pytest.approx(average_precision_score(scored[1], scored[0]), abs=1e-3)


def test_axes_curves_and_scores_can_be_passed(scored: Scored) -> None:
    metric = FederatedROC()
    metric.update(*scored)
    curve = metric.compute()
    metric.reset()
    fig, ax = plt.subplots()
    assert metric.plot(curve=curve, score=torch.tensor(0.5), ax=ax) == (fig, ax)
    assert ax.get_lines()[-1].get_label() == "ROC (AUROC 0.5000)"


def test_keywords_of_matplotlib_reach_the_lines(leaf: Tensor) -> None:
    for count in (1, 3, 12):
        for _, ax in every_figure(classes_of(leaf, count), color="black", linestyle=":", lw=3):
            assert len(curves(ax)) >= count
            for line in curves(ax):
                assert line.get_color() == "black"
                assert line.get_linestyle() == ":"
                assert line.get_linewidth() == 3
            plt.close(ax.figure)


def test_keywords_of_matplotlib_reach_the_lines_of_decisions(leaf: Tensor) -> None:
    for result in (
        net_benefit(even(leaf)),
        cumulative_gains(even(leaf)),
        least_cost(even(leaf)),
        predictive_values(even(leaf), 0.5),
        CalibrationLine(torch.tensor(-1.0), torch.tensor(0.5)),
    ):
        _, ax = result.plot(marker="s", alpha=0.5)
        (line,) = curves(ax)
        assert line.get_marker() == "s"
        assert line.get_alpha() == 0.5


def test_a_keyword_replaces_the_default_of_a_figure(leaf: Tensor) -> None:
    curve = precision_recall_from_counts(even(leaf))
    assert curves(curve.plot()[1])[0].get_drawstyle() == "steps-post"
    assert curves(curve.plot(drawstyle="default")[1])[0].get_drawstyle() == "default"


def test_a_band_has_the_colour_of_its_line() -> None:
    band = Band(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.5]), torch.tensor([0.5, 1.0]))
    curve = roc_from_counts(even(torch.tensor([[3, 1], [1, 3]])))
    _, ax = curve.plot(band=band, color="red")
    (shade,) = ax.collections
    assert mpl.colors.same_color(shade.get_facecolor()[0, :3], "red")


@pytest.mark.parametrize("count", [0, 1, 2, 5, 10, 12])
def test_figures_are_whole(leaf: Tensor, count: int) -> None:
    counts = leaf
    if count > 0:
        counts = classes_of(leaf, count)
    for fig, ax in (*every_figure(counts), plot_histograms(counts, torch.linspace(0, 1, 1025))):
        check_whole(fig, ax)
        assert not ax.spines["top"].get_visible()
        plt.close(fig)


@pytest.mark.parametrize("name", ["{}", "a class with a long name, number {}"])
@pytest.mark.parametrize("count", [2, 3, 10, 12])
def test_the_summary_figure_of_classes_is_whole(
    leaf: Tensor,
    count: int,
    name: str,
) -> None:
    labels = [name.format(index) for index in range(count)]
    fig, axes = evaluation_report(even(classes_of(leaf, count)), labels=labels).plot()
    check_whole(fig, *axes.flat)


def test_axes_of_the_caller_are_used_and_no_figure_is_opened(leaf: Tensor) -> None:
    fig, ax = plt.subplots()
    for drawn in every_figure(leaf, ax=ax):
        assert drawn == (fig, ax)
    assert plot_histograms(leaf, torch.linspace(0, 1, 1025), ax) == (fig, ax)
    assert plt.get_fignums() == [fig.number]


def test_every_class_has_a_line_and_a_legend_entry(leaf: Tensor) -> None:
    counts = classes_of(leaf, 3)
    labels = ["cat", "dog", "bird"]
    for _, ax in every_figure(counts, labels=labels):
        assert len(curves(ax)) == 3
        assert len({line.get_color() for line in curves(ax)}) == 3
        assert [entry.split()[0] for entry in entries(ax)[1:]] == labels
    curve = roc_from_counts(even(counts))
    _, ax = curve.plot()
    for line, tpr, area in zip(curves(ax), curve.tpr, auroc_from_curve(curve), strict=True):
        assert torch.equal(torch.as_tensor(line.get_ydata()), tpr)
        assert line.get_label().endswith(f"(AUROC {area:.4f})")
    names = [entry.split(" (")[0] for entry in entries(ax)]
    assert names == ["chance", "class 0", "class 1", "class 2"]


def test_ten_classes_have_looks_of_their_own(leaf: Tensor) -> None:
    _, ax = roc_from_counts(even(classes_of(leaf, 10))).plot()
    assert len({(line.get_color(), line.get_linestyle()) for line in curves(ax)}) == 10


def test_the_legend_of_many_classes_names_the_best_the_worst_and_the_mean(leaf: Tensor) -> None:
    for _, ax in every_figure(classes_of(leaf, 12)):
        named = [line for line in curves(ax) if not line.get_label().startswith("_")]
        colours = {line.get_color() for line in curves(ax)}
        assert len(colours - {line.get_color() for line in named}) == 1
        assert {line.get_label().split()[0] for line in named} >= {"best:", "worst:"}
        assert any(entry.startswith("mean of 12") for entry in entries(ax))
        assert len(entries(ax)) <= 4


def test_the_area_under_the_mean_of_many_curves_is_the_mean_of_their_areas(leaf: Tensor) -> None:
    curve = roc_from_counts(even(classes_of(leaf, 12)))
    areas = auroc_from_curve(curve)
    _, ax = curve.plot()
    *class_lines, mean = curves(ax)
    for rank, place in (("best", int(areas.argmax())), ("worst", int(areas.argmin()))):
        label = f"{rank}: class {place} (AUROC {areas[place]:.4f})"
        assert class_lines[place].get_label() == label
    assert mean.get_label() == f"mean of 12 (AUROC {areas.mean():.4f})"
    for line, tpr in zip(class_lines, curve.tpr, strict=True):
        assert torch.equal(torch.as_tensor(line.get_ydata()), tpr)
    area = abs(np.trapezoid(mean.get_ydata(), mean.get_xdata()))
    assert area == pytest.approx(float(areas.mean()), abs=1e-3)


def test_the_mean_of_steps_is_read_as_steps() -> None:
    precision = torch.tensor([[0.2, 1.0, 1.0]] * 12)
    recall = torch.tensor([[1.0, 0.5, 0.0]] * 12)
    _, ax = PrecisionRecallCurve(precision, recall, torch.tensor([0.0, 0.5])).plot()
    x, y = curves(ax)[-1].get_data()
    mean = dict(zip(x, y, strict=True))
    assert mean[0.25] == pytest.approx(1.0)
    assert mean[0.75] == pytest.approx(0.2)
    assert mean[1.0] == pytest.approx(0.2)


def test_lower_errors_are_better(leaf: Tensor) -> None:
    counts = classes_of(leaf, 12)
    det = det_from_counts(even(counts))
    best = int(det.scalars["equal_error_rate"].argmin())
    assert curves(det.plot()[1])[best].get_label().startswith(f"best: class {best} (EER")
    calibration = calibration_from_counts(even(counts))
    worst = int(calibration.expected_calibration_error.argmax())
    label = curves(calibration.plot()[1])[worst].get_label()
    assert label.startswith(f"worst: class {worst} (ECE")


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (3, ["chance", "class 0", "class 1", "class 2", "AUROC 0.5000"]),
        (12, ["chance", "12 classes (AUROC 0.5000)"]),
    ],
)
def test_an_average_is_shown_once(
    leaf: Tensor,
    count: int,
    expected: list[str],
) -> None:
    _, ax = roc_from_counts(even(classes_of(leaf, count))).plot(score=torch.tensor(0.5))
    assert entries(ax) == expected
    assert len(curves(ax)) == count


def luminance(rgb: Tensor) -> float:
    """Return the relative luminance of WCAG 2."""
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ torch.tensor([0.2126, 0.7152, 0.0722]))


def contrast(colour: Any, background: str) -> float:
    """Return the contrast of a colour, faint or not, on a background, from 1 to 21 (WCAG 2)."""
    *rgb, alpha = mpl.colors.to_rgba(colour)
    ground = torch.tensor(mpl.colors.to_rgb(background))
    mixed = torch.tensor(rgb) * alpha + ground * (1 - alpha)
    lights = (luminance(ground) + 0.05, luminance(mixed) + 0.05)
    return max(lights) / min(lights)


@pytest.mark.parametrize(
    ("style", "background"),
    [("default", "white"), ("dark_background", "black")],
)
@pytest.mark.parametrize("transparent", [False, True])
@pytest.mark.parametrize("count", [1, 10, 12])
def test_figures_are_readable_on_light_and_dark_pages(
    leaf: Tensor,
    style: str,
    background: str,
    transparent: bool,
    count: int,
) -> None:
    with plt.style.context(style):
        _, axes = plt.subplots(layout="constrained")
        if transparent:
            axes.set_facecolor("none")
        _, ax = roc_from_counts(even(classes_of(leaf, count))).plot(ax=axes)
        caption(ax, "exact")
        legend = ax.get_legend()
        if legend.get_frame_on():
            assert not transparent
            assert contrast(legend.get_frame().get_facecolor(), background) < 1.1
        texts = [*legend.get_texts(), *ax.texts, ax.xaxis.label, *ax.get_xticklabels()]
        for text in texts:
            assert contrast(text.get_color(), background) >= 4.5
        named = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
        for mark in (*named, *ax.get_xticklines()):
            assert contrast(mark.get_color(), background) >= 2.0


def test_the_summary_figure_has_bands_and_a_caption(scored: Scored) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0))
    metric.update(*scored)
    report = evaluation_report(metric.release())
    fig, axes = report.plot()
    check_whole(fig, *axes.flat)
    bands = [[patch.get_gid() for patch in ax.collections].count("band") for ax in axes.flat]
    assert bands == [1, 1, 0, 0]
    assert fig.get_supxlabel() == report.privacy


def test_curves_on_the_same_axes_differ_in_colour_and_share_the_chance_line(leaf: Tensor) -> None:
    _, ax = roc_from_counts(even(leaf)).plot(label="ours")
    roc_from_counts(even(leaf.flip(-2))).plot(ax=ax, label="theirs")
    assert len({line.get_color() for line in curves(ax)}) == 2
    assert [entry.split()[0] for entry in entries(ax)] == ["chance", "ours", "theirs"]


def test_the_legend_covers_no_curve(leaf: Tensor) -> None:
    for counts in (leaf, leaf.flip(-2), classes_of(leaf, 4), classes_of(leaf, 12)):
        for result in (roc_from_counts(even(counts)), precision_recall_from_counts(even(counts))):
            fig, ax = result.plot()
            fig.canvas.draw()
            box = ax.get_legend().get_window_extent()
            for line in curves(ax):
                points = ax.transData.transform(line.get_xydata())
                assert not any(box.contains(*point) for point in points)


def test_det_is_drawn_on_normal_deviates(leaf: Tensor) -> None:
    curve = det_from_counts(even(leaf))
    _, ax = curve.plot()
    (line,) = curves(ax)
    x = torch.as_tensor(line.get_xdata())
    y = torch.as_tensor(line.get_ydata())
    assert x.isfinite().all()
    assert y.isfinite().all()
    inside = (curve.fpr > 0) & (curve.fpr < 1)
    torch.testing.assert_close(x[inside], torch.as_tensor(norm.ppf(curve.fpr[inside])))
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        rates = [float(text.get_text()) / 100 for text in axis.get_ticklabels()]
        places = list(axis.get_ticklocs())
        assert places == pytest.approx(norm.ppf(rates))
        assert low <= places[0] < places[-1] <= high


def test_normal_scores_make_a_straight_det_curve_with_the_known_equal_error_rate() -> None:
    edges = torch.linspace(-6, 8, 4097, dtype=torch.float64)
    counts = torch.stack([torch.as_tensor(norm.cdf(edges, mean)).diff() for mean in (0.0, 2.0)])
    _, ax = det_from_counts(counts, edges).plot()
    (line,) = curves(ax)
    x = torch.as_tensor(line.get_xdata())
    y = torch.as_tensor(line.get_ydata())
    inside = (x.abs() < 2.5) & (y.abs() < 2.5)
    expected = torch.full_like(x[inside], -2.0)
    torch.testing.assert_close((x + y)[inside], expected, rtol=0, atol=1e-4)
    assert line.get_label() == f"DET (EER {100 * norm.cdf(-1):.2f}%)"


@pytest.mark.parametrize(
    ("fpr", "fnr", "error_rate"),
    [([1, 0, 0], [0, 0, 1], "0.00%"), ([1, 1, 0], [0, 1, 1], "100.00%")],
    ids=["perfect", "useless"],
)
def test_det_of_perfect_and_of_useless_scores_is_finite(
    fpr: list[int],
    fnr: list[int],
    error_rate: str,
) -> None:
    curve = DETCurve(torch.tensor(fpr), torch.tensor(fnr), torch.tensor([0, 0.5, 1]))
    fig, ax = curve.plot()
    fig.canvas.draw()
    assert entries(ax)[-1] == f"DET (EER {error_rate})"
    assert -10 < ax.get_xlim()[0] < ax.get_xlim()[1] < 10


def test_the_view_of_a_det_curve_keeps_curves_that_were_drawn_before(leaf: Tensor) -> None:
    _, ax = det_from_counts(even(leaf)).plot()
    low, high = ax.get_xlim()
    perfect = DETCurve(torch.tensor([1, 0, 0]), torch.tensor([0, 0, 1]), torch.tensor([0, 0.5, 1]))
    perfect.plot(ax=ax)
    assert ax.get_xlim()[0] <= low < high <= ax.get_xlim()[1]


def test_the_reliability_diagram_shows_the_bins_that_have_examples() -> None:
    counts = torch.zeros(2, 15)
    counts[:, 2] = torch.tensor([30, 10])
    counts[:, 9] = torch.tensor([5, 15])
    calibration = calibration_from_counts(even(counts))
    _, ax = calibration.plot()
    (dots,) = ax.collections
    expected = np.array([[2.5 / 15, 0.25], [9.5 / 15, 0.75]])
    assert dots.get_offsets().data.tolist() == pytest.approx(expected)
    small, large = sorted(dots.get_sizes())
    assert large == pytest.approx(2 * small)
    assert torch.as_tensor(curves(ax)[0].get_ydata()).isfinite().sum() == 2
    ece = calibration.expected_calibration_error
    brier = calibration.brier_score
    assert entries(ax) == ["calibrated", f"scores (ECE {ece:.4f},\nBrier {brier:.4f})"]


def test_the_summary_figure_has_four_parts(leaf: Tensor) -> None:
    fig, axes = evaluation_report(even(leaf)).plot()
    check_whole(fig, *axes.flat)
    assert axes.shape == (2, 2)
    names = [ax.get_xlabel() for ax in axes.flat]
    assert names == ["False positive rate", "Recall", "Mean score", "Score"]
    edges = torch.linspace(-5, 5, 1025, dtype=torch.float64)
    _, axes = evaluation_report(leaf, edges).plot()
    assert axes[1, 0].get_xlabel() == "Recall gain"
    assert f"AUPRG {area_under_gain(even(leaf)):.4f}" in entries(axes[1, 0])[-1]


def test_labels_and_scores_must_fit(leaf: Tensor) -> None:
    curve = roc_from_counts(even(classes_of(leaf, 3)))
    with pytest.raises(InputError, match="name 3 curves but got 2"):
        curve.plot(labels=["cat", "dog"])
    with pytest.raises(InputError, match="each of 3 curves, or 1 for all, but got 2"):
        curve.plot(score=torch.tensor([0.5, 0.5]))
    assert plt.get_fignums() == []


def test_an_operating_point_is_drawn_for_every_class(leaf: Tensor) -> None:
    point = least_cost(even(classes_of(leaf, 3)), 1.0, 5.0)
    lines = curves(point.plot()[1])
    assert [line.get_xdata()[0] for line in lines] == point.threshold.tolist()
    assert [line.get_ydata()[0] for line in lines] == point.value.tolist()


def test_predictive_values_are_in_the_legend_of_every_class(leaf: Tensor) -> None:
    single = predictive_values(even(leaf), 0.5)
    (line,) = curves(single.plot()[1])
    assert line.get_label() == f"calls (PPV {single.positive:.3f}, NPV {single.negative:.3f})"
    several = predictive_values(even(classes_of(leaf, 3)), 0.5)
    for number, line in enumerate(curves(several.plot()[1])):
        ppv = several.positive[number]
        npv = several.negative[number]
        assert line.get_label() == f"class {number} (PPV {ppv:.3f}, NPV {npv:.3f})"


def test_a_calibration_line_is_drawn_beside_that_of_calibrated_scores() -> None:
    line = CalibrationLine(torch.tensor(-1.0), torch.tensor(0.5))
    (drawn,) = curves(line.plot(label="model")[1])
    middle = len(drawn.get_xdata()) // 2
    assert drawn.get_xdata()[middle] == pytest.approx(0.5)
    assert drawn.get_ydata()[middle] == pytest.approx(1 / (1 + math.e))
    assert "intercept -1.00, slope 0.50" in " ".join(drawn.get_label().split())
