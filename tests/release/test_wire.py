"""The bytes of shares and releases: they come back as they were, in one spelling, and old ones stay readable."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from torchmetrics_fed import DistributedDP, FederatedROC, LocalDP, Release, ScoreGrid, Share, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import InputError, SpecMismatchError, WireError
from torchmetrics_fed.release import rice

FIXTURES = Path(__file__).parent / "fixtures"
EXACT = Spec("binary", 1, ScoreGrid(bins=16))
NOISY = Spec("binary", 1, ScoreGrid(bins=16), Tree((4, 4)), DistributedDP(0.5, min_clients=3, trusted_aggregator=True))
CLASSES = Spec("multiclass", 3, ScoreGrid(bins=8))


def cells(spec: Spec, numbers: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.int64).reshape(spec.shape))


def frozen() -> dict[str, Share | Release]:
    """What the files in tests/fixtures hold. They were written once, with ``path.write_bytes(bytes(it))`` for each.

    Version 1 stays readable for ever: these files are never written again. A change of the format gets a new version,
    and files of its own.
    """
    noisy = [
        Share(NOISY, cells(NOISY, [(7 * i + turn) % 23 - 5 for i in range(40)]), "round-2", client)
        for turn, client in enumerate(("a", "b", "Zürich"))
    ]
    positives = [[[5 - c] * 8, [c + 1] * 8] for c in range(3)]
    wide = (np.arange(1, 41, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    return {
        "share_exact_v1": Share(EXACT, cells(EXACT, range(32)), "round-1", "hospital-a"),
        "share_noisy_v1": noisy[2],
        "share_multiclass_v1": Share(CLASSES, cells(CLASSES, positives)),
        "share_wide_v1": Share(NOISY, cells(NOISY, wide), "round-2"),
        "release_v1": Release.sum(noisy),
    }


def same(one: Share | Release, other: Share | Release) -> bool:
    names = {field.name for field in dataclasses.fields(one)} - {"cells"}
    return torch.equal(one.cells, other.cells) and all(getattr(one, n) == getattr(other, n) for n in names)


@pytest.mark.parametrize("name", frozen())
def test_frozen_payloads_stay_readable_and_equal(name: str) -> None:
    expected, payload = frozen()[name], (FIXTURES / f"{name}.bin").read_bytes()
    assert same(type(expected).from_bytes(payload, expected.spec), expected)
    assert bytes(expected) == payload


def test_the_frozen_payloads_cover_every_kind_and_spelling() -> None:
    payloads = [(FIXTURES / f"{name}.bin").read_bytes() for name in frozen()]
    assert {payload[5] for payload in payloads} == {1, 2}
    assert {payload[6] for payload in payloads} == {rice.FIXED, rice.UNSIGNED}


EXTREMES = [-(2**63), 2**63 - 1, -1, 0, 1]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("scale", [0, 1, 2, 100, 2**31, 2**40, 2**63 - 1])
@pytest.mark.parametrize("negative", [False, True])
def test_integers_come_back(size: int, scale: int, negative: bool) -> None:
    generator = np.random.default_rng(size)
    values = generator.integers(-scale if negative else 0, scale, size, endpoint=True)
    for integers in (values, np.where(generator.random(size) < 0.02, values, 0), np.resize(EXTREMES, size)):
        how, packed = rice.pack(integers)
        assert len(packed) <= 8 * size
        assert (rice.unpack(how, packed, size) == integers).all()


def test_leaves_of_1e5_examples_take_less_than_8_kilobytes() -> None:
    generator = torch.Generator().manual_seed(1)
    for scores in (torch.rand(100_000, generator=generator), torch.randn(100_000, generator=generator).sigmoid()):
        metric = FederatedROC()
        metric.update(scores, torch.randint(0, 2, (100_000,), generator=generator))
        assert len(bytes(metric.share(round="round-1"))) < 6_000


def test_private_shares_are_of_one_size_whatever_the_data() -> None:
    sizes = set()
    for examples in (0, 10, 50_000):
        metric = FederatedROC(privacy=DistributedDP(1.0, min_clients=8, trusted_aggregator=True))
        metric.update(torch.rand(examples), torch.randint(0, 2, (examples,)))
        sizes.add(len(bytes(metric.share(round="round-1"))))
    assert len(sizes) == 1


def test_masked_values_take_eight_bytes_each() -> None:
    masked = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, 8192, endpoint=True)
    how, packed = rice.pack(masked)
    assert how == rice.FIXED
    assert len(packed) == 8 * 8192


def other_width(integers: NDArray[np.int64], width: int) -> bytes:
    """Rice codes of one block of 64 with another number of low bits than the mean asks for."""
    low = b"".join(np.packbits((integers >> bit & 1).astype(np.uint8)).tobytes() for bit in range(width))
    codes = "".join("0" * (int(value) >> width) + "1" for value in integers)
    codes += "0" * (-len(codes) % 8)
    return bytes([width + 1]) + low + int(codes, 2).to_bytes(len(codes) // 8, "big")


def test_every_other_spelling_is_refused() -> None:
    integers = np.arange(64) % 16
    how, packed = rice.pack(integers)
    assert (how, packed) == (rice.UNSIGNED, other_width(integers, 2))
    others = [(rice.UNSIGNED, other_width(integers, width)) for width in (0, 1, 3, 4, 5)]
    others += [(rice.SIGNED, other_width(2 * integers, 3)), (rice.FIXED, integers.astype("<i8").tobytes())]
    others += [(rice.UNSIGNED, packed + b"\0"), (rice.UNSIGNED, packed[:-1] + bytes([packed[-1] ^ 1]))]
    for spelling, body in others:
        with pytest.raises(WireError):
            rice.unpack(spelling, body, 64)
    assert (rice.unpack(how, packed, 64) == integers).all()
    with pytest.raises(WireError, match="canonical"):  # the last block is filled up with zeros, and only with zeros
        rice.unpack(how, packed, 63)
    with pytest.raises(WireError, match="canonical"):  # 64 zeros are not spelled out
        rice.unpack(rice.UNSIGNED, other_width(np.zeros(64, dtype=np.int64), 0), 64)
    with pytest.raises(WireError, match="canonical"):  # nor do codes wrap around
        rice.unpack(rice.UNSIGNED, bytes([64, 0]) + bytes(63 * 8) + b"\x3f" + b"\xff" * 7 + b"\xc0", 128)


@pytest.mark.parametrize("name", ["", "a", "é" * 127, "\0", "round 1\n"])
def test_names_come_back(name: str) -> None:
    sent = Share.from_bytes(bytes(Share(EXACT, cells(EXACT, range(32)), name, name)), EXACT)
    assert (sent.round, sent.client) == (name, name)


@pytest.mark.parametrize(("name", "told"), [("é" * 128, "at most 255 bytes but got 256"), ("\ud800", "UTF-8")])
def test_names_that_do_not_fit_are_refused(name: str, told: str) -> None:
    for share in (Share(EXACT, cells(EXACT, range(32)), name), Share(EXACT, cells(EXACT, range(32)), "", name)):
        with pytest.raises(WireError, match=told):
            bytes(share)


@pytest.mark.filterwarnings("ignore:mechanism:UserWarning")
def test_floats_have_no_wire_form() -> None:
    spec = Spec("binary", 1, ScoreGrid(bins=16), Tree((4, 4)), LocalDP(0.5, mechanism="gamma"))
    with pytest.raises(WireError, match="gamma"):
        bytes(Share(spec, torch.zeros(spec.shape, dtype=torch.float64)))
    with pytest.raises(WireError, match="gamma"):
        Share.from_bytes(b"", spec)


def test_a_share_is_not_a_release() -> None:
    share, release = frozen()["share_noisy_v1"], frozen()["release_v1"]
    with pytest.raises(WireError, match="kind release but got a share"):
        Release.from_bytes(bytes(share), NOISY)
    with pytest.raises(WireError, match="kind share but got a release"):
        Share.from_bytes(bytes(release), NOISY)
    with pytest.raises(WireError, match="bytes of a share but got int"):
        Share.from_bytes(5, NOISY)  # type: ignore[arg-type]


OTHERS = {
    "task": (EXACT, Spec("multilabel", 1, ScoreGrid(bins=16))),
    "classes": (Spec("multilabel", 2, ScoreGrid(bins=16)), Spec("multilabel", 1, ScoreGrid(bins=16))),
    "multi_class": (CLASSES, Spec("multiclass", 3, ScoreGrid(bins=8), multi_class="ovo")),
    "bins": (EXACT, Spec("binary", 1, ScoreGrid(bins=32), Tree.flat(16))),
    "score_range": (EXACT, Spec("binary", 1, ScoreGrid(bins=16, score_range=(-1.0, 1.0)))),
    "tree": (
        NOISY,
        Spec("binary", 1, ScoreGrid(bins=16), Tree((2, 8)), DistributedDP(0.5, 3, trusted_aggregator=True)),
    ),
    "privacy": (
        NOISY,
        Spec("binary", 1, ScoreGrid(bins=16), Tree((4, 4)), DistributedDP(0.5, 4, trusted_aggregator=True)),
    ),
}


@pytest.mark.parametrize("field", OTHERS)
def test_another_spec_is_refused_and_only_what_differs_is_named(field: str) -> None:
    for mine, theirs in (OTHERS[field], OTHERS[field][::-1]):
        payload = bytes(Share(theirs, torch.zeros(theirs.shape, dtype=torch.int64)))
        with pytest.raises(SpecMismatchError, match=rf"differ in {field};"):
            Share.from_bytes(payload, mine)


def test_several_differing_fields_are_all_named() -> None:
    edges = Spec("binary", 1, ScoreGrid(score_edges=(0.0, 0.1, 0.5, 1.0)))
    with pytest.raises(SpecMismatchError, match="differ in bins, score_edges, tree;"):
        Share.from_bytes(bytes(frozen()["share_exact_v1"]), edges)


@pytest.mark.parametrize("clients", [b"1234567", b"12345678" * 2, b"22345678" + b"12345678", bytes(range(32))])
def test_a_release_has_a_sorted_roster(clients: bytes) -> None:
    with pytest.raises(InputError, match="clients"):
        Release(EXACT, cells(EXACT, range(32)), shares=3, clients=clients)
