"""A setting says what it protects and against whom, and refuses arguments that cannot hold."""

from __future__ import annotations

import math
from typing import Any

import pytest

from torchmetrics_fed import CentralDP, DistributedDP, InputError, LocalDP, Privacy
from torchmetrics_fed.privacy import Exact

SETTINGS: list[Privacy] = [
    Exact(),
    CentralDP(0.5, examples_per_person=4, enforced=True),
    LocalDP(1.0, neighbours="replace_one"),
    DistributedDP(1.0, min_clients=8, max_colluding=3, mechanism="skellam", delta=1e-6),
]


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
        name = type(setting).__name__
        parties = setting.holds_against
        assert str(setting) == f"{name}(epsilon=0.5 for {unit}; holds against {parties})"


def test_text_names_delta() -> None:
    text = str(CentralDP(1.0, delta=1e-6, mechanism="skellam"))
    assert text.startswith(
        "CentralDP(epsilon=1, delta=1e-06 for one example, added or removed; holds against everyone"
    )


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_setting_is_its_fields(setting: Privacy) -> None:
    assert Privacy.from_fields(setting.fields) == setting


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_setting_has_no_truth_value(setting: Privacy) -> None:
    with pytest.raises(TypeError, match=r"privacy\.charges"):
        bool(setting)


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"epsilon": math.nan},
        {"mechanism": "laplace"},
        {"delta": 1e-6},
        {"delta": -1e-6},
        {"delta": math.nan},
        {"mechanism": "skellam", "delta": 0.0},
        {"mechanism": "skellam", "delta": 1.0},
        {"neighbours": "close"},
        {"examples_per_person": 0},
        {"enforced": 1},
        {"min_clients": 0},
        {"max_colluding": 8},
        {"trusted_aggregator": None},
    ],
    ids=str,
)
def test_bad_arguments_are_refused_by_name(changes: dict[str, Any]) -> None:
    name = list(changes)[-1]
    arguments = {"epsilon": 1.0, "min_clients": 8, **changes}
    with pytest.raises(InputError, match=f"`{name}`"):
        DistributedDP(**arguments)


@pytest.mark.parametrize("setting", [CentralDP, LocalDP])
def test_a_large_epsilon_warns_the_caller(setting: type[CentralDP] | type[LocalDP]) -> None:
    with pytest.warns(UserWarning, match="protects next to nothing") as warned:
        setting(21.0)
    assert warned[0].filename == __file__


def test_a_large_epsilon_that_is_read_does_not_warn() -> None:
    with pytest.warns(UserWarning, match="protects next to nothing") as warned:
        setting = DistributedDP(21.0, min_clients=8)
    assert warned[0].filename == __file__
    assert Privacy.from_fields(setting.fields) == setting
