"""Quantiles of each class, read from a metric's release."""

from __future__ import annotations

import pytest
import torch

from torchmetrics_fed import FederatedROC, InputError, paper


def test_quantiles_per_class() -> None:
    metric = FederatedROC()
    metric.update(torch.linspace(0, 1, 10_001), torch.zeros(10_001, dtype=torch.int64))
    metric.update(torch.linspace(0.5, 1, 10_001), torch.ones(10_001, dtype=torch.int64))
    release = metric.release()
    quantiles = paper.quantiles(release, [0.25, 0.5])
    assert quantiles.negative.tolist() == pytest.approx([0.25, 0.5], abs=1e-3)
    assert quantiles.positive.tolist() == pytest.approx([0.625, 0.75], abs=1e-3)
    assert paper.quantiles(release, 0.5).negative.ndim == 0
    with pytest.raises(InputError, match="fractions"):
        paper.quantiles(release, 1.5)
