"""Client: it has a name and keys, continues in another process, and drops its secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.aggregation.secure.federation import Federation, request_of
from torchmetrics_fed import InputError
from torchmetrics_fed.aggregation.secure import (
    SecureAggregationClient,
    SecureAggregationConfig,
    new_signing_keys,
)
from torchmetrics_fed.aggregation.secure.states import ClientState
from torchmetrics_fed.errors import SecureAggregationError

CONFIG = SecureAggregationConfig("round", b"spec", cells=8, min_clients=3)
SIGNED = replace(CONFIG, signed=True)
KEYS = new_signing_keys()
OTHER_KEYS = new_signing_keys()


@pytest.mark.parametrize("name", ["", "x" * 256, "\ud800"])
def test_a_client_has_a_name(name: str) -> None:
    with pytest.raises(InputError, match="client_id"):
        SecureAggregationClient(name, CONFIG)


@pytest.mark.parametrize(
    ("config", "signing_key", "verification_keys"),
    [
        (CONFIG, KEYS.signing, None),
        (SIGNED, None, None),
        (SIGNED, KEYS.signing, None),
        (SIGNED, b"short", {"a": KEYS.verification}),
        (SIGNED, KEYS.signing, {"a": OTHER_KEYS.verification}),
        (SIGNED, KEYS.signing, {"b": KEYS.verification}),
    ],
    ids=["unsigned", "no keys", "one key", "no Ed25519 key", "another key", "another name"],
)
def test_a_client_has_keys_exactly_where_aggregations_are_signed(
    config: SecureAggregationConfig,
    signing_key: bytes | None,
    verification_keys: Mapping[str, bytes] | None,
) -> None:
    with pytest.raises(InputError, match="Expected"):
        SecureAggregationClient("a", config, signing_key, verification_keys)


class Restarting(Federation):
    """Every client is a new object after each of its messages."""

    def send(self, name: str, message: bytes) -> None:
        super().send(name, message)
        self.restart(name)

    def restart(self, name: str) -> None:
        saved = self.clients[name].to_bytes()
        self.clients[name] = SecureAggregationClient.from_bytes(
            saved, self.config, self.signing_key(name), self.verification
        )
        assert self.clients[name].to_bytes() == saved


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    "drops", [{}, {"d": "mask"}, {"a": "share"}, {"a": "advertise"}, {"b": "answer"}], ids=str
)
def test_a_sum_of_clients_that_restart_after_every_message(
    signed: bool, drops: dict[str, str]
) -> None:
    federation = Restarting("abcd", signed=signed)
    total, survivors = federation.run(drops)
    assert np.array_equal(total, federation.expected(survivors))


def test_a_restarted_client_gives_the_same_answer_and_no_other() -> None:
    federation = Restarting("abcd")
    federation.run()
    client = federation.clients["a"]
    assert client.state is ClientState.ANSWERED
    request = federation.server.request()
    restarted = SecureAggregationClient.from_bytes(client.to_bytes(), federation.config)
    assert restarted.unmask(request) == client.unmask(request)
    roster = federation.server._roster
    fewer = request_of(roster, roster.cohort_hash((0, 1, 2, 3)), (0, 1, 2))
    with pytest.raises(SecureAggregationError, match="signed or answered for"):
        restarted.unmask(fewer)


def test_progress_belongs_to_one_aggregation() -> None:
    first = Federation("abc", round_id="first")
    second = Federation("abc", round_id="second")
    first.advertise()
    with pytest.raises(SecureAggregationError, match="of this round and configuration"):
        SecureAggregationClient.from_bytes(first.clients["a"].to_bytes(), second.config)


def test_a_purged_client_keeps_nothing() -> None:
    federation = Federation("abc")
    federation.share(federation.advertise())
    client = federation.clients["a"]
    client.purge()
    saved = client.to_bytes()
    new_client = federation.client("a")
    assert len(saved) == len(new_client.to_bytes())
    assert not any(secret in saved for secret in federation.secrets["a"])
    assert SecureAggregationClient.from_bytes(saved, federation.config).state is ClientState.PURGED


def test_secrets_go_when_they_are_no_longer_needed() -> None:
    federation = Federation("abc")
    federation.mask(federation.share(federation.advertise()))
    client = federation.clients["a"]
    states = [client.state]
    assert client._progress.sealing == b""
    assert client._progress.masking == b""
    assert client._progress.seed == b""
    assert client._progress.agreed == {}
    request = federation.request()
    client.unmask(request)
    states.append(client.state)
    assert client._progress.share_pairs == {}
    client.purge()
    states.append(client.state)
    assert client._progress.answer == b""
    assert states == [ClientState.MASKED, ClientState.ANSWERED, ClientState.PURGED]
    with pytest.raises(SecureAggregationError, match="PURGED"):
        client.unmask(request)
