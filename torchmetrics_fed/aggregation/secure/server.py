"""SecureAggregationServer: the star in the middle, which learns the sum and who took part."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping

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

    ``receive`` takes what clients send; ``keys``, ``ciphertexts``, ``survivors`` (only where signed), ``request`` and
    ``sum`` each close a stage: who has not sent by then has dropped out. Where too few have, they raise and the stage
    stays open. Called again they return the same.

    With ``verification_keys``, the clients' Ed25519 public keys, it refuses wrong signatures when they come rather than
    let every client refuse the round.

    Example:
        >>> from torchmetrics_fed import SecureAggregationClient, SecureAggregationConfig, SecureAggregationServer
        >>> server = SecureAggregationServer(SecureAggregationConfig("round 1", b"spec", cells=2, min_clients=3))
        >>> config = SecureAggregationConfig.from_bytes(server.start())  # at the client
        >>> server.receive("ann", SecureAggregationClient("ann", config).advertise())
        >>> server.waits_for
        <Stage.ADVERTISE: 1>
    """

    def __init__(
        self, config: SecureAggregationConfig, verification_keys: Mapping[str, bytes] | None = None
    ) -> None:
        self.config, self._verification_keys = config, verification_keys
        self._stage, self._total = Stage.ADVERTISE, MaskedVector(config.cells)
        self._received: dict[tuple[Stage, str], bytes] = {}
        self._advertised: dict[str, Advertisement] = {}
        self._roster: Roster  # from `keys` on, which closes the first stage
        self._rows: dict[Stage, dict[int, list[bytes]]] = defaultdict(dict)
        self._cohort: tuple[int, ...] = ()
        self._boxes: dict[str, bytes] = {}
        self._sent: dict[str, bytes] = {}
        self._result: tuple[NDArray[np.int64], tuple[str, ...]] | None = None

    def start(self) -> bytes:
        """Return the configuration, for every client."""
        return self.config.to_bytes()

    @property
    def waits_for(self) -> Stage:
        """The stage whose replies are collected now."""
        return self._stage

    def receive(self, sender: str, message: bytes) -> None:
        """Take a message of the present stage; one that raises changes nothing, and the same one again is ignored.

        The sender is the client as the transport knows it. What it says of itself must agree.
        """
        mark = hashlib.sha256(message).digest() if isinstance(message, bytes | bytearray) else b""
        known = self._received.get((self._stage, sender))
        if known == mark:
            return
        take = self._take_keys if self._stage is Stage.ADVERTISE else self._take_rows
        take(sender, message, known is not None)
        self._received[self._stage, sender] = mark

    def keys(self) -> bytes:
        """Close the advertising and return all keys, for every client."""
        if self._closes("keys"):
            self._roster = Roster(
                self.config, tuple(client for _, client in sorted(self._advertised.items()))
            )
            self._close("keys", self._roster.to_bytes())
        return self._closed("keys")

    def ciphertexts(self) -> dict[str, bytes]:
        """Close the sharing and return each client's boxes, by name, for those who shared."""
        if self._closes("ciphertexts"):
            roster, shares = self._roster, self._rows[Stage.SHARE_KEYS]
            cohort = tuple(sorted(shares))
            roster.check_quorum(cohort, "to exchange shares")
            for index in cohort:
                # the first row is the commitment, and nobody seals a box for itself
                boxes = {
                    other: shares[other][1 + index - (index > other)]
                    for other in cohort
                    if other != index
                }
                self._boxes[self._name(index)] = roster.pack_tables(
                    Kind.CIPHERTEXTS, roster.hash, boxes
                )
            self._cohort = cohort
            self._close("ciphertexts", b"")
        self._closed("ciphertexts")
        return dict(self._boxes)

    def survivors(self) -> bytes:
        """Close the masking and return who is in the sum, for them to sign."""
        if not self.config.signed:
            raise SecureAggregationError(
                "Expected a signed aggregation but this one is not. Call `request`."
            )
        if self._closes("survivors"):
            self._close(
                "survivors",
                self._roster.pack_tables(Kind.SURVIVORS, self._cohort_hash, self._listed()),
            )
        return self._closed("survivors")

    def request(self) -> bytes:
        """Close the masking, or the signing, and return the request to unmask, for the survivors."""
        if self._closes("request"):
            tables = [self._listed()]
            if self.config.signed:
                signatures = {
                    index: signature for index, (signature,) in self._rows[Stage.SIGN].items()
                }
                self._roster.check_quorum(tuple(signatures), "to sign the survivors")
                tables.append(signatures)
            self._close(
                "request", self._roster.pack_tables(Kind.REQUEST, self._cohort_hash, *tables)
            )
        return self._closed("request")

    def sum(self) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return the sum of the survivors' vectors, and who they are, once enough of them answered."""
        if self._result is None:
            self._closed("request")
            self._roster.check_quorum(tuple(self._rows[Stage.UNMASK]), "to answer")
            self._result = self._unmasked().values, tuple(map(self._name, self._survivors))
            del self._rows[Stage.UNMASK], self._rows[Stage.SHARE_KEYS]
        values, names = self._result
        return values.copy(), names

    def _take_keys(self, sender: str, message: bytes, again: bool) -> None:
        client = Advertisement.from_bytes(message, self.config)
        self._check_sender(client.client_id, sender, again)
        if self._verification_keys is not None and self.config.signed:
            client.check_signature(self.config, self._verification_keys)
        self._advertised[sender] = client

    def _take_rows(self, sender: str, message: bytes, again: bool) -> None:
        about, among = {
            Stage.SHARE_KEYS: (self._roster.hash, tuple(range(len(self._roster)))),
            Stage.MASK: (self._cohort_hash, self._cohort),
        }.get(self._stage, (self._survivors_hash, self._survivors))
        index, rows = self._roster.read_rows(
            message, REPLIES[self._stage], about, len(self._cohort)
        )
        self._check_sender(self._name(index), sender, again)
        if index not in among:
            raise SecureAggregationError(
                f"Expected a message {REPLIES[self._stage].name} of those who took part in the stage before but client "
                f"{sender!r} did not. It has dropped out of this round."
            )
        keys = self._verification_keys
        if (
            self._stage is Stage.SIGN
            and keys is not None
            and not is_signed(about, rows[0], keys[sender])
        ):
            raise SecureAggregationError(
                f"Expected the signature of client {sender!r} but it is wrong. Leave it out."
            )
        if self._stage is Stage.MASK:
            self._total.add_bytes(rows.pop())
        self._rows[self._stage][index] = rows

    def _check_sender(self, claimed: str, sender: str, again: bool) -> None:
        if claimed != sender:
            raise SecureAggregationError(
                f"Expected client {sender!r} to speak for itself but its message is of {claimed!r}. Leave it out."
            )
        if again:
            raise SecureAggregationError(
                f"Expected one {REPLIES[self._stage].name} of {sender!r} but got 2. The first stands."
            )

    def _unmasked(self) -> MaskedVector:
        """Return the sum without its masks: for each client the seed of a survivor, or the key of a dropped one."""
        roster, context, answers, survivors = (
            self._roster,
            self._cohort_hash,
            self._rows[Stage.UNMASK],
            self._survivors,
        )
        responders, among = sorted(answers)[: roster.threshold], set(survivors)
        combiner = Combiner([index + 1 for index in responders])
        opened = {}
        for place, index in enumerate(self._cohort):
            opened[index] = combiner.combine(
                [answers[responder][place] for responder in responders]
            )
            self._verify(index, opened[index], index in among)
        total = self._total.copy()
        for index, secret in opened.items():
            if index in among:
                total.unmask(seed_key(secret, context, index))
                continue
            pair = KeyPair(secret)
            for survivor in survivors:
                key = pair_key(
                    pair.agree(roster.clients[survivor].masking), context, index, survivor
                )
                total.mask_pair(
                    key, index, survivor
                )  # what it would have sent cancels the survivor's
        return total

    def _verify(self, index: int, secret: bytes, survived: bool) -> None:
        committed = (
            self._rows[Stage.SHARE_KEYS][index][0]
            if survived
            else self._roster.clients[index].masking
        )
        if (
            commitment(secret, self._roster.hash, index) if survived else KeyPair(secret).public
        ) != committed:
            raise SecureAggregationError(
                f"Expected the shares of client {self._name(index)!r} to give the {'seed' if survived else 'key'} it "
                "committed to but they give another: it dealt wrong shares, or an answer holds one. Nothing was "
                "opened; start a new round."
            )

    @property
    def _survivors(self) -> tuple[int, ...]:
        """Those whose masked vectors are in the total."""
        return tuple(sorted(self._rows[Stage.MASK]))

    def _listed(self) -> dict[int, bytes]:
        """Return the survivors as a table without content, once there are enough."""
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
        """Whether the call closes the stage that is open, by the table of states."""
        return (self._stage, call) in SERVER_MOVES[self.config.signed]

    def _close(self, call: str, message: bytes) -> None:
        self._sent[call], self._stage = message, SERVER_MOVES[self.config.signed][self._stage, call]

    def _closed(self, call: str) -> bytes:
        if call not in self._sent:
            raise SecureAggregationError(
                f"Expected the stages before `{call}` to be over but the server still collects messages "
                f"{REPLIES[self._stage].name}. Close them in order: keys, ciphertexts, survivors if signed, request, "
                "sum."
            )
        return self._sent[call]
