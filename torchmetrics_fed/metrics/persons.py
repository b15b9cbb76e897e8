"""PersonsMetric: counts that hold no person too often, as far as batches come with ids."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

from torchmetrics import Metric

from torchmetrics_fed.aggregation import Ranks
from torchmetrics_fed.counting.persons import Ids, Persons
from torchmetrics_fed.counting.rules import Rules
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.metrics.host import CountsMetric
from torchmetrics_fed.typing import Validation


class PersonsMetric(CountsMetric):
    """A Metric with a table of the persons in its counts. It goes where the counts go, and into nothing that is kept.

    A collection's first batch updates every metric, so each has a table of its own; later ones the one that counts for
    all. What it has admitted is looked up through the client.
    """

    __jit_unused_properties__: ClassVar[list[str]] = [
        *CountsMetric.__jit_unused_properties__,
        *("bound_enforced", "left_out", "_table", "_enforced"),
    ]
    validate_args: Validation
    _persons: Persons | None = None

    @property
    def bound_enforced(self) -> bool:
        """Whether all batches came with ids, so that nobody has more than ``examples_per_person`` in these counts."""
        return self._table is not None and self._table.batches == self._update_count > 0

    @property
    def left_out(self) -> int:
        """How many examples were not counted because their person had enough. It is not private: keep it here."""
        return 0 if self._table is None else self._table.left_out

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the counts of another metric that counts the same; with ids, of no person too many."""
        mine, theirs = deepcopy(self._table), getattr(incoming_state, "_table", None)
        if mine is not None or theirs is not None or self._enforced:
            updates = (
                (mine, self._update_count),
                (theirs, getattr(incoming_state, "_update_count", 1)),
            )
            if any(times != (0 if table is None else table.batches) for table, times in updates):
                raise _mixed()
            mine = mine or self._new_table()
            if theirs is not None:
                mine.merge(theirs)
        super().merge_state(incoming_state)
        self._persons = mine

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Undo every update inside if there is an error."""
        counts, refused, times, table = (
            self.counts.clone(),
            self.refused.clone(),
            self._update_count,
            self._table,
        )
        kept = deepcopy(table)
        try:
            yield
        except Exception:
            self.counts, self.refused, self._update_count, self._persons = (
                counts,
                refused,
                times,
                kept,
            )
            client = self._current_client()
            if client is not None:
                client.persons = kept
            raise

    def reset(self) -> None:
        """Forget counts, persons and release. The ledger keeps what was spent."""
        super().reset()
        self._persons = None

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle, without persons."""
        return super().__getstate__() | {"_persons": None}

    def _admitted(
        self, persons: Ids | None, *batch: Any
    ) -> AbstractContextManager[tuple[Any, ...]]:
        """What may be counted of scores, targets and more, in an update that ``_update_count`` counts already."""
        if persons is None and self._persons is None and not self._enforced:
            return nullcontext(batch)
        table = self._persons or self._new_table()
        if persons is None or table.batches != self._update_count - 1:
            if persons is None and not table.batches and not self._enforced:
                return nullcontext(batch)  # what came with ids was refused
            raise _mixed()
        self._persons = self._joined().persons = table
        rules = Rules(self.spec.task, None, self.spec.ignore_index, bool(self.validate_args))
        return table.admitted(persons, rules, len(self.counts), *batch)

    def _ranks(self, *settings: Any) -> Ranks:
        nobody = None if self._update_count else Persons(1)
        return replace(super()._ranks(*settings), persons=self._table or nobody)

    @property
    def _table(self) -> Persons | None:
        """The table of all that is in the counts."""
        table = self._persons
        client = self._current_client()
        if client is None or (table is not None and table.batches == self._update_count):
            return table
        return client.persons

    @property
    def _enforced(self) -> bool:
        return self.spec.privacy.enforced

    def _new_table(self) -> Persons:
        if not self.spec.privacy.charges:
            raise InputError(
                "Expected no `persons` without `privacy`: there is no bound to enforce. Leave them out."
            )
        return Persons(self.spec.privacy.examples_per_person)


def _mixed() -> InputError:
    return InputError(
        "Expected `persons` with every batch, or with none where `enforced` is not set, but some of what was counted "
        "here came without: `examples_per_person` would not hold. Call `reset` and pass ids each time. Update a "
        "collection as a whole, and merge metrics rather than their states."
    )
