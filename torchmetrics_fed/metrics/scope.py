"""ReleaseScope: one release for all that was counted since the last reset, whoever asks for it and however often."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchmetrics_fed.errors import ReleaseError
from torchmetrics_fed.release import Release, Share

__all__ = ["ReleaseScope", "Round"]


@dataclass
class Round:
    """The life of one body of data: counted, then released once.

    Whether a release is used again is decided by the round, never by what was counted: a release that is drawn anew
    exactly when the data changed would tell that it did. What was counted is only remembered as a salted digest, to
    refuse a copy of the metric that has gone on counting.
    """

    name: str = field(default_factory=lambda: secrets.token_hex(8))
    made: Release | Share | None = None
    earlier: tuple[Share, ...] = ()
    """Shares of earlier messages of the same release, each with its portion of epsilon."""
    cohort: tuple[str, ...] | None = None
    _salt: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)
    _digest: bytes = field(default=b"", repr=False)

    def keep(self, made: Release | Share, counts: Tensor, cohort: tuple[str, ...] | None = None) -> None:
        """Remember what was made of ``counts``."""
        self.made, self.earlier, self.cohort, self._digest = made, (), cohort, self._seal(counts)

    def more(self, share: Share) -> None:
        """Remember one more message of the release whose first share is kept."""
        assert isinstance(self.made, Share)
        self.earlier, self.made = (*self.earlier, self.made), share

    @property
    def shares(self) -> tuple[Share, ...]:
        """The shares of all messages so far."""
        return (*self.earlier, self.made) if isinstance(self.made, Share) else ()

    def fits(self, counts: Tensor) -> bool:
        """Whether ``counts`` are those that were released."""
        return self._digest == self._seal(counts)

    def check(self, counts: Tensor) -> None:
        """Raise if ``counts`` are not those that were released."""
        if not self.fits(counts):
            raise ReleaseError(
                "Expected the data that was released but this copy of the metric has counted something else since. Its "
                "data belongs to a round that is over: call `reset` on the copy before it counts data of its own."
            )

    def without_counts(self, empty: Tensor) -> Round:
        """Return this round for a metric that has left its counts behind."""
        twin = Round(self.name, self.made, self.earlier, self.cohort, self._salt)
        twin._digest = twin._seal(empty)
        return twin

    def _seal(self, counts: Tensor) -> bytes:
        return hashlib.sha256(self._salt + counts.cpu().contiguous().numpy().tobytes()).digest()


class ReleaseScope:
    """Where metrics that count the same data meet: they join one round, and a reset closes it.

    A copy made before there is data begins a round of its own. One that holds data shares the round, and so the one
    release there will be, but not what comes after its reset.
    """

    def __init__(self, open: Round | None = None, previous: Release | None = None) -> None:
        self.open = open
        self.previous = previous
        """The release of the round before, which the next one may be planned from."""

    def join(self) -> Round:
        """Return the open round, or begin one."""
        if self.open is None:
            self.open = Round()
        return self.open

    def close(self, round_: Round | None) -> None:
        """End ``round_`` if it is the open one: what is counted next is other data."""
        if round_ is not None and isinstance(round_.made, Release):
            self.previous = round_.made
        if round_ is None or round_ is self.open:
            self.open = None

    def __deepcopy__(self, memo: dict[int, Any]) -> ReleaseScope:
        twin: ReleaseScope = memo.setdefault(id(self), ReleaseScope(self.open, self.previous))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # metrics carry their round themselves, and leave their counts behind
        return ReleaseScope, (None, self.previous)
