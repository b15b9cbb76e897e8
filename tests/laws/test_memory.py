"""Memory does not grow with the data, and many classes take little beyond their counts."""

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

CLASSES_PROGRAM = """
import resource, torch, torchmetrics_fed, warnings
torch.set_num_threads(1)
warnings.simplefilter("ignore")  # of classes without examples
make = torchmetrics_fed.{metric}
small = make("multiclass", num_classes=3)
small.update(torch.rand(10, 3).softmax(1), torch.randint(0, 3, (10,)))
small.compute()
metric = make("multiclass", num_classes=1000)
for _ in range(20):
    metric.update(torch.randn(256, 1000).softmax(1), torch.randint(0, 1000, (256,)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
metric.compute()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def peak_growth(program: str) -> int:
    """Return the bytes by which the peak memory of a process grew."""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    unit = 1 if sys.platform == "darwin" else 1024
    return int(run.stdout) * unit


def test_the_state_is_sixteen_bytes_a_bin() -> None:
    metric = FederatedROC(quantiles=1024)
    before = metric.counts.nbytes
    for _ in range(10):
        metric.update(torch.rand(100_000), torch.randint(0, 2, (100_000,)))
    assert metric.counts.nbytes == before == 16 * 4096


@pytest.mark.slow
def test_resident_memory_is_flat_from_1e6_to_1e8_scores() -> None:
    assert peak_growth(PROGRAM.format(steps=100)) < 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "copies"),
    [("FederatedAUROC", 1), ("FederatedAveragePrecision", 1), ("FederatedROC", 2)],
)
def test_1000_classes_take_little_beyond_their_counts(metric: str, copies: int) -> None:
    """The release is a copy of the counts, and a curve is as large as they are.

    Tails are made of some classes at a time, so that nothing else is.
    """
    counts = 1000 * 2 * 4096 * 8
    assert peak_growth(CLASSES_PROGRAM.format(metric=metric)) < (copies + 0.5) * counts
