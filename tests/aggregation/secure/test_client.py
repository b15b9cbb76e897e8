"""A client goes on in another process as if nothing had happened."""

from __future__ import annotations

import numpy as np
import pytest

from tests.aggregation.secure.federation import Federation, request_of
from torchmetrics_fed.aggregation.secure import SecureAggregationClient
from torchmetrics_fed.aggregation.secure.states import ClientState
from torchmetrics_fed.errors import SecureAggregationError


class Restarting(Federation):
    """Every client is a new object after each of its messages."""

    def send(self, name: str, message: bytes) -> None:
        super().send(name, message)
        self.restart(name)

    def restart(self, name: str) -> None:
        saved = self.clients[name].to_bytes()
        signing = self.signers[name].signing if self.signers else None
        self.clients[name] = SecureAggregationClient.from_bytes(
            saved, self.config, signing, self.verification
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
    again = SecureAggregationClient.from_bytes(client.to_bytes(), federation.config)
    assert again.unmask(request) == client.unmask(request)
    roster = federation.server._roster
    fewer = request_of(roster, roster.cohort_hash((0, 1, 2, 3)), (0, 1, 2))
    with pytest.raises(SecureAggregationError, match="signed or answered for"):
        again.unmask(fewer)


def test_progress_belongs_to_one_aggregation() -> None:
    one, other = Federation("abc", round_id="one"), Federation("abc", round_id="other")
    one.advertise()
    with pytest.raises(SecureAggregationError, match="of this round and configuration"):
        SecureAggregationClient.from_bytes(one.clients["a"].to_bytes(), other.config)


def test_a_purged_client_keeps_nothing() -> None:
    federation = Federation("abc")
    federation.share(federation.advertise())
    client = federation.clients["a"]
    client.purge()
    saved = client.to_bytes()
    assert len(saved) == len(
        federation.client("a").to_bytes()
    )  # no more than one that has not begun
    assert not any(secret in saved for secret in federation.secrets["a"])
    assert SecureAggregationClient.from_bytes(saved, federation.config).state is ClientState.PURGED
