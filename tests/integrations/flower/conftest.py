"""Fixtures of the tests with Flower: the log of its server, and a folder for notes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.transports.endpoints import MEMORY


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The warnings of Flower's logger."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    with caplog.at_level(logging.WARNING, "flwr"):
        yield caplog
    logger.removeHandler(caplog.handler)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where that is possible, because every note is synced."""
    with TemporaryDirectory(dir=MEMORY) as path:
        yield Path(path)
