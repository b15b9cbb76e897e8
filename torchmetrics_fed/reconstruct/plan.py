"""Plan: which leaves a message is about and what part of epsilon it spends; made from nothing, or from a release."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative
from torchmetrics_fed.release import Release
from torchmetrics_fed.tree import Tree

__all__ = ["LEAST_BINS", "Plan", "PlanName", "snapped", "warped"]

LEAST_BINS = 256
"""Bins below which there is nothing to place: all of them can be leaves."""

PlanName = Literal["one_message", "paper", "two_round", "carry_over"]

# The part of epsilon that finds out where the scores are. A sum of powers of two, so that both parts add up exactly.
PILOT_PORTION = 5 / 32
PILOT_BRANCHING = (8, 8)
# Even mass mixed into what the pilot saw, so that no stretch of the range is left without edges.
_FLOOR = 0.1
# Branching by the examples of the smaller class times epsilon: what a leaf holds must stand out from its noise.
_BRANCHINGS: tuple[tuple[float, tuple[int, ...]], ...] = (
    (400, (8,)),
    (1_500, (12,)),
    (4_000, (24,)),
    (12_000, (8, 8)),
    (30_000, (10, 10)),
    (100_000, (12, 12)),
    (500_000, (16, 16)),
    (float("inf"), (10, 10, 10)),
)


@dataclass(frozen=True)
class Plan:
    """What one message of a release sends.

    Args:
        tree: its leaves on the grid, and the levels over them.
        portion: the part of epsilon that it spends.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import CentralDP, FederatedROC, Plan
        >>> metric = FederatedROC(privacy=CentralDP(epsilon=1.0))
        >>> metric.update(torch.rand(1000).sqrt(), torch.randint(0, 2, (1000,)))
        >>> plan = Plan.from_release(metric.total())
        >>> Plan.from_bytes(bytes(plan)) == plan
        True
    """

    tree: Tree
    portion: float = 1.0

    @classmethod
    def pilot(cls, bins: int) -> Plan:
        """Return the first message of two: few leaves, crowded towards both ends as scores are."""
        places = snapped(np.linspace(0, 1, int(np.prod(PILOT_BRANCHING)) + 1), bins)
        return cls(Tree(PILOT_BRANCHING, places), PILOT_PORTION)

    @classmethod
    def from_release(cls, release: Release) -> Plan:
        """Return leaves of equal mass where an earlier release found the scores, and as many as epsilon can feed.

        After the first message of two the plan spends what that has left of epsilon; after a whole release, as of the
        evaluation before, all of it.

        Args:
            release: what was released before. It must be private, for equal-mass edges of exact counts are quantiles
                of raw data.
        """
        if release.spec.privacy is None:
            raise InputError(
                "Expected a private release to plan from but got exact counts: edges of equal mass tell the quantiles "
                "of the raw data. Release it with `privacy`, or use a plan that needs no data."
            )
        portion = 1 - release.spec.portion if release.spec.portion < 1 and release.pilot is None else 1.0
        bins = release.spec.grid.bins
        leaf = non_negative(least_squares(release.levels))[-1].reshape(-1, release.spec.tree.leaves)
        total = leaf.sum(-1)
        epsilon = release.spec.privacy.epsilon * portion
        fed = float(total.min()) * epsilon
        branching = next(tree for limit, tree in _BRANCHINGS if fed < limit)
        if math.prod(branching) > bins // 2:
            branching = max((tree for _, tree in _BRANCHINGS if math.prod(tree) <= bins // 2), key=math.prod)
        at = warped(release.spec.tree.places(bins).double() / bins).numpy()
        mass = (leaf / total.clamp(min=1.0)[:, None]).mean(0).numpy() + _FLOOR / leaf.shape[-1]
        below = np.append(0.0, mass.cumsum())
        even = np.linspace(0, below[-1], int(np.prod(branching)) + 1)
        return cls(Tree(branching, snapped(np.interp(even, below, at), bins)), portion)

    def __bytes__(self) -> bytes:
        """The message that tells clients of the plan. It holds nothing that the release before did not."""
        fields = {"branching": self.tree.branching, "edges": self.tree.edges, "portion": float(self.portion).hex()}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Return the plan that ``data`` spells. Whoever made it, it can only spend the portion it says."""
        try:
            fields = json.loads(data)
            edges = fields["edges"]
            tree = Tree(tuple(map(int, fields["branching"])), edges and tuple(map(int, edges)))
            return cls(tree, float.fromhex(fields["portion"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"Expected the bytes of a plan but got others: {error}. Send `bytes(plan)`.") from None


def warped(place: Tensor) -> Tensor:
    r"""Return :math:`u = s^{1/3} / (s^{1/3} + (1-s)^{1/3})`, which stretches both ends of [0, 1]."""
    low, high = place ** (1 / 3), (1 - place) ** (1 / 3)
    return low / (low + high)


def snapped(at: NDArray[np.float64], bins: int) -> tuple[int, ...]:
    """Return the places on the grid nearest to warped positions, moved apart so that every leaf has a bin."""
    grid = warped(torch.arange(bins + 1, dtype=torch.float64) / bins).numpy()
    middle = (grid[1:] + grid[:-1]) / 2
    place, index = np.searchsorted(middle, at), np.arange(len(at))
    place[0], place[-1] = 0, bins
    place = np.maximum.accumulate(place - index)
    place = np.minimum.accumulate(np.minimum(place, bins - index[-1])[::-1])[::-1] + index
    return tuple(place.tolist())
