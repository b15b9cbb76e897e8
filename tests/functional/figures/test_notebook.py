"""What a notebook shows of a result: its scalars and its figure."""

from __future__ import annotations

import base64
import re
from typing import Any

import matplotlib as mpl
import pytest
import torch

from tests.functional.test_scalars import RESULTS
from tests.grids import even
from torchmetrics_fed import FederatedModelComparison, FederatedROC
from torchmetrics_fed.functional import confusion_at, group_gaps, roc_from_counts
from torchmetrics_fed.functional.figures import notebook
from torchmetrics_fed.functional.figures.notebook import result_html

mpl.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


def leaf(*classes: int) -> torch.Tensor:
    return torch.randint(1, 90, (*classes, 2, 64), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("classes", [(), (3,)], ids=["binary", "classes"])
@pytest.mark.parametrize("name", RESULTS)
def test_every_result_shows_its_scalars_and_its_figure(name: str, classes: tuple[int, ...]) -> None:
    make, _ = RESULTS[name]
    result = make(leaf(*classes))
    before = plt.get_fignums()
    text = result._repr_html_()
    assert plt.get_fignums() == before  # a notebook would show an open figure again
    for scalar in result.scalars:
        assert f">{scalar.replace('_', ' ')}<" in text
    (image,) = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert base64.b64decode(image).startswith(b"\x89PNG")
    assert ("class 2" in text) == bool(classes)


@pytest.mark.filterwarnings("ignore:.*gap")
def test_names_of_groups_and_models_cannot_break_out(
    scored: tuple[torch.Tensor, torch.Tensor],
) -> None:
    preds, target = scored
    groups = FederatedROC(groups=["<script>alert(1)</script>", "b"])
    groups.update(preds, target, torch.arange(len(preds)) % 2)
    models = FederatedModelComparison(models=("<img src=x onerror=alert(2)>", "new"))
    models.update(preds, preds.flip(0), target)
    for result in (group_gaps(groups.release()), models.compute()):
        text = result._repr_html_()
        assert "alert" not in text
        assert text.count("<img") == 1  # the figure


def test_many_classes_are_summed_up() -> None:
    text = result_html(roc_from_counts(even(leaf(30))))
    assert "30 classes" in text
    assert "highest" in text
    assert text.count("<td>") == 3


def test_an_undefined_number_is_shown_as_such() -> None:
    counts = torch.zeros(12, 2, 4)
    text = result_html(confusion_at(even(counts), 0.5))
    assert "nan" in text


def test_without_matplotlib_there_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_module(name: str) -> Any:
        return None

    monkeypatch.setattr(notebook, "find_spec", no_module)
    text = result_html(roc_from_counts(even(leaf())))
    assert "auroc" in text
    assert "<img" not in text
