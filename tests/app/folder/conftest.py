"""A shared folder, threads for its sites, and a metric with data."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from torchmetrics_fed import FederatedROC

SOON: dict[str, Any] = {"poll": 0.01, "timeout": 60.0}
"""Seconds between two looks, and seconds to wait: a run ends as soon as it can."""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The shared folder; notes and ledgers are beside it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def updated_metric(**options: Any) -> FederatedROC:
    """A metric with 100 examples."""
    metric = FederatedROC(**{"quantiles": 64, **options})
    metric.update(torch.rand(100), torch.randint(0, 2, (100,)))
    return metric
