"""The spec: two that differ anywhere have different fingerprints, and the difference is named."""

from __future__ import annotations

from itertools import combinations

import pytest

from torchmetrics_fed import CentralDP, InputError, ScoreGrid, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import SpecMismatchError

VARIANTS = {
    "base": Spec("binary", 1, ScoreGrid()),
    "bins": Spec("binary", 1, ScoreGrid(bins=64)),
    "score_range": Spec("binary", 1, ScoreGrid(score_range=(0.0, 1.0 + 2**-52))),
    "score_edges": Spec("binary", 1, ScoreGrid.from_edges([0.0, 0.3, 1.0])),
    "tree": Spec("binary", 1, ScoreGrid(), Tree((64, 64))),
    "task": Spec("multilabel", 1, ScoreGrid()),
    "classes": Spec("multilabel", 2, ScoreGrid()),
    "multi_class": Spec("multiclass", 3, ScoreGrid(), multi_class="ovo"),
    "privacy": Spec("binary", 1, ScoreGrid(), Tree.flat(4096), CentralDP(1.0)),
}


def test_every_field_moves_the_fingerprint() -> None:
    assert all(one.digest != other.digest for one, other in combinations(VARIANTS.values(), 2))
    assert Spec("binary", 1, ScoreGrid()).digest == VARIANTS["base"].digest


@pytest.mark.parametrize("field", [name for name in VARIANTS if name != "base"])
def test_a_mismatch_names_its_field(field: str) -> None:
    with pytest.raises(SpecMismatchError, match=field):
        VARIANTS["base"].check(VARIANTS[field])


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(InputError, match="task"):
        Spec("regression", 1, ScoreGrid())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="num_classes"):
        Spec("multiclass", 1, ScoreGrid())
    with pytest.raises(InputError, match="multi_class"):
        Spec("multilabel", 4, ScoreGrid(), multi_class="ovo")
    with pytest.raises(InputError, match="whole bins"):
        Spec("binary", 1, ScoreGrid(), Tree((3,)), CentralDP(1.0))
