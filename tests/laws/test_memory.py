"""Memory does not grow with the data."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from torchmetrics_fed import FederatedROC

PROGRAM = """
import resource, torch
from torchmetrics_fed import FederatedROC
torch.set_num_threads(1)
metric = FederatedROC()
preds, target = torch.rand(1_000_000), torch.randint(0, 2, (1_000_000,))
peaks = []
for step in range({steps}):
    metric.update(preds, target)
    if step in (0, {steps} - 1):
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
assert metric.counts.sum() == {steps} * 1_000_000
print(peaks[1] - peaks[0])
"""


def test_the_state_is_sixteen_bytes_a_bin() -> None:
    metric = FederatedROC(quantiles=1024)
    before = metric.counts.nbytes
    for _ in range(10):
        metric.update(torch.rand(100_000), torch.randint(0, 2, (100_000,)))
    assert metric.counts.nbytes == before == 16 * 4096


@pytest.mark.slow
def test_resident_memory_is_flat_from_1e6_to_1e8_scores() -> None:
    unit = 1 if sys.platform == "darwin" else 1024
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(steps=100)],
        capture_output=True,
        check=True,
        text=True,
    )
    assert int(run.stdout) * unit < 2_000_000
