"""A stage is one byte, its name is a word, and everything else is refused."""

from __future__ import annotations

import pytest

from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import WireError


def test_bytes_and_names_of_stages_are_fixed() -> None:
    """They are on the wire and in the names of files."""
    names = ["share", "advertise", "share_keys", "mask", "sign", "unmask"]
    assert {str(stage): stage.value for stage in Stage} == dict(zip(names, range(6), strict=True))
    assert [Stage.of(number) for number in range(6)] == list(Stage)
    assert f"{Stage.SHARE_KEYS}" == "share_keys"


@pytest.mark.parametrize("value", [-1, 6, 255, True, 1.0, "mask", b"\x03", None, Stage.MASK])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(WireError, match="Expected a stage, a number from 0 to 5"):
        Stage.of(value)


def test_a_query_begins_once_and_is_answered_once() -> None:
    """In a share that may be seen, or in secure aggregation."""
    visible, *hidden = Stage
    assert visible.begins_query
    assert visible.asks_data
    assert [stage for stage in hidden if stage.begins_query] == [Stage.ADVERTISE]
    assert [stage for stage in hidden if stage.asks_data] == [Stage.MASK]
