"""SecureAggregationClient: one client's side of one aggregation, bytes in and bytes out."""

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
    """Takes part in one aggregation; a retry is a new object, with fresh keys, in a new round.

    A call that raises leaves the client where it was, and sent nothing; only where ``vector_factory`` was called and
    failed is the client purged because the vector may have been paid for.

    Args:
        client_id: its name, 1 to 255 bytes, which no other client has.
        signing_key: its long-term Ed25519 private key, 32 bytes, where the configuration asks for signatures.
        verification_keys: by name, the Ed25519 public keys of all who may take part. Not from the server.

    Example:
        >>> import numpy as np
        >>> from torchmetrics_fed import SecureAggregationClient as Client
        >>> from torchmetrics_fed import SecureAggregationConfig, SecureAggregationServer
        >>> config = SecureAggregationConfig("round 1", b"spec", cells=2, min_clients=3)
        >>> server, clients = SecureAggregationServer(config), {name: Client(name, config) for name in "abc"}
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
        if config.signed != (signing_key is not None) or config.signed != (
            verification_keys is not None
        ):
            raise InputError(
                f"Expected `signing_key` and `verification_keys` {'both' if config.signed else 'not'} to be given for "
                f"signed={config.signed} but {'one is missing' if config.signed else 'got one'}. They go together."
            )
        self.client_id, self.config = client_id, config
        self._lock = RLock()
        self._signing = keys.signing_key_of(signing_key) if signing_key is not None else None
        self._verification_keys = dict(verification_keys or {})
        own = self._signing.public_key().public_bytes_raw() if self._signing else None
        if self._verification_keys.get(client_id) != own:
            raise InputError(
                f"Expected `verification_keys` to hold the key of {client_id!r} that belongs to `signing_key` but it "
                "is another or missing. Give every client the same keys, its own included."
            )
        self._progress = Progress()

    def __reduce__(self) -> NoReturn:
        raise SecureAggregationError(
            "Expected one client per sum but a copy or pickle was asked for: two of them can answer two lists, which "
            "exposes the client. Keep the object, or hand it to the next process with `to_bytes`."
        )

    def to_bytes(self) -> bytes:
        """Return all that the client knows, secrets included, for the next process of the same node.

        Whoever goes on from the same bytes twice can answer two lists, which exposes the client: where a process may
        crash, the node notes durably that it answers before it does.
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
        """Return the client that `to_bytes` was called on."""
        client_id, progress = Progress.from_bytes(data, config)
        client = cls(client_id, config, signing_key, verification_keys)
        client._progress = progress
        return client

    @property
    def state(self) -> ClientState:
        """How far the client has come."""
        return self._progress.state

    def advertise(self) -> bytes:
        """Return fresh public keys for everyone."""
        with self._lock:
            after, sealing, masking = self._after(Stage.ADVERTISE), keys.KeyPair(), keys.KeyPair()
            own = Advertisement(self.client_id, sealing.public, masking.public)
            if self._signing:
                own = replace(own, signature=self._signing.sign(own.statement(self.config)))
            self._progress = Progress(after, sealing.private, masking.private)
            return own.to_bytes(self.config)

    def share_keys(self, keys_message: bytes) -> bytes:
        """Return shares of the masking key and of a fresh seed, one box for each other client."""
        with self._lock:
            after, known = self._after(Stage.SHARE_KEYS), self._progress
            sealing, masking = keys.KeyPair(known.sealing), keys.KeyPair(known.masking)
            roster = Roster.from_bytes(keys_message, self.config)
            own = roster.indices.get(self.client_id, -1)
            sent = Advertisement(self.client_id, sealing.public, masking.public)
            if own < 0 or roster.clients[own].body != sent.body:
                raise SecureAggregationError(
                    f"Expected the keys of {self.client_id!r} as it advertised them but they are missing or changed. "
                    "Leave this round: somebody else may be reading."
                )
            if self.config.signed:
                for client in roster.clients:
                    client.check_signature(self.config, self._verification_keys)
            seed = secrets.token_bytes(keys.KEY_BYTES)
            key_shares = split(known.masking, roster.threshold, len(roster))
            seed_shares = split(seed, roster.threshold, len(roster))
            agreed, boxes = {}, []
            for index, client in enumerate(roster.clients):
                if index != own:
                    agreed[index] = sealing.agree(client.sealing)
                    key = keys.box_key(agreed[index], roster.hash, own, index)
                    boxes.append(keys.seal(key, key_shares[index] + seed_shares[index]))
            held = {own: key_shares[own] + seed_shares[own]}
            self._progress = Progress(after, b"", known.masking, seed, roster, agreed, held)
            return roster.pack_rows(
                Kind.KEY_SHARES, roster.hash, own, keys.commitment(seed, roster.hash, own), *boxes
            )

    def mask(
        self, ciphertexts_message: bytes, vector_factory: Callable[[], NDArray[np.int64]]
    ) -> bytes:
        """Return the masked vector, once.

        ``vector_factory`` returns the vector, int64 of shape ``(cells,)``. It is called once, when everything was
        checked and all that is left is to add the mask: here noise is drawn and charged.
        """
        with self._lock:
            after, known, (roster, own) = self._after(Stage.MASK), self._progress, self._known
            (boxes,) = roster.read_tables(ciphertexts_message, Kind.CIPHERTEXTS, roster.hash)
            if own in boxes:
                raise SecureAggregationError(
                    "Expected boxes of others but got one's own. Send what they sealed."
                )
            cohort = tuple(sorted((own, *boxes)))
            roster.check_quorum(cohort, "to exchange shares")
            held, vector, context = (
                dict(known.held),
                MaskedVector(self.config.cells),
                roster.cohort_hash(cohort),
            )
            masking = keys.KeyPair(known.masking)
            for index, box in boxes.items():
                held[index] = keys.unseal(
                    keys.box_key(known.agreed[index], roster.hash, index, own), box
                )
                secret = masking.agree(roster.clients[index].masking)
                vector.mask_pair(keys.pair_key(secret, context, own, index), own, index)
            vector.mask(keys.seed_key(known.seed, context, own))
            known.state = after
            try:
                vector.add(vector_factory())
                if self._progress is not known:
                    raise SecureAggregationError(
                        "Expected a client that goes on but it was purged meanwhile."
                    )
            except BaseException:
                self.purge()
                raise
            self._progress = Progress(after, roster=roster, held=held, cohort=cohort)
            return roster.pack_rows(Kind.MASKED, context, own, vector.to_bytes())

    def sign_survivors(self, survivors_message: bytes) -> bytes:
        """Return a signature of the survivors, which binds this client to them."""
        with self._lock:
            after = self._after(Stage.SIGN)
            assert self._signing is not None
            (roster, own), cohort = self._known, self._progress.cohort
            (listed,) = roster.read_tables(
                survivors_message, Kind.SURVIVORS, roster.cohort_hash(cohort)
            )
            survivors = tuple(listed)
            self._check_survivors(survivors)
            self._progress.survivors, self._progress.state = survivors, after
            statement = roster.survivors_hash(cohort, survivors)
            return roster.pack_rows(Kind.SIGNATURE, statement, own, self._signing.sign(statement))

    def unmask(self, request: bytes) -> bytes:
        """Return shares of the survivors' seeds and of the dropped clients' keys; for the same survivors, the same."""
        with self._lock:
            after, known, (roster, own) = self._after(Stage.UNMASK), self._progress, self._known
            listed, *signatures = roster.read_tables(
                request, Kind.REQUEST, roster.cohort_hash(known.cohort)
            )
            survivors = tuple(listed)
            if known.survivors and survivors != known.survivors:
                raise SecureAggregationError(
                    "Expected the survivors that this client signed or answered for but got others: two lists together "
                    "expose clients. Ask again with the first list, or start a new round."
                )
            if known.state is after:
                return known.answer
            self._check_survivors(survivors)
            statement, among = roster.survivors_hash(known.cohort, survivors), set(survivors)
            if self.config.signed:
                self._check_signatures(statement, survivors, *signatures)
            halves = [
                known.held[index][SHARE_BYTES * (index in among) :][:SHARE_BYTES]
                for index in known.cohort
            ]
            known.answer = roster.pack_rows(Kind.ANSWER, statement, own, *halves)
            known.survivors, known.state, known.held = survivors, after, {}
            return known.answer

    def purge(self) -> None:
        """Forget everything. The client answers no more."""
        with self._lock:
            self._progress = Progress(ClientState.PURGED)

    @property
    def _known(self) -> tuple[Roster, int]:
        assert self._progress.roster is not None
        return self._progress.roster, self._progress.roster.indices[self.client_id]

    def _after(self, stage: Stage) -> ClientState:
        """Return the state that a stage leads to, or raise where the table of states has none."""
        moves, state = CLIENT_MOVES[self.config.signed], self._progress.state
        if (state, stage) not in moves:
            expected = (
                " or ".join(before.name for before, allowed in moves if allowed is stage)
                or "signed"
            )
            raise SecureAggregationError(
                f"Expected a client that is {expected} for `{stage}` but this one is {state.name}: each stage is "
                "gone through once, in order. For another aggregation make a new client."
            )
        return moves[state, stage]

    def _check_survivors(self, survivors: tuple[int, ...]) -> None:
        roster, own = self._known
        roster.check_quorum(survivors, "to survive")
        if own not in survivors or not set(survivors) <= set(self._progress.cohort):
            raise SecureAggregationError(
                "Expected survivors among those who exchanged shares, this client included, but got others. Ask those."
            )

    def _check_signatures(
        self, statement: bytes, survivors: tuple[int, ...], signatures: dict[int, bytes]
    ) -> None:
        roster, _ = self._known
        roster.check_quorum(tuple(signatures), "to sign the survivors")
        for index, signature in signatures.items():
            name = roster.clients[index].client_id
            if index not in survivors or not keys.is_signed(
                statement, signature, self._verification_keys[name]
            ):
                raise SecureAggregationError(
                    f"Expected client {name!r} to have signed these survivors but it did not: the server may have "
                    "named others to other clients. Leave this round."
                )
