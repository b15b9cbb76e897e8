"""Sessions: one session for all that was counted since the last reset, whoever asks for it."""

from __future__ import annotations

from typing import Any

from torchmetrics_fed.exchange.session import Session
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.release import Release, Spec


class Sessions:
    """Where metrics that count the same data meet: they join one session, and a reset closes it.

    A copy made before there is data begins a session of its own. One that holds data shares the session, and so the one
    release there will be, but not what comes after its reset.
    """

    def __init__(self, open: Session | None = None, previous: Release | None = None) -> None:
        self.open = open
        self.previous = previous
        """The release of the session before, which may place the leaves of the next one."""

    def join(self, spec: Spec, ledger: PrivacyLedger, data: str) -> Session:
        """Return the open session, or begin one."""
        if self.open is None:
            self.open = Session(spec, ledger, data)
        return self.open

    def close(self, session: Session | None) -> None:
        """End ``session`` if it is the open one: what is counted next is other data."""
        if session is not None and session.release is not None and session.charged:
            self.previous = session.release
        if session is None or session is self.open:
            self.open = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Sessions:
        twin: Sessions = memo.setdefault(id(self), Sessions(self.open, self.previous))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # metrics carry their session themselves, and leave their counts behind
        return Sessions, (None, self.previous)
