"""The work of once a round: compute, a release with noise, its bytes, secure aggregation."""

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
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.exchange.client import noisy_cells
from torchmetrics_fed.functional import roc_from_counts
from torchmetrics_fed.typing import GridName

__all__ = ["CLIENTS", "ROUND_SECTION", "noise_case", "once_a_round"]

ROUND_SECTION = "Once a round, 4096 bins"
CLIENTS = (1, 2, 10, 1_000)
"""Clients that the noise of a share is calibrated for."""
EXAMPLES = 100_000
MILLISECONDS = 1e3
"""In a second."""


def noise_case(clients: int) -> str:
    """Return the name of the row of a share's noise.

    It is that of the paper's plan at Q = 1024: 2 x 8190 cells over 12 levels at epsilon 0.1.
    """
    noun = "client" if clients == 1 else "clients"
    return f"noise of a share for {clients:,} {noun}, 16,380 cells"


def once_a_round(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time everything that is not an update."""
    preds = torch.rand(EXAMPLES)
    target = torch.randint(0, 2, (EXAMPLES,))
    exact = FederatedROC()
    exact.update(preds, target)
    candidates: dict[str, Candidate] = {"compute, exact": exact.compute}
    candidates |= _computes(preds, target)
    candidates |= _draws(exact.counts)
    candidates["update of 1e3 and private release, plan adaptive"] = partial(
        _released, preds[:1_000], target[:1_000]
    )
    candidates |= _transfers(exact.share())
    times = interleaved(candidates, rounds)
    for name in candidates:
        yield Figure(ROUND_SECTION, name, "ms", times.seconds(name) * MILLISECONDS)
    if quick:
        yield from _secure_aggregation(clients=8, runs=3)
    else:
        yield from _secure_aggregation(clients=8, runs=5)
        yield from _secure_aggregation(clients=64, runs=5)


def _computes(preds: Tensor, target: Tensor) -> dict[str, Candidate]:
    grids: dict[PlanName, GridName] = {
        "adaptive": "two_sided",
        "single": "two_sided",
        "paper": "even",
    }
    candidates: dict[str, Candidate] = {}
    for plan, grid in grids.items():
        metric = FederatedROC(privacy=CentralDP(epsilon=1.0), plan=plan, grid=grid)
        metric.update(preds, target)
        candidates[f"compute, private, plan {plan}"] = partial(_read_anew, metric.release())
    return candidates


def _draws(counts: Tensor) -> dict[str, Candidate]:
    candidates: dict[str, Candidate] = {}
    query = Query(Tree.binary(4096))
    for clients in CLIENTS:
        spec = Spec("binary", 1, ScoreGrid(), DistributedDP(0.1, clients, max_colluding=0))
        candidates[noise_case(clients)] = partial(noisy_cells, spec, query, counts)
    return candidates


def _transfers(share: Share) -> dict[str, Candidate]:
    data = bytes(share)
    shares = [Share(share.spec, share.query, share.cells, "r") for _ in range(10)]
    return {
        "share to bytes": lambda: bytes(share),
        "share from bytes": lambda: Share.from_bytes(data, share.spec, share.query),
        "sum of 10 shares": lambda: Release.sum(shares),
    }


def _secure_aggregation(clients: int, runs: int) -> Iterator[Figure]:
    """Yield the costs of the run with the median time of a client."""
    costs = sorted((cost(clients, 0) for _ in range(runs)), key=lambda run: run.client_ms)
    median = costs[runs // 2]
    case = f"secure aggregation of {clients} clients"
    yield Figure(ROUND_SECTION, f"{case}, each client", "ms", median.client_ms)
    yield Figure(ROUND_SECTION, f"{case}, server", "ms", median.server_ms)


def _read_anew(release: Release) -> None:
    """Read a copy of a release: the histograms of a release are kept with it."""
    roc_from_counts(replace(release))


def _released(preds: Tensor, target: Tensor) -> None:
    metric = FederatedROC(privacy=CentralDP(epsilon=1.0))
    metric.update(preds, target)
    metric.compute()
