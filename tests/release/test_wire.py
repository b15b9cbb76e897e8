"""The bytes of shares, sums and releases: they come back as they were, and have one encoding only."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from torchmetrics_fed import (
    DistributedDP,
    FederatedROC,
    LocalDP,
    Query,
    Release,
    ScoreGrid,
    Share,
    Spec,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import InputError, SpecMismatchError, WireError
from torchmetrics_fed.release import rice
from torchmetrics_fed.release.sum import Sum

EXACT = Spec("binary", 1, ScoreGrid(bins=16))
NOISY = Spec(
    "binary", 1, ScoreGrid(bins=16), DistributedDP(0.5, min_clients=3, trusted_aggregator=True)
)
CLASSES = Spec("multiclass", 3, ScoreGrid(bins=8))
FLAT, TREE, EIGHT = Query(Tree.flat(16)), Query(Tree((4, 4))), Query(Tree.flat(8))
PILOT, SECOND = (
    Query(Tree((2,), (0, 3, 16)), 0.25),
    Query(Tree((4, 2), (0, 1, 2, 3, 5, 8, 11, 13, 16)), 0.75),
)


def cells(spec: Spec, query: Query, numbers: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.int64).reshape(spec.shape(query)))


def written() -> dict[str, Share | Release]:
    """One of each kind and encoding."""
    drawn = [cells(NOISY, TREE, [(7 * i + turn) % 23 - 5 for i in range(40)]) for turn in range(3)]
    noisy = [
        Share(NOISY, TREE, each, "Zürich", bytes([turn] * 16)) for turn, each in enumerate(drawn)
    ]
    positives = [[[5 - c] * 8, [c + 1] * 8] for c in range(3)]
    wide = (np.arange(1, 41, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    parts = [
        Sum(NOISY, query, cells(NOISY, query, range(size)), 3)
        for query, size in ((PILOT, 4), (SECOND, 24))
    ]
    return {
        "exact share": Share(EXACT, FLAT, cells(EXACT, FLAT, range(32)), "round-1"),
        "noisy share": noisy[2],
        "share of classes": Share(CLASSES, EIGHT, cells(CLASSES, EIGHT, positives)),
        "wide share": Share(NOISY, TREE, cells(NOISY, TREE, wide), "round-2"),
        "release": Release.sum(noisy),
        "exact release": Release.exact(EXACT, cells(EXACT, FLAT, range(32))),
        "release of two queries": Release(tuple(parts), "round-3"),
    }


def same(one: Share | Sum, other: Share | Sum) -> bool:
    names = {field.name for field in dataclasses.fields(one)} - {"cells"}
    return torch.equal(one.cells, other.cells) and all(
        getattr(one, n) == getattr(other, n) for n in names
    )


@pytest.mark.parametrize("name", written())
def test_bytes_come_back(name: str) -> None:
    expected = written()[name]
    if isinstance(expected, Share):
        share = Share.from_bytes(bytes(expected), expected.spec, expected.query)
        assert same(share, expected)
        assert bytes(share) == bytes(expected)
        return
    release = Release.from_bytes(bytes(expected))
    assert (release.spec, release.round, release.queries) == (
        expected.spec,
        expected.round,
        expected.queries,
    )
    assert all(same(one, other) for one, other in zip(release.sums, expected.sums, strict=True))
    assert bytes(release) == bytes(expected)


EXTREMES = [-(2**63), 2**63 - 1, -1, 0, 1]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("scale", [0, 1, 2, 100, 2**31, 2**40, 2**63 - 1])
@pytest.mark.parametrize("negative", [False, True])
def test_integers_come_back(size: int, scale: int, negative: bool) -> None:
    generator = np.random.default_rng(size)
    values = generator.integers(-scale if negative else 0, scale, size, endpoint=True)
    for integers in (
        values,
        np.where(generator.random(size) < 0.02, values, 0),
        np.resize(EXTREMES, size),
    ):
        how, packed = rice.pack(integers)
        assert len(packed) <= 8 * size
        assert (rice.unpack(how, packed, size) == integers).all()


def test_leaves_of_1e5_examples_take_less_than_8_kilobytes() -> None:
    generator = torch.Generator().manual_seed(1)
    for scores in (
        torch.rand(100_000, generator=generator),
        torch.randn(100_000, generator=generator).sigmoid(),
    ):
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
    low = b"".join(
        np.packbits((integers >> bit & 1).astype(np.uint8)).tobytes() for bit in range(width)
    )
    codes = "".join("0" * (int(value) >> width) + "1" for value in integers)
    codes += "0" * (-len(codes) % 8)
    return bytes([width]) + low + int(codes, 2).to_bytes(len(codes) // 8, "big")


def test_every_other_encoding_is_refused() -> None:
    integers = np.arange(64) % 48
    how, packed = rice.pack(integers)
    assert (how, packed) == (rice.UNSIGNED, other_width(integers, 4))
    others = [(rice.UNSIGNED, other_width(integers, width)) for width in (0, 1, 2, 3, 5, 6)]
    others += [
        (rice.SIGNED, other_width(2 * integers, 5)),
        (rice.FIXED, integers.astype("<i8").tobytes()),
    ]
    others += [
        (rice.UNSIGNED, packed + b"\0"),
        (rice.UNSIGNED, packed[:-1] + bytes([packed[-1] ^ 1])),
        (rice.UNSIGNED, packed[:-1]),
        (rice.UNSIGNED, bytes([64]) + packed[1:]),
        (3, packed),
        (rice.UNSIGNED + 0x80, packed),
    ]
    for encoding, body in others:
        with pytest.raises(WireError):
            rice.unpack(encoding, body, 64)
    assert (rice.unpack(how, packed, 64) == integers).all()
    with pytest.raises(
        WireError, match="canonical"
    ):  # the last block is filled up with zeros, and only with zeros
        rice.unpack(how, packed, 63)
    with pytest.raises(WireError, match="canonical"):  # nor do codes wrap around
        rice.unpack(
            rice.UNSIGNED, bytes([63, 0]) + bytes(63 * 8) + b"\x3f" + b"\xff" * 15 + b"\xc0", 128
        )


def test_parts_are_encoded_by_themselves() -> None:
    """Whatever is in the parts around it: memory for one part is enough to write and to read all."""
    numbers = np.random.default_rng(3)
    parts = [numbers.integers(0, 2**scale, rice.PART) for scale in (6, 9, 30)]
    codes = [rice.pack(part)[1] for part in parts]
    how, packed = rice.pack(np.concatenate(parts))
    assert packed == b"".join(codes)
    assert (rice.unpack(how, packed, 3 * rice.PART) == np.concatenate(parts)).all()
    swapped = codes[0] + codes[2] + codes[1]
    assert (rice.unpack(how, swapped, 3 * rice.PART)[-rice.PART :] == parts[1]).all()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1])
def test_no_code_is_16_times_shorter_than_memory(share: float) -> None:
    """Nor do honest counts of 1,000 classes take a quarter of their memory, the more zeros the less."""
    numbers = np.random.default_rng(4)
    counts = np.where(numbers.random(1_000 * 2 * 4_096) < share, 3, 0)
    how, packed = rice.pack(counts)
    assert how == rice.UNSIGNED
    assert counts.nbytes / 16 < len(packed) < counts.nbytes / 15


@pytest.mark.parametrize("name", ["", "a", "é" * 127, "\0", "round 1\n"])
def test_names_come_back(name: str) -> None:
    sent = Share(EXACT, FLAT, cells(EXACT, FLAT, range(32)), name)
    assert Share.from_bytes(bytes(sent), EXACT, FLAT).round == name
    assert Release.from_bytes(bytes(Release.sum([sent]))).round == name


@pytest.mark.parametrize(
    ("name", "said"), [("é" * 128, "at most 255 bytes but got 256"), ("\ud800", "UTF-8")]
)
def test_names_that_do_not_fit_are_refused(name: str, said: str) -> None:
    share = Share(EXACT, FLAT, cells(EXACT, FLAT, range(32)), name)
    for named in (share, Release.sum([share])):
        with pytest.raises(WireError, match=said):
            bytes(named)


@pytest.mark.filterwarnings("ignore:mechanism:UserWarning")
def test_floats_have_no_wire_form() -> None:
    spec = Spec("binary", 1, ScoreGrid(bins=16), LocalDP(0.5, mechanism="gamma"))
    floats = torch.zeros(spec.shape(TREE), dtype=torch.float64)
    for unsent in (Share(spec, TREE, floats), Release((Sum(spec, TREE, floats),))):
        with pytest.raises(WireError, match="gamma"):
            bytes(unsent)
    integers = Spec("binary", 1, ScoreGrid(bins=16), LocalDP(0.5))
    payload = bytes(Share(integers, TREE, floats.long()))
    for mine, theirs in zip(integers.digests.values(), spec.digests.values(), strict=True):
        payload = payload.replace(mine[:8], theirs[:8])  # as if such a spec had bytes
    payload = payload.replace(integers.binding(TREE), spec.binding(TREE))
    with pytest.raises(WireError, match="gamma"):
        Share.from_bytes(payload, spec, TREE)


def test_a_share_is_not_a_release() -> None:
    share, release = written()["noisy share"], written()["release"]
    with pytest.raises(WireError, match="message RELEASE but got one SHARE"):
        Release.from_bytes(bytes(share))
    with pytest.raises(WireError, match="message SHARE but got one RELEASE"):
        Share.from_bytes(bytes(release), NOISY, TREE)
    with pytest.raises(WireError, match="message QUERY but got one SHARE"):
        Query.from_bytes(bytes(share))
    with pytest.raises(WireError, match="but got int"):
        Share.from_bytes(5, NOISY, TREE)  # type: ignore[arg-type]


OTHERS = {
    "task": (EXACT, Spec("multilabel", 1, ScoreGrid(bins=16)), FLAT),
    "classes": (
        Spec("multilabel", 2, ScoreGrid(bins=16)),
        Spec("multilabel", 1, ScoreGrid(bins=16)),
        FLAT,
    ),
    "multi_class": (CLASSES, Spec("multiclass", 3, ScoreGrid(bins=8), multi_class="ovo"), EIGHT),
    "bins": (EXACT, Spec("binary", 1, ScoreGrid(bins=32)), FLAT),
    "score_range": (EXACT, Spec("binary", 1, ScoreGrid(bins=16, score_range=(-1.0, 1.0))), FLAT),
    "privacy": (
        NOISY,
        Spec("binary", 1, ScoreGrid(bins=16), DistributedDP(0.5, 4, trusted_aggregator=True)),
        TREE,
    ),
}


@pytest.mark.parametrize("field", OTHERS)
def test_another_spec_is_refused_and_only_what_differs_is_named(field: str) -> None:
    one, other, query = OTHERS[field]
    for mine, theirs in ((one, other), (other, one)):
        payload = bytes(Share(theirs, query, torch.zeros(theirs.shape(query), dtype=torch.int64)))
        with pytest.raises(SpecMismatchError, match=rf"differ in {field};"):
            Share.from_bytes(payload, mine, query)


def test_several_differing_fields_are_all_named() -> None:
    edges = Spec("binary", 1, ScoreGrid.from_edges((0.0, 0.1, 0.5, 1.0)))
    with pytest.raises(SpecMismatchError, match="differ in grid, bins, score_edges;"):
        Share.from_bytes(bytes(written()["exact share"]), edges, Query(Tree.flat(3)))


@pytest.mark.parametrize(
    "query",
    [
        Query(Tree((4, 4)), 0.5),
        Query(Tree((4, 4)), 1023 / 1024),
        Query(Tree((2, 8))),
        Query(Tree((4, 4), tuple(range(17)))),
    ],
    ids=str,
)
def test_an_answer_to_another_query_is_refused(query: Query) -> None:
    """Though the fraction alone differs, or nothing but how the same leaves are named."""
    with pytest.raises(WireError, match="answers another"):
        Share.from_bytes(bytes(written()["noisy share"]), NOISY, query)


@pytest.mark.parametrize(
    "ids",
    [b"x" * 15, b"x" * 32, b"y" * 16 + b"x" * 16, b"".join(bytes([i] * 16) for i in range(4))],
    ids=len,
)
def test_a_sum_has_sorted_ids_and_no_more_than_shares(ids: bytes) -> None:
    with pytest.raises(InputError, match="ids"):
        Sum(EXACT, FLAT, cells(EXACT, FLAT, range(32)), shares=3, ids=ids)
