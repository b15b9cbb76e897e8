"""Files: one round in a shared folder. They are read with checks, and written whole or not at all.

Every party writes into one subfolder, its own, so that the permissions of the file system say who is who::

    coordinator/round-1/state               what the coordinator goes on from after a crash
    coordinator/round-1/1.3-mask.site-ann   what ann is asked in a stage of the first query
    coordinator/round-1/1.3-mask.closed     the answers that were taken in that stage
    coordinator/round-1/end                 the round is over
    site-ann/round-1/1.3-mask               ann's answer

A file has its name when it is whole. It holds a checksum and the name it was written under, an answer the digest of
what was asked. So one that was cut, moved or kept from elsewhere is refused, and the right one can take its place.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
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


def label(query: int, stage: Stage) -> str:
    """Return the name of a stage's files, in the order of the exchange."""
    return f"{query}.{stage.value}-{stage}"


_LABELS = {label(query, stage) for query in range(1, 10) for stage in Stage}
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-")
_MOST_BYTES = 1 << 30


class Files:
    """The files of one round in a shared folder."""

    def __init__(self, folder: str | os.PathLike[str], round: str) -> None:
        self.folder, self.round, self._name = Path(folder), round, encoded("round-", round)
        if not self.folder.is_dir():
            raise InputError(
                f"Expected argument `folder` to be a folder that exists but got {os.fspath(folder)!r}."
            )

    def of(self, site: str) -> Path:
        return self.folder / encoded("site-", site) / self._name

    @property
    def own(self) -> Path:
        return self.folder / "coordinator" / self._name

    def joined(self) -> list[str]:
        return decoded(
            "site-", (path.parent.name for path in self.folder.glob(f"site-*/{self._name}"))
        )

    def stages(self, site: str = "") -> list[str]:
        """Return the stages that a site was asked, or anybody, in their order."""
        asked = self.own.glob(f"*.{encoded('site-', site) if site else 'site-*'}")
        return sorted(_LABELS.intersection(path.name.rpartition(".")[0] for path in asked))

    def asked(self, stage: str) -> list[str]:
        return decoded(
            "site-",
            (path.name.removeprefix(f"{stage}.") for path in self.own.glob(f"{stage}.site-*")),
        )

    def write(self, path: Path, *parts: bytes) -> bytes:
        """Put a file in its place, and return its digest once it is on disk."""
        body = b"".join((pack_block(self._where(path)), *parts))
        data, part = (
            frame(Kind.FILE, hashlib.sha256(body).digest(), body),
            path.with_name(f".{path.name}.part"),
        )
        new = not path.parent.is_dir()
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        for parent in list(path.parents)[: 3 if new else 1]:
            with suppress(OSError):  # not every file system knows how
                sync_directory(parent)
        return hashlib.sha256(data).digest()

    def read(self, path: Path) -> tuple[bytes, Reader] | None:
        """Return a file's digest and a reader of its content; None if it is not there."""
        where = self._where(path)
        try:
            about = path.lstat()
            if not stat.S_ISREG(about.st_mode) or about.st_size > _MOST_BYTES:
                raise WireError(
                    f"Expected a file of at most {_MOST_BYTES} bytes as {where!r} but got something else."
                )
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WireError(
                f"Expected to read {where!r} but got: {error.strerror}. Check its permissions."
            ) from error
        reader = Reader(data, Kind.FILE)
        if reader.take(DIGEST_BYTES) != hashlib.sha256(reader.rest).digest():
            raise reader.error(f"the checksum of {where!r}", "another")
        if (written := reader.block()) != where:
            raise WireError(
                f"Expected the file {where!r} but it was written as {written!r}. Put the right one there."
            )
        return hashlib.sha256(data).digest(), reader

    def request(self, site: str) -> tuple[str, bytes, Request] | None:
        """Return what a site is asked now, with the stage and a digest; None where its answer is in place."""
        for stage in self.stages(site)[-1:]:
            found = self.read(self.own / f"{stage}.{encoded('site-', site)}")
            if found is not None:
                asked = Request.from_bytes(found[1].block())
                if asked.round != self.round or str(asked.stage) != stage[4:]:
                    raise WireError(
                        f"Expected {stage} of {self.round!r} but got {asked.stage} of {asked.round!r}."
                    )
                with suppress(WireError):  # one that was damaged is given again
                    if (self.answer(site, stage, found[0]) or b"-").startswith(b"+"):
                        return None
                return stage, found[0], asked
        return None

    def answer(self, site: str, stage: str, mark: bytes) -> bytes | None:
        """Return a site's answer to what has this digest: after a plus, or after a minus why there is none."""
        found = self.read(self.of(site) / stage)
        if found is not None and found[1].take(DIGEST_BYTES) != mark:
            raise WireError(
                f"Expected the answer of {site!r} to {stage} as it is asked now but got one to another."
            )
        return None if found is None else bytes(found[1].rest)

    def end(self) -> tuple[str, list[str]] | None:
        """Return why there is no release, and whose shares are in it; None while the round is open."""
        found = self.read(self.own / "end")
        return (
            None
            if found is None
            else (found[1].block().decode(errors="replace"), list(unpacked(found[1])))
        )

    def _where(self, path: Path) -> bytes:
        return path.relative_to(self.folder).as_posix().encode()


def packed(blocks: Mapping[str, bytes]) -> bytes:
    parts = (pack_text(name) + pack_block(blocks[name]) for name in sorted(blocks))
    return len(blocks).to_bytes(4, "little") + b"".join(parts)


def unpacked(reader: Reader) -> dict[str, bytes]:
    return {reader.text(): reader.block() for _ in range(reader.number(4))}


def encoded(prefix: str, name: str) -> str:
    """Return a name as a part of a path, the same on file systems that fold letters or normalise them."""
    text = (
        "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in name.encode())
        if text_size(name)
        else ""
    )
    if not 1 <= len(text) <= 200:
        raise InputError(
            f"Expected a name of 1 to 66 bytes, or 200 plain letters and digits, but got {name!r}."
        )
    return prefix + text


def decoded(prefix: str, parts: Iterable[str]) -> list[str]:
    """Return the names that :func:`encoded` made these of, in their order; others are left out."""
    names = {part: unquote(part.removeprefix(prefix), errors="replace") for part in parts}
    return sorted(name for part, name in names.items() if name and encoded(prefix, name) == part)
