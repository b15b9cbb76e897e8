"""Roster: who is in a sum, in eight bytes a client."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left

import numpy as np

__all__ = ["Roster"]


class Roster:
    """The digests of the clients of one round, sorted, so that nobody is summed twice.

    Digests are of the round and the client's name: those of two rounds cannot be matched, but whoever guesses a name
    can look it up.

    Example:
        >>> from torchmetrics_fed.roster import Roster
        >>> roster = Roster("round-1")
        >>> roster.add(roster.digest("a")), roster.add(roster.digest("b")), roster.add(roster.digest("a"))
        (True, True, False)
        >>> len(bytes(roster))
        16
    """

    def __init__(self, round: str) -> None:
        self.round = round
        # sorted arrays by the first byte: a compact set, whose insertions move a 256th of it
        self._digests = [array("Q") for _ in range(256)]

    def digest(self, client: str) -> int:
        """Return the number that stands for a client."""
        round_, name = (text.encode(errors="surrogatepass") for text in (self.round, client))
        return int.from_bytes(hashlib.sha256(len(round_).to_bytes(8, "big") + round_ + name).digest()[:8], "big")

    def add(self, digest: int) -> bool:
        """Add a client and return whether it is new."""
        digests = self._digests[digest >> 56]
        place = bisect_left(digests, digest)
        if place < len(digests) and digests[place] == digest:
            return False
        digests.insert(place, digest)
        return True

    def __bytes__(self) -> bytes:
        return (
            np.concatenate([np.asarray(digests, dtype=np.uint64) for digests in self._digests]).astype(">u8").tobytes()
        )

    @staticmethod
    def read(roster: bytes) -> list[int]:
        """Return the digests that ``bytes(roster)`` holds."""
        digests: list[int] = np.frombuffer(roster, dtype=">u8").tolist()
        return digests

    @staticmethod
    def is_sorted(roster: bytes) -> bool:
        """Whether these are the bytes of a roster: whole digests in ascending order, each once."""
        if len(roster) % 8:
            return False
        digests = np.frombuffer(roster, dtype=">u8")
        return bool((digests[1:] > digests[:-1]).all())
