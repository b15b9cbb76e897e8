"""PersonsInCounts: which persons a metric's counts hold, so that none is counted too often."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any, NamedTuple

from torchmetrics_fed.counting.persons import Ids, Persons
from torchmetrics_fed.counting.validation import Rules
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange.client import Client
from torchmetrics_fed.privacy import Privacy


class PersonsCounted(NamedTuple):
    """What a metric knows about the persons in its counts. It is not private: keep it here."""

    bound_enforced: bool
    """Whether all batches came with ids, so that nobody has more than ``examples_per_person`` in
    these counts."""
    left_out: int
    """How many examples were not counted because their person had enough."""


class PersonsInCounts:
    """The persons in one metric's counts.

    The table goes where the counts go, and into nothing that is kept.

    The first batch of a collection updates every metric, so each metric has a table of its own.
    Later batches update the one metric that counts for all, and its table is found through the
    client.

    Args:
        privacy: says how many examples of a person may be counted.
    """

    def __init__(self, privacy: Privacy) -> None:
        self._privacy = privacy
        self.table: Persons | None = None

    def complete_table(self, client: Client | None, updates: int) -> Persons | None:
        """Return the table of all that is in the counts after this many updates.

        None without ids.
        """
        if client is None or (self.table is not None and self.table.batches == updates):
            return self.table
        return client.persons

    def admitted(
        self,
        ids: Ids | None,
        batch: tuple[Any, ...],
        *,
        updates: int,
        columns: int,
        rules: Rules,
        client: Callable[[], Client],
    ) -> AbstractContextManager[tuple[Any, ...]]:
        """Return the part of a batch that may be counted."""
        table = self.table or self._new_table()
        if ids is None or table.batches != updates - 1:
            if ids is None and not table.batches and not self._privacy.enforced:
                return nullcontext(batch)  # the batch that came with ids was refused
            raise _mixed()
        self.table = table
        client().persons = table
        return table.admitted(ids, rules, columns, *batch)

    def merged(
        self,
        table: Persons | None,
        updates: int,
        *,
        incoming: Persons | None,
        incoming_updates: int,
    ) -> Persons | None:
        """Return the table of two metrics' counts together.

        Raise where a part of them came without ids.
        """
        if table is None and incoming is None and not self._privacy.enforced:
            return None
        if _batches(table) != updates or _batches(incoming) != incoming_updates:
            raise _mixed()
        together = deepcopy(table) or self._new_table()
        if incoming is not None:
            together.merge(incoming)
        return together

    def _new_table(self) -> Persons:
        if not self._privacy.charges:
            raise InputError(
                "Expected no `persons` without `privacy`: there is no bound to enforce. Leave them "
                "out."
            )
        return Persons(self._privacy.examples_per_person)


def _batches(table: Persons | None) -> int:
    """Return how many batches of a metric came with ids."""
    return 0 if table is None else table.batches


def _mixed() -> InputError:
    return InputError(
        "Expected `persons` with every batch, or with none where `enforced` is not set, but some "
        "of what was counted here came without: `examples_per_person` would not hold. Call `reset` "
        "and pass ids each time. Update a collection as a whole, and merge metrics rather than "
        "their states."
    )
