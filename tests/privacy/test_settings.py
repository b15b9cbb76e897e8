"""A setting says what it protects, whom, and against whom."""

from __future__ import annotations

from typing import Any

import pytest

from torchmetrics_fed import CentralDP, DistributedDP, LocalDP, Privacy


@pytest.mark.parametrize(
    ("options", "unit"),
    [
        ({}, "one example, added or removed"),
        ({"neighbours": "replace_one"}, "one example, replaced"),
        ({"examples_per_person": 5}, "one person's examples, 5 at most, added or removed"),
        (
            {"examples_per_person": 5, "neighbours": "replace_one"},
            "one person's examples, 5 at most, replaced",
        ),
    ],
)
def test_text_names_the_unit_of_privacy(options: dict[str, Any], unit: str) -> None:
    settings: list[Privacy] = [
        LocalDP(0.5, **options),
        CentralDP(0.5, **options),
        DistributedDP(0.5, 8, **options),
    ]
    for setting in settings:
        text = f"{type(setting).__name__}(epsilon=0.5 for {unit}; holds against {setting.holds_against})"
        assert str(setting) == text


def test_text_names_delta() -> None:
    text = str(CentralDP(1.0, delta=1e-6, mechanism="skellam"))
    assert text.startswith(
        "CentralDP(epsilon=1, delta=1e-06 for one example, added or removed; holds against everyone"
    )
