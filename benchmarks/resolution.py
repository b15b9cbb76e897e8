"""How far fewer bins move the macro AUROC of many classes.

    OMP_NUM_THREADS=1 python -m benchmarks.resolution

Softmax scores of 10, 100 and 1,000 classes, of networks that are unsure, sure and very sure of
themselves. For each number of quantiles (four bins each) the table has the largest distance of the
macro AUROC from the exact one, over several draws of the scores. The default is 1,024 quantiles.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_auroc

from torchmetrics_fed.functional import auroc

CASES = ((50_000, 10), (50_000, 100), (20_000, 1_000))
"""Examples, and classes."""
SCALES = {"unsure": 1.0, "sure": 3.0, "very sure": 10.0}
"""The factor of the logits: the larger it is, the more scores are near 0 and 1."""
SEPARATION = 2.0
"""By how much the logit of the true class is higher, in standard deviations of a logit."""
QUANTILES = (1_024, 512, 256, 128, 64)
DRAWS = 3
"""Draws of the scores of which the largest distance is taken."""


def drawn(examples: int, classes: int, scale: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return softmax scores and targets."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, classes, (examples,), generator=generator)
    logits = torch.randn(examples, classes, generator=generator)
    logits[torch.arange(examples), target] += SEPARATION
    return (scale * logits).softmax(1), target


def distances(examples: int, classes: int, scale: float) -> list[float]:
    """Return, for each number of quantiles, the largest distance from the exact macro AUROC."""
    largest = [0.0] * len(QUANTILES)
    for seed in range(DRAWS):
        preds, target = drawn(examples, classes, scale, seed)
        exact = multiclass_auroc(preds, target, classes, validate_args=False)
        for place, quantiles in enumerate(QUANTILES):
            binned = auroc(preds, target, "multiclass", num_classes=classes, quantiles=quantiles)
            largest[place] = max(largest[place], abs(float(binned) - float(exact)))
    return largest


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of pairs that share a bin
    print("| classes | scores |", " | ".join(f"{quantiles:,}" for quantiles in QUANTILES), "|")
    print("|" + "---|" * (len(QUANTILES) + 2))
    for examples, classes in CASES:
        for name, scale in SCALES.items():
            values = distances(examples, classes, scale)
            print(f"| {classes:,} | {name} |", " | ".join(f"{value:.1e}" for value in values), "|")


if __name__ == "__main__":
    main()
