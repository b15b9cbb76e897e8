"""Tools for tests of figures: counts of classes, every figure, and the contents of axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.grids import even
from torchmetrics_fed.functional import (
    calibration_from_counts,
    det_from_counts,
    precision_recall_from_counts,
    precision_recall_gain_from_counts,
    roc_from_counts,
)

__all__ = ["check_on_page", "check_whole", "classes_of", "curves", "entries", "every_figure"]


def classes_of(leaf: Tensor, count: int) -> Tensor:
    """Return counts of classes that differ: ever more of the mirror image of each example."""
    return torch.stack([leaf + (20.0 * index / count) * leaf.flip(-2) for index in range(count)])


def entries(ax: Any) -> list[str]:
    """Return the texts of the legend."""
    return [text.get_text() for text in ax.get_legend().get_texts()]


def curves(ax: Any) -> list[Any]:
    """Return the lines of curves."""
    return [line for line in ax.get_lines() if line.get_gid() == "curve"]


def every_figure(counts: Tensor, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Draw every curve that counts have."""
    yield roc_from_counts(even(counts)).plot(**options)
    yield precision_recall_from_counts(even(counts)).plot(**options)
    yield det_from_counts(even(counts)).plot(**options)
    yield precision_recall_gain_from_counts(even(counts)).plot(**options)
    yield calibration_from_counts(even(counts)).plot(**options)


def check_on_page(fig: Any) -> None:
    """Nothing leaves the page. Warnings are errors."""
    fig.draw_without_rendering()
    page = fig.bbox
    ink = fig.get_tightbbox().transformed(fig.dpi_scale_trans)
    assert page.x0 - 1 <= ink.x0 < ink.x1 <= page.x1 + 1
    assert page.y0 - 1 <= ink.y0 < ink.y1 <= page.y1 + 1


def check_whole(fig: Any, *axes: Any) -> None:
    """Nothing leaves the page, and the legends leave the axes their room."""
    check_on_page(fig)
    assert min(ax.get_window_extent().width for ax in axes) / fig.dpi > 2.3
