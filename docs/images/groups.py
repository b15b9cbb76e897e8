"""Draw groups.png and gaps.png for docs/groups.md: `python docs/images/groups.py`."""

from __future__ import annotations

from pathlib import Path

import torch

from torchmetrics_fed import CentralDP, FederatedROC
from torchmetrics_fed.functional import group_gaps, small_multiples

FOLDER = Path(__file__).parent


def main() -> None:
    """Draw both figures."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.randint(0, 3, (30_000,), generator=generator)
    target = torch.randint(0, 2, (30_000,), generator=generator)
    separation = torch.tensor([1.6, 1.2, 0.7])[groups]
    scores = (torch.randn(30_000, generator=generator) + separation * target - 0.5).sigmoid()
    metric = FederatedROC(groups=("female", "male", "unknown"), privacy=CentralDP(epsilon=1.0))
    metric.update(scores, target, groups)
    fig, _ = small_multiples(metric.by_group(), caption="epsilon 1, one release for all groups")
    fig.savefig(FOLDER / "groups.png", dpi=150)
    fig, axes = group_gaps(metric.release(), threshold=0.5).plot()
    for ax in axes:
        ax.locator_params(axis="x", nbins=4)  # the labels of narrow panels would touch
    fig.savefig(FOLDER / "gaps.png", dpi=150)


if __name__ == "__main__":
    main()
