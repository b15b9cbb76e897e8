"""The test vectors of secure aggregation: the server takes these bytes, and the specification alone gives them.

What follows `Slow` is written from docs/specifications/secure_aggregation.md, with nothing of the package.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

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

FOLDER = Path(__file__).parents[2] / "docs" / "specifications" / "vectors"
VECTORS: dict[str, Any] = json.loads(
    (FOLDER / "secure_aggregation.json").read_text(encoding="utf-8")
)
PRIME = 2**256 + 297
runs = pytest.mark.parametrize(
    "run", [VECTORS["unsigned"], VECTORS["signed"]], ids=["unsigned", "signed"]
)


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


def sent(run: dict[str, Any], kind: str) -> list[bytes]:
    return [unhex(message["hex"]) for message in run["messages"] if message["kind"] == kind]


def server_of(run: dict[str, Any]) -> SecureAggregationServer:
    config = SecureAggregationConfig(
        **{**run["config"], "binding": unhex(run["config"]["binding"])}
    )
    keys = {name: unhex(key) for name, key in run["verification_keys"].items()}
    return SecureAggregationServer(config, keys or None)


def test_the_package_has_these_primitives() -> None:
    hashed, agreed, seed = VECTORS["digest"], VECTORS["agreement"], VECTORS["seed"]
    assert digest(hashed["label"].encode(), *map(unhex, hashed["parts"])).hex() == hashed["digest"]
    secret, context = (
        KeyPair(unhex(agreed["private"][0])).agree(unhex(agreed["public"][1])),
        unhex(agreed["context"]),
    )
    assert secret.hex() == agreed["secret"]
    assert box_key(secret, context, 4, 1).hex() == agreed["box_key_from_4_to_1"]
    assert pair_key(secret, context, 1, 4).hex() == agreed["pair_key_of_4_and_1"]
    assert seed_key(unhex(seed["seed"]), context, seed["index"]).hex() == seed["key"]
    assert commitment(unhex(seed["seed"]), context, seed["index"]).hex() == seed["commitment"]
    stream = MaskedVector(4)
    stream.mask(unhex(VECTORS["mask"]["key"]))
    assert stream.to_bytes() == struct.pack("<4Q", *map(int, VECTORS["mask"]["words"]))
    assert (
        unseal(unhex(VECTORS["box"]["key"]), unhex(VECTORS["box"]["box"])).hex()
        == VECTORS["box"]["content"]
    )
    shares = [unhex(share) for share in VECTORS["shamir"]["shares"]]
    assert (
        Combiner([5, 1, 3]).combine([shares[4], shares[0], shares[2]]).hex()
        == VECTORS["shamir"]["secret"]
    )


@runs
def test_the_server_takes_these_messages_and_sends_those(run: dict[str, Any]) -> None:
    server = server_of(run)
    close = {
        "KEYS": server.keys,
        "SURVIVORS": server.survivors,
        "REQUEST": server.request,
        "START": server.start,
    }
    for message in run["messages"]:
        if "from" in message:
            server.receive(message["from"], unhex(message["hex"]))
        elif message["kind"] == "CIPHERTEXTS":
            assert server.ciphertexts()[message["to"]].hex() == message["hex"]
        else:
            assert close[message["kind"]]().hex() == message["hex"]
    total, survivors = server.sum()
    assert (total.tolist(), list(survivors)) == (run["sum"], run["survivors"])


@runs
def test_a_changed_byte_is_refused_or_opens_nothing(run: dict[str, Any]) -> None:
    """Of every message of the first client but the vector, of which any bytes are one."""
    for at, message in enumerate(run["messages"]):
        if message.get("from") != "ann" or message["kind"] == "MASKED":
            continue
        data = unhex(message["hex"])
        for place in range(0, len(data), 7):
            changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            messages = [
                *run["messages"][:at],
                {**message, "hex": changed.hex()},
                *run["messages"][at + 1 :],
            ]
            opens(run, messages, changed)


def opens(run: dict[str, Any], messages: list[dict[str, Any]], changed: bytes) -> None:
    """Replay the clients' messages. A server that gets to the end has opened the same sum."""
    server = server_of(run)
    close = {"KEYS": server.keys, "CIPHERTEXTS": server.ciphertexts}
    close |= {"SURVIVORS": server.survivors, "REQUEST": server.request}
    try:
        for message in messages:
            if "from" in message:
                server.receive(message["from"], unhex(message["hex"]))
            elif message["kind"] in close:
                close[message["kind"]]()
        total, _ = server.sum()
    except SecureAggregationError:
        return
    assert changed[5] == 13  # a sealed box, which only its recipient can check
    assert total.tolist() == run["sum"]


