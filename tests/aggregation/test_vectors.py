"""The test vectors of secure aggregation: package and specification give these bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.aggregation import specification
from torchmetrics_fed.aggregation.secure import SecureAggregationConfig, SecureAggregationServer
from torchmetrics_fed.aggregation.secure.keys import (
    KeyPair,
    box_key,
    commitment,
    digest,
    pair_key,
    seed_key,
    unseal,
)
from torchmetrics_fed.aggregation.secure.mask import MaskedVector
from torchmetrics_fed.aggregation.secure.shamir import Combiner
from torchmetrics_fed.aggregation.secure.states import CLIENT_MOVES, REPLIES, SERVER_MOVES
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.release.wire import Kind

FOLDER = Path(__file__).parents[2] / "docs" / "specifications" / "vectors"
VECTORS: dict[str, Any] = json.loads(
    (FOLDER / "secure_aggregation.json").read_text(encoding="utf-8")
)
RUNS = pytest.mark.parametrize(
    "run", [VECTORS["unsigned"], VECTORS["signed"]], ids=["unsigned", "signed"]
)

unhex = bytes.fromhex


def messages_of(run: dict[str, Any], kind: Kind) -> list[bytes]:
    return [unhex(message["hex"]) for message in run["messages"] if message["kind"] == kind.name]


def server_of(run: dict[str, Any]) -> SecureAggregationServer:
    settings = {**run["config"], "binding": unhex(run["config"]["binding"])}
    keys = {name: unhex(key) for name, key in run["verification_keys"].items()}
    return SecureAggregationServer(SecureAggregationConfig(**settings), keys or None)


def replay(server: SecureAggregationServer, message: dict[str, Any]) -> bytes | None:
    """Give a client's message to the server, or return the message that the server sends."""
    if "from" in message:
        server.receive(message["from"], unhex(message["hex"]))
        return None
    if message["kind"] == "CIPHERTEXTS":
        return server.ciphertexts()[message["to"]]
    calls = {
        "START": server.start,
        "KEYS": server.keys,
        "SURVIVORS": server.survivors,
        "REQUEST": server.request,
    }
    return calls[message["kind"]]()


def test_the_package_has_these_keys() -> None:
    agreement = VECTORS["agreement"]
    context = unhex(agreement["context"])
    secret = KeyPair(unhex(agreement["private"][0])).agree(unhex(agreement["public"][1]))
    assert secret.hex() == agreement["secret"]
    assert box_key(secret, context, 4, 1).hex() == agreement["box_key_from_4_to_1"]
    assert pair_key(secret, context, 1, 4).hex() == agreement["pair_key_of_4_and_1"]
    seed = unhex(VECTORS["seed"]["seed"])
    index = VECTORS["seed"]["index"]
    assert seed_key(seed, context, index).hex() == VECTORS["seed"]["key"]
    assert commitment(seed, context, index).hex() == VECTORS["seed"]["commitment"]


def test_the_package_has_these_primitives() -> None:
    hashed = VECTORS["digest"]
    parts = [unhex(part) for part in hashed["parts"]]
    assert digest(hashed["label"].encode(), *parts).hex() == hashed["digest"]
    mask = MaskedVector(4)
    mask.mask(unhex(VECTORS["mask"]["key"]))
    words = [int(word) for word in VECTORS["mask"]["words"]]
    assert mask.to_bytes() == struct.pack("<4Q", *words)
    box = VECTORS["box"]
    assert unseal(unhex(box["key"]), unhex(box["box"])).hex() == box["content"]
    shares = [unhex(share) for share in VECTORS["shamir"]["shares"]]
    secret = Combiner([5, 1, 3]).combine([shares[4], shares[0], shares[2]])
    assert secret.hex() == VECTORS["shamir"]["secret"]


@RUNS
def test_the_server_takes_and_sends_these_messages(run: dict[str, Any]) -> None:
    server = server_of(run)
    for message in run["messages"]:
        server_message = replay(server, message)
        assert server_message is None or server_message.hex() == message["hex"]
    total, survivors = server.sum()
    assert total.tolist() == run["sum"]
    assert list(survivors) == run["survivors"]


@RUNS
def test_a_changed_byte_is_refused_or_opens_nothing(run: dict[str, Any]) -> None:
    """Every message of the first client is changed, except the vector: any bytes are a vector."""
    for number, message in enumerate(run["messages"]):
        if message.get("from") != "ann" or message["kind"] == "MASKED":
            continue
        data = unhex(message["hex"])
        for place in range(0, len(data), 7):
            changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            messages = list(run["messages"])
            messages[number] = {**message, "hex": changed.hex()}
            assert_opens_nothing_else(run, messages, changed)


def assert_opens_nothing_else(
    run: dict[str, Any], messages: list[dict[str, Any]], changed: bytes
) -> None:
    """Replay the messages. A server that gets to the end has opened the same sum."""
    server = server_of(run)
    try:
        for message in messages:
            replay(server, message)
        total, _ = server.sum()
    except SecureAggregationError:
        return
    assert changed[5] == Kind.KEY_SHARES  # a sealed box, which only its recipient can check
    assert total.tolist() == run["sum"]


