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

LOGITS = {
    "2 (N + y) + 12": (2.0, 12.0),
    "10 (N + y)": (10.0, 0.0),
    "2 (N + y) - 9": (2.0, -9.0),
}
"""Scale and shift of logits that are normal in each class, one apart."""
EXAMPLES = 100_000
PRIVATE_EXAMPLES = 20_000
RELEASES = 20


def drawn(scale: float, shift: float, examples: int) -> tuple[Tensor, Tensor]:
    """Return logits and labels."""
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(0, 2, (examples,), generator=generator)
    noise = torch.randn(examples, generator=generator, dtype=torch.float64)
    return (noise + target) * scale + shift, target


def private_error(scale: float, shift: float, epsilon: float) -> float:
    """Return the root mean square error of several releases."""
    logits, target = drawn(scale, shift, PRIVATE_EXAMPLES)
    truth = roc_auc_score(target.numpy(), logits.numpy())
    errors = []
    for _ in range(RELEASES):
        metric = FederatedAUROC(normalization="sigmoid", privacy=CentralDP(epsilon))
        metric.update(logits, target)
        errors.append(metric.compute().item() - truth)
    return float(np.sqrt(np.mean(np.square(errors))))


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore", UserWarning)  # of the ties that even bins make
    print("| logits | truth | even bins | two-sided | private, epsilon 0.3 | epsilon 1 |")
    print("|---|---|---|---|---|---|")
    for name, (scale, shift) in LOGITS.items():
        logits, target = drawn(scale, shift, EXAMPLES)
        values = [
            roc_auc_score(target.numpy(), logits.numpy()),
            auroc(logits, target, normalization="sigmoid", grid="even").item(),
            auroc(logits, target, normalization="sigmoid", grid="two_sided").item(),
            private_error(scale, shift, 0.3),
            private_error(scale, shift, 1.0),
        ]
        print(f"| {name} | {' | '.join(f'{value:.4f}' for value in values)} |")


if __name__ == "__main__":
    main()
