"""Configurations: those that cannot hide a client are refused, and every setting is bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from torchmetrics_fed import InputError
from torchmetrics_fed.aggregation.secure import SecureAggregationConfig
from torchmetrics_fed.errors import SecureAggregationError

CONFIG = SecureAggregationConfig("round", b"spec", 8, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_clients": 2}, "`min_clients` to be an int from 3"),
        ({"min_clients": True}, "`min_clients`"),
        ({"min_clients": "3"}, "`min_clients`"),
        ({"max_colluding": 3}, "`max_colluding` to be an int from 0 to 2"),
        ({"max_colluding": -1}, "`max_colluding`"),
        ({"threshold": 2}, "`threshold` to be an int from 3"),
        ({"cells": 0}, "`cells`"),
        ({"cells": 1 << 40}, "`cells`"),
        ({"cells": 8.0}, "`cells`"),
        ({"round_id": ""}, "`round_id` of 1 to 255 bytes"),
        ({"round_id": "x" * 256}, "`round_id`"),
        ({"round_id": "\ud800"}, "`round_id`"),
        ({"binding": b""}, "`binding`"),
        ({"binding": "spec"}, "`binding`"),
        ({"signed": 1}, "`signed`"),
    ],
)
def test_useless_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"Expected argument {message}"):
        replace(CONFIG, **changes)


@pytest.mark.parametrize(
    ("clients", "colluding", "least", "default"),
    [(3, 1, 3, 3), (4, 1, 3, 3), (9, 1, 6, 7), (64, 1, 33, 43), (9, 6, 8, 8)],
)
def test_the_threshold_is_safe(clients: int, colluding: int, least: int, default: int) -> None:
    min_clients = 3 if colluding < 3 else 7
    config = replace(CONFIG, min_clients=min_clients, max_colluding=colluding)
    assert config.threshold_for(clients) == default
    assert replace(config, threshold=least).threshold_for(clients) == least
    assert 2 * least > clients + colluding
    if least > config.min_clients:
        with pytest.raises(SecureAggregationError, match="Raise the threshold"):
            replace(config, threshold=least - 1).threshold_for(clients)


def test_too_few_clients_for_the_threshold() -> None:
    for config, clients in (
        (CONFIG, 2),
        (CONFIG, 0),
        (replace(CONFIG, threshold=5), 4),
        (replace(CONFIG, min_clients=9), 8),
    ):
        with pytest.raises(SecureAggregationError, match="Wait for more clients"):
            config.threshold_for(clients)
    with pytest.raises(SecureAggregationError, match="Expected a threshold"):
        CONFIG.threshold_for(5000)


@pytest.mark.parametrize(
    "config",
    [CONFIG, SecureAggregationConfig("Ründe", bytes(range(64)), 1 << 20, 8, 2, 11, True)],
    ids=["least", "most"],
)
def test_the_message_holds_everything(config: SecureAggregationConfig) -> None:
    assert SecureAggregationConfig.from_bytes(config.to_bytes()) == config
    assert SecureAggregationConfig.from_bytes(config.to_bytes()).hash == config.hash


def test_every_setting_is_in_the_hash() -> None:
    configs = [
        CONFIG,
        replace(CONFIG, round_id="another round"),
        replace(CONFIG, binding=b"another spec"),
        replace(CONFIG, cells=9),
        replace(CONFIG, min_clients=4),
        replace(CONFIG, max_colluding=2),
        replace(CONFIG, threshold=3),
        replace(CONFIG, signed=True),
    ]
    assert len({config.hash for config in configs}) == len(configs)