@pytest.mark.parametrize("signed", [False, True])
def test_the_specification_has_every_move(signed: bool) -> None:
    page = (FOLDER.parent / "secure_aggregation.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.splitlines()
        if line.startswith("|")
    ]
    rows = [row for row in rows if len(row) == 5]
    for (state, stage), new in CLIENT_MOVES[signed].items():
        moves = [row for row in rows if row[1] == f"`{stage}`" and state.name in row[0]]
        assert any(new.name == row[-1] for row in moves), (state, stage)
    for (stage, call), after in SERVER_MOVES[signed].items():
        moves = [row for row in rows if row[2] == f"`{call}`" and f"`{stage}`" in row[0]]
        assert any(f"`{after}`" == row[-1] for row in moves), (stage, call)
        assert all(row[1] == f"`{REPLIES[stage].name}`" for row in moves)


class Slow:
    """The specification's functions."""

    @staticmethod
    def hash(label: str, *parts: bytes) -> bytes:
        whole = b"torchmetrics-fed secure aggregation 2 "
        for part in (label.encode(), *parts):
            whole += struct.pack("<Q", len(part)) + part
        return hashlib.sha256(whole).digest()

    @staticmethod
    def derive(secret: bytes, label: str, context: bytes, *indices: int) -> bytes:
        info = Slow.hash(label, context, struct.pack(f"<{len(indices)}H", *indices))
        extracted = hmac.new(bytes(32), secret, hashlib.sha256).digest()
        return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()

    @staticmethod
    def agree(private: bytes, public: bytes) -> bytes:
        return X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )

    @staticmethod
    def public(private: bytes) -> bytes:
        return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()

    @staticmethod
    def words(key: bytes, cells: int) -> tuple[int, ...]:
        stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * cells))
        return struct.unpack(f"<{cells}Q", stream)

    @staticmethod
    def shares(secret: bytes, coefficients: list[str], count: int) -> list[bytes]:
        powers = [
            int.from_bytes(secret, "little"),
            *(int.from_bytes(unhex(each), "little") for each in coefficients),
        ]
        values = [
            sum(each * point**power for power, each in enumerate(powers))
            for point in range(1, count + 1)
        ]
        return [(value % PRIME).to_bytes(33, "little") for value in values]

    @staticmethod
    def secret(points: list[int], shares: list[bytes]) -> bytes:
        total = 0
        for point, share in zip(points, shares, strict=True):
            above = below = 1
            for other in points:
                if other != point:
                    above, below = above * other, below * (other - point)
            total += int.from_bytes(share, "little") * above * pow(below, PRIME - 2, PRIME)
        return (total % PRIME).to_bytes(32, "little")


def framed(kind: int, *parts: bytes) -> bytes:
    return b"TMFD\x03" + bytes([kind]) + b"".join(parts)


def text(name: str) -> bytes:
    return bytes([len(name.encode())]) + name.encode()


def indices(*numbers: int) -> bytes:
    return struct.pack(f"<{1 + len(numbers)}H", len(numbers), *numbers)


