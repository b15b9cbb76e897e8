"""Share: one client's reply to one query.

These rules hold for every share:

- The cells are the client's counts on the tree of the query, plus the client's part of the noise.
- The bytes are bound to the spec and to the query by one digest. A reader refuses the bytes of any
  other spec or query.
- A share has a random id, which is made with the draw: the same bytes are summed once.
- A share does not name its sender. A client is a sender that the transport has authenticated.
- A share that secure aggregation must hide has no bytes and no pickle.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError, SpecMismatchError, WireError
from torchmetrics_fed.release import rice
from torchmetrics_fed.release.flags import NO_FLAGS, ReleaseFlag
from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.spec import Spec
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind, Reader, frame, pack_text

ID_BYTES = 16
"""Bytes of the random id of a share."""

MOST_CELLS = 1 << 30
"""The most cells of a share or a sum, 8 GiB. More cells are neither written nor read."""

_MARK_BYTES = 8
"""Bytes of the digest of each field in a share. They only name the field that differs."""


def _new_id() -> bytes:
    return secrets.token_bytes(ID_BYTES)


@dataclass(frozen=True, eq=False, repr=False)
class QueryCells:
    """The cells of one query under one spec: those of one client, or summed over clients."""

    spec: Spec
    query: Query
    cells: Tensor
    """``(groups * classes, rows, query.tree.cells)``."""
    skips_bad: bool = field(default=False, kw_only=True)
    """Whether a sender leaves out rows that cannot be counted. This is the sender's policy: it does
    not say whether there were such rows."""

    def __post_init__(self) -> None:
        dtype = self.spec.dtype
        shape = self.spec.shape(self.query)
        actual_shape = tuple(self.cells.shape)
        if self.cells.dtype != dtype or actual_shape != shape:
            raise InputError(
                f"Expected argument `cells` to be {dtype} of shape {shape} but got "
                f"{self.cells.dtype} of shape {actual_shape}."
            )

    def __getstate__(self) -> dict[str, Any]:
        """The content of a pickle. It may hold no more than the bytes may."""
        self.spec.check_may_travel(getattr(self, "shares", 1))
        return dict(self.__dict__)

    @property
    def flags(self) -> ReleaseFlag:
        """The flags of a release that holds these cells."""
        if self.skips_bad:
            return ReleaseFlag.ROWS_SKIPPED
        return NO_FLAGS

    @property
    def nbytes(self) -> int:
        """Size of the cells in bytes."""
        return self.cells.numel() * self.cells.element_size()

    def __repr__(self) -> str:
        parts = [
            self.spec.task,
            f"{self.nbytes} bytes",
            f"spec {self.spec.digest.hex()[:16]}",
        ]
        if self.spec.privacy.charges:
            parts.append(str(self.spec.privacy))
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, eq=False, repr=False)
class Share(QueryCells):
    """One client's reply to one query: the tree of its counts, plus its part of the noise.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC, Share
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> share = metric.share(round="3")
        >>> Share.from_bytes(bytes(share), metric.spec, share.query).round
        '3'
    """

    round: str = ""
    """The round that the share was made for. Only shares of one round add up."""
    id: bytes = field(default_factory=_new_id)
    """A random name, made with the draw: the same bytes are summed once."""

    def __bytes__(self) -> bytes:
        """The binding, a mark for each field of the spec, id, round, flags, and the cells.

        There is no checksum and no signature: the transport must deliver the bytes unchanged. Under
        privacy, all shares of a query have one size. Without privacy, the size depends on the
        counts, and encryption does not hide it.
        """
        self.spec.check_may_travel()
        marks = _marks(self.spec).values()
        return frame(
            Kind.SHARE,
            self.spec.binding(self.query),
            bytes([len(marks)]),
            *marks,
            self.id,
            pack_text(self.round),
            bytes([self.flags]),
            *pack_cells(self),
        )

    @classmethod
    def from_bytes(cls, data: bytes, spec: Spec, query: Query | None = None) -> Share:
        """Return the share in ``data``. Raises for another spec or query and names the difference.

        Raises :class:`SpecMismatchError` and :class:`WireError`. No pickle is read. Decoding
        allocates no more than a share of this query takes, and no more than 16 times the size of
        ``data``.
        """
        if not isinstance(spec, Spec) or not isinstance(query, Query):
            raise InputError(
                "Expected the Spec and the Query that this share answers but got "
                f"{type(spec).__name__} and {type(query).__name__}. Pass `metric.spec` and the "
                "query that was asked: `coordinator.query`, or without privacy "
                "`metric.spec.all_bins`."
            )
        reader = Reader(data, Kind.SHARE)
        binding = reader.take(DIGEST_BYTES)
        marks = reader.rows(reader.number(1), _MARK_BYTES)
        _check_marks(marks, spec)
        if binding != spec.binding(query):
            raise WireError(
                "Expected the answer to this query but the share answers another. Ask that client "
                "again."
            )
        share_id = reader.take(ID_BYTES)
        round_ = reader.text(empty=True)
        flags = ReleaseFlag.read(reader, allowed=ReleaseFlag.ROWS_SKIPPED)
        encoding = reader.number(1)
        cells = read_cells(encoding, reader.rest, spec, query)
        return cls(
            spec,
            query,
            cells,
            round=round_,
            id=share_id,
            skips_bad=bool(flags),
        )


def pack_cells(part: QueryCells) -> tuple[bytes, bytes]:
    """Return the encoding of the cells, in one byte, and their code."""
    _check_integers(part.spec)
    _check_size(part.cells.numel())
    integers = part.cells.cpu().contiguous().numpy().reshape(-1)
    encoding, packed = rice.pack(integers, fixed=part.spec.privacy.charges)
    return bytes([encoding]), packed


def read_cells(encoding: int, packed: bytes | memoryview, spec: Spec, query: Query) -> Tensor:
    """Return the cells of a reply to ``query``. Raises first if there are too few bytes."""
    _check_integers(spec)
    shape = spec.shape(query)
    size = math.prod(shape)
    _check_size(size)
    cells = rice.unpack(encoding, packed, size, fixed=spec.privacy.charges)
    return torch.from_numpy(cells).reshape(shape)


def _check_size(cells: int) -> None:
    if cells > MOST_CELLS:
        raise WireError(
            f"Expected at most {MOST_CELLS} cells but spec and query have {cells}. Use fewer bins, "
            "classes or groups."
        )


def _check_integers(spec: Spec) -> None:
    if spec.dtype != torch.int64:
        raise WireError(
            'Expected integer cells but "gamma" draws floats, which have no bytes. Use '
            'mechanism="polya".'
        )


def _marks(spec: Spec) -> dict[str, bytes]:
    """Return the first bytes of the digest of each field, by the name of the field."""
    return {name: digest[:_MARK_BYTES] for name, digest in spec.digests.items()}


def _check_marks(marks: list[bytes], spec: Spec) -> None:
    """Raise, and name the fields, if the marks in a share are not those of this spec."""
    expected = _marks(spec)
    differing = [
        name for name, mark in zip(expected, marks, strict=False) if mark != expected[name]
    ]
    values = {name: spec.fields[name] for name in differing}
    if len(marks) != len(expected):
        differing.append("the number of fields")
    if differing:
        raise SpecMismatchError(
            f"Expected the bytes of this spec but they differ in {', '.join(differing)}; here it "
            f"is {values}. Build every metric with the same arguments."
        )
