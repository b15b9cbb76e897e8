"""What a compiled kernel would give: one fused pass in C beside this package's update, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.compiled

Needs a C compiler (`cc`). Nothing of this is in the package, which installs without one.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassROC

from benchmarks.bench.multiclass import CASES
from benchmarks.bench.timing import Candidate, interleaved
from torchmetrics_fed import FederatedROC, ScoreGrid
from torchmetrics_fed.counting.binning import TwoSidedBinning, ring_of_bins

BINS = 4096


def compiled(folder: str) -> Any:
    """Return the library."""
    target = f"{folder}/compiled.so"
    source = Path(__file__).with_name("compiled.c")
    subprocess.run(
        ["cc", "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", target], check=True
    )
    return ctypes.CDLL(target)


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    """Return where a tensor's memory is."""
    return ctypes.c_void_p(tensor.data_ptr())


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    binning = TwoSidedBinning(BINS)
    ring, shift = ring_of_bins(BINS, "h", 1), 23 - binning.depth
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(folder)
        size = ctypes.c_int64
        # the compiled kernel knows no bin for exactly 0
        preds, target = torch.rand(1_000_000).clamp_(min=2**-24), torch.randint(0, 2, (1_000_000,))
        counts = torch.zeros(2, BINS, dtype=torch.int64)
        whole = size(len(preds)), pointer(ring), ctypes.c_int(shift), size(BINS), pointer(counts)
        even, two_sided = FederatedROC(grid="even"), FederatedROC()
        candidates: dict[str, Candidate] = {
            "even bins": lambda: even.update(preds, target),
            "two-sided bins": lambda: two_sided.update(preds, target),
            "compiled, two-sided": lambda: library.binary(pointer(preds), pointer(target), *whole),
        }
        times = interleaved(candidates, 31)
        assert torch.equal(counts, two_sided.counts[0])
        print("| 1e6 binary scores | ns an example |\n|---|---|")
        for name in candidates:
            print(f"| {name} | {times.seconds(name) * 1e3:.2f} |")
        print(
            "\n| examples x classes | this package, x torchmetrics exact | compiled |\n|---|---|---|"
        )
        for examples, classes in CASES:
            _columns(library, examples, classes, ring, shift)


def _columns(library: Any, examples: int, classes: int, ring: Tensor, shift: int) -> None:
    preds, target = (
        torch.randn(examples, classes).mul_(3).softmax(1),
        torch.randint(0, classes, (examples,)),
    )
    counts = ScoreGrid.two_sided().empty(classes).permute(1, 2, 0).contiguous()
    size, repeats = ctypes.c_int64, max(1, 400_000 // preds.numel())
    arguments = (
        size(examples),
        size(classes),
        pointer(ring),
        ctypes.c_int(shift),
        size(BINS),
        pointer(counts),
    )
    ours, exact = FederatedROC("multiclass", num_classes=classes), MulticlassROC(classes)
    ours.update(preds, target)

    def several(one: Candidate) -> Candidate:
        return lambda: [one() for _ in range(repeats)]

    def afresh() -> None:
        exact.reset()
        for _ in range(repeats):
            exact.update(preds, target)

    times = interleaved(
        {
            "ours": several(lambda: ours.update(preds, target)),
            "compiled": several(
                lambda: library.columns(pointer(preds), pointer(target), *arguments)
            ),
            "exact": afresh,
        },
        15,
    )
    ratios = [times.ratio(name, "exact") for name in ("ours", "compiled")]
    print(f"| {examples:,} x {classes:,} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    main()
