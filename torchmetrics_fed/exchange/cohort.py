"""Cohort: all clients of a simulated federation, in one process."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import islice

from torch import Tensor

from torchmetrics_fed.exchange.client import NAME_BITS, charge_release, draw_noise, reply_cells
from torchmetrics_fed.exchange.terms import Terms
from torchmetrics_fed.release import Query, Sum

_BLOCK_CELLS = 1 << 18
"""Cells of noise that are drawn at a time: several draws at once are faster."""


class Cohort:
    """The clients of one simulated release.

    A person is at one client, so one charge is for all of them.

    Args:
        terms: the settings that the release is made by.
        round: the name of the release in the ledger; a random name if empty.
    """

    def __init__(self, terms: Terms, round: str = "") -> None:
        self.terms = terms
        self.spec = terms.spec
        self._round = round
        self._name = f"{secrets.randbits(NAME_BITS):016x}"  # no other draw is taken for this one

    def charge(self, query: Query) -> None:
        """Charge the release, before a reply to this query is drawn. Exact counts cost nothing."""
        if self.spec.privacy.charges:
            charge_release(self.terms, query, client=self._name, round=self._round)

    def share(self, query: Query, counts: Tensor) -> Sum:
        """Return one client's reply, as a sum of one share. The query must have been charged."""
        return Sum(self.spec, query, reply_cells(self.spec, query, counts).contiguous())

    def sum(self, query: Query, counts: Tensor, *, clients: int, draws: Iterator[int]) -> Sum:
        """Return the sum of all clients' replies, charged and drawn.

        Args:
            query: the query to reply to.
            counts: the clients' counts, added up.
            clients: how many clients these are.
            draws: as many numbers as noise is drawn, for a caller that shows its progress.
        """
        self.charge(query)
        cells = self.spec.cells(query, counts).to(self.spec.dtype)
        law = self.spec.noise(query).law
        if law is not None:
            shape = self.spec.shape(query)
            block = max(_BLOCK_CELLS // cells.numel(), 1)
            while shares := sum(1 for _ in islice(draws, block)):
                cells += draw_noise(law, (shares, *shape)).sum(0)
        return Sum(self.spec, query, cells, clients)
