"""Splitting the data over any number of clients changes nothing, to the bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchmetrics_fed import FederatedPrecisionRecallCurve, FederatedROC, Release
from torchmetrics_fed.functional import precision_recall_curve, roc
from torchmetrics_fed.paper import Quantiles
from torchmetrics_fed.reconstruct import Aligned, Reconstruction


@pytest.mark.parametrize("clients", [1, 2, 10, 1_000])
@pytest.mark.parametrize("reading", [Aligned(), Quantiles(64)], ids=["aligned", "paper"])
def test_any_number_of_clients(
    clients: int, reading: Reconstruction, scored: tuple[Tensor, Tensor]
) -> None:
    # sorted by score: as heterogeneous as clients can be
    order = scored[0].argsort()
    parts = zip(
        scored[0][order].tensor_split(clients),
        scored[1][order].tensor_split(clients),
        strict=True,
    )
    shares = []
    for preds, target in parts:
        metric = FederatedROC(quantiles=64, grid="even")
        metric.update(preds, target)
        shares.append(metric.share())
    total = Release.sum(shares)
    assert total.shares == clients
    curve = FederatedROC.from_release(total, reconstruction=reading).compute()
    pooled = roc(*scored, quantiles=64, grid="even", reconstruction=reading)
    assert all(torch.equal(a, b) for a, b in zip(curve, pooled, strict=True))
    curve_pr = FederatedPrecisionRecallCurve.from_release(total, reconstruction=reading).compute()
    pooled_pr = precision_recall_curve(*scored, quantiles=64, grid="even", reconstruction=reading)
    assert all(torch.equal(a, b) for a, b in zip(curve_pr, pooled_pr, strict=True))


@given(
    scores=st.lists(st.floats(0, 1, width=32), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_any_batches_in_any_order(
    scores: list[float], cuts: list[int], data: st.DataObject
) -> None:
    labels = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    preds = torch.tensor(scores, dtype=torch.float32)
    target = torch.tensor(labels, dtype=torch.bool)
    pooled = FederatedROC(quantiles=8)
    pooled.update(preds, target)
    order = torch.tensor(data.draw(st.permutations(range(len(scores)))), dtype=torch.int64)
    pieces = FederatedROC(quantiles=8)
    for piece in order.tensor_split(sorted(cuts)):
        pieces.update(preds[piece], target[piece])
    assert torch.equal(pooled.counts, pieces.counts)
