"""Progress: how far a client has come and what it must remember, also from one process to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from torchmetrics_fed.sync.secure_sum.config import MOST_CLIENTS, SecureSumConfig
from torchmetrics_fed.sync.secure_sum.keys import KEY_BYTES, KeyPair, digest
from torchmetrics_fed.sync.secure_sum.roster import Roster
from torchmetrics_fed.sync.secure_sum.shamir import SHARE_BYTES
from torchmetrics_fed.sync.secure_sum.wire import HASH_BYTES, Kind, Reader, frame, pack_indices, pack_text

__all__ = ["Progress", "Stage"]


class Stage(IntEnum):
    """How far a client has come. It only moves forward.

    Example:
        >>> from torchmetrics_fed.sync.secure_sum import SecureSumClient, SecureSumConfig, Stage
        >>> client = SecureSumClient("ann", SecureSumConfig("round 1", b"spec", cells=2, min_clients=3))
        >>> client.stage, client.stage < Stage.MASKED
        (<Stage.NEW: 0>, True)
    """

    NEW = 0
    ADVERTISED = 1
    SHARED = 2
    MASKED = 3
    SIGNED = 4
    ANSWERED = 5
    PURGED = 6


@dataclass(repr=False)
class Progress:
    """What a client knows of one sum, all of it secret."""

    stage: Stage = Stage.NEW
    sealing: KeyPair | None = None
    masking: KeyPair | None = None
    seed: bytes = b""
    roster: Roster | None = None
    agreed: dict[int, bytes] = field(default_factory=dict)
    """The secrets shared with the other clients' sealing keys."""
    held: dict[int, bytes] = field(default_factory=dict)
    """For each client a share of its masking key and one of its seed."""
    cohort: tuple[int, ...] = ()
    survivors: tuple[int, ...] = ()
    answer: bytes = b""

    def to_bytes(self, client_id: str, config: SecureSumConfig) -> bytes:
        """Return everything, with a checksum."""
        body = b"".join(
            (
                pack_text(client_id),
                bytes([self.stage]),
                *(_pack(pair.private if pair else b"") for pair in (self.sealing, self.masking)),
                _pack(self.seed),
                _pack(self.roster.to_bytes() if self.roster else b""),
                _pack_rows(self.agreed),
                _pack_rows(self.held),
                pack_indices(self.cohort),
                pack_indices(self.survivors),
                _pack(self.answer),
            )
        )
        return frame(Kind.PROGRESS, config.hash, digest(b"progress", body), body)

    @classmethod
    def from_bytes(cls, data: bytes, config: SecureSumConfig) -> tuple[str, Progress]:
        """Return the client's name and what it knew."""
        reader = Reader(data, Kind.PROGRESS, config.hash)
        checksum = reader.take(HASH_BYTES)
        if digest(b"progress", reader.rest) != checksum:
            raise reader.error("the checksum of its content", "another")
        client_id, stage = reader.text(), Stage(reader.take(1)[0])
        sealing, masking, seed, roster = (_unpack(reader) for _ in range(4))
        progress = cls(
            stage,
            KeyPair(sealing) if sealing else None,
            KeyPair(masking) if masking else None,
            seed,
            Roster.from_bytes(roster, config) if roster else None,
            _unpack_rows(reader, KEY_BYTES),
            _unpack_rows(reader, 2 * SHARE_BYTES),
            reader.indices(MOST_CLIENTS),
            reader.indices(MOST_CLIENTS),
            _unpack(reader),
        )
        reader.end()
        return client_id, progress


def _pack(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def _pack_rows(rows: dict[int, bytes]) -> bytes:
    return pack_indices(tuple(sorted(rows))) + b"".join(rows[index] for index in sorted(rows))


def _unpack_rows(reader: Reader, size: int) -> dict[int, bytes]:
    indices = reader.indices(MOST_CLIENTS)
    return dict(zip(indices, reader.rows(len(indices), size), strict=True))


def _unpack(reader: Reader) -> bytes:
    return reader.take(int.from_bytes(reader.take(4), "little"))
