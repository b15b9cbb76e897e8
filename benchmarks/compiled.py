"""A compiled kernel: one fused pass in C beside this package's update, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.compiled

Needs a C compiler (`cc`). Nothing of this is in the package, which installs without one.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassROC

from benchmarks.bench.multiclass import CASES
from benchmarks.bench.timing import Candidate, interleaved
from torchmetrics_fed import FederatedROC, ScoreGrid
from torchmetrics_fed.counting.fast import bin_table

BINS = 4096
EXAMPLES = 1_000_000
MANTISSA_BITS = 23
"""Bits of a float32's mantissa."""


def compiled(folder: str) -> Any:
    """Return the library, compiled in a folder."""
    library = f"{folder}/compiled.so"
    source = Path(__file__).with_name("compiled.c")
    command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", library]
    subprocess.run(command, check=True)
    return ctypes.CDLL(library)


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    """Return the address of a tensor's memory."""
    return ctypes.c_void_p(tensor.data_ptr())


class CompiledKernel:
    """The functions of ``compiled.c`` on tensors."""

    def __init__(self, library: Any) -> None:
        self._library = library
        table = bin_table(BINS, 1)
        self._ring = table.bins.short()
        self._shift = MANTISSA_BITS - table.depth

    def add(self, counts: Tensor, preds: Tensor, target: Tensor) -> None:
        """Add binary scores to counts."""
        self._library.binary(
            pointer(preds),
            pointer(target),
            ctypes.c_int64(len(preds)),
            pointer(self._ring),
            ctypes.c_int(self._shift),
            ctypes.c_int64(BINS),
            pointer(counts),
        )

    def add_columns(self, counts: Tensor, preds: Tensor, target: Tensor) -> None:
        """Add scores of several classes to counts."""
        examples, classes = preds.shape
        self._library.columns(
            pointer(preds),
            pointer(target),
            ctypes.c_int64(examples),
            ctypes.c_int64(classes),
            pointer(self._ring),
            ctypes.c_int(self._shift),
            ctypes.c_int64(BINS),
            pointer(counts),
        )


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        kernel = CompiledKernel(compiled(folder))
        print_binary(kernel)
        print("\n| examples x classes | this package, x torchmetrics exact | compiled |")
        print("|---|---|---|")
        for examples, classes in CASES:
            print_classes(kernel, examples, classes)


def print_binary(kernel: CompiledKernel) -> None:
    # the compiled kernel has no bin for exactly 0
    preds = torch.rand(EXAMPLES).clamp_(min=2**-24)
    target = torch.randint(0, 2, (EXAMPLES,))
    counts = torch.zeros(2, BINS, dtype=torch.int64)
    even = FederatedROC(grid="even")
    two_sided = FederatedROC()
    candidates: dict[str, Candidate] = {
        "even bins": partial(even.update, preds, target),
        "two-sided bins": partial(two_sided.update, preds, target),
        "compiled, two-sided": partial(kernel.add, counts, preds, target),
    }
    times = interleaved(candidates, 31)
    assert torch.equal(counts, two_sided.counts[0])
    print("| 1e6 binary scores | ns an example |\n|---|---|")
    for name in candidates:
        print(f"| {name} | {times.seconds(name) * 1e9 / EXAMPLES:.2f} |")


def print_classes(kernel: CompiledKernel, examples: int, classes: int) -> None:
    preds = torch.randn(examples, classes).mul_(3).softmax(1)
    target = torch.randint(0, classes, (examples,))
    counts = ScoreGrid.two_sided().empty(classes).permute(1, 2, 0).contiguous()
    repeats = max(1, 400_000 // preds.numel())
    ours = FederatedROC("multiclass", num_classes=classes)
    ours.update(preds, target)  # lays its state out
    exact = MulticlassROC(classes)
    candidates: dict[str, Candidate] = {
        "ours": partial(repeat, partial(ours.update, preds, target), repeats),
        "compiled": partial(repeat, partial(kernel.add_columns, counts, preds, target), repeats),
        "exact": partial(reset_and_update, exact, preds, target, repeats),
    }
    times = interleaved(candidates, 15)
    ours_ratio = times.ratio("ours", "exact")
    compiled_ratio = times.ratio("compiled", "exact")
    print(f"| {examples:,} x {classes:,} | {ours_ratio:.2f} | {compiled_ratio:.2f} |")


def repeat(candidate: Candidate, repeats: int) -> None:
    for _ in range(repeats):
        candidate()


def reset_and_update(metric: MulticlassROC, preds: Tensor, target: Tensor, repeats: int) -> None:
    metric.reset()
    for _ in range(repeats):
        metric.update(preds, target)


if __name__ == "__main__":
    main()
