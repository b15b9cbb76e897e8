"""Fixtures of the tests of privacy."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.privacy.ledgers import OpenLedger
from torchmetrics_fed.privacy.ledger import PrivacyLedger


@pytest.fixture(params=["memory", "file"])
def open_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> OpenLedger:
    """A function that opens a ledger: a new one in memory, or always the same file."""
    if request.param == "memory":
        return PrivacyLedger
    return partial(PrivacyLedger, path=tmp_path / "ledger")
