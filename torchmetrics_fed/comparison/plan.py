"""Tables: where the leaves of queries for two models lie."""

from __future__ import annotations

from dataclasses import dataclass

from torchmetrics_fed.comparison.queries import even_tables, pilot_tables, placed_tables
from torchmetrics_fed.release import Query, Spec, Sum


@dataclass(frozen=True)
class TablePlacement:
    """Leaves of two models' scores. A pilot counts each model by itself, other queries both together in a table."""

    def pilot(self, spec: Spec) -> Query:
        """Return few leaves of each model, even in the grid's own coordinate."""
        return pilot_tables(spec.grid)

    def single(self, spec: Spec) -> Query:
        """Return a table of leaves that are even in the grid's own coordinate."""
        return even_tables(spec)

    def placed(self, earlier: Sum, fraction: float) -> Query:
        """Return a table of leaves of equal mass, with the thresholds among their edges."""
        return placed_tables(earlier, fraction)


TABLES = TablePlacement()
