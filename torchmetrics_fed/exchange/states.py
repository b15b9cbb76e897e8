"""States: what may happen to a client and to a coordinator, and what comes of it. Tables, and no I/O."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from torchmetrics_fed.errors import ReleaseError

_State = TypeVar("_State", bound=Enum)


class State(Enum):
    """How far a client has come."""

    COUNTING = "has released nothing"
    ANSWERED = "has sent its share"
    RELEASED = "has its release"


CLIENT_MOVES: dict[tuple[State, str], State | str] = {
    (State.COUNTING, "update"): State.COUNTING,
    (State.ANSWERED, "update"): (
        "Expected no update after the share of this data was sent: a second one would spend again. Call `reset` before "
        "data of the next round."
    ),
    (State.RELEASED, "update"): (
        "Expected no update after the release of this data: a second one would spend again. Call `reset` before data "
        "of the next round."
    ),
    (State.COUNTING, "answer"): State.ANSWERED,
    (State.ANSWERED, "answer"): State.ANSWERED,
    (State.RELEASED, "answer"): (
        "Expected one release of this data but it was computed already. Call `reset` first."
    ),
    (State.COUNTING, "publish"): State.RELEASED,
    (State.ANSWERED, "publish"): (
        "Expected one release of this data but its share was sent already. The curve is made from the sum of all "
        "clients' shares: FederatedROC.from_release(Release.sum(shares))."
    ),
    (State.RELEASED, "publish"): State.RELEASED,  # the very same release
}
"""The state of a client after an event, or the error where the event is refused. ``reset`` begins a new client."""


class Asking(Enum):
    """How far a coordinator has come."""

    COLLECTING = "collects the answers to a query"
    RELEASED = "has its release"


_OVER = (
    "Expected a coordinator that collects but this one has its release. Make one for each round."
)
COORDINATOR_MOVES: dict[tuple[Asking, str], Asking | str] = {
    (Asking.COLLECTING, "receive"): Asking.COLLECTING,
    (Asking.COLLECTING, "accept"): Asking.COLLECTING,
    (
        Asking.COLLECTING,
        "advance",
    ): Asking.COLLECTING,  # RELEASED where the plan has no further query
    (
        Asking.COLLECTING,
        "release",
    ): "Expected a release but the coordinator still collects answers. Call `advance` "
    "once all are in.",
    **{(Asking.RELEASED, event): _OVER for event in ("receive", "accept", "advance")},
    (Asking.RELEASED, "release"): Asking.RELEASED,
}
"""The same for a coordinator. What is refused changes nothing."""


def moved(moves: Mapping[tuple[_State, str], _State | str], state: _State, event: str) -> _State:
    """Return the state after an event, or raise and say what to do instead."""
    after = moves[state, event]
    if isinstance(after, str):
        raise ReleaseError(after)
    return after
