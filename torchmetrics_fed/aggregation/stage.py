"""Stage: the steps of a release, for client, server, wire and every transport."""

from __future__ import annotations

from enum import Enum

from torchmetrics_fed.errors import WireError


class Stage(Enum):
    """One request of the server to its clients, and their replies.

    Where the aggregator may see shares, a query takes the stage ``SHARE`` alone, and a private
    release begins with ``JOIN``: a client says whether it can take part, before anybody pays. Where
    shares are hidden, a query takes the other stages in their order, and ``SIGN`` only for signed
    aggregations; ``ADVERTISE`` then says what ``JOIN`` says. The value is the stage's byte on the
    wire.

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
    JOIN = 6

    @classmethod
    def of(cls, value: object) -> Stage:
        """Return the stage with this byte. Raises if there is none."""
        for stage in cls:
            if type(value) is int and stage.value == value:
                return stage
        last = cls.JOIN.value
        raise WireError(
            f"Expected a stage, a number from 0 to {last}, but got {value!r}. Update both sides."
        )

    @property
    def begins_query(self) -> bool:
        """Whether the stage can be the first one of a query, or of the release."""
        return self in (Stage.JOIN, Stage.SHARE, Stage.ADVERTISE)

    @property
    def asks_first(self) -> bool:
        """Whether a client says in this stage that it can take part, before anybody pays."""
        return self in (Stage.JOIN, Stage.ADVERTISE)

    @property
    def is_secure(self) -> bool:
        """Whether the stage is one of secure aggregation."""
        return self not in (Stage.JOIN, Stage.SHARE)

    @property
    def asks_data(self) -> bool:
        """Whether a client answers the query in this stage, with a fresh draw of noise."""
        return self in (Stage.SHARE, Stage.MASK)

    def __str__(self) -> str:
        return self.name.lower()
