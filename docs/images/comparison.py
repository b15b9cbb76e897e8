"""Draw comparison.png for docs/comparison.md: `python docs/images/comparison.py`."""

from __future__ import annotations

from pathlib import Path

import torch

from torchmetrics_fed import CentralDP, FederatedModelComparison


def main() -> None:
    """Draw the figure."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 2, (20_000,), generator=generator)
    shared, independent = torch.randn(2, 20_000, generator=generator)
    old = (shared + 1.2 * target - 0.6).sigmoid()
    new = (0.9 * shared + 0.436 * independent + 1.35 * target - 0.7).sigmoid()
    metric = FederatedModelComparison(models=("old", "new"), privacy=CentralDP(epsilon=1.0))
    metric.update(old, new, target)
    fig, _ = metric.plot()
    fig.savefig(Path(__file__).with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
