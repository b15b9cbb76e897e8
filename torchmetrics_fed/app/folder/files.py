"""Files: one round in a shared folder.

Every party writes into one subfolder, its own, so that the permissions of the file system say
which party wrote a file::

    coordinator/round-1/state               the coordinator's progress, to go on after a crash
    coordinator/round-1/1.3-mask.site-ann   the request to ann in a stage of the first query
    coordinator/round-1/1.3-mask.taken-ann  ann's reply as it was taken in that stage
    coordinator/round-1/1.3-mask.closed     whose replies were taken, with their digests
    coordinator/round-1/end                 the round is over
    site-ann/round-1/1.3-mask               ann's reply

These rules hold for every file:

- It gets its name when it is whole: it is written under a random name and moved. No link is
  followed, so a neighbour who plants one cannot make a party write or read a file elsewhere.
- It holds a checksum and the name that it was written under. A reply holds the digest of the
  request, too. So a file that was cut, moved or copied from elsewhere is refused.
- A file that was refused can be replaced by the right one, and the round goes on.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import InputError, WireError
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.privacy.store import sync_directory
from torchmetrics_fed.release.wire import (
    DIGEST_BYTES,
    Kind,
    Reader,
    frame,
    pack_block,
    pack_text,
    text_size,
)

REPLIED = b"+"
"""First byte of a reply in a file; the reply follows."""

REFUSED = b"-"
"""First byte of a refusal in the place of a reply; its reason follows, in UTF-8."""

_PLAIN_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-")
"""Bytes of a name that stand for themselves in a path: the same on every file system."""

_MAX_NAME_LENGTH = 200
"""Characters of an encoded name. File systems allow 255, with prefixes and suffixes."""

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
"""The flag that opens no link; 0 on systems without it."""

_MAX_FILE_BYTES = 1 << 30
"""Bytes of a file at most: a larger file is refused before it is read."""

BEFORE_QUERIES = 0
"""The number in the label of a stage that comes before the first query."""

_MAX_QUERIES = 9
"""Queries of a round that a label can number, with one digit. A release has at most two."""


def label(query: int, stage: Stage) -> str:
    """Return the name of the files of a stage. Labels sort in the order of the exchange.

    Args:
        query: the number of the query, from 1.
        stage: the stage in which it is asked. ``JOIN`` comes before all queries.
    """
    if stage is Stage.JOIN:
        query = BEFORE_QUERIES
    return f"{query}.{stage.value}-{stage}"


def query_number(stage_label: str) -> str:
    """Return the number of the query in a label."""
    return stage_label.partition(".")[0]


def stage_name(stage_label: str) -> str:
    """Return the name of the stage in a label."""
    return stage_label.partition("-")[2]


_LABELS = {label(query, stage) for query in range(1, _MAX_QUERIES + 1) for stage in Stage}
"""The labels of all stages."""


class StoredFile(NamedTuple):
    """A file that was read: its digest, and a reader of its content."""

    digest: bytes
    content: Reader


class PendingRequest(NamedTuple):
    """A request to a site whose reply is not in its place."""

    label: str
    """The stage."""
    digest: bytes
    """The digest of the request's file, which the reply holds."""
    request: Request


class RoundEnd(NamedTuple):
    """How a round has ended."""

    failure: str
    """Why there is no release; empty if there is one."""
    sites: list[str]
    """The sites whose shares are in the release."""


