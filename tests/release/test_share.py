"""Share: its bytes come back, are bound to one spec and one query, and show no counts."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.release.examples import (
    EXACT,
    FLAT,
    NOISY,
    TREE,
    cells,
    exact_share,
    share_of_classes,
)
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
from torchmetrics_fed.release import Sum


def noisy_share() -> Share:
    numbers = [(7 * place + 2) % 23 - 5 for place in range(40)]
    return Share(NOISY, TREE, cells(NOISY, TREE, numbers), "Zürich", bytes([2] * 16))


def wide_share() -> Share:
    """Return a share whose cells take eight bytes each."""
    numbers = np.arange(1, 41, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return Share(NOISY, TREE, cells(NOISY, TREE, numbers.view(np.int64)), "round-2")


SHARES = {
    "exact": exact_share("round-1"),
    "skipping rows": dataclasses.replace(exact_share("round-1"), skips_bad=True),
    "noisy": noisy_share(),
    "classes": share_of_classes(),
    "wide": wide_share(),
}


@pytest.mark.parametrize("name", SHARES)
def test_bytes_come_back(name: str) -> None:
    expected = SHARES[name]
    share = Share.from_bytes(bytes(expected), expected.spec, expected.query)
    assert bytes(share) == bytes(expected)
    assert torch.equal(share.cells, expected.cells)
    for field in dataclasses.fields(Share):
        if field.name != "cells":
            assert getattr(share, field.name) == getattr(expected, field.name)


@pytest.mark.parametrize("cells", [torch.zeros(1, 2, 16), torch.zeros(2, 16, dtype=torch.int64)])
def test_cells_must_be_integers_of_the_specs_shape(cells: Tensor) -> None:
    with pytest.raises(InputError, match="int64 of shape"):
        Share(EXACT, FLAT, cells)


def test_a_share_travels_and_does_not_show_its_counts(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(quantiles=16)
    metric.update(*scored)
    share = metric.share()
    assert torch.equal(pickle.loads(pickle.dumps(share)).cells, share.cells)
    assert "tensor" not in repr(share)
    assert share.nbytes == 2 * 64 * 8


def test_a_share_is_a_copy(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(quantiles=16)
    metric.update(*scored)
    share = metric.share()
    before = share.cells.clone()
    metric.update(*scored)
    assert torch.equal(share.cells, before)


def test_leaves_of_1e5_examples_take_less_than_6_kilobytes() -> None:
    generator = torch.Generator().manual_seed(1)
    even = torch.rand(100_000, generator=generator)
    normal = torch.randn(100_000, generator=generator).sigmoid()
    for scores in (even, normal):
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


@pytest.mark.parametrize("name", ["", "a", "é" * 127, "\0", "round 1\n"])
def test_rounds_come_back(name: str) -> None:
    share = exact_share(name)
    assert Share.from_bytes(bytes(share), EXACT, FLAT).round == name
    assert Release.from_bytes(bytes(Release.sum([share]))).round == name


@pytest.mark.parametrize(
    ("name", "message"), [("é" * 128, "at most 255 bytes but got 256"), ("\ud800", "UTF-8")]
)
def test_rounds_that_do_not_fit_are_refused(name: str, message: str) -> None:
    share = exact_share(name)
    for part in (share, Release.sum([share])):
        with pytest.raises(WireError, match=message):
            bytes(part)


@pytest.mark.filterwarnings("ignore:mechanism:UserWarning")
def test_floats_have_no_bytes() -> None:
    spec = Spec("binary", 1, ScoreGrid(bins=16), LocalDP(0.5, mechanism="gamma"))
    floats = torch.zeros(spec.shape(TREE), dtype=torch.float64)
    for part in (Share(spec, TREE, floats), Release((Sum(spec, TREE, floats),))):
        with pytest.raises(WireError, match="gamma"):
            bytes(part)
    integers = Spec("binary", 1, ScoreGrid(bins=16), LocalDP(0.5))
    payload = bytes(Share(integers, TREE, floats.long()))
    digests = zip(integers.digests.values(), spec.digests.values(), strict=True)
    for integer_digest, float_digest in digests:
        # as if such a spec had bytes
        payload = payload.replace(integer_digest[:8], float_digest[:8])
    payload = payload.replace(integers.binding(TREE), spec.binding(TREE))
    with pytest.raises(WireError, match="gamma"):
        Share.from_bytes(payload, spec, TREE)


def test_a_share_is_neither_a_release_nor_a_query() -> None:
    share = noisy_share()
    release = Release.sum([exact_share()])
    with pytest.raises(WireError, match="message RELEASE but got one SHARE"):
        Release.from_bytes(bytes(share))
    with pytest.raises(WireError, match="message SHARE but got one RELEASE"):
        Share.from_bytes(bytes(release), NOISY, TREE)
    with pytest.raises(WireError, match="message QUERY but got one SHARE"):
        Query.from_bytes(bytes(share))
    with pytest.raises(WireError, match="but got int"):
        Share.from_bytes(5, NOISY, TREE)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the Spec and the Query that this share answers"):
        Share.from_bytes(bytes(share), NOISY)


GRID = ScoreGrid(bins=16)
CLASSES = Spec("multiclass", 3, GRID)
FOUR_CLIENTS = DistributedDP(0.5, min_clients=4, trusted_aggregator=True)
DIFFERENT_SPECS = {
    "task": (EXACT, Spec("multilabel", 1, GRID)),
    "classes": (Spec("multilabel", 2, GRID), Spec("multilabel", 1, GRID)),
    "multi_class": (CLASSES, Spec("multiclass", 3, GRID, multi_class="ovo")),
    "bins": (EXACT, Spec("binary", 1, ScoreGrid(bins=32))),
    "score_range": (EXACT, Spec("binary", 1, ScoreGrid(bins=16, score_range=(-1.0, 1.0)))),
    "privacy": (NOISY, Spec("binary", 1, GRID, FOUR_CLIENTS)),
}


@pytest.mark.parametrize("field", DIFFERENT_SPECS)
def test_another_spec_is_refused_and_only_the_difference_is_named(field: str) -> None:
    first, second = DIFFERENT_SPECS[field]
    for spec, sender_spec in ((first, second), (second, first)):
        counts = torch.zeros(sender_spec.shape(FLAT), dtype=torch.int64)
        payload = bytes(Share(sender_spec, FLAT, counts))
        with pytest.raises(SpecMismatchError, match=rf"differ in {field};"):
            Share.from_bytes(payload, spec, FLAT)


def test_several_differing_fields_are_all_named() -> None:
    edges = Spec("binary", 1, ScoreGrid.from_edges((0.0, 0.1, 0.5, 1.0)))
    with pytest.raises(SpecMismatchError, match="differ in grid, bins, score_edges;"):
        Share.from_bytes(bytes(exact_share()), edges, Query(Tree.flat(3)))


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
def test_a_reply_to_another_query_is_refused(query: Query) -> None:
    """Even if only the fraction differs, or only the way in which the same leaves are named."""
    with pytest.raises(WireError, match="answers another"):
        Share.from_bytes(bytes(noisy_share()), NOISY, query)
