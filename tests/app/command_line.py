"""Tables of three sites, and commands that count and sum them."""

from __future__ import annotations

import random

import pytest

from torchmetrics_fed.app.cli import main

__all__ = ["HIDDEN", "LOCAL", "SITES", "TRUSTED", "count", "refusal", "sum_shares", "table_rows"]

SITES = ("a", "b", "c")

LOCAL = """
[privacy]
kind = "LocalDP"
epsilon = 1.0
[ledger]
path = "{name}.ledger"
budget = 2.0
"""
TRUSTED = LOCAL.replace('"LocalDP"', '"DistributedDP"\nmin_clients = 3\ntrusted_aggregator = true')
HIDDEN = LOCAL.replace('"LocalDP"', '"DistributedDP"\nmin_clients = 3')


def table_rows(seed: int, number: int = 300) -> list[tuple[float, int]]:
    """Scores and labels of a site."""
    generator = random.Random(seed)
    labels = [int(generator.random() < 0.3) for _ in range(number)]
    rows = []
    for label in labels:
        score = generator.gauss(0.35 + 0.3 * label, 0.2)
        rows.append((round(min(max(score, 0.0), 1.0), 5), label))
    return rows


def count(name: str, *options: str) -> int:
    """Count the table of a site, and write its share."""
    files = ["study.toml", f"{name}.csv", "--name", name, "-o", f"{name}.share"]
    return main(["count", *files, *options])


def sum_shares() -> int:
    """Sum the shares of all sites, and write the release."""
    return main(["sum", "study.toml", "a.share", "b.share", "c.share", "-o", "all.release"])


def refusal(code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """The text of a command that was refused: one line, on stderr."""
    error = capsys.readouterr().err
    assert code == 1
    assert error.startswith("torchmetrics-fed: ")
    assert error.count("\n") == 1
    return error
