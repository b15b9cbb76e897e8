"""Inside pfl-research: a MetricValue of shares, with noise of each simulated user. Extra ``pfl``.

pfl adds up the metric values of a cohort of simulated users. A value goes through three stages: the
counts of a user's batches, then the user's share, then a sum of shares. Noise is drawn once for
each user, when the user's value is first added to another user's or read. pfl asks a cohort once,
so a release takes one query.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pfl.metrics import MetricValue
from torch import Tensor
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import InputError, ReleaseError
from torchmetrics_fed.exchange import next_query
from torchmetrics_fed.exchange.cohort import Cohort
from torchmetrics_fed.exchange.plans import check_one_query, finished_release
from torchmetrics_fed.metrics import CountsMetric, FederatedAUROC, representative, terms_of
from torchmetrics_fed.release import Query, Release, Sum

__all__ = ["UserShares"]

LIMB_BITS = 16
"""pfl adds float32 vectors, which hold integers exactly up to 24 bits. A cell travels as limbs of
16 bits, so 256 processes can add up theirs."""

LIMB_MASK = (1 << LIMB_BITS) - 1

CELL_BITS = 3 * LIMB_BITS
"""The bits of a cell, sign included."""

_log = logging.getLogger("pfl.torchmetrics_fed")


class UserShares:
    """Makes a model's metric of a federated metric. Call it with a batch's scores and targets.

    A release is charged to the metric's ledger before the noise of the first user is drawn. It
    costs epsilon once, because each person belongs to one user. pfl asks a cohort once, so a
    release takes one query; with ``plan="carry_over"`` the release that was read before places it.

    Example:
        >>> from torchmetrics_fed import FederatedAUROC
        >>> curves = UserShares(FederatedAUROC())
        >>> value, of_user = curves(torch.tensor([0.1, 0.6, 0.4, 0.9]), torch.tensor([0, 0, 1, 1]))
        >>> of_user(value).overall_value  # pfl calls it when all of a user's batches are added
        0.75
    """

    def __init__(self, metric: CountsMetric | MetricCollection) -> None:
        self.terms = terms_of(representative(metric))
        self.previous: Release | None = None
        """The release that was read last."""
        self.carried: Release | None = None
        """The release that placed the open release's query, and that the open release carries."""
        self.cohort = Cohort(self.terms)
        """The users of the open release."""
        if self.terms.spec.privacy.noise_drawn_by == "sum":
            raise InputError(
                "Expected noise of each user but got CentralDP. Use LocalDP or DistributedDP."
            )
        if self.terms.spec.privacy.enforced:
            raise InputError(
                "Expected `enforced=False` because pfl counts batches without their persons. "
                "Leave it out."
            )
        if not self.terms.plan.carries_over:
            check_one_query(self.terms.plan)

    def __call__(
        self, preds: Tensor, target: Tensor
    ) -> tuple[ShareValue, Callable[[ShareValue], ShareValue]]:
        """Return the counts of a batch, and the function that pfl calls once for each user."""
        spec = self.terms.spec
        counts = spec.grid.add(
            spec.empty_counts(), preds.detach().cpu(), target.cpu(), spec.rules()
        )
        return ShareValue(self, counts), self._user_value

    def _user_value(self, value: ShareValue) -> ShareValue:
        """Return a user's value, once all batches of the user are added up."""
        return ShareValue(self, value.counts, of_user=True)

    def begin(self) -> Query:
        """Charge a new release and return its query."""
        query = next_query(
            self.terms.plan,
            (),
            spec=self.terms.spec,
            can_ask_again=False,
            previous=self.previous,
        )
        assert query is not None
        self.carried = self.previous
        self.cohort = Cohort(self.terms)
        self.cohort.charge(query)
        return query


def _mark(query: Query) -> int:
    """Return a short number that tells this query from others."""
    return int.from_bytes(query.digest[:4], "little")


class ShareValue(MetricValue):
    """The counts of a user's batches, then the user's share, then a sum of shares.

    Args:
        users: the federated metric, and the release that is open.
        counts: the counts of a user; empty once the user's share is drawn.
        sum: the sum of shares, once there is one.
        of_user: whether all batches of the user are added up.
    """

    def __init__(
        self, users: UserShares, counts: Tensor, sum: Sum | None = None, of_user: bool = False
    ) -> None:
        self.users = users
        self.counts = counts
        self._sum = sum
        self._of_user = of_user

    def answer(self, query: Query | None = None) -> Sum:
        """Return the sum of shares. The share of one user is drawn here, once.

        Without a query, the draw begins a new release.
        """
        if self._sum is None:
            if not self._of_user:
                raise InputError(
                    "Expected a user's share but got counts. Return both parts of the pair that "
                    "UserShares returns: pfl calls the second one for each user."
                )
            if query is None:
                query = self.users.begin()
            self._sum = self.users.cohort.share(query, self.counts)
            self.counts = self.users.terms.spec.empty_counts()
        return self._sum

    def __add__(self, other: ShareValue) -> ShareValue:
        if not self._of_user and not other._of_user:
            return ShareValue(self.users, self.counts + other.counts)
        first = self.answer()
        second = other.answer(first.query)
        if second.query != first.query:
            raise ReleaseError("Cannot add: these two sums of shares reply to different queries.")
        total = Sum(
            first.spec,
            first.query,
            cells=first.cells + second.cells,
            shares=first.shares + second.shares,
        )
        return ShareValue(self.users, self.counts, sum=total, of_user=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShareValue):
            return False
        return torch.equal(self.answer().cells, other.answer().cells)

    __hash__ = None  # type: ignore[assignment]

    @property
    def release(self) -> Release:
        """The release, for curves, figures and reports; raises below ``min_clients`` users."""
        release = finished_release(self.users.terms.plan, [self.answer()], self.users.carried, "")
        previous = None
        if release.levels:  # raises with too few users
            previous = release
        self.users.previous = previous
        return release

    @property
    def overall_value(self) -> float:
        """The AUROC of the release, which pfl logs.

        Below ``min_clients`` users it is NaN, and a warning is logged.
        """
        try:
            return float(FederatedAUROC.from_release(self.release).compute())
        except ReleaseError as error:
            _log.warning("no curve of this cohort. %s", error)
            return math.nan

    def to_vector(self) -> NDArray[np.float32]:
        """Return cells, number of shares and mark of the query as limbs, for processes to add."""
        total = self.answer()
        cells = total.cells.numpy().reshape(-1)
        values = np.append(cells, [total.shares, _mark(total.query), 1])
        if np.abs(values).max() >> CELL_BITS - 1:
            raise ReleaseError(
                f"Cannot add up cells of more than {CELL_BITS} bits: they do not fit float32."
            )
        low = values & LIMB_MASK
        middle = values >> LIMB_BITS & LIMB_MASK
        high = values >> 2 * LIMB_BITS
        return np.concatenate([low, middle, high]).astype(np.float32)

    def from_vector(self, vector: NDArray[Any]) -> ShareValue:
        """Return the sum whose vector is the sum of the processes' vectors."""
        low, middle, high = np.asarray(vector).astype(np.int64).reshape(3, -1)
        values = low + (middle << LIMB_BITS) + (high << 2 * LIMB_BITS)
        *cells, shares, mark, processes = values
        reply = self.answer()
        if mark != processes * _mark(reply.query):
            raise ReleaseError(
                "Cannot add up: the processes replied to different queries. Read the same releases "
                "in all of them."
            )
        total = Sum.of_vector(reply.spec, reply.query, np.array(cells), int(shares))
        return ShareValue(self.users, self.counts, sum=total, of_user=True)
