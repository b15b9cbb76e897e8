"""SecureAggregationClient: one client's side of one aggregation, bytes in and bytes out.

These rules hold for every client:

- The client moves as the table :data:`~torchmetrics_fed.aggregation.secure.states.CLIENT_MOVES`
  says: every stage once, in order.
- A call checks its message first. A call that raises changes nothing and sends nothing.
- The vector is drawn once, when all else is checked. If this fails, the client is purged, because
  the vector may have been paid for.
- A client replies about one list of survivors. Two replies about two lists expose a client.
- Secrets are dropped as soon as no later stage needs them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import RLock
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.aggregation.secure import keys
from torchmetrics_fed.aggregation.secure.config import SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.mask import MaskedVector
from torchmetrics_fed.aggregation.secure.roster import Advertisement, Roster
from torchmetrics_fed.aggregation.secure.shamir import SHARE_BYTES, split
from torchmetrics_fed.aggregation.secure.states import CLIENT_MOVES, ClientState, Progress
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import InputError, SecureAggregationError
from torchmetrics_fed.release.wire import Kind, text_size


class SecureAggregationClient:
    """Takes part in one aggregation. A retry is a new object, with fresh keys, in a new round.

    A call that raises leaves the client in its state, and nothing was sent. One exception: if
    ``vector_factory`` fails, the client is purged, because the vector may have been paid for.

    Args:
        client_id: the name of the client, 1 to 255 bytes, which no other client has.
        config: the configuration of the aggregation.
        signing_key: the client's long-term Ed25519 private key, 32 bytes, where the configuration
            asks for signatures.
        verification_keys: by name, the Ed25519 public keys of all clients that may take part. They
            must not come from the server.

    Example:
        >>> import numpy as np
        >>> from torchmetrics_fed import SecureAggregationClient as Client
        >>> from torchmetrics_fed import SecureAggregationConfig, SecureAggregationServer
        >>> config = SecureAggregationConfig("round 1", b"spec", cells=2, min_clients=3)
        >>> server = SecureAggregationServer(config)
        >>> clients = {name: Client(name, config) for name in "abc"}
        >>> for name, client in clients.items():
        ...     server.receive(name, client.advertise())
        >>> keys = server.keys()
        >>> for name, client in clients.items():
        ...     server.receive(name, client.share_keys(keys))
        >>> for name, boxes in server.ciphertexts().items():
        ...     server.receive(name, clients[name].mask(boxes, lambda: np.array([1, -2])))
        >>> request = server.request()
        >>> for name, client in clients.items():
        ...     server.receive(name, client.unmask(request))
        >>> server.sum()
        (array([ 3, -6]), ('a', 'b', 'c'))
    """

    def __init__(
        self,
        client_id: str,
        config: SecureAggregationConfig,
        signing_key: bytes | None = None,
        verification_keys: Mapping[str, bytes] | None = None,
    ) -> None:
        if not 1 <= text_size(client_id) <= 255:
            raise InputError(
                "Expected argument `client_id` to be a text of 1 to 255 bytes but it is not."
            )
        has_signing_key = signing_key is not None
        has_verification_keys = verification_keys is not None
        if config.signed != has_signing_key or config.signed != has_verification_keys:
            expected = "both" if config.signed else "not"
            got = "one is missing" if config.signed else "got one"
            raise InputError(
                f"Expected `signing_key` and `verification_keys` {expected} to be given for "
                f"signed={config.signed} but {got}. They go together."
            )
        self.client_id = client_id
        self.config = config
        self._lock = RLock()
        self._signing_key = None
        self._verification_keys = dict(verification_keys or {})
        verification_key = None
        if signing_key is not None:
            self._signing_key = keys.signing_key_of(signing_key)
            verification_key = self._signing_key.public_key().public_bytes_raw()
        if self._verification_keys.get(client_id) != verification_key:
            raise InputError(
                f"Expected `verification_keys` to hold the key of {client_id!r} that belongs to "
                "`signing_key` but it is another or missing. Give every client the same keys, its "
                "own included."
            )
        self._progress = Progress()

    def __reduce__(self) -> NoReturn:
        raise SecureAggregationError(
            "Expected one client per sum but a copy or pickle was asked for: two of them can "
            "answer two lists, which exposes the client. Keep the object, or hand it to the next "
            "process with `to_bytes`."
        )

    def to_bytes(self) -> bytes:
        """Return the state of the client, with its secrets, for the next process of the same node.

        A node must not continue from the same bytes twice: two replies about two lists expose the
        client. Where a process may crash, the node notes durably that it replies before it does.
        """
        with self._lock:
            return self._progress.to_bytes(self.client_id, self.config)

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        config: SecureAggregationConfig,
        signing_key: bytes | None = None,
        verification_keys: Mapping[str, bytes] | None = None,
    ) -> SecureAggregationClient:
        """Return the client that :meth:`to_bytes` wrote."""
        client_id, progress = Progress.from_bytes(data, config)
        client = cls(client_id, config, signing_key, verification_keys)
        client._progress = progress
        return client

    @property
    def state(self) -> ClientState:
        """The state of the client."""
        return self._progress.state

    def advertise(self) -> bytes:
        """Return fresh public keys, for all clients."""
        with self._lock:
            next_state = self._next_state(Stage.ADVERTISE)
            sealing = keys.KeyPair()
            masking = keys.KeyPair()
            advertisement = Advertisement(self.client_id, sealing.public, masking.public)
            if self._signing_key:
                signature = self._signing_key.sign(advertisement.statement(self.config))
                advertisement = replace(advertisement, signature=signature)
            self._progress = Progress(
                next_state,
                sealing=sealing.private,
                masking=masking.private,
            )
            return advertisement.to_bytes(self.config)

    def share_keys(self, keys_message: bytes) -> bytes:
        """Return shares of the masking key and of a fresh seed, one box for each other client."""
        with self._lock:
            next_state = self._next_state(Stage.SHARE_KEYS)
            progress = self._progress
            sealing = keys.KeyPair(progress.sealing)
            masking = keys.KeyPair(progress.masking)
            roster = Roster.from_bytes(keys_message, self.config)
            advertisement = Advertisement(self.client_id, sealing.public, masking.public)
            self._check_roster(roster, advertisement)
            index = roster.indices[self.client_id]
            seed = secrets.token_bytes(keys.KEY_BYTES)
            key_shares = split(progress.masking, roster.threshold, len(roster))
            seed_shares = split(seed, roster.threshold, len(roster))
            agreed = {}
            boxes = []
            for recipient, client in enumerate(roster.clients):
                if recipient == index:
                    continue
                agreed[recipient] = sealing.agree(client.sealing)
                key = keys.box_key(agreed[recipient], roster.hash, index, recipient)
                boxes.append(keys.seal(key, key_shares[recipient] + seed_shares[recipient]))
            self._progress = Progress(
                next_state,
                masking=progress.masking,
                seed=seed,
                roster=roster,
                agreed=agreed,
                share_pairs={index: key_shares[index] + seed_shares[index]},
            )
            commitment = keys.commitment(seed, roster.hash, index)
            return roster.pack_rows(Kind.KEY_SHARES, roster.hash, index, commitment, *boxes)

    def mask(
        self, ciphertexts_message: bytes, vector_factory: Callable[[], NDArray[np.int64]]
    ) -> bytes:
        """Return the masked vector, once.

        Args:
            ciphertexts_message: the boxes that other clients have sealed for this client.
            vector_factory: returns the vector, int64 of shape ``(cells,)``. It is called once, when
                everything is checked and only the mask is left to add: it draws and charges noise.
        """
        with self._lock:
            next_state = self._next_state(Stage.MASK)
            progress = self._progress
            roster = self._roster
            index = roster.indices[self.client_id]
            (boxes,) = roster.read_tables(ciphertexts_message, Kind.CIPHERTEXTS, roster.hash)
            if index in boxes:
                raise SecureAggregationError(
                    "Expected boxes of others but got one's own. Send what they sealed."
                )
            cohort = tuple(sorted((index, *boxes)))
            roster.check_quorum(cohort, "to exchange shares")
            context = roster.cohort_hash(cohort)
            vector = MaskedVector(self.config.cells)
            share_pairs = dict(progress.share_pairs)
            masking = keys.KeyPair(progress.masking)
            for sender, box in boxes.items():
                box_key = keys.box_key(progress.agreed[sender], roster.hash, sender, index)
                share_pairs[sender] = keys.unseal(box_key, box)
                secret = masking.agree(roster.clients[sender].masking)
                pair_key = keys.pair_key(secret, context, index, sender)
                vector.mask_pair(pair_key, index, sender)
            vector.mask(keys.seed_key(progress.seed, context, index))
            progress.state = next_state
            try:
                vector.add(vector_factory())
                if self._progress is not progress:
                    raise SecureAggregationError(
                        "The client was purged while its vector was being drawn."
                    )
            except BaseException:
                self.purge()
                raise
            self._progress = Progress(
                next_state, roster=roster, share_pairs=share_pairs, cohort=cohort
            )
            return roster.pack_rows(Kind.MASKED, context, index, vector.to_bytes())

    def sign_survivors(self, survivors_message: bytes) -> bytes:
        """Return a signature of the survivors, which binds this client to them."""
        with self._lock:
            next_state = self._next_state(Stage.SIGN)
            assert self._signing_key is not None
            progress = self._progress
            roster = self._roster
            context = roster.cohort_hash(progress.cohort)
            (table,) = roster.read_tables(survivors_message, Kind.SURVIVORS, context)
            survivors = tuple(table)
            self._check_survivors(survivors)
            progress.survivors = survivors
            progress.state = next_state
            statement = roster.survivors_hash(progress.cohort, survivors)
            signature = self._signing_key.sign(statement)
            index = roster.indices[self.client_id]
            return roster.pack_rows(Kind.SIGNATURE, statement, index, signature)

    def unmask(self, request: bytes) -> bytes:
        """Return shares of the survivors' seeds and of the dropped clients' masking keys.

        The same survivors get the same reply; other survivors raise.
        """
        with self._lock:
            next_state = self._next_state(Stage.UNMASK)
            progress = self._progress
            roster = self._roster
            context = roster.cohort_hash(progress.cohort)
            table, *signatures = roster.read_tables(request, Kind.REQUEST, context)
            survivors = tuple(table)
            if progress.survivors and survivors != progress.survivors:
                raise SecureAggregationError(
                    "Expected the survivors that this client signed or answered for but got "
                    "others: two lists together expose clients. Ask again with the first list, or "
                    "start a new round."
                )
            if progress.state is next_state:
                return progress.answer
            self._check_survivors(survivors)
            statement = roster.survivors_hash(progress.cohort, survivors)
            if self.config.signed:
                self._check_signatures(statement, survivors, signatures[0])
            index = roster.indices[self.client_id]
            shares = _opening_shares(progress, set(survivors))
            progress.answer = roster.pack_rows(Kind.ANSWER, statement, index, *shares)
            progress.survivors = survivors
            progress.state = next_state
            progress.share_pairs = {}
            return progress.answer

    def purge(self) -> None:
        """Drop all secrets. The client replies no more."""
        with self._lock:
            self._progress = Progress(ClientState.PURGED)

    @property
    def _roster(self) -> Roster:
        """The roster, which the client knows once it has shared its keys."""
        assert self._progress.roster is not None
        return self._progress.roster

    def _next_state(self, stage: Stage) -> ClientState:
        """Return the state after a stage. Raises if the table of states has no such move."""
        moves = CLIENT_MOVES[self.config.signed]
        state = self._progress.state
        if (state, stage) not in moves:
            names = [before.name for before, allowed in moves if allowed is stage]
            expected = " or ".join(names) or "signed"
            raise SecureAggregationError(
                f"Expected a client that is {expected} for `{stage}` but this one is {state.name}: "
                "each stage is gone through once, in order. For another aggregation make a new "
                "client."
            )
        return moves[state, stage]

    def _check_roster(self, roster: Roster, advertisement: Advertisement) -> None:
        """Raise unless the roster has this client's keys, and keys that their owners signed."""
        index = roster.indices.get(self.client_id)
        if index is None or roster.clients[index].body != advertisement.body:
            raise SecureAggregationError(
                f"Expected the keys of {self.client_id!r} as it advertised them but they are "
                "missing or changed. Leave this round: somebody else may be reading."
            )
        if self.config.signed:
            for client in roster.clients:
                client.check_signature(self.config, self._verification_keys)

    def _check_survivors(self, survivors: tuple[int, ...]) -> None:
        """Raise unless enough clients of the cohort survived, this client among them."""
        roster = self._roster
        roster.check_quorum(survivors, "to survive")
        is_survivor = roster.indices[self.client_id] in survivors
        if not is_survivor or not set(survivors) <= set(self._progress.cohort):
            raise SecureAggregationError(
                "Expected survivors among those who exchanged shares, this client included, but "
                "got others. Ask those."
            )

    def _check_signatures(
        self, statement: bytes, survivors: tuple[int, ...], signatures: dict[int, bytes]
    ) -> None:
        """Raise unless enough survivors have signed these survivors."""
        roster = self._roster
        roster.check_quorum(tuple(signatures), "to sign the survivors")
        for index, signature in signatures.items():
            name = roster.clients[index].client_id
            is_signed = index in survivors and keys.is_signed(
                statement, signature, self._verification_keys[name]
            )
            if not is_signed:
                raise SecureAggregationError(
                    f"Expected client {name!r} to have signed these survivors but it did not: the "
                    "server may have named others to other clients. Leave this round."
                )


def _opening_shares(progress: Progress, survivors: set[int]) -> list[bytes]:
    """Return a share for each client of the cohort: of a survivor's seed, or of a dropped key.

    A client holds the share of the masking key and the share of the seed side by side.
    """
    shares = []
    for index in progress.cohort:
        key_share = progress.share_pairs[index][:SHARE_BYTES]
        seed_share = progress.share_pairs[index][SHARE_BYTES : 2 * SHARE_BYTES]
        shares.append(seed_share if index in survivors else key_share)
    return shares
