"""Plan: which leaves a message is about and what part of epsilon it spends; made from nothing, or from a release."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct.pilot import Pilot
from torchmetrics_fed.reconstruct.warp import snapped, warped_grid
from torchmetrics_fed.release import Release
from torchmetrics_fed.tree import Tree

__all__ = ["LEAST_BINS", "Plan", "PlanName"]

PlanName = Literal["one_message", "paper", "two_round", "carry_over"]

LEAST_BINS = 256
"""Bins below which there is nothing to place: all of them can be leaves."""

# The part of epsilon that finds out where the scores are, and its leaves. A multiple of 1/64, so that both parts add up
# to 1 exactly. Less loses in ROC where the classes are small, more loses everywhere.
_PILOT_PORTION, _PILOT_LEAVES = 5 / 64, 32
# Leaves per square root of (examples of the smaller class x epsilon), and the fewest; with the smooth model, without.
_LEAVES, _FEWEST = 0.35, 8
_LEAVES_ROUGH, _FEWEST_ROUGH = 0.4, 10
# More leaves than these are two levels: sums over many leaves get cheaper, and so much data needs no model.
_MOST_FLAT = 40


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
        """Return the first message of two: few leaves, narrow towards both ends of the range, where scores crowd."""
        places = snapped(np.linspace(0, 1, _PILOT_LEAVES + 1), bins)
        return cls(Tree((_PILOT_LEAVES,), tuple(places.tolist())), _PILOT_PORTION)

    @classmethod
    def from_release(cls, release: Release) -> Plan:
        """Return leaves of equal mass where an earlier release found the scores, and as many as epsilon can feed.

        After the first message of two the plan spends what that has left of epsilon; after a whole release, as of the
        evaluation before, all of it.

        Args:
            release: what was released before. It must be private, for equal-mass edges of exact counts are quantiles
                of raw data.
        """
        spec = release.spec
        if spec.privacy is None:
            raise InputError(
                "Expected a private release to plan from but got exact counts: edges of equal mass tell the quantiles "
                "of the raw data. Release it with `privacy`, or use a plan that needs no data."
            )
        portion = 1 - spec.portion if release.pilot is None and spec.portion < 1 else 1.0
        pilot, bins = Pilot.of(release), spec.grid.bins
        branching = _branching(float(pilot.sizes.min()), _epsilon(release) * portion, all(pilot.smooth), bins)
        even = np.linspace(0, 1, math.prod(branching) + 1)
        places = snapped(np.interp(even, pilot.mass, warped_grid(bins)), bins)
        return cls(Tree(branching, tuple(places.tolist())), portion)

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


def _branching(examples: float, epsilon: float, smooth: bool, bins: int) -> tuple[int, ...]:
    """Return the tree over as many leaves as examples of the smaller class can feed at this epsilon."""
    # above 1 a leaf's noise is less than an example: what is lost is what the leaves do not tell apart
    root = math.sqrt(examples * epsilon) * max(epsilon, 1.0) ** 1.5
    leaves = max(int(_LEAVES * root), _FEWEST)
    if not smooth or leaves > _MOST_FLAT:
        leaves = max(int(_LEAVES_ROUGH * root), _FEWEST_ROUGH)
    if leaves <= _MOST_FLAT:
        return (leaves,)
    side = min(round(math.sqrt(leaves)), math.isqrt(bins))
    return side, side


def _epsilon(release: Release) -> float:
    """Return the epsilon of a whole release whose cells would have as much noise as this one's really have."""
    level = 2 * math.asinh(math.sqrt(0.5 / release.noise_variance))
    return level * len(release.spec.tree.branching) / release.spec.portion
