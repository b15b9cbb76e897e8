"""A stage is one byte, its name is a word, and everything else is refused."""

from __future__ import annotations

import pytest

from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import WireError


def test_bytes_and_names_of_stages_are_fixed() -> None:
    """They are on the wire and in the names of files."""
    names = ["share", "advertise", "share_keys", "mask", "sign", "unmask", "join"]
    assert {str(stage): stage.value for stage in Stage} == dict(zip(names, range(7), strict=True))
    assert [Stage.of(number) for number in range(7)] == list(Stage)
    assert f"{Stage.SHARE_KEYS}" == "share_keys"


@pytest.mark.parametrize("value", [-1, 7, 255, True, 1.0, "mask", b"\x03", None, Stage.MASK])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(WireError, match="Expected a stage, a number from 0 to 6"):
        Stage.of(value)


def test_a_query_begins_once_and_is_answered_once() -> None:
    """In a share that may be seen, or in secure aggregation."""
    visible = [stage for stage in Stage if not stage.is_secure]
    hidden = [stage for stage in Stage if stage.is_secure]
    assert [stage for stage in visible if stage.begins_query] == [Stage.SHARE, Stage.JOIN]
    assert [stage for stage in visible if stage.asks_data] == [Stage.SHARE]
    assert [stage for stage in hidden if stage.begins_query] == [Stage.ADVERTISE]
    assert [stage for stage in hidden if stage.asks_data] == [Stage.MASK]


def test_a_client_is_asked_once_before_it_pays_whether_it_takes_part() -> None:
    first = [stage for stage in Stage if stage.asks_first]
    assert first == [Stage.ADVERTISE, Stage.JOIN]
    assert not any(stage.asks_data for stage in first)
