"""TablePlacement: where the leaves of queries for two models lie.

A plan for two models has the queries of a plan for one model, on other leaves (see
:mod:`torchmetrics_fed.exchange.plans`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torchmetrics_fed.comparison.queries import even_tables, pilot_tables, placed_tables
from torchmetrics_fed.release import Query, Spec, Sum


@dataclass(frozen=True)
class TablePlacement:
    """Leaves of two models' scores.

    A pilot counts each model by itself; other queries count both models together, in a table.
    """

    def pilot(self, spec: Spec) -> Query:
        """Return a query with few leaves for each model, even in the grid's own coordinate."""
        return pilot_tables(spec.grid)

    def single(self, spec: Spec) -> Query:
        """Return a query for a table whose leaves are even in the grid's own coordinate."""
        return even_tables(spec)

    def placed(self, earlier: Sum, fraction: float) -> Query:
        """Return a query for a table of leaves of equal mass, with the thresholds as edges."""
        return placed_tables(earlier, fraction)


TABLES = TablePlacement()
"""The placement of every comparison; it has no settings."""
