"""The edges of two-sided grids are short binary fractions, denser towards both ends."""

from __future__ import annotations

import numpy as np
import pytest

from torchmetrics_fed.counting.edges import octave_bins, smooth_edges, two_sided_edges

BINS = [1 << power for power in range(2, 23)]


@pytest.mark.parametrize("bins", BINS)
def test_octaves_are_powers_of_two_and_half_of_the_bins(bins: int) -> None:
    sizes = octave_bins(bins)
    assert sum(sizes) == bins // 2
    assert all(size & (size - 1) == 0 for size in sizes[:-1])
    assert sizes[-1] >= 2


@pytest.mark.parametrize("bins", BINS)
def test_the_lower_half_is_exact_in_float32_and_the_upper_half_its_mirror_image(bins: int) -> None:
    edges = smooth_edges(bins)
    lower = edges[: bins // 2 + 1]
    assert (lower.astype(np.float32) == lower).all()
    assert (edges[::-1] == 1 - edges).all()


def test_edges_cannot_be_changed() -> None:
    for edges in (smooth_edges(64), two_sided_edges(64)):
        with pytest.raises(ValueError, match="read-only"):
            edges[0] = 1.0
