"""States: which events a client and a coordinator allow in each state, and where they lead.

A client counts, answers queries, or publishes a release over its ranks. It never does both of the
last two: a share and a release of the same data would be two draws::

    COUNTING --answer--> ANSWERED --answer--> ANSWERED    (a second query, or the same)
        |
        +----publish---> RELEASED --publish-> RELEASED    (the very same release)

``update`` is allowed while the client is counting, and nowhere else. ``reset`` begins a new client.

A coordinator collects replies until the plan has no further query::

    COLLECTING --receive, accept, advance--> COLLECTING --advance--> RELEASED --release--> RELEASED

The tables are all there is: a transition that is not in a table does not exist, and an event that
is refused changes nothing. There is no I/O here.
"""

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
        "Expected no update after the share of this data was sent: a second one would spend again. "
        "Call `reset` before data of the next round."
    ),
    (State.RELEASED, "update"): (
        "Expected no update after the release of this data: a second one would spend again. Call "
        "`reset` before data of the next round."
    ),
    (State.COUNTING, "answer"): State.ANSWERED,
    (State.ANSWERED, "answer"): State.ANSWERED,
    (State.RELEASED, "answer"): (
        "Expected one release of this data but it was computed already. Call `reset` first."
    ),
    (State.COUNTING, "publish"): State.RELEASED,
    (State.ANSWERED, "publish"): (
        "Expected one release of this data but its share was sent already. The curve is made from "
        "the sum of all clients' shares: FederatedROC.from_release(Release.sum(shares))."
    ),
    (State.RELEASED, "publish"): State.RELEASED,
}
"""By state and event, the next state of a client, or the text of the error where the event is
refused."""


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
    # RELEASED where the plan has no further query
    (Asking.COLLECTING, "advance"): Asking.COLLECTING,
    (Asking.COLLECTING, "release"): (
        "Expected a release but the coordinator still collects answers. Call `advance` once all "
        "are in."
    ),
    (Asking.RELEASED, "receive"): _OVER,
    (Asking.RELEASED, "accept"): _OVER,
    (Asking.RELEASED, "advance"): _OVER,
    (Asking.RELEASED, "release"): Asking.RELEASED,
}
"""By state and event, the next state of a coordinator, or the text of the error where the event
is refused."""


def moved(moves: Mapping[tuple[_State, str], _State | str], state: _State, event: str) -> _State:
    """Return the state after an event, or raise and say what to do instead."""
    next_state = moves[state, event]
    if isinstance(next_state, str):
        raise ReleaseError(next_state)
    return next_state
