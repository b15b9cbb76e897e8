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
from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.spec import Spec
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind, Reader, frame, pack_text

ID_BYTES = 16
SKIPS_BAD = 0x80
"""Added to the byte of the encoding."""
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
        """The binding of spec and query, a mark of every field, id, round, and the cells.

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
        )
        return frame(Kind.SHARE, *head, *pack_cells(self))

    @classmethod
    def from_bytes(cls, data: bytes, spec: Spec, query: Query | None = None) -> Share:
        """Return the share in ``data``; one of another spec or query is refused, and what differs is named.

        Raises :class:`SpecMismatchError` and :class:`WireError`. No pickle is read, and no more is allocated than a
        share of this query takes.
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
        name, round_ = reader.take(ID_BYTES), reader.text(empty=True)
        how = reader.number(1)
        cells = read_cells(how, reader.rest, spec, query)
        return cls(spec, query, cells, round_, name, skips_bad=how >= SKIPS_BAD)


def pack_cells(answer: Answer) -> tuple[bytes, bytes]:
    """Return how the cells are encoded, in one byte, and their code."""
    _check_integers(answer.spec)
    how, packed = rice.pack(
        answer.cells.cpu().contiguous().numpy().reshape(-1), answer.spec.privacy.charges
    )
    return bytes([how + SKIPS_BAD * answer.skips_bad]), packed


def read_cells(how: int, packed: bytes | memoryview, spec: Spec, query: Query) -> Tensor:
    _check_integers(spec)
    shape = spec.shape(query)
    cells = rice.unpack(how % SKIPS_BAD, packed, math.prod(shape), spec.privacy.charges)
    return torch.from_numpy(cells).reshape(shape)


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
