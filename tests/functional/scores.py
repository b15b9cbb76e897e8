"""Names that tests of functions share: scores with their labels, and equality but for rounding."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

__all__ = ["Scored", "rounded"]

Scored = tuple[Tensor, Tensor]
"""Scores and labels of the fixture ``scored``."""


def rounded(expected: Any) -> Any:
    """Return what is equal to a number, or to numbers, but for rounding in float64."""
    return pytest.approx(expected, abs=1e-12)