def table_rows() -> list[list[str]]:
    """Return the rows of the specification's tables of moves."""
    page = (FOLDER.parent / "secure_aggregation.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [row for row in rows if len(row) == 5]


@pytest.mark.parametrize("signed", [False, True])
def test_the_specification_has_every_move_of_a_client(signed: bool) -> None:
    for (state, stage), next_state in CLIENT_MOVES[signed].items():
        rows = [row for row in table_rows() if row[1] == f"`{stage}`" and state.name in row[0]]
        assert next_state.name in [row[-1] for row in rows], (state, stage)


@pytest.mark.parametrize("signed", [False, True])
def test_the_specification_has_every_move_of_a_server(signed: bool) -> None:
    for (stage, call), next_stage in SERVER_MOVES[signed].items():
        rows = [row for row in table_rows() if row[2] == f"`{call}`" and f"`{stage}`" in row[0]]
        assert f"`{next_stage}`" in [row[-1] for row in rows], (stage, call)
        assert {row[1] for row in rows} == {f"`{REPLIES[stage].name}`"}


def test_the_specification_is_enough_for_the_keys() -> None:
    agreement = VECTORS["agreement"]
    context = unhex(agreement["context"])
    secret = specification.agree(unhex(agreement["private"][1]), unhex(agreement["public"][0]))
    assert secret.hex() == agreement["secret"]
    box = specification.derive(secret, "box", context, 4, 1)
    assert box.hex() == agreement["box_key_from_4_to_1"]
    pair = specification.pair_key(secret, context, 4, 1)
    assert pair.hex() == agreement["pair_key_of_4_and_1"]
    seed = unhex(VECTORS["seed"]["seed"])
    index = VECTORS["seed"]["index"]
    key = specification.derive(seed, "self mask", context, index)
    assert key.hex() == VECTORS["seed"]["key"]
    hashed_seed = specification.hash_of(
        "seed commitment", context, specification.number(index), seed
    )
    assert hashed_seed.hex() == VECTORS["seed"]["commitment"]


def test_the_specification_is_enough_for_the_primitives() -> None:
    hashed = VECTORS["digest"]
    parts = [unhex(part) for part in hashed["parts"]]
    assert specification.hash_of(hashed["label"], *parts).hex() == hashed["digest"]
    words = specification.keystream(unhex(VECTORS["mask"]["key"]), 4)
    assert [str(word) for word in words] == VECTORS["mask"]["words"]
    box = VECTORS["box"]
    assert specification.seal(unhex(box["key"]), unhex(box["content"])).hex() == box["box"]


def test_the_specification_is_enough_for_secret_sharing() -> None:
    vector = VECTORS["shamir"]
    coefficients = [unhex(term) for term in vector["coefficients"]]
    shares = specification.shares_of(unhex(vector["secret"]), coefficients, 5)
    assert [share.hex() for share in shares] == vector["shares"]
    secret = specification.secret_of([2, 4, 5], [shares[1], shares[3], shares[4]])
    assert secret.hex() == vector["secret"]


@pytest.mark.parametrize("row", VECTORS["thresholds"], ids=lambda row: str(row["clients"]))
def test_the_specification_is_enough_for_thresholds(row: dict[str, int]) -> None:
    least = max(row["min_clients"], (row["clients"] + row["max_colluding"]) // 2 + 1)
    assert least == row["least"]
    assert max(least, 2 * row["clients"] // 3 + 1) == row["default"]


@RUNS
def test_the_specification_is_enough_for_a_whole_run(run: dict[str, Any]) -> None:
    slow = specification.Run(run)
    everyone = slow.indices
    survivors = slow.survivors
    signers = survivors if run["config"]["signed"] else []
    expected = {
        Kind.START: [slow.start()],
        Kind.ADVERTISE: [slow.advertise(index) for index in everyone],
        Kind.KEYS: [slow.keys()],
        Kind.KEY_SHARES: [slow.key_shares(index) for index in everyone],
        Kind.CIPHERTEXTS: [slow.ciphertexts(index) for index in everyone],
        Kind.MASKED: [slow.masked(index) for index in survivors],
        Kind.SURVIVORS: [slow.survivors_message()] * bool(signers),
        Kind.SIGNATURE: [slow.signature_message(index) for index in signers],
        Kind.REQUEST: [slow.request()],
        Kind.ANSWER: [slow.answer(index) for index in survivors],
    }
    for kind, messages in expected.items():
        assert messages_of(run, kind) == messages, kind
    assert run["hashes"] == {
        "config": slow.config_hash.hex(),
        "roster": slow.roster.hex(),
        "cohort": slow.cohort.hex(),
        "survivors": slow.statement.hex(),
    }
    assert slow.total() == run["sum"]


def test_survivors_have_signed_the_survivors() -> None:
    run = VECTORS["signed"]
    slow = specification.Run(run)
    for index in slow.survivors:
        key = unhex(run["verification_keys"][slow.names[index]])
        signature = slow.signature(index)
        Ed25519PublicKey.from_public_bytes(key).verify(signature, slow.statement)


def test_the_specification_is_enough_for_ranks() -> None:
    run = VECTORS["ranks"]
    view = specification.hash_of("ranks view", unhex(run["view"]), run["shape"].encode())
    private_keys = [unhex(key) for key in run["private"]]
    payloads = [
        specification.public_key(key) + view + unhex(nonce)
        for key, nonce in zip(private_keys, run["nonces"], strict=True)
    ]
    assert [payload.hex() for payload in payloads] == run["payloads"]
    context = specification.hash_of("ranks", *payloads)
    for rank, vector in enumerate(run["vectors"]):
        masked = vector
        for partner, payload in enumerate(payloads):
            if partner == rank:
                continue
            secret = specification.agree(private_keys[rank], payload[:32])
            key = specification.pair_key(secret, context, rank, partner)
            sign = specification.pair_sign(rank, partner)
            masked = specification.add_mask(masked, key, sign)
        assert specification.signed_words(masked) == run["masked"][rank]
    columns = zip(*run["vectors"], strict=True)
    assert specification.signed_words([sum(column) for column in columns]) == run["sum"]