class Files:
    """The files of one round in a shared folder.

    Args:
        folder: the shared folder. It must exist.
        round: the name of the round.
    """

    def __init__(self, folder: str | os.PathLike[str], round: str) -> None:
        self.folder = Path(folder)
        self.round = round
        self._round_name = encoded("round-", round)
        if not self.folder.is_dir():
            raise InputError(
                "Expected argument `folder` to be a folder that exists but got "
                f"{os.fspath(folder)!r}."
            )

    @property
    def coordinator_folder(self) -> Path:
        return self.folder / "coordinator" / self._round_name

    @property
    def state_path(self) -> Path:
        return self.coordinator_folder / "state"

    @property
    def end_path(self) -> Path:
        return self.coordinator_folder / "end"

    def closed_path(self, stage_label: str) -> Path:
        return self.coordinator_folder / f"{stage_label}.closed"

    def taken_path(self, stage_label: str, site: str) -> Path:
        return self.coordinator_folder / f"{stage_label}.{encoded('taken-', site)}"

    def request_path(self, stage_label: str, site: str) -> Path:
        return self.coordinator_folder / f"{stage_label}.{encoded('site-', site)}"

    def site_folder(self, site: str) -> Path:
        return self.folder / encoded("site-", site) / self._round_name

    def reply_path(self, stage_label: str, site: str) -> Path:
        return self.site_folder(site) / stage_label

    def joined_sites(self) -> list[str]:
        """Return the sites that have a folder for this round."""
        folders = self.folder.glob(f"site-*/{self._round_name}")
        return decoded("site-", (path.parent.name for path in folders))

    def requested_stages(self, site: str | None = None) -> list[str]:
        """Return the labels of the stages in which a site, or any site, was asked, in order."""
        suffix = "site-*" if site is None else encoded("site-", site)
        requests = self.coordinator_folder.glob(f"*.{suffix}")
        labels = {path.name.rpartition(".")[0] for path in requests}
        return sorted(_LABELS & labels)

    def requested_sites(self, stage_label: str) -> list[str]:
        """Return the sites that were asked in a stage."""
        requests = self.coordinator_folder.glob(f"{stage_label}.site-*")
        return decoded("site-", (path.name.removeprefix(f"{stage_label}.") for path in requests))

    def write(self, path: Path, *parts: bytes) -> bytes:
        """Put a file in its place, and return its digest once it is on disk."""
        body = b"".join([pack_block(self._stored_name(path)), *parts])
        data = frame(Kind.FILE, hashlib.sha256(body).digest(), body)
        is_new_folder = not path.parent.is_dir()
        try:
            self.make_folder(path.parent)
            _put(path, data)
        except OSError as error:
            raise WireError(
                f"Cannot write {self._stored_name(path)!r}: {error.strerror}. Check the space and "
                "the permissions of the folder, and call again: nothing is lost."
            ) from error
        # a new round folder is an entry of the party's folder, which is one of the shared folder
        levels = 3 if is_new_folder else 1
        for parent in list(path.parents)[:levels]:
            with suppress(OSError):  # not every file system can sync a directory
                sync_directory(parent)
        return hashlib.sha256(data).digest()

    def make_folder(self, folder: Path) -> None:
        """Make a party's folder for the round. Raises if a link stands in its place."""
        for part in (folder.parent, folder):
            part.mkdir(exist_ok=True)
            if part.is_symlink():
                raise WireError(
                    f"Expected a folder as {self._stored_name(part)!r} but got a link, which could "
                    "lead to files of another party. Remove it."
                )

    def read(self, path: Path) -> StoredFile | None:
        """Return a file, once its checksum and its name are checked; None if there is none."""
        stored_name = self._stored_name(path)
        data = self._data(path)
        if data is None:
            return None
        reader = Reader(data, Kind.FILE)
        if reader.take(DIGEST_BYTES) != hashlib.sha256(reader.rest).digest():
            raise reader.error(f"the checksum of {stored_name!r}", "another")
        written_name = reader.block()
        if written_name != stored_name:
            raise WireError(
                f"Expected the file {stored_name!r} but it was written as {written_name!r}. Put "
                "the right one there."
            )
        return StoredFile(hashlib.sha256(data).digest(), reader)

    def pending_request(self, site: str) -> PendingRequest | None:
        """Return the last request to a site; None if its reply is in its place."""
        stages = self.requested_stages(site)
        if not stages:
            return None
        stage_label = stages[-1]
        file = self.read(self.request_path(stage_label, site))
        if file is None:
            return None
        request = Request.from_bytes(file.content.block())
        if request.round != self.round or str(request.stage) != stage_name(stage_label):
            raise WireError(
                f"Expected {stage_label} of {self.round!r} but got {request.stage} of "
                f"{request.round!r}."
            )
        with suppress(WireError):  # a damaged reply is given again
            reply = self.reply(site, stage_label, file.digest)
            if reply is not None and reply.startswith(REPLIED):
                return None
        return PendingRequest(stage_label, file.digest, request)

    def reply(self, site: str, stage_label: str, request_digest: bytes) -> bytes | None:
        """Return the reply of a site after ``REPLIED``, or its reason after ``REFUSED``, if any.

        Args:
            site: the name of the site.
            stage_label: the stage.
            request_digest: the digest of the request's file.
        """
        file = self.read(self.reply_path(stage_label, site))
        if file is None:
            return None
        if file.content.take(DIGEST_BYTES) != request_digest:
            raise WireError(
                f"Expected the reply of {site!r} to the present request of {stage_label} but got a "
                "reply to another request."
            )
        return bytes(file.content.rest)

    def end(self) -> RoundEnd | None:
        """Return how the round has ended; None while it is open."""
        file = self.read(self.end_path)
        if file is None:
            return None
        failure = file.content.block().decode(errors="replace")
        return RoundEnd(failure, list(unpacked(file.content)))

    def _data(self, path: Path) -> bytes | None:
        """Return the bytes of a regular file; None if there is none."""
        stored_name = self._stored_name(path)
        try:
            # O_NONBLOCK: a pipe in the place of a file would block
            number = os.open(path, os.O_RDONLY | _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0))
            with open(number, "rb") as file:
                status = os.fstat(number)
                if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
                    raise _no_file(stored_name)
                return file.read(_MAX_FILE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR):
                raise _no_file(stored_name) from None
            raise WireError(
                f"Cannot read {stored_name!r}: {error.strerror}. Check its permissions."
            ) from error

    def _stored_name(self, path: Path) -> bytes:
        """Return the name that a file holds: its path below the shared folder."""
        return path.relative_to(self.folder).as_posix().encode()


