"""What happens once a round: compute, a release with noise, its way over the wire, secure aggregation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.bench.figure import Figure
from benchmarks.bench.timing import Candidate, interleaved
from benchmarks.secure_aggregation import cost
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedROC,
    Query,
    Release,
    ScoreGrid,
    Share,
    Spec,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange.client import noisy_cells
from torchmetrics_fed.functional import roc_from_counts
from torchmetrics_fed.typing import GridName

__all__ = ["CLIENTS", "ROUND_SECTION", "noise_case", "once_a_round"]

ROUND_SECTION = "Once a round, 4096 bins"
CLIENTS = (1, 2, 10, 1_000)


def noise_case(clients: int) -> str:
    """The row of a share's noise in the paper's plan at Q = 1024: 2 x 8190 cells over 12 levels at epsilon 0.1."""
    return f"noise of a share for {clients:,} client{'s' * (clients > 1)}, 16,380 cells"


def once_a_round(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time everything that is not an update."""
    preds, target = torch.rand(100_000), torch.randint(0, 2, (100_000,))
    exact = FederatedROC()
    candidates: dict[str, Candidate] = {"compute, exact": exact.compute}
    exact.update(preds, target)
    for plan in ("adaptive", "single", "paper"):
        grid: GridName = "even" if plan == "paper" else "two_sided"
        private = FederatedROC(privacy=CentralDP(epsilon=1.0), plan=plan, grid=grid)
        private.update(preds, target)
        # a fresh copy each time: what was read once is kept with the release
        candidates[f"compute, private, plan {plan}"] = partial(_read_anew, private.release())
    for clients in CLIENTS:
        spec = Spec("binary", 1, ScoreGrid(), DistributedDP(0.1, clients, max_colluding=0))
        candidates[noise_case(clients)] = partial(
            noisy_cells, spec, Query(Tree.binary(4096)), exact.counts
        )
    few = preds[:1_000], target[:1_000]
    candidates["update of 1e3 and private release, plan adaptive"] = lambda: _released(*few)
    share = exact.share()
    sent, several = (
        bytes(share),
        [Share(share.spec, share.query, share.cells, "r") for _ in range(10)],
    )
    candidates["share to bytes"] = lambda: bytes(share)
    candidates["share from bytes"] = lambda: Share.from_bytes(sent, share.spec, share.query)
    candidates["sum of 10 shares"] = lambda: Release.sum(several)
    times = interleaved(candidates, rounds)
    for name in candidates:
        yield Figure(ROUND_SECTION, name, "ms", times.seconds(name) * 1e3)
    for clients in (8,) if quick else (8, 64):
        costs = [cost(clients, 0) for _ in range(3 if quick else 5)]
        middle = sorted(costs, key=lambda each: each.client_ms)[len(costs) // 2]
        yield Figure(
            ROUND_SECTION,
            f"secure aggregation of {clients} clients, each client",
            "ms",
            middle.client_ms,
        )
        yield Figure(
            ROUND_SECTION,
            f"secure aggregation of {clients} clients, server",
            "ms",
            middle.server_ms,
        )


def _read_anew(release: Release) -> None:
    roc_from_counts(replace(release))


def _released(preds: Tensor, target: Tensor) -> None:
    metric = FederatedROC(privacy=CentralDP(epsilon=1.0))
    metric.update(preds, target)
    metric.compute()
