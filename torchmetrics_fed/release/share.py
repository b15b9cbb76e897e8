"""Share: one client's answer to one query."""

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
MOST_CELLS = 1 << 30
"""The most cells of an answer, 8 GiB: more are neither written nor read."""
_MARK_BYTES = 8  # of a field's digest, only to name what differs


@dataclass(frozen=True, eq=False, repr=False)
class Answer:
    """Cells ``(classes, rows, query.tree.cells)`` that answer a query under a spec: those of a client, or their sum."""

    spec: Spec
    query: Query
    cells: Tensor
    skips_bad: bool = field(default=False, kw_only=True)
    """Whether a sender leaves out rows that cannot be counted: its policy, which does not say if there were any."""

    def __post_init__(self) -> None:
        dtype, shape, got = self.spec.dtype, self.spec.shape(self.query), tuple(self.cells.shape)
        if self.cells.dtype != dtype or got != shape:
            found = f"{self.cells.dtype} of shape {got}"
            raise InputError(
                f"Expected argument `cells` to be {dtype} of shape {shape} but got {found}."
            )

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: as much as bytes may."""
        self.spec.check_may_travel(getattr(self, "shares", 1))
        return dict(self.__dict__)

    @property
    def flags(self) -> ReleaseFlag:
        """What a release of this answer says of it."""
        return ReleaseFlag.ROWS_SKIPPED if self.skips_bad else NO_FLAGS

    @property
    def nbytes(self) -> int:
        """Size of the cells in bytes."""
        return self.cells.numel() * self.cells.element_size()

    def __repr__(self) -> str:
        noise = f", {self.spec.privacy}" if self.spec.privacy.charges else ""
        about = f"{self.nbytes} bytes, spec {self.spec.digest.hex()[:16]}{noise}"
        return f"{type(self).__name__}({self.spec.task}, {about})"


@dataclass(frozen=True, eq=False, repr=False)
class Share(Answer):
    """What one client sends: the tree's levels of its counts, plus its part of the noise.

    Who sent it is not part of it: a client is a sender that the transport has authenticated.

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
    """The round that it was made for. Only shares of one round add up."""
    id: bytes = field(default_factory=lambda: secrets.token_bytes(ID_BYTES))
    """A random name, made with the draw: the same bytes are summed once."""

    def __bytes__(self) -> bytes:
        """The binding of spec and query, a mark of every field, id, round, a flag for left out rows, and the cells.

        There is no checksum and no signature: that it arrives unchanged is the transport's to guarantee. Under privacy
        all shares of a query have one size; without, it depends on the counts, and encryption does not hide it.
        """
        self.spec.check_may_travel()
        marks = [digest[:_MARK_BYTES] for digest in self.spec.digests.values()]
        head = (
            self.spec.binding(self.query),
            bytes([len(marks)]),
            *marks,
            self.id,
            pack_text(self.round),
            bytes([self.flags]),
        )
        return frame(Kind.SHARE, *head, *pack_cells(self))

    @classmethod
    def from_bytes(cls, data: bytes, spec: Spec, query: Query | None = None) -> Share:
        """Return the share in ``data``; one of another spec or query is refused, and what differs is named.

        Raises :class:`SpecMismatchError` and :class:`WireError`. No pickle is read, and no more is allocated than a
        share of this query takes, nor more than 16 times what was sent.
        """
        if not isinstance(spec, Spec) or not isinstance(query, Query):
            raise InputError(
                "Expected the Spec and the Query that this share answers but got "
                f"{type(spec).__name__} and {type(query).__name__}. Pass `metric.spec` and the query that was asked: "
                "`coordinator.query`, or without privacy `metric.spec.all_bins`."
            )
        reader = Reader(data, Kind.SHARE)
        binding = reader.take(DIGEST_BYTES)
        _check_marks(reader.rows(reader.number(1), _MARK_BYTES), spec)
        if binding != spec.binding(query):
            raise WireError(
                "Expected the answer to this query but the share answers another. Ask that client again."
            )
        name = reader.take(ID_BYTES)
        round_ = reader.text(empty=True)
        flags = ReleaseFlag.read(reader, allowed=ReleaseFlag.ROWS_SKIPPED)
        how = reader.number(1)
        cells = read_cells(how, reader.rest, spec, query)
        return cls(spec, query, cells, round_, name, skips_bad=bool(flags))


def pack_cells(answer: Answer) -> tuple[bytes, bytes]:
    """Return how the cells are encoded, in one byte, and their code."""
    _check_integers(answer.spec)
    _check_size(answer.cells.numel())
    integers = answer.cells.cpu().contiguous().numpy().reshape(-1)
    how, packed = rice.pack(integers, fixed=answer.spec.privacy.charges)
    return bytes([how]), packed


def read_cells(how: int, packed: bytes | memoryview, spec: Spec, query: Query) -> Tensor:
    """Return the cells of an answer to ``query``, once there are known to be enough bytes for them."""
    _check_integers(spec)
    shape = spec.shape(query)
    size = math.prod(shape)
    _check_size(size)
    cells = rice.unpack(how, packed, size, fixed=spec.privacy.charges)
    return torch.from_numpy(cells).reshape(shape)


def _check_size(cells: int) -> None:
    if cells > MOST_CELLS:
        raise WireError(
            f"Expected at most {MOST_CELLS} cells but spec and query have {cells}. Use fewer bins, classes or groups."
        )


def _check_integers(spec: Spec) -> None:
    if spec.dtype != torch.int64:
        raise WireError(
            'Expected integer cells but "gamma" draws floats, which have no bytes. Use mechanism="polya".'
        )


def _check_marks(theirs: list[bytes], spec: Spec) -> None:
    mine = {name: digest[:_MARK_BYTES] for name, digest in spec.digests.items()}
    differing = [name for name, mark in zip(mine, theirs, strict=False) if mark != mine[name]]
    if len(theirs) != len(mine):
        differing.append("the number of fields")
    if differing:
        known = {name: spec.fields[name] for name in differing if name in mine}
        raise SpecMismatchError(
            f"Expected the bytes of this spec but they differ in {', '.join(differing)}; here it is {known}. Build "
            "every metric with the same arguments."
        )