def _no_file(stored_name: bytes) -> WireError:
    """Return the error about a link, a folder or another thing in the place of a file."""
    return WireError(
        f"Expected a file of at most {_MAX_FILE_BYTES} bytes as {stored_name!r} but got something "
        "else."
    )


def _put(path: Path, data: bytes) -> None:
    """Put a file in its place, whole and on disk."""
    unfinished = path.with_name(f".{secrets.token_hex(8)}.part")
    number = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o666)
    try:
        with open(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(number)
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def printable(text: str) -> str:
    """Return a text without control characters, which a terminal would obey."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def packed(blocks: Mapping[str, bytes]) -> bytes:
    """Return named blocks of bytes as bytes, sorted by name."""
    parts = [pack_text(name) + pack_block(blocks[name]) for name in sorted(blocks)]
    return len(blocks).to_bytes(4, "little") + b"".join(parts)


def unpacked(reader: Reader) -> dict[str, bytes]:
    """Return the blocks that :func:`packed` wrote."""
    return {reader.text(): reader.block() for _ in range(reader.number(4))}


def encoded(prefix: str, name: str) -> str:
    """Return a name as a part of a path.

    Different names stay different on file systems that fold or normalise letters.
    """
    text = ""
    if text_size(name):
        for byte in name.encode():
            text += chr(byte) if byte in _PLAIN_BYTES else f"%{byte:02x}"
    if not 1 <= len(text) <= _MAX_NAME_LENGTH:
        raise InputError(
            f"Expected a name of 1 to {_MAX_NAME_LENGTH // 3} bytes, or {_MAX_NAME_LENGTH} plain "
            f"letters and digits, but got {name!r}."
        )
    return prefix + text


def decoded(prefix: str, parts: Iterable[str]) -> list[str]:
    """Return the names of these parts of paths, sorted.

    A part that :func:`encoded` does not make is left out.
    """
    names = set()
    for part in parts:
        name = unquote(part.removeprefix(prefix), errors="replace")
        if name and encoded(prefix, name) == part:
            names.add(name)
    return sorted(names)
