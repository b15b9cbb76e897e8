"""ReleaseFlag: what a reader must know of a release and cannot see in its counts."""

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
    """Made by ``simulate``: the data of all clients was in one process, and nothing was hidden from that process."""
    PARTIAL = 2
    """Broken off after its first query: its queries do not spend all of epsilon."""
    ROWS_SKIPPED = 4
    """At least one sender leaves out rows that cannot be counted: its policy, which does not say if there were any."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """The flags in words, the same wherever a release is shown."""
        return tuple(words for flag, words in _REMARKS.items() if flag in self)

    @classmethod
    def read(cls, reader: Reader, allowed: ReleaseFlag) -> ReleaseFlag:
        """Return the flags in the next byte; other bits than the allowed ones are refused."""
        number = reader.number(1)
        if number & ~int(allowed):  # ~ of an IntFlag knows no other bits than its members
            raise reader.error(f"flags among {int(allowed):#04x}", f"{number:#04x}")
        return cls(number)


_REMARKS = {
    ReleaseFlag.SIMULATED: "simulated in one process",
    ReleaseFlag.PARTIAL: "partial: broken off after its first query",
    ReleaseFlag.ROWS_SKIPPED: "rows that cannot be counted were left out",
}
NO_FLAGS = ReleaseFlag(0)
ALL_FLAGS = ReleaseFlag.SIMULATED | ReleaseFlag.PARTIAL | ReleaseFlag.ROWS_SKIPPED
