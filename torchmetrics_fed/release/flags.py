"""ReleaseFlag: facts about a release that its counts do not show, such as that it was simulated."""

from __future__ import annotations

from enum import IntFlag

from torchmetrics_fed.release.wire import Reader


class ReleaseFlag(IntFlag):
    """How a release was made, in one byte of it.

    Example:
        >>> from torchmetrics_fed.release import ReleaseFlag
        >>> ReleaseFlag.SIMULATED.remarks
        ('simulated in one process',)
    """

    SIMULATED = 1
    """``simulate`` made the release: one process held the data of all clients."""
    PARTIAL = 2
    """The release ended after its first query. Its queries do not spend all of epsilon."""
    ROWS_SKIPPED = 4
    """At least one sender leaves out rows that cannot be counted. This is the sender's policy: it
    does not say whether there were such rows."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """The flags in words, the same wherever a release is shown."""
        return tuple(words for flag, words in _REMARKS.items() if flag in self)

    @classmethod
    def read(cls, reader: Reader, allowed: ReleaseFlag) -> ReleaseFlag:
        """Return the flags in the next byte. Raises if a bit is set that is not allowed."""
        number = reader.number(1)
        if number & ~int(allowed):  # the ~ of an IntFlag inverts known bits only
            raise reader.error(f"flags among {int(allowed):#04x}", f"{number:#04x}")
        return cls(number)


_REMARKS = {
    ReleaseFlag.SIMULATED: "simulated in one process",
    ReleaseFlag.PARTIAL: "partial: broken off after its first query",
    ReleaseFlag.ROWS_SKIPPED: "rows that cannot be counted were left out",
}
NO_FLAGS = ReleaseFlag(0)
ALL_FLAGS = ReleaseFlag.SIMULATED | ReleaseFlag.PARTIAL | ReleaseFlag.ROWS_SKIPPED
