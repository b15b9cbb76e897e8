"""Wire format: the bytes of a share or of a partial sum, each with one spelling only."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchmetrics_fed import rice
from torchmetrics_fed.errors import SpecMismatchError, WireError
from torchmetrics_fed.spec import Spec

__all__ = ["FIELDS", "VERSION", "Kind", "Message"]

Kind = Literal["share", "release"]

VERSION = 1
_MAGIC = b"TMFD"
_KINDS: dict[Kind, int] = {"share": 1, "release": 2}
_HEAD = struct.Struct("<4sBBB")
# A digest for every field of a spec, and room for fields to come, so that two versions can still compare theirs.
_SLOTS, _DIGEST = 16, 8
FIELDS = (
    "version",
    "task",
    "classes",
    "multi_class",
    "bins",
    "score_range",
    "score_edges",
    "tree",
    "privacy",
    "secure",
)
"""The slots of the fields. The order is part of the format: a new field comes last."""

_LONGEST_NAME = 255
_MOST_SHARES = 2**63 - 1


@dataclass(frozen=True, eq=False)
class Message:
    """What travels, next to the spec, which both sides have.

    ======================================== =====================================================================
    bytes                                    content
    ======================================== =====================================================================
    4, 1, 1, 1                               ``TMFD``, version, kind (1 share, 2 release), spelling of the cells
    16 x 8                                   SHA-256, cut, of every field of the spec; the slots left are zero
    1 + n                                    round, UTF-8 of at most 255 bytes
    1 + n                                    share: client, likewise
    8, 8, 8 each                             release: number of shares, number of clients and their roster
    the rest                                 cells, see :func:`torchmetrics_fed.rice.pack`
    ======================================== =====================================================================

    Numbers are little-endian, digests and roster as they are. There is no length of the cells: the spec says how many
    there are. There is no checksum and no signature: who sent it, unchanged, is for the transport to vouch. Under
    privacy all messages of a spec are of one size; without, it depends on the counts, and encryption does not hide it.
    """

    kind: Kind
    cells: Tensor
    round: str
    client: str = ""
    shares: int = 1
    clients: bytes = b""

    def encode(self, spec: Spec) -> bytes:
        """Return the bytes."""
        _check_integers(spec)
        how, packed = rice.pack(self.cells.cpu().contiguous().numpy().reshape(-1), _is_fixed(spec))
        parts = [_HEAD.pack(_MAGIC, VERSION, _KINDS[self.kind], how), *_digests(spec).values()]
        parts += [bytes(_DIGEST * (_SLOTS - len(parts) + 1)), _name("round", self.round)]
        if self.kind == "share":
            parts.append(_name("client", self.client))
        else:
            parts += [struct.pack("<QQ", self.shares, len(self.clients) // _DIGEST), self.clients]
        return b"".join([*parts, packed])

    @classmethod
    def decode(cls, data: bytes, spec: Spec, kind: Kind) -> Message:
        """Return what ``data`` says, once every field of its header is as expected."""
        _check_integers(spec)
        if not isinstance(data, bytes | bytearray):
            raise WireError(f"Expected bytes of a {kind} but got {type(data).__name__}.")
        reader = _Reader(memoryview(data).toreadonly())
        magic, version, number, how = _HEAD.unpack(reader.take(_HEAD.size, "magic, version and kind"))
        if magic != _MAGIC:
            raise WireError(f"Expected the magic {_MAGIC!r} but got {magic!r}: these are not the bytes of a {kind}.")
        if version != VERSION:
            raise WireError(f"Expected version {VERSION} of the wire format but got {version}. Use one release of it.")
        if number != _KINDS[kind]:
            told = next((f"a {name}" for name, known in _KINDS.items() if known == number), f"kind {number}")
            raise WireError(f"Expected the kind {kind} but got {told}. Read it with its own `from_bytes`.")
        _check_spec(reader.take(_SLOTS * _DIGEST, "digests of the spec"), spec)
        round_, client, shares, clients = reader.name("round"), "", 1, b""
        if kind == "share":
            client = reader.name("client")
        else:
            shares, several = struct.unpack("<QQ", reader.take(16, "number of shares and clients"))
            if not max(1, several) <= shares <= _MOST_SHARES:
                raise WireError(f"Expected a number of shares from {max(1, several)} clients up but got {shares}.")
            clients = bytes(reader.take(_DIGEST * several, "roster of clients"))
        cells = torch.from_numpy(rice.unpack(how, reader.rest(), math.prod(spec.shape), _is_fixed(spec))).reshape(
            spec.shape
        )
        return cls(kind, cells, round_, client, shares, clients)


class _Reader:
    """Takes bytes from the front, and never more than there are."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, size: int, what: str) -> memoryview:
        if size > len(self._data):
            raise WireError(f"Expected {size} bytes of {what} but got {len(self._data)}: the payload is cut off.")
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def name(self, what: str) -> str:
        try:
            return str(self.take(self.take(1, f"length of the {what}")[0], what), "utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"Expected the {what} in UTF-8 but got other bytes.") from error

    def rest(self) -> memoryview:
        return self._data


def _name(what: str, text: str) -> bytes:
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise WireError(f"Expected a {what} that UTF-8 can spell but got {text!r}.") from error
    if len(encoded) > _LONGEST_NAME:
        raise WireError(
            f"Expected a {what} of at most {_LONGEST_NAME} bytes but got {len(encoded)}. Send a digest of it."
        )
    return bytes([len(encoded)]) + encoded


def _digests(spec: Spec) -> dict[str, bytes]:
    digests = spec.digests
    return {name: digests[name][:_DIGEST] for name in (*FIELDS, *(name for name in digests if name not in FIELDS))}


def _check_spec(slots: memoryview, spec: Spec) -> None:
    mine = _digests(spec)
    theirs = [bytes(slots[start : start + _DIGEST]) for start in range(0, len(slots), _DIGEST)]
    differing = [name for name, digest in zip(mine, theirs, strict=False) if digest != mine[name]]
    if any(any(slot) for slot in theirs[len(mine) :]):
        differing.append("a field that this version does not know")
    if differing:
        known = {name: spec.fields[name] for name in differing if name in mine}
        raise SpecMismatchError(
            f"Expected the bytes of this spec but they differ in {', '.join(differing)}; here it is {known}. Build "
            "every metric with the same arguments."
        )


def _is_fixed(spec: Spec) -> bool:
    """Whether every message of a spec has one size: under privacy, or it would tell how much data a client has."""
    return spec.privacy is not None


def _check_integers(spec: Spec) -> None:
    if spec.dtype != torch.int64:
        raise WireError(
            'Expected integer cells but mechanism="gamma" draws floats, which have no wire form. Use "polya", the same '
            "law in integers."
        )
