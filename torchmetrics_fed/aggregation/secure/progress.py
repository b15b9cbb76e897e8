"""Progress: how far a client has come and what it must remember, also from one process to the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchmetrics_fed.aggregation.secure.config import MOST_CLIENTS, SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.keys import KEY_BYTES, KeyPair, digest
from torchmetrics_fed.aggregation.secure.roster import Roster
from torchmetrics_fed.aggregation.secure.shamir import SHARE_BYTES
from torchmetrics_fed.aggregation.secure.states import Stage
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind, pack_block, pack_indices, pack_table, pack_text


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

    def to_bytes(self, client_id: str, config: SecureAggregationConfig) -> bytes:
        """Return everything, with a checksum."""
        body = b"".join(
            (
                pack_text(client_id),
                bytes([self.stage]),
                *(pack_block(pair.private if pair else b"") for pair in (self.sealing, self.masking)),
                pack_block(self.seed),
                pack_block(self.roster.to_bytes() if self.roster else b""),
                pack_table(self.agreed),
                pack_table(self.held),
                pack_indices(self.cohort),
                pack_indices(self.survivors),
                pack_block(self.answer),
            )
        )
        return config.frame(Kind.PROGRESS, digest(b"progress", body), body)

    @classmethod
    def from_bytes(cls, data: bytes, config: SecureAggregationConfig) -> tuple[str, Progress]:
        """Return the client's name and what it knew."""
        reader = config.reader(data, Kind.PROGRESS)
        checksum = reader.take(DIGEST_BYTES)
        if digest(b"progress", bytes(reader.rest)) != checksum:
            raise reader.error("the checksum of its content", "another")
        client_id, stage = reader.text(), Stage(reader.number(1))
        sealing, masking, seed, roster = (reader.block() for _ in range(4))
        progress = cls(
            stage,
            KeyPair(sealing) if sealing else None,
            KeyPair(masking) if masking else None,
            seed,
            Roster.from_bytes(roster, config) if roster else None,
            reader.table(MOST_CLIENTS, KEY_BYTES),
            reader.table(MOST_CLIENTS, 2 * SHARE_BYTES),
            reader.indices(MOST_CLIENTS),
            reader.indices(MOST_CLIENTS),
            reader.block(),
        )
        reader.end()
        return client_id, progress
