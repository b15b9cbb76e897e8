"""Messages after the keys are known. Clients are named by their index in the roster.

A client sends its index and rows of bytes, the server sends tables of bytes by client; each is about a hash:

=========== ========= ============================================================================================
kind        about     content
=========== ========= ============================================================================================
KEY_SHARES  roster    rows: a commitment to the seed, then a sealed box for every other client, in their order
CIPHERTEXTS roster    table: the boxes that others sealed for this client
MASKED      cohort    row: the masked vector
SURVIVORS   cohort    table without content, where signatures are asked for: whose vectors the server has
SIGNATURE   survivors row: the client's signature of the survivors
REQUEST     cohort    table without content: whose sum to open; where asked for, table: who signed that it is them
ANSWER      survivors rows: for everyone in the cohort a share, of a survivor's seed or of a dropped one's key
=========== ========= ============================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping

from torchmetrics_fed.aggregation.secure.config import SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.keys import SIGNATURE_BYTES, TAG_BYTES
from torchmetrics_fed.aggregation.secure.roster import Roster
from torchmetrics_fed.aggregation.secure.shamir import SHARE_BYTES
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind, Reader, pack_table, pack_u16

# A share of the masking key and one of the seed.
BOX_BYTES = 2 * SHARE_BYTES + TAG_BYTES


def pack_rows(kind: Kind, roster: Roster, about: bytes, sender: int, *rows: bytes) -> bytes:
    return roster.config.frame(kind, about, pack_u16(sender), *rows)


def row_sizes(kind: Kind, config: SecureAggregationConfig, clients: int, cohort: int) -> list[int]:
    return {
        Kind.KEY_SHARES: [DIGEST_BYTES] + [BOX_BYTES] * (clients - 1),
        Kind.MASKED: [8 * config.cells],
        Kind.SIGNATURE: [SIGNATURE_BYTES],
        Kind.ANSWER: [SHARE_BYTES] * cohort,
    }[kind]


def read_rows(data: bytes, kind: Kind, roster: Roster, about: bytes, cohort: int = 0) -> tuple[int, list[bytes]]:
    """Return who sent a client's message, and its rows; of an answer, as many as the cohort has clients."""
    reader = _reader(data, kind, roster, about)
    (sender,) = reader.increasing((reader.u16(),), len(roster))
    rows = [reader.take(size) for size in row_sizes(kind, roster.config, len(roster), cohort)]
    reader.end()
    return sender, rows


def pack_tables(kind: Kind, roster: Roster, about: bytes, *tables: Mapping[int, bytes]) -> bytes:
    return roster.config.frame(kind, about, *map(pack_table, tables))


def read_tables(data: bytes, kind: Kind, roster: Roster, about: bytes) -> list[dict[int, bytes]]:
    sizes = {Kind.CIPHERTEXTS: [BOX_BYTES], Kind.SURVIVORS: [0], Kind.REQUEST: [0]}[kind]
    if kind is Kind.REQUEST and roster.config.signed:
        sizes = [0, SIGNATURE_BYTES]
    reader = _reader(data, kind, roster, about)
    tables = [reader.table(len(roster), size) for size in sizes]
    reader.end()
    return tables


def _reader(data: bytes, kind: Kind, roster: Roster, about: bytes) -> Reader:
    """Return a reader past the hash of what a message is about, which must be the expected one."""
    reader = roster.config.reader(data, kind)
    if reader.take(DIGEST_BYTES) != about:
        raise SecureAggregationError(
            f"Expected a message {kind.name} about the same clients and keys as before but it is about others. The "
            "server must send everyone the same: leave this round, and start another only if the server is trusted."
        )
    return reader
