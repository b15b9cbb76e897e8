"""Publisher: the one place where private data leaves. It books, draws once, sums, and remembers."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from torchmetrics_fed.errors import LedgerError, ReleaseError
from torchmetrics_fed.metrics.scope import Round
from torchmetrics_fed.privacy import CentralDP, Privacy, PrivacyLedger
from torchmetrics_fed.reconstruct import Plan
from torchmetrics_fed.release import Release, Share
from torchmetrics_fed.spec import Spec
from torchmetrics_fed.sync import Agreement, Ranks, hidden_sum
from torchmetrics_fed.tree import Tree

__all__ = ["Publisher"]

# What a rank tells the others of its round.
_FRESH, _RELEASED, _SHARED, _CHANGED = range(4)
_TOLD = {
    _FRESH: "has released nothing",
    _RELEASED: "has its release",
    _SHARED: "has sent its share",
    _CHANGED: "has counted other data since the release",
}


@dataclass(frozen=True)
class Publisher:
    """Makes the release of one round, or the share of one client, from raw counts.

    Args:
        spec: what is released, and with which noise, unless ``plan`` places the leaves.
        counts: this rank's raw counts. They are read and never sent.
        round: where the result is kept.
        ledger: where it is booked, before any noise is drawn.
        data: the name of the data in the ledger.
        ranks: the processes that sum together, if there are several.
        plan: whether the ranks talk twice, and from which earlier release the leaves are planned if not.
    """

    spec: Spec
    counts: Tensor
    round: Round
    ledger: PrivacyLedger
    data: str
    ranks: Ranks | None
    plan: Literal["two_round"] | Release | None = None

    def release(self) -> Release:
        """Return the release of the round: the one there is, or the sum of all ranks' fresh shares."""
        attempt = self._agree()
        if isinstance(self.round.made, Release):
            return self.round.made
        if isinstance(self.round.made, Share):
            raise ReleaseError(
                "Expected one release of this data but its share was sent already. The curve is made from the sum of "
                "all clients' shares: FederatedROC.from_release(Release.sum(shares))."
            )
        parties = 1 if self.ranks is None else self.ranks.size
        self._check_parties(parties)
        self._spend(attempt)
        if isinstance(self.plan, Release):
            release = self._sum(self.spec.planned(self._agreed(Plan.from_release(self.plan).tree)), parties, attempt)
        elif self.plan == "two_round":
            first = Plan.pilot(self.spec.grid.bins)
            pilot = self._sum(self.spec.planned(first.tree, first.portion), parties, f"{attempt}/pilot")
            second = Plan.from_release(pilot)
            release = self._sum(self.spec.planned(self._agreed(second.tree), second.portion), parties, attempt)
            release = replace(release, pilot=pilot)
        else:
            release = self._sum(self.spec, parties, attempt)
        self.round.keep(release, self.counts)
        return release

    def share(self, round_: str, cohort: tuple[str, ...] | None, client: str = "", redraw: bool = False) -> Share:
        """Return this client's share of one message, drawn once, its ranks' counts summed first.

        Args:
            round_: the server's name for the round.
            cohort: who takes part, if known.
            client: this client's name, if told.
            redraw: whether another round or cohort gets a fresh draw, booked again, rather than an error.
        """
        if isinstance(self._privacy, CentralDP):
            raise ReleaseError(
                "Expected DistributedDP or LocalDP for shares but got CentralDP, whose noise one trusted party adds to "
                "the sum: what a client sends would be raw. Call `compute` where all the data is."
            )
        attempt = self._agree()
        made, further = self.round.made, False
        if isinstance(made, Share):
            same_round = (made.round, made.client, self.round.cohort) == (round_, client, cohort)
            for share in self.round.shares if same_round else ():
                if share.spec == self.spec:
                    return share
            # another message of the same release, as long as all of them together stay within its epsilon
            further = same_round and sum(share.spec.portion for share in self.round.shares) + self.spec.portion <= 1
            if not (further or redraw):
                raise ReleaseError(
                    f"Expected the round, cohort and plan that this client's share was drawn for, {made.round!r}, but "
                    f"got {round_!r} or others: the same noise in two sums isolates whoever is in one of them. "
                    "Call `reset` and count the data again for a fresh draw, which is booked again."
                )
        if isinstance(made, Release):
            raise ReleaseError("Expected one release of this data but it was computed already. Call `reset` first.")
        self._spend(attempt)
        share = Share(self.spec, self._drawn_once(self.spec), round_, client)
        if further:
            self.round.more(share)
        else:
            self.round.keep(share, self.counts, cohort)
        return share

    @property
    def _privacy(self) -> Privacy:
        assert self.spec.privacy is not None
        return self.spec.privacy

    def _agree(self) -> str:
        """Return a name for this attempt, the same on all ranks, once all are known to be at the same point."""
        made, status = self.round.made, _FRESH
        if made is not None:
            same = self.round.fits(self.counts)
            status = _CHANGED if not same else _RELEASED if isinstance(made, Release) else _SHARED
        heard = Agreement((status, status), secrets.randbits(62))
        if self.ranks is not None:
            plan = "carried" if isinstance(self.plan, Release) else self.plan or ""
            heard = self.ranks.agree(self.spec, self.counts.device, status, heard.proposal, plan)
        lowest, highest = heard.statuses
        if lowest != highest:
            raise ReleaseError(
                f"Expected all ranks at the same point of the round but one {_TOLD[lowest]} and one {_TOLD[highest]}; "
                f"this rank {_TOLD[status]}. Call `reset` on every rank or on none."
            )
        if status == _CHANGED:
            self.round.check(self.counts)
        return f"{heard.proposal:016x}"

    def _check_parties(self, parties: int) -> None:
        needed = self._privacy.shares_needed
        if parties < needed:
            raise ReleaseError(
                f"Expected at least min_clients={needed} ranks to sum their noise but got {parties}; nothing was sent. "
                "Where each client is a process of its own, send `release()` and sum the shares with `Release.sum`."
            )

    def _sum(self, spec: Spec, parties: int, attempt: str) -> Release:
        """Return the sum of all ranks' fresh shares of one message."""
        if isinstance(self._privacy, CentralDP):
            return Release(spec, self._drawn_once(spec))
        cells = spec.noisy_cells(self.counts).to(self.counts.device)
        total = cells if self.ranks is None else hidden_sum(self.ranks, spec, cells, attempt)
        return Release(spec, total.cpu(), shares=parties)

    def _agreed(self, tree: Tree) -> Tree:
        """Return the first rank's tree: all have planned from the same release, but floats may differ by machine."""
        if self.ranks is None or tree.edges is None:
            return tree
        room = torch.zeros(self.spec.grid.bins + 64, dtype=torch.int64)
        numbers = torch.tensor([len(tree.branching), *tree.branching, *tree.edges])
        room[: len(numbers)] = numbers
        levels, *rest = self.ranks.from_first(room.to(self.counts.device)).tolist()
        branching = tuple(rest[:levels])
        return Tree(branching, tuple(rest[levels : levels + math.prod(branching) + 1]))

    def _spend(self, attempt: str) -> None:
        """Book the release, on every rank, before any rank draws: an attempt that fails later has been paid for.

        Each attempt has a name of its own, so that a second draw is never taken for the first. Ranks that share a
        ledger file know the same name, and write one entry.
        """
        noise, refusal = self.spec.noise, None
        assert noise is not None
        delta = noise.delta
        if self.plan == "two_round":  # two draws are at most twice as far from their laws as one of all the bins
            delta = 2 * delta - self._privacy.delta
        try:
            self.ledger.spend(self.data, attempt, self.spec.epsilon, delta, self._privacy.mechanism)
        except LedgerError as error:
            refusal = error
        if self.ranks is not None and self.ranks.any(refusal is not None, self.counts.device) and refusal is None:
            raise ReleaseError("Expected every rank's ledger to allow this release but one refused; nothing was drawn.")
        if refusal is not None:
            raise refusal

    def _drawn_once(self, spec: Spec) -> Tensor:
        """Return the cells of all ranks' counts with one draw of noise, the same on every rank."""
        if self.ranks is None:
            return spec.noisy_cells(self.counts)
        total = self.ranks.sum_to_first(self.counts)
        empty = torch.zeros(spec.shape, dtype=spec.dtype)
        cells = spec.noisy_cells(total) if self.ranks.is_first else empty
        return self.ranks.from_first(cells.to(self.counts.device)).cpu()
