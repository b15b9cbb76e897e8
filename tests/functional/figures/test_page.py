"""The page: captions, sizes, and names that fit."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from tests.functional.figures.drawing import check_whole, classes_of, curves, entries, every_figure
from tests.functional.scores import Scored
from tests.grids import even
from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    evaluation_report,
)
from torchmetrics_fed.functional import figure_size, roc_from_counts


def caption_of(ax: Any) -> str:
    return "".join(text.get_text() for text in ax.texts if text.get_gid() == "caption")


def test_a_caption_says_where_the_numbers_come_from(scored: Scored) -> None:
    exact = FederatedROC()
    private = FederatedROC(privacy=CentralDP(0.5), confidence=0.9)
    with_delta = FederatedAUROC(privacy=CentralDP(2.0, mechanism="skellam", delta=1e-6))
    for metric in (exact, private, with_delta):
        metric.update(*scored)
    assert caption_of(exact.plot()[1]) == "exact"
    assert caption_of(private.plot()[1]) == "epsilon = 0.5, 90% band of the population"
    assert caption_of(with_delta.plot()[1]) == "epsilon = 2, delta = 1e-06"


def test_a_curve_of_unknown_origin_has_no_caption(scored: Scored) -> None:
    metric = FederatedROC()
    metric.update(*scored)
    curve = metric.compute()
    assert caption_of(curve.plot()[1]) == ""
    assert caption_of(FederatedROC().plot(curve)[1]) == ""


def test_a_caption_describes_every_curve_on_the_axes(scored: Scored) -> None:
    exact = FederatedROC()
    private = FederatedROC(privacy=CentralDP(0.5))
    for metric in (exact, private):
        metric.update(*scored)
    ax = exact.plot()[1]
    assert caption_of(exact.plot(ax=ax)[1]) == "exact"
    assert caption_of(private.plot(ax=ax)[1]) == "exact; epsilon = 0.5"
    ax = private.plot()[1]
    assert caption_of(exact.compute().plot(ax=ax)[1]) == "epsilon = 0.5; as given"
    ax = exact.compute().plot()[1]
    assert caption_of(private.plot(ax=ax, label="ours")[1]) == "as given; ours: epsilon = 0.5"


def test_a_slide_has_larger_letters_on_a_larger_page(leaf: Tensor) -> None:
    paper, ax = roc_from_counts(even(classes_of(leaf, 3))).plot()
    with figure_size("slide"):
        for fig, large in every_figure(classes_of(leaf, 3)):
            check_whole(fig, large)
            assert fig.get_figwidth() > 1.7 * paper.get_figwidth()
            assert large.xaxis.label.get_size() == 2 * ax.xaxis.label.get_size()
        fig, axes = evaluation_report(even(classes_of(leaf, 3))).plot()
        check_whole(fig, *axes.flat)
    assert roc_from_counts(even(leaf)).plot()[0].get_figwidth() == pytest.approx(3.6)


def test_a_size_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="one of"), figure_size("poster"):  # type: ignore[arg-type]
        pass


def test_long_names_are_cut_in_the_legend_and_whole_on_the_line(leaf: Tensor) -> None:
    names = [
        f"chronic obstructive pulmonary disease with acute exacerbation, type {index}"
        for index in range(3)
    ]
    fig, ax = roc_from_counts(even(classes_of(leaf, 3))).plot(labels=names)
    assert fig.get_figwidth() < 6
    assert [line.get_label().split(" (")[0] for line in curves(ax)] == names
    names_in_legend = [entry.split("\n")[0] for entry in entries(ax)[1:]]
    assert len(set(names_in_legend)) == 3
    for index, name in enumerate(names_in_legend):
        assert len(name) <= 26
        assert "…" in name
        assert name.endswith(f"type {index}")
