"""Tuned constants: each names the benchmark that tunes it, and is used."""

from __future__ import annotations

from tests.tuned_constants import check_benchmarks, check_read
from torchmetrics_fed.comparison import tuning


def test_every_constant_names_a_benchmark_that_exists() -> None:
    check_benchmarks(tuning)


def test_every_constant_is_read_at_the_time_of_a_call() -> None:
    check_read(tuning, ("comparison",))
