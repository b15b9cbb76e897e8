"""Pictures: the curve that was computed, on the axes that were given."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from torchmetrics_fed import FederatedPrecisionRecallCurve, FederatedROC

mpl.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def test_roc_shows_its_auroc_and_the_chance_line(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC()
    metric.update(*scored)
    fig, ax = metric.plot()
    assert ax.figure is fig
    chance, curve = ax.get_lines()
    assert list(chance.get_xdata()) == list(chance.get_ydata()) == [0, 1]
    assert torch.equal(torch.as_tensor(curve.get_ydata()), metric.compute().tpr)
    area = float(curve.get_label().split()[-1].rstrip(")"))
    assert area == pytest.approx(roc_auc_score(scored[1], scored[0]), abs=1e-3)


def test_pr_shows_its_average_precision(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedPrecisionRecallCurve()
    metric.update(*scored)
    _, ax = metric.plot()
    area = float(ax.get_lines()[-1].get_label().split()[-1].rstrip(")"))
    assert area == pytest.approx(average_precision_score(scored[1], scored[0]), abs=1e-3)


def test_axes_curves_and_scores_can_be_given(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC()
    metric.update(*scored)
    curve = metric.compute()
    metric.reset()
    fig, given = plt.subplots()
    assert metric.plot(curve=curve, score=torch.tensor(0.5), ax=given) == (fig, given)
    assert given.get_lines()[-1].get_label() == "ROC (AUROC 0.5000)"
