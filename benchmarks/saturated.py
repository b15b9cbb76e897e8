"""AUROC of saturated scores: exact on both grids, and of private releases.

OMP_NUM_THREADS=1 python -m benchmarks.saturated
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from torchmetrics_fed import CentralDP, FederatedAUROC
from torchmetrics_fed.functional import auroc

# Scale and shift of logits that are normal in each class, one apart.
LOGITS = {"2 (N + y) + 12": (2.0, 12.0), "10 (N + y)": (10.0, 0.0), "2 (N + y) - 9": (2.0, -9.0)}
EXAMPLES, PRIVATE_EXAMPLES, RELEASES = 100_000, 20_000, 20


def drawn(scale: float, shift: float, examples: int) -> tuple[Tensor, Tensor]:
    """Return logits and labels."""
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(0, 2, (examples,), generator=generator)
    return (
        torch.randn(examples, generator=generator, dtype=torch.float64) + target
    ) * scale + shift, target


def private_error(scale: float, shift: float, epsilon: float) -> float:
    """Return the root mean square error of several releases."""
    logits, target = drawn(scale, shift, PRIVATE_EXAMPLES)
    truth, errors = roc_auc_score(target.numpy(), logits.numpy()), []
    for _ in range(RELEASES):
        metric = FederatedAUROC(normalization="sigmoid", privacy=CentralDP(epsilon))
        metric.update(logits, target)
        errors.append(metric.compute().item() - truth)
    return float(np.sqrt(np.mean(np.square(errors))))


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore", UserWarning)  # of the ties that even bins make
    print(
        "| logits | truth | even bins | two-sided | private, epsilon 0.3 | epsilon 1 |\n|---|---|---|---|---|---|"
    )
    for name, (scale, shift) in LOGITS.items():
        logits, target = drawn(scale, shift, EXAMPLES)
        areas = [roc_auc_score(target.numpy(), logits.numpy())]
        areas += [
            auroc(logits, target, normalization="sigmoid", grid=grid).item()
            for grid in ("even", "two_sided")
        ]
        errors = [private_error(scale, shift, epsilon) for epsilon in (0.3, 1.0)]
        print(f"| {name} | {' | '.join(f'{value:.4f}' for value in (*areas, *errors))} |")


if __name__ == "__main__":
    main()
