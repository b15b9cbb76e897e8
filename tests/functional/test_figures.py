"""Figures: the curve that was computed, on the axes that were given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    InputError,
    evaluation_report,
)
from torchmetrics_fed.functional import (
    CalibrationLine,
    DETCurve,
    PrecisionRecallCurve,
    area_under_gain,
    auroc_from_curve,
    calibration_from_counts,
    det_from_counts,
    figure_size,
    least_cost,
    plot_histograms,
    precision_recall_from_counts,
    precision_recall_gain_from_counts,
    predictive_values,
    roc_from_counts,
    small_multiples,
)
from torchmetrics_fed.functional.figures.page import caption

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
    fig, axes = evaluation_report(
        _classes(leaf, count), labels=[name.format(index) for index in range(count)]
    ).plot()
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
    assert [entry.split(" (")[0] for entry in _entries(ax)] == [
        "chance",
        "class 0",
        "class 1",
        "class 2",
    ]


def test_ten_classes_have_looks_of_their_own(leaf: Tensor) -> None:
    _, ax = roc_from_counts(_classes(leaf, 10)).plot()
    assert len({(line.get_color(), line.get_linestyle()) for line in _drawn(ax)}) == 10


def test_of_many_classes_the_best_the_worst_and_the_mean_are_named(leaf: Tensor) -> None:
    counts = _classes(leaf, 12)
    for _, ax in _everything(counts):
        named = [line for line in _drawn(ax) if not line.get_label().startswith("_")]
        assert (
            len({line.get_color() for line in _drawn(ax)} - {line.get_color() for line in named})
            == 1
        )
        assert {line.get_label().split()[0] for line in named} >= {"best:", "worst:"}
        assert [entry for entry in _entries(ax) if entry.startswith("mean of 12")]
        assert len(_entries(ax)) <= 4
    curve = roc_from_counts(counts)
    areas = auroc_from_curve(curve)
    _, ax = curve.plot()
    *classes, mean = _drawn(ax)
    best, worst = int(areas.argmax()), int(areas.argmin())
    assert classes[best].get_label() == f"best: class {best} (AUROC {areas[best]:.4f})"
    assert classes[worst].get_label() == f"worst: class {worst} (AUROC {areas[worst]:.4f})"
    assert mean.get_label() == f"mean of 12 (AUROC {areas.mean():.4f})"
    for line, tpr in zip(classes, curve.tpr, strict=True):
        assert torch.equal(torch.as_tensor(line.get_ydata()), tpr)
    # its area is what its name says
    assert abs(np.trapezoid(mean.get_ydata(), mean.get_xdata())) == pytest.approx(
        float(areas.mean()), abs=1e-3
    )


def test_the_mean_of_steps_is_read_as_steps() -> None:
    precision, recall = torch.tensor([[0.2, 1.0, 1.0]] * 12), torch.tensor([[1.0, 0.5, 0.0]] * 12)
    _, ax = PrecisionRecallCurve(precision, recall, torch.tensor([0.0, 0.5])).plot()
    mean = dict(zip(*map(tuple, _drawn(ax)[-1].get_data()), strict=True))
    assert (mean[0.25], mean[0.75], mean[1.0]) == pytest.approx((1.0, 0.2, 0.2))


def test_lower_errors_are_better(leaf: Tensor) -> None:
    counts = _classes(leaf, 12)
    errors = det_from_counts(counts).scalars["equal_error_rate"]
    assert (
        f"best: class {int(errors.argmin())} (EER"
        in _drawn(det_from_counts(counts).plot()[1])[int(errors.argmin())].get_label()
    )
    calibration = calibration_from_counts(counts)
    worst = int(calibration.expected_calibration_error.argmax())
    assert _drawn(calibration.plot()[1])[worst].get_label().startswith(f"worst: class {worst} (ECE")


@pytest.mark.parametrize("count", [3, 12])
def test_an_average_is_shown_once(leaf: Tensor, count: int) -> None:
    curve = roc_from_counts(_classes(leaf, count))
    _, ax = curve.plot(score=torch.tensor(0.5))
    few = ["chance", "class 0", "class 1", "class 2", "AUROC 0.5000"]
    assert _entries(ax) == (few if count == 3 else ["chance", "12 classes (AUROC 0.5000)"])
    assert len(_drawn(ax)) == count


def _seen(colour: Any, back: str) -> float:
    """The contrast of a colour, faint or not, on a background, from 1 to 21, as WCAG 2 has it."""
    ground, (*letters, alpha) = torch.tensor(mpl.colors.to_rgb(back)), mpl.colors.to_rgba(colour)
    lights = []
    for rgb in (ground, torch.tensor(letters) * alpha + ground * (1 - alpha)):
        linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        lights.append(float(linear @ torch.tensor([0.2126, 0.7152, 0.0722])) + 0.05)
    return max(lights) / min(lights)


@pytest.mark.parametrize(("style", "back"), [("default", "white"), ("dark_background", "black")])
@pytest.mark.parametrize("clear", [False, True])
def test_figures_are_readable_on_light_and_dark_pages(
    leaf: Tensor, style: str, back: str, clear: bool
) -> None:
    with plt.style.context(style):
        for counts in (leaf, _classes(leaf, 10), _classes(leaf, 12)):
            fig, given = plt.subplots(layout="constrained")
            if clear:
                given.set_facecolor("none")
            _, ax = roc_from_counts(counts).plot(ax=given)
            caption(ax, "exact")
            legend = ax.get_legend()
            inside = legend.get_frame_on()
            assert not (clear and inside)
            assert not inside or _seen(legend.get_frame().get_facecolor(), back) < 1.1
            letters = [*legend.get_texts(), *ax.texts, ax.xaxis.label, *ax.get_xticklabels()]
            assert all(_seen(text.get_color(), back) >= 4.5 for text in letters)
            marks = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
            assert all(
                _seen(mark.get_color(), back) >= 2.0 for mark in (*marks, *ax.get_xticklines())
            )
            plt.close(fig)


def test_long_names_are_cut_in_the_legend_and_whole_on_the_line(leaf: Tensor) -> None:
    names = [
        f"chronic obstructive pulmonary disease with acute exacerbation, type {index}"
        for index in range(3)
    ]
    fig, ax = roc_from_counts(_classes(leaf, 3)).plot(labels=names)
    assert fig.get_figwidth() < 6
    assert [line.get_label().split(" (")[0] for line in _drawn(ax)] == names
    shown = [entry.split("\n")[0] for entry in _entries(ax)[1:]]
    assert len(set(shown)) == 3
    assert all(len(name) <= 26 and "…" in name for name in shown)
    assert all(name.endswith(f"type {index}") for index, name in enumerate(shown))


def _said(ax: Any) -> str:
    return "".join(text.get_text() for text in ax.texts if text.get_gid() == "caption")


def test_a_caption_says_where_the_numbers_come_from(scored: tuple[Tensor, Tensor]) -> None:
    exact, private = FederatedROC(), FederatedROC(privacy=CentralDP(0.5), confidence=0.9)
    delta = FederatedAUROC(privacy=CentralDP(2.0, mechanism="skellam", delta=1e-6))
    for metric in (exact, private, delta):
        metric.update(*scored)
    assert _said(exact.plot()[1]) == "exact"
    assert _said(private.plot()[1]) == "epsilon = 0.5, 90% band"
    assert _said(delta.plot()[1]) == "epsilon = 2, delta = 1e-06"
    assert _said(exact.compute().plot()[1]) == _said(FederatedROC().plot(exact.compute())[1]) == ""


def test_a_caption_is_never_said_of_another_curve(scored: tuple[Tensor, Tensor]) -> None:
    exact, private = FederatedROC(), FederatedROC(privacy=CentralDP(0.5))
    for metric in (exact, private):
        metric.update(*scored)
    ax = exact.plot()[1]
    assert _said(exact.plot(ax=ax)[1]) == "exact"
    assert _said(private.plot(ax=ax)[1]) == "exact; epsilon = 0.5"
    ax = private.plot()[1]
    assert _said(exact.compute().plot(ax=ax)[1]) == "epsilon = 0.5; as given"
    ax = exact.compute().plot()[1]
    assert _said(private.plot(ax=ax, label="ours")[1]) == "as given; ours: epsilon = 0.5"


def test_a_slide_has_larger_letters_on_a_larger_page(leaf: Tensor) -> None:
    paper, ax = roc_from_counts(_classes(leaf, 3)).plot()
    with figure_size("slide"):
        for fig, large in _everything(_classes(leaf, 3)):
            _check_whole(fig, large)
            assert fig.get_figwidth() > 1.7 * paper.get_figwidth()
            assert large.xaxis.label.get_size() == 2 * ax.xaxis.label.get_size()
        fig, axes = evaluation_report(_classes(leaf, 3)).plot()
        _check_whole(fig, *axes.flat)
    assert roc_from_counts(leaf).plot()[0].get_figwidth() == pytest.approx(3.6)
    with pytest.raises(InputError, match="one of"), figure_size("poster"):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("count", [1, 2, 5])
def test_small_multiples_have_a_panel_each_and_the_others_behind(leaf: Tensor, count: int) -> None:
    parts = _classes(leaf, count + 1)[:count]
    for of in (
        roc_from_counts,
        precision_recall_from_counts,
        det_from_counts,
        calibration_from_counts,
    ):
        results = {f"site {index}": of(part) for index, part in enumerate(parts)}
        fig, _ = small_multiples(results, caption="exact")
        fig.draw_without_rendering()
        panels = fig.axes
        assert len(panels) == count
        assert [ax.get_title().split("\n")[0] for ax in panels] == list(results)
        assert len({(ax.get_xlim(), ax.get_ylim()) for ax in panels}) == 1
        for ax in panels:
            assert len(_drawn(ax)) == 1
            assert len([line for line in ax.get_lines() if line.get_gid() == "behind"]) == count - 1
        page, ink = fig.bbox, fig.get_tightbbox().transformed(fig.dpi_scale_trans)
        assert page.x0 - 1 <= ink.x0 < ink.x1 <= page.x1 + 1
        assert page.y0 - 1 <= ink.y0 < ink.y1 <= page.y1 + 1
        plt.close(fig)


def test_small_multiples_of_classes_share_a_legend_and_refuse_mixtures(leaf: Tensor) -> None:
    several = {name: roc_from_counts(_classes(leaf, 3)) for name in ("north", "south")}
    fig, _ = small_multiples(several, labels=["cat", "dog", "bird"])
    assert [ax.get_legend() is None for ax in fig.axes] == [True, False]
    assert [text.get_text() for text in fig.axes[1].get_legend().get_texts()] == [
        "cat",
        "dog",
        "bird",
    ]
    for wrong in ({}, {"a": roc_from_counts(leaf), "b": det_from_counts(leaf)}):
        with pytest.raises(InputError, match="results of one kind"):
            small_multiples(wrong)


def test_the_summary_figure_has_bands_and_a_caption(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0))
    metric.update(*scored)
    report = evaluation_report(metric.release())
    fig, axes = report.plot()
    _check_whole(fig, *axes.flat)
    assert [[patch.get_gid() for patch in ax.collections].count("band") for ax in axes.flat] == [
        1,
        1,
        0,
        0,
    ]
    assert fig.get_supxlabel() == report.privacy


def test_curves_on_the_same_axes_differ_in_colour_and_share_the_chance_line(leaf: Tensor) -> None:
    _, ax = roc_from_counts(leaf).plot(label="ours")
    roc_from_counts(leaf.flip(-2)).plot(ax=ax, label="theirs")
    assert len({line.get_color() for line in _drawn(ax)}) == 2
    assert [entry.split()[0] for entry in _entries(ax)] == ["chance", "ours", "theirs"]


def test_legend_stands_off_the_curve(leaf: Tensor) -> None:
    for counts in (leaf, leaf.flip(-2), _classes(leaf, 4), _classes(leaf, 12)):
        for fig, ax in (
            roc_from_counts(counts).plot(),
            precision_recall_from_counts(counts).plot(),
        ):
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
    DETCurve(torch.tensor([1, 0, 0]), torch.tensor([0, 0, 1]), torch.tensor([0, 0.5, 1])).plot(
        ax=ax
    )
    assert ax.get_xlim()[0] <= before[0] < before[1] <= ax.get_xlim()[1]


def test_reliability_diagram_shows_the_bins_that_have_examples() -> None:
    counts = torch.zeros(2, 15)
    counts[0, 2], counts[1, 2], counts[0, 9], counts[1, 9] = 30, 10, 5, 15
    calibration = calibration_from_counts(counts)
    _, ax = calibration.plot()
    (dots,) = ax.collections
    assert dots.get_offsets().data.tolist() == pytest.approx(
        torch.tensor([[2.5 / 15, 0.25], [9.5 / 15, 0.75]]).numpy()
    )
    small, large = sorted(dots.get_sizes())
    assert large == pytest.approx(2 * small)
    assert torch.as_tensor(_drawn(ax)[0].get_ydata()).isfinite().sum() == 2
    ece, brier = calibration.expected_calibration_error, calibration.brier_score
    assert _entries(ax) == ["calibrated", f"scores (ECE {ece:.4f},\nBrier {brier:.4f})"]


@pytest.mark.parametrize(
    "edges", [torch.linspace(0, 1, 1025), torch.linspace(0, 1, 1025) ** 2 * 7 - 3]
)
def test_histograms_are_densities_of_few_bars(leaf: Tensor, edges: Tensor) -> None:
    _, ax = plot_histograms(leaf, edges)
    assert len(ax.patches) == 2
    for patch, row in zip(ax.patches, leaf, strict=True):
        density, ends, _ = patch.get_data()
        assert 8 <= len(density) <= 64
        assert (
            torch.as_tensor(density) * torch.as_tensor(ends).diff()
        ).sum().item() == pytest.approx(1)
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
    assert [ax.get_xlabel() for ax in axes.flat] == [
        "False positive rate",
        "Recall",
        "Mean score",
        "Score",
    ]
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


@pytest.mark.parametrize("classes", [1, 3])
def test_results_that_are_a_few_numbers_are_drawn_with_them(leaf: Tensor, classes: int) -> None:
    counts = _classes(leaf, classes) if classes > 1 else leaf
    point, values = least_cost(counts, 1.0, 5.0), predictive_values(counts, 0.5)
    names = [f"class {index}" for index in range(classes)] if classes > 1 else ["calls"]
    shown = zip(names, values.positive.reshape(-1), values.negative.reshape(-1), strict=True)
    assert [line.get_label() for line in _drawn(values.plot()[1])] == [
        f"{name} (PPV {positive:.3f}, NPV {negative:.3f})" for name, positive, negative in shown
    ]
    drawn = [(line.get_xdata()[0], line.get_ydata()[0]) for line in _drawn(point.plot()[1])]
    assert drawn == list(
        zip(point.threshold.reshape(-1).tolist(), point.value.reshape(-1).tolist(), strict=True)
    )


def test_a_calibration_line_is_drawn_beside_that_of_calibrated_scores() -> None:
    line = CalibrationLine(torch.tensor(-1.0), torch.tensor(0.5))
    (drawn,) = _drawn(line.plot(label="model")[1])
    middle = len(drawn.get_xdata()) // 2
    assert drawn.get_xdata()[middle] == pytest.approx(0.5)
    assert drawn.get_ydata()[middle] == pytest.approx(1 / (1 + math.e))
    assert "intercept -1.00, slope 0.50" in " ".join(drawn.get_label().split())
