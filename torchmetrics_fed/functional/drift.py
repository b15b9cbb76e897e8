"""Drift: whether the scores of two releases come from the same population."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import check_uncertain
from torchmetrics_fed.functional.figures.canvas import draw_curves, dress, entries, open_axes, rows
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.reconstruct.uncertainty.bands import order_statistic
from torchmetrics_fed.reconstruct.uncertainty.thresholds import UncertainCounts
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats

# A part that holds less than this of either release's examples is taken to hold this much: logarithms need it.
_LEAST = 1e-4


class Drift(NamedTuple):
    """The population stability index (PSI) of the scores, ``(...)``, and whether it is more than chance.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.functional import population_stability_index
        >>> metric = FederatedROC()
        >>> metric.update(torch.linspace(0, 1, 1000), torch.arange(1000) % 2)
        >>> bool(population_stability_index(metric.release(), metric.release()).drifted)
        False
    """

    value: Tensor
    """PSI, less what noise adds to it on average; below 0.1 is usually called stable, above 0.25 a shift."""
    critical: Tensor
    """What PSI stays below with probability 1 - level where nothing has changed: noise and sampling included."""
    drifted: Tensor
    """Whether the test rejects that nothing has changed."""
    p_value: Tensor
    before: Tensor
    """Fractions of the scores in each part, ``(..., parts)``."""
    after: Tensor
    edges: Tensor
    """Of the parts, ``(..., parts + 1)``: about equal parts of the scores before."""

    @property
    def scalars(self) -> dict[str, Tensor]:
        """PSI and p-value."""
        return {"population_stability_index": self.value, "p_value": self.p_value}
