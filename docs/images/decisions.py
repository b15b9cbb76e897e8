"""Draw decisions.png for docs/decisions.md: `python docs/images/decisions.py`."""

from __future__ import annotations

from pathlib import Path

import torch

from torchmetrics_fed import CentralDP, FederatedROC
from torchmetrics_fed.functional import net_benefit


def main() -> None:
    generator = torch.Generator().manual_seed(1)
    target = (torch.rand(20_000, generator=generator) < 0.2).long()
    logits = 1.5 * torch.randn(20_000, generator=generator) + 2.0 * target - 2.0
    metric = FederatedROC(privacy=CentralDP(epsilon=1.0))
    metric.update(logits.sigmoid(), target)
    fig, _ = net_benefit(metric.release(), confidence=0.95).plot()
    fig.savefig(Path(__file__).with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
