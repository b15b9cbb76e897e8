"""Specs, queries, shares and releases that several tests use."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed import DistributedDP, LocalDP, Query, Release, ScoreGrid, Share, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.release import Sum

__all__ = [
    "EXACT",
    "FLAT",
    "NOISY",
    "PRIVATE",
    "TREE",
    "cells",
    "empty",
    "exact_share",
    "release_of",
    "share_of_classes",
]

EXACT = Spec("binary", 1, ScoreGrid(bins=16))
PRIVATE = Spec("binary", 1, ScoreGrid(bins=16), LocalDP(1.0))
NOISY = Spec(
    "binary",
    1,
    ScoreGrid(bins=16),
    DistributedDP(0.5, min_clients=3, trusted_aggregator=True),
)
FLAT = Query(Tree.flat(16))
TREE = Query(Tree((4, 4)))


def cells(spec: Spec, query: Query, numbers: Any) -> Tensor:
    """Return numbers as the cells of a reply to a query."""
    integers = np.array(numbers, dtype=np.int64)
    return torch.from_numpy(integers.reshape(spec.shape(query)))


def empty(spec: Spec, query: Query) -> Tensor:
    """Return cells without any examples."""
    return torch.zeros(spec.shape(query), dtype=torch.int64)


def exact_share(round: str = "") -> Share:
    """Return a share of random exact counts."""
    return Share(EXACT, FLAT, torch.randint(0, 50, (1, 2, 16)), round)


def share_of_classes() -> Share:
    """Return a share of three classes that agree on their examples."""
    spec = Spec("multiclass", 3, ScoreGrid(bins=8))
    query = Query(Tree.flat(8))
    counts = [[[5 - label] * 8, [label + 1] * 8] for label in range(3)]
    return Share(spec, query, cells(spec, query, counts))


def release_of(shares: int, prior: int | None = None) -> Release:
    """Return an empty release of this many shares where three are needed.

    With ``prior``, it has a prior of that many shares.
    """
    last = Sum(NOISY, FLAT, empty(NOISY, FLAT), shares)
    if prior is None:
        return Release((last,))
    return Release((last,), prior=Sum(NOISY, FLAT, empty(NOISY, FLAT), prior))
