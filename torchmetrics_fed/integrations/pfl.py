"""Inside pfl-research: a MetricValue around shares, each simulated user with noise of its own. Extra ``pfl``."""

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

_LIMB = 16  # bits: float32 adds integers exactly up to 24, so 256 processes can add up theirs
_log = logging.getLogger("pfl.torchmetrics_fed")


class UserShares:
    """Makes a model's metric of a federated one. Call it with the scores and targets of a batch in ``metrics``.

    The release costs epsilon once, because a person is one user's: it is charged to the metric's ledger before the
    first user's noise is drawn. pfl asks a cohort once, so a release takes one query; with ``plan="carry_over"`` it is
    placed by the release that was read before.

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
        """The one that the open release was placed by, and carries as data."""
        self.cohort = Cohort(self.terms)
        """The users of the open release."""
        if self.terms.spec.privacy.noise_drawn_by == "sum":
            raise InputError(
                "Expected noise of each user but got CentralDP. Use LocalDP or DistributedDP."
            )
        if self.terms.spec.privacy.enforced:
            raise InputError(
                "Expected `enforced=False` as pfl counts batches without their persons. Leave it out."
            )
        if not self.terms.plan.carries_over:
            check_one_query(self.terms.plan)

    def __call__(
        self, preds: Tensor, target: Tensor
    ) -> tuple[ShareValue, Callable[[ShareValue], ShareValue]]:
        """Return the counts of a batch, and what pfl has to do once with those of a user."""
        spec = self.terms.spec
        counts = spec.grid.add(
            spec.empty_counts(), preds.detach().cpu(), target.cpu(), spec.rules()
        )
        return ShareValue(self, counts), lambda value: ShareValue(self, value.counts, of_user=True)

    def begin(self) -> Query:
        """Return the query of a new release, which is charged."""
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
    return int.from_bytes(query.digest[:4], "little")


class ShareValue(MetricValue):
    """The counts of a user's batches, then the user's share, then a sum of shares. Noise is drawn when users meet."""

    def __init__(
        self, users: UserShares, counts: Tensor, sum: Sum | None = None, of_user: bool = False
    ) -> None:
        self.users, self.counts, self._sum, self._of_user = users, counts, sum, of_user

    def answer(self, query: Query | None = None) -> Sum:
        """Return the sum of shares; that of one user is drawn here, once, and begins a release unless asked."""
        if self._sum is None:
            if not self._of_user:
                raise InputError(
                    "Expected a user's share but got counts. Return both of what UserShares returns: pfl calls the "
                    "second for each user."
                )
            query = query or self.users.begin()
            self._sum = self.users.cohort.share(query, self.counts)
            self.counts = self.users.terms.spec.empty_counts()
        return self._sum

    def __add__(self, other: ShareValue) -> ShareValue:
        if not self._of_user and not other._of_user:
            return ShareValue(self.users, self.counts + other.counts)
        mine = self.answer()
        theirs = other.answer(mine.query)
        if theirs.query != mine.query:
            raise ReleaseError(
                "Expected answers to one query but got two sums that were begun apart."
            )
        total = Sum(mine.spec, mine.query, mine.cells + theirs.cells, mine.shares + theirs.shares)
        return ShareValue(self.users, self.counts, total, True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShareValue) and torch.equal(
            self.answer().cells, other.answer().cells
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def release(self) -> Release:
        """The release, for curves, figures and reports; raises with fewer than ``min_clients`` users."""
        release = finished_release(self.users.terms.plan, [self.answer()], self.users.carried, "")
        self.users.previous = release if release.levels else None  # which raises with too few
        return release

    @property
    def overall_value(self) -> float:
        """The AUROC of the release, which pfl logs; NaN, and a warning, with fewer than ``min_clients`` users."""
        try:
            return float(FederatedAUROC.from_release(self.release).compute())
        except ReleaseError as error:
            _log.warning("no curve of this cohort. %s", error)
            return math.nan

    def to_vector(self) -> NDArray[np.float32]:
        """Return cells, number of shares and what marks the query, in three limbs each, for processes to add up."""
        answer = self.answer()
        values = np.append(
            answer.cells.numpy().reshape(-1), [answer.shares, _mark(answer.query), 1]
        )
        if np.abs(values).max() >> 3 * _LIMB - 1:
            raise ReleaseError(
                "Expected cells of less than 48 bits but got larger ones, which float32 cannot add up."
            )
        low, middle, high = values & 0xFFFF, values >> _LIMB & 0xFFFF, values >> 2 * _LIMB
        return np.concatenate([low, middle, high]).astype(np.float32)

    def from_vector(self, vector: NDArray[Any]) -> ShareValue:
        """Return the sum of what :meth:`to_vector` returned."""
        low, middle, high = np.asarray(vector).astype(np.int64).reshape(3, -1)
        *cells, shares, mark, processes = low + (middle << _LIMB) + (high << 2 * _LIMB)
        mine = self.answer()
        if mark != processes * _mark(mine.query):
            raise ReleaseError(
                "Expected answers to one query but processes have asked others. Read releases in all."
            )
        total = Sum.of_vector(mine.spec, mine.query, np.array(cells), int(shares))
        return ShareValue(self.users, self.counts, total, True)
