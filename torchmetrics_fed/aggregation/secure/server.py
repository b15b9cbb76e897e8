"""SecureAggregationServer: the server of one aggregation. It learns the sum and who took part.

These rules hold for every server:

- The server moves as the table :data:`~torchmetrics_fed.aggregation.secure.states.SERVER_MOVES`
  says. A call closes a stage once enough clients have replied; called again, it returns the same.
- A message that raises changes nothing. The first message of a client in a stage stands.
- For each client of the cohort, the server reconstructs one secret and never both: the seed of a
  survivor, or the masking key of a client that dropped out.
- Every reconstructed secret is compared with the client's commitment before the sum is opened.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.aggregation.secure.config import SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.keys import (
    KeyPair,
    commitment,
    is_signed,
    pair_key,
    seed_key,
)
from torchmetrics_fed.aggregation.secure.mask import MaskedVector
from torchmetrics_fed.aggregation.secure.roster import Advertisement, Roster
from torchmetrics_fed.aggregation.secure.shamir import Combiner
from torchmetrics_fed.aggregation.secure.states import REPLIES, SERVER_MOVES
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.release.wire import Kind


class SecureAggregationServer:
    """Collects the messages of one aggregation, stage by stage.

    :meth:`receive` takes the clients' messages. :meth:`keys`, :meth:`ciphertexts`,
    :meth:`survivors` (only if signed), :meth:`request` and :meth:`sum` each close a stage: clients
    that have not replied by then have dropped out. If too few have replied, they raise and the
    stage stays open. Called again, they return the same.

    Args:
        config: the configuration of the aggregation.
        verification_keys: by name, the clients' Ed25519 public keys. With them, the server refuses
            a wrong signature when it arrives. Otherwise every client would refuse the round.

    Example:
        >>> from torchmetrics_fed import SecureAggregationClient, SecureAggregationConfig
        >>> from torchmetrics_fed import SecureAggregationServer
        >>> config = SecureAggregationConfig("round 1", b"spec", cells=2, min_clients=3)
        >>> server = SecureAggregationServer(config)
        >>> received = SecureAggregationConfig.from_bytes(server.start())  # at the client
        >>> server.receive("ann", SecureAggregationClient("ann", received).advertise())
        >>> server.waits_for
        <Stage.ADVERTISE: 1>
    """

    def __init__(
        self, config: SecureAggregationConfig, verification_keys: Mapping[str, bytes] | None = None
    ) -> None:
        self.config = config
        self._verification_keys = verification_keys
        self._stage = Stage.ADVERTISE
        self._total = MaskedVector(config.cells)
        """The sum of the masked vectors."""
        self._received: dict[tuple[Stage, str], bytes] = {}
        """By stage and client, the digest of its message."""
        self._advertised: dict[str, Advertisement] = {}
        self._roster: Roster
        """Set by `keys`, which closes the first stage."""
        self._rows: dict[Stage, dict[int, list[bytes]]] = defaultdict(dict)
        """By stage and index of the client, the rows of its message."""
        self._cohort: tuple[int, ...] = ()
        self._boxes: dict[str, bytes] = {}
        self._sent: dict[str, bytes] = {}
        """By the call that closed a stage, the message that it returned."""
        self._result: tuple[NDArray[np.int64], tuple[str, ...]] | None = None

    def start(self) -> bytes:
        """Return the configuration, for every client."""
        return self.config.to_bytes()

    @property
    def waits_for(self) -> Stage:
        """The stage whose replies are collected now."""
        return self._stage

    def receive(self, sender: str, message: bytes) -> None:
        """Take a message of the present stage.

        A message that raises changes nothing, and a repeated message is ignored.

        Args:
            sender: the client as the transport has authenticated it. The message must agree.
            message: the client's reply.
        """
        mark = b""
        if isinstance(message, bytes | bytearray):
            mark = hashlib.sha256(message).digest()
        earlier_mark = self._received.get((self._stage, sender))
        if earlier_mark == mark:
            return
        is_second = earlier_mark is not None
        if self._stage is Stage.ADVERTISE:
            self._take_keys(sender, message, is_second)
        else:
            self._take_rows(sender, message, is_second)
        self._received[self._stage, sender] = mark

    def keys(self) -> bytes:
        """Close the advertising and return all keys, for every client."""
        if self._closes("keys"):
            clients = tuple(client for _, client in sorted(self._advertised.items()))
            self._roster = Roster(self.config, clients)
            self._close("keys", self._roster.to_bytes())
        return self._closed("keys")

    def ciphertexts(self) -> dict[str, bytes]:
        """Close the sharing and return the boxes for each client that has shared, by name."""
        if self._closes("ciphertexts"):
            roster = self._roster
            cohort = tuple(sorted(self._rows[Stage.SHARE_KEYS]))
            roster.check_quorum(cohort, "to exchange shares")
            for recipient in cohort:
                boxes = {
                    sender: self._box(sender, recipient) for sender in cohort if sender != recipient
                }
                message = roster.pack_tables(Kind.CIPHERTEXTS, roster.hash, boxes)
                self._boxes[self._name(recipient)] = message
            self._cohort = cohort
            self._close("ciphertexts", b"")
        self._closed("ciphertexts")
        return dict(self._boxes)

    def survivors(self) -> bytes:
        """Close the masking and return the survivors, who sign that it is them."""
        if not self.config.signed:
            raise SecureAggregationError(
                "Expected a signed aggregation but this one is not. Call `request`."
            )
        if self._closes("survivors"):
            table = self._survivors_table()
            message = self._roster.pack_tables(Kind.SURVIVORS, self._cohort_hash, table)
            self._close("survivors", message)
        return self._closed("survivors")

    def request(self) -> bytes:
        """Close the masking, or the signing, and return the request to unmask, for survivors."""
        if self._closes("request"):
            tables = [self._survivors_table()]
            if self.config.signed:
                signatures = {
                    index: signature for index, (signature,) in self._rows[Stage.SIGN].items()
                }
                self._roster.check_quorum(tuple(signatures), "to sign the survivors")
                tables.append(signatures)
            message = self._roster.pack_tables(Kind.REQUEST, self._cohort_hash, *tables)
            self._close("request", message)
        return self._closed("request")

    def sum(self) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return the sum of the survivors' vectors, and their names, once enough have replied."""
        if self._result is None:
            self._closed("request")
            self._roster.check_quorum(tuple(self._rows[Stage.UNMASK]), "to answer")
            values = self._unmasked().values
            names = tuple(map(self._name, self._survivors))
            self._result = (values, names)
            del self._rows[Stage.UNMASK]
            del self._rows[Stage.SHARE_KEYS]
        values, names = self._result
        return values.copy(), names

    def _take_keys(self, sender: str, message: bytes, is_second: bool) -> None:
        client = Advertisement.from_bytes(message, self.config)
        self._check_sender(client.client_id, sender, is_second)
        if self._verification_keys is not None and self.config.signed:
            client.check_signature(self.config, self._verification_keys)
        self._advertised[sender] = client

    def _take_rows(self, sender: str, message: bytes, is_second: bool) -> None:
        kind = REPLIES[self._stage]
        subject = self._subject
        index, rows = self._roster.read_rows(message, kind, subject, cohort=len(self._cohort))
        self._check_sender(self._name(index), sender, is_second)
        if index not in self._expected_clients:
            raise SecureAggregationError(
                f"Expected a message {kind.name} of those who took part in the stage before but "
                f"client {sender!r} did not. It has dropped out of this round."
            )
        if self._stage is Stage.SIGN:
            self._check_signature(sender, statement=subject, signature=rows[0])
        if self._stage is Stage.MASK:
            self._total.add_bytes(rows.pop())
        self._rows[self._stage][index] = rows

    @property
    def _subject(self) -> bytes:
        """The hash that replies of the present stage are about."""
        if self._stage is Stage.SHARE_KEYS:
            return self._roster.hash
        if self._stage is Stage.MASK:
            return self._cohort_hash
        return self._survivors_hash

    @property
    def _expected_clients(self) -> Sequence[int]:
        """The clients that may reply in the present stage."""
        if self._stage is Stage.SHARE_KEYS:
            return range(len(self._roster))
        if self._stage is Stage.MASK:
            return self._cohort
        return self._survivors

    def _check_sender(self, claimed_sender: str, sender: str, is_second: bool) -> None:
        if claimed_sender != sender:
            raise SecureAggregationError(
                f"Expected client {sender!r} to speak for itself but its message is of "
                f"{claimed_sender!r}. Leave it out."
            )
        if is_second:
            raise SecureAggregationError(
                f"Expected one {REPLIES[self._stage].name} of {sender!r} but got 2. The first "
                "stands."
            )

    def _check_signature(self, sender: str, *, statement: bytes, signature: bytes) -> None:
        keys = self._verification_keys
        if keys is not None and not is_signed(statement, signature, keys[sender]):
            raise SecureAggregationError(
                f"Expected the signature of client {sender!r} but it is wrong. Leave it out."
            )

    def _box(self, sender: int, recipient: int) -> bytes:
        """Return the box that one client has sealed for another.

        The first row of a message is the commitment, and a client seals no box for itself.
        """
        place = 1 + recipient
        if recipient > sender:
            place -= 1
        return self._rows[Stage.SHARE_KEYS][sender][place]

    def _unmasked(self) -> MaskedVector:
        """Return the sum of the vectors without their masks."""
        secrets = self._opened_secrets()
        total = self._total.copy()
        context = self._cohort_hash
        survivors = self._survivors
        for index, secret in secrets.items():
            if index in survivors:
                total.unmask(seed_key(secret, context, index))
                continue
            pair = KeyPair(secret)
            for survivor in survivors:
                agreed = pair.agree(self._roster.clients[survivor].masking)
                key = pair_key(agreed, context, index, survivor)
                # The mask of the dropped client cancels the mask of the survivor.
                total.mask_pair(key, index, survivor)
        return total

    def _opened_secrets(self) -> dict[int, bytes]:
        """Return, for each client of the cohort, a survivor's seed or a dropped client's key."""
        answers = self._rows[Stage.UNMASK]
        responders = sorted(answers)[: self._roster.threshold]
        combiner = Combiner([index + 1 for index in responders])
        secrets = {}
        for place, index in enumerate(self._cohort):
            shares = [answers[responder][place] for responder in responders]
            secret = combiner.combine(shares)
            self._check_commitment(index, secret)
            secrets[index] = secret
        return secrets

    def _check_commitment(self, index: int, secret: bytes) -> None:
        """Raise unless a reconstructed secret is the one that the client has committed to."""
        if index in self._rows[Stage.MASK]:
            name = "seed"
            committed = self._rows[Stage.SHARE_KEYS][index][0]
            actual = commitment(secret, self._roster.hash, index)
        else:
            name = "key"
            committed = self._roster.clients[index].masking
            actual = KeyPair(secret).public
        if actual != committed:
            raise SecureAggregationError(
                f"Expected the shares of client {self._name(index)!r} to give the {name} it "
                "committed to but they give another: it dealt wrong shares, or an answer holds "
                "one. Nothing was opened; start a new round."
            )

    @property
    def _survivors(self) -> tuple[int, ...]:
        """The clients whose masked vectors are in the total."""
        return tuple(sorted(self._rows[Stage.MASK]))

    def _survivors_table(self) -> dict[int, bytes]:
        """Return the survivors as a table without content. Raises if there are too few."""
        self._roster.check_quorum(self._survivors, "to send masked vectors")
        return dict.fromkeys(self._survivors, b"")

    @property
    def _cohort_hash(self) -> bytes:
        return self._roster.cohort_hash(self._cohort)

    @property
    def _survivors_hash(self) -> bytes:
        return self._roster.survivors_hash(self._cohort, self._survivors)

    def _name(self, index: int) -> str:
        return self._roster.clients[index].client_id

    def _closes(self, call: str) -> bool:
        """Return whether the call closes the present stage, by the table of states."""
        return (self._stage, call) in SERVER_MOVES[self.config.signed]

    def _close(self, call: str, message: bytes) -> None:
        """Note the message that a call returns, and move to the next stage."""
        self._sent[call] = message
        self._stage = SERVER_MOVES[self.config.signed][self._stage, call]

    def _closed(self, call: str) -> bytes:
        """Return the message of a call that has closed its stage. Raises if it has not."""
        if call not in self._sent:
            raise SecureAggregationError(
                f"Expected the stages before `{call}` to be over but the server still collects "
                f"messages {REPLIES[self._stage].name}. Close them in order: keys, ciphertexts, "
                "survivors if signed, request, sum."
            )
        return self._sent[call]
