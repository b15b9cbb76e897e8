"""Node: what a client's node remembers between two messages, which may find another process."""

from __future__ import annotations

from pathlib import Path

from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.privacy.store import Store

__all__ = ["Node"]


class Node:
    """The notes of one node, whatever run or round they are of, in one file that only its user may read.

    A note is taken out before it is used, and the next one is on disk before an answer leaves. So no two processes go
    on from the same note, and a node that crashed in between has dropped out: it never answers twice.

    Args:
        folder: the node's own folder; made if missing, for this user only.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # it may have been there before
        self._store = Store(str(folder / "notes"))

    def begin(self, name: str) -> None:
        """Raise if the node has begun something of this name before: a name that comes again is a replay.

        What was kept for others is erased: it is of no more use, and what broke off holds secrets.
        """
        with self._store.transaction() as tables:
            if tables.execute("SELECT 1 FROM notes WHERE name = ?", (name,)).fetchone():
                raise SecureAggregationError(
                    f"Expected a round that this node has not begun but it knows {name!r}. A retry is a new round."
                )
            tables.execute("UPDATE notes SET content = x''")
            tables.execute("INSERT INTO notes VALUES (?, x'')", (name,))

    def take(self, name: str) -> bytes:
        """Return what was kept last, once."""
        with self._store.transaction() as tables:
            found = tables.execute("SELECT content FROM notes WHERE name = ?", (name,)).fetchone()
            tables.execute("UPDATE notes SET content = x'' WHERE name = ?", (name,))
        return self._found(found, name)

    def keep(self, name: str, content: bytes) -> None:
        """Replace a note, and return once it is on disk."""
        with self._store.transaction() as tables:
            tables.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, content))

    def keep_session(self, round: str, note: bytes = b"") -> None:
        """Keep raw counts for the second query of a round, if there are any; all others are erased."""
        with self._store.transaction() as tables:
            tables.execute("DELETE FROM sessions")
            if note:
                tables.execute("INSERT INTO sessions VALUES (?, ?)", (round, note))

    def take_session(self, round: str) -> bytes:
        """Return the session of a round, once."""
        with self._store.transaction() as tables:
            found = tables.execute("SELECT content FROM sessions WHERE round = ?", (round,)).fetchone()
            tables.execute("DELETE FROM sessions")
        return self._found(found, round)

    @staticmethod
    def _found(found: tuple[bytes] | None, name: str) -> bytes:
        if not found or not found[0]:
            raise SecureAggregationError(
                f"Expected notes of {name!r} but this node has none: it did not begin it, was interrupted, or its "
                "folder was not kept between messages. It stays out of this round."
            )
        return bytes(found[0])
