"""States: what may happen to a session and to a coordinator, and what comes of it. Tables, and no I/O."""

from enum import Enum

from torchmetrics_fed.errors import ReleaseError


class State(Enum):
    """How far a session has come."""

    COUNTING = "has released nothing"
    ANSWERED = "has sent its share"
    RELEASED = "has its release"


SESSION_MOVES = {
    (State.COUNTING, "update"): State.COUNTING,
    (State.COUNTING, "answer"): State.ANSWERED,
    (State.ANSWERED, "answer"): State.ANSWERED,
    (State.COUNTING, "publish"): State.RELEASED,
    (State.RELEASED, "publish"): State.RELEASED,  # the very same release
}
"""Under privacy, what may happen in each state, and the state after it. ``reset`` begins a new session anywhere."""

_SESSION_REFUSALS = {
    (State.ANSWERED, "update"): "Expected no update after the share of this data was sent: a second one would spend "
    "again. Call `reset` before data of the next round.",
    (State.RELEASED, "update"): "Expected no update after the release of this data: a second one would spend again. "
    "Call `reset` before data of the next round.",
    (State.RELEASED, "answer"): "Expected one release of this data but it was computed already. Call `reset` first.",
    (State.ANSWERED, "publish"): "Expected one release of this data but its share was sent already. The curve is made "
    "from the sum of all clients' shares: FederatedROC.from_release(Release.sum(shares)).",
}
"""What is said where there is no move."""


class Asking(Enum):
    """How far a coordinator has come."""

    COLLECTING = "collects the answers to a query"
    RELEASED = "has its release"


COORDINATOR_MOVES = {
    (Asking.COLLECTING, "receive"): Asking.COLLECTING,
    (Asking.COLLECTING, "accept"): Asking.COLLECTING,
    (Asking.COLLECTING, "advance"): Asking.COLLECTING,  # RELEASED where the plan has no further query
    (Asking.RELEASED, "release"): Asking.RELEASED,
}
"""What may happen to a coordinator in each state. Without a row it is refused, and nothing changes."""

_COORDINATOR_REFUSALS = {
    Asking.COLLECTING: "Expected a release but the coordinator still collects answers. Call `advance` once all are in.",
    Asking.RELEASED: "Expected a coordinator that collects but this one has its release. Make one for each round.",
}


def session_move(state: State, event: str) -> State:
    """Return the state of a session after an event, or raise and say what to do instead."""
    if (state, event) not in SESSION_MOVES:
        raise ReleaseError(_SESSION_REFUSALS[state, event])
    return SESSION_MOVES[state, event]


def coordinator_move(state: Asking, event: str) -> Asking:
    """Return the state of a coordinator after an event, or raise and say what to do instead."""
    if (state, event) not in COORDINATOR_MOVES:
        raise ReleaseError(_COORDINATOR_REFUSALS[state])
    return COORDINATOR_MOVES[state, event]