def test_the_specification_is_enough_for_the_primitives() -> None:
    hashed, agreed, seed = VECTORS["digest"], VECTORS["agreement"], VECTORS["seed"]
    assert Slow.hash(hashed["label"], *map(unhex, hashed["parts"])).hex() == hashed["digest"]
    secret, context = (
        Slow.agree(unhex(agreed["private"][1]), unhex(agreed["public"][0])),
        unhex(agreed["context"]),
    )
    assert secret.hex() == agreed["secret"]
    assert Slow.derive(secret, "box", context, 4, 1).hex() == agreed["box_key_from_4_to_1"]
    assert (
        Slow.derive(secret, "pairwise mask", context, 1, 4).hex() == agreed["pair_key_of_4_and_1"]
    )
    assert (
        Slow.derive(unhex(seed["seed"]), "self mask", context, seed["index"]).hex() == seed["key"]
    )
    number = struct.pack("<H", seed["index"])
    assert (
        Slow.hash("seed commitment", context, number, unhex(seed["seed"])).hex()
        == seed["commitment"]
    )
    assert [str(word) for word in Slow.words(unhex(VECTORS["mask"]["key"]), 4)] == VECTORS["mask"][
        "words"
    ]
    box = ChaCha20Poly1305(unhex(VECTORS["box"]["key"])).encrypt(
        bytes(12), unhex(VECTORS["box"]["content"]), None
    )
    assert box.hex() == VECTORS["box"]["box"]
    shamir = VECTORS["shamir"]
    assert [
        s.hex() for s in Slow.shares(unhex(shamir["secret"]), shamir["coefficients"], 5)
    ] == shamir["shares"]
    assert (
        Slow.secret([2, 4, 5], [unhex(shamir["shares"][at]) for at in (1, 3, 4)]).hex()
        == shamir["secret"]
    )
    for row in VECTORS["thresholds"]:
        least = max(row["min_clients"], (row["clients"] + row["max_colluding"]) // 2 + 1)
        assert (least, max(least, 2 * row["clients"] // 3 + 1)) == (row["least"], row["default"])


@runs
def test_the_specification_is_enough_for_a_whole_run(run: dict[str, Any]) -> None:
    config, drawn, signed = run["config"], run["drawn"], run["config"]["signed"]
    numbers = (
        config["cells"],
        config["min_clients"],
        config["max_colluding"],
        config["threshold"] or 0,
        signed,
    )
    binding = unhex(config["binding"])
    body = (
        text(config["round_id"]) + bytes([len(binding)]) + binding + struct.pack("<IHHHB", *numbers)
    )
    about = Slow.hash("config", body)
    assert sent(run, "START") == [framed(10, about, body)]

    names, bodies, signatures = sorted(drawn), {}, {}
    for name in names:
        public = [Slow.public(unhex(drawn[name][key])) for key in ("sealing_key", "masking_key")]
        bodies[name] = text(name) + public[0] + public[1]
        statement = Slow.hash("advertisement", about, bodies[name])
        signatures[name] = signature(drawn[name]["signing_key"], statement) if signed else b""
    keys = [bodies[name] + signatures[name] for name in names]
    assert sent(run, "ADVERTISE") == [framed(11, about, each) for each in keys]
    assert sent(run, "KEYS") == [framed(12, about, struct.pack("<H", len(names)), *keys)]

    roster = Slow.hash("roster", about, *bodies.values())
    halves = {}
    for name in names:
        pairs = (("masking_key", "key_coefficients"), ("seed", "seed_coefficients"))
        whole = [
            Slow.shares(unhex(drawn[name][what]), drawn[name][with_], len(names))
            for what, with_ in pairs
        ]
        halves[name] = list(zip(*whole, strict=True))
    boxes: dict[tuple[int, int], bytes] = {}
    for own, name in enumerate(names):
        rows = [
            Slow.hash("seed commitment", roster, struct.pack("<H", own), unhex(drawn[name]["seed"]))
        ]
        for other, theirs in enumerate(names):
            if other != own:
                secret = Slow.agree(unhex(drawn[name]["sealing_key"]), bodies[theirs][-64:-32])
                key = Slow.derive(secret, "box", roster, own, other)
                boxes[own, other] = ChaCha20Poly1305(key).encrypt(
                    bytes(12), b"".join(halves[name][other]), None
                )
                rows.append(boxes[own, other])
        assert sent(run, "KEY_SHARES")[own] == framed(
            13, about, roster, struct.pack("<H", own), *rows
        )
    for own in range(len(names)):
        others = [other for other in range(len(names)) if other != own]
        table = [indices(*others), *(boxes[other, own] for other in others)]
        assert sent(run, "CIPHERTEXTS")[own] == framed(14, about, roster, *table)

    cohort = Slow.hash("cohort", roster, indices(*range(len(names))))
    total = [0] * config["cells"]
    for place, (name, vector) in enumerate(run["vectors"].items()):
        own = names.index(name)
        masked = [*vector]
        streams = [(1, Slow.derive(unhex(drawn[name]["seed"]), "self mask", cohort, own))]
        for other, theirs in enumerate(names):
            if other != own:
                secret = Slow.agree(unhex(drawn[name]["masking_key"]), bodies[theirs][-32:])
                key = Slow.derive(secret, "pairwise mask", cohort, min(own, other), max(own, other))
                streams.append((1 if own < other else -1, key))
        for sign, key in streams:
            masked = [
                n + sign * word
                for n, word in zip(masked, Slow.words(key, len(masked)), strict=True)
            ]
        row = struct.pack(f"<{len(masked)}Q", *(n % 2**64 for n in masked))
        assert sent(run, "MASKED")[place] == framed(15, about, cohort, struct.pack("<H", own), row)
        total = [one + other for one, other in zip(total, vector, strict=True)]

    among = [names.index(name) for name in run["survivors"]]
    statement = Slow.hash("survivors", cohort, indices(*among))
    request = [indices(*among)]
    if signed:
        assert sent(run, "SURVIVORS") == [framed(16, about, cohort, indices(*among))]
        said = [signature(drawn[name]["signing_key"], statement) for name in run["survivors"]]
        rows = [
            framed(17, about, statement, struct.pack("<H", own), s)
            for own, s in zip(among, said, strict=True)
        ]
        assert sent(run, "SIGNATURE") == rows
        request += [indices(*among), *said]
        for name, each in zip(run["survivors"], said, strict=True):
            Ed25519PublicKey.from_public_bytes(unhex(run["verification_keys"][name])).verify(
                each, statement
            )
    assert sent(run, "REQUEST") == [framed(18, about, cohort, *request)]
    for place, own in enumerate(among):
        rows = [halves[name][own][other in among] for other, name in enumerate(names)]
        assert sent(run, "ANSWER")[place] == framed(
            19, about, statement, struct.pack("<H", own), *rows
        )
    hashes = {"config": about, "roster": roster, "cohort": cohort, "survivors": statement}
    assert {name: each.hex() for name, each in hashes.items()} == run["hashes"]
    assert [(n + 2**63) % 2**64 - 2**63 for n in total] == run["sum"]


def test_the_specification_is_enough_for_ranks() -> None:
    run = VECTORS["ranks"]
    view = Slow.hash("ranks view", unhex(run["view"]), run["shape"].encode())
    private = [unhex(key) for key in run["private"]]
    payloads = [
        Slow.public(key) + view + unhex(nonce)
        for key, nonce in zip(private, run["nonces"], strict=True)
    ]
    assert [payload.hex() for payload in payloads] == run["payloads"]
    context = Slow.hash("ranks", *payloads)
    for rank, vector in enumerate(run["vectors"]):
        masked = [*vector]
        for other in set(range(3)) - {rank}:
            secret = Slow.agree(private[rank], payloads[other][:32])
            key = Slow.derive(secret, "pairwise mask", context, min(rank, other), max(rank, other))
            sign = 1 if rank < other else -1
            masked = [
                n + sign * word
                for n, word in zip(masked, Slow.words(key, len(masked)), strict=True)
            ]
        assert [(n + 2**63) % 2**64 - 2**63 for n in masked] == run["masked"][rank]
    assert [
        (sum(column) + 2**63) % 2**64 - 2**63 for column in zip(*run["vectors"], strict=True)
    ] == run["sum"]


def signature(key: str, statement: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(unhex(key)).sign(statement)
