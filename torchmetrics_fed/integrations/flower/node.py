"""Node: what a client's node remembers of a sum between two messages, which may find another process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchmetrics_fed.errors import SecureSumError

__all__ = ["Node"]


class Node:
    """The notes of one node about one round: a file that is replaced as a whole, on disk before an answer leaves.

    A crash before a note is on disk leaves the node where it was, and nothing was sent. After it the node is past that
    stage, whether or not the answer arrived, and the sum goes on without it.

    Args:
        folder: the node's own folder; made if missing, for this user only.
        round: the name of the sum.
    """

    def __init__(self, folder: Path, round: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # it may have been there before
        self._folder = folder
        self._path = folder / hashlib.sha256(round.encode()).hexdigest()[:32]
        self._round = round

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process of this node answer meanwhile."""
        import fcntl

        fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def begin(self) -> None:
        """Raise if the node has taken part in this round before: a name that comes again is a replay.

        Notes of earlier rounds are emptied: they are of no more use, and those of a round that broke off hold secrets.
        """
        if self._path.exists():
            raise SecureSumError(
                f"Expected a round that this node has not begun but it knows {self._round!r}. A retry is a new round."
            )
        for notes in self._folder.glob("[0-9a-f]*"):
            os.truncate(notes, 0)

    def state(self) -> bytes:
        """Return what was kept last."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            raise SecureSumError(
                f"Expected notes of round {self._round!r} but this node has none: it did not advertise, or its folder "
                "was not kept between messages. It stays out of this round."
            ) from None

    def keep(self, state: bytes) -> None:
        """Replace the notes, and return once they are on disk."""
        fresh = self._path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(state)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(fresh, self._path)
        directory = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
