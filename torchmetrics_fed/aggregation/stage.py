"""Stage: the steps of a reply to a query, for client, server, wire and every transport."""

from __future__ import annotations

from enum import Enum

from torchmetrics_fed.errors import WireError


class Stage(Enum):
    """One request of the server to its clients, and their replies.

    Where the aggregator may see shares, a query takes the stage ``SHARE`` alone. Where shares are
    hidden, it takes the other stages in their order, and ``SIGN`` only for signed aggregations. The
    value is the stage's byte on the wire.

    Example:
        >>> from torchmetrics_fed.aggregation.stage import Stage
        >>> print(Stage.SHARE_KEYS, Stage.SHARE_KEYS.value)
        share_keys 2
    """

    SHARE = 0
    ADVERTISE = 1
    SHARE_KEYS = 2
    MASK = 3
    SIGN = 4
    UNMASK = 5

    @classmethod
    def of(cls, value: object) -> Stage:
        """Return the stage with this byte. Raises if there is none."""
        for stage in cls:
            if type(value) is int and stage.value == value:
                return stage
        last = cls.UNMASK.value
        raise WireError(
            f"Expected a stage, a number from 0 to {last}, but got {value!r}. Update both sides."
        )

    @property
    def begins_query(self) -> bool:
        """Whether the stage is the first one of a query."""
        return self in (Stage.SHARE, Stage.ADVERTISE)

    @property
    def asks_data(self) -> bool:
        """Whether a client answers the query in this stage, with a fresh draw of noise."""
        return self in (Stage.SHARE, Stage.MASK)

    def __str__(self) -> str:
        return self.name.lower()
