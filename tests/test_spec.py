"""The spec: two that differ anywhere have different fingerprints, and the difference is named."""

from __future__ import annotations

from itertools import combinations

import pytest

from torchmetrics_fed import InputError, ScoreGrid, Spec, SpecMismatchError, Tree

VARIANTS = {
    "base": Spec("binary", 1, ScoreGrid()),
    "bins": Spec("binary", 1, ScoreGrid(bins=64)),
    "score_range": Spec("binary", 1, ScoreGrid(score_range=(0.0, 1.0 + 2**-52))),
    "score_edges": Spec("binary", 1, ScoreGrid.from_edges([0.0, 0.3, 1.0])),
    "tree": Spec("binary", 1, ScoreGrid(), Tree((64, 64))),
    "classes": Spec("binary", 2, ScoreGrid()),
}


def test_every_field_moves_the_fingerprint() -> None:
    assert all(one.fingerprint != other.fingerprint for one, other in combinations(VARIANTS.values(), 2))
    assert Spec("binary", 1, ScoreGrid()).fingerprint == VARIANTS["base"].fingerprint


@pytest.mark.parametrize("field", [name for name in VARIANTS if name != "base"])
def test_a_mismatch_names_its_field(field: str) -> None:
    with pytest.raises(SpecMismatchError, match=field):
        VARIANTS["base"].check(VARIANTS[field])


def test_unknown_tasks_are_refused() -> None:
    with pytest.raises(InputError, match="task"):
        Spec("regression", 1, ScoreGrid())  # type: ignore[arg-type]
