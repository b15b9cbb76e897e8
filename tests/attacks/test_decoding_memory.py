"""Threat 9: bytes that were made to fill the memory of their reader.

Zeros compress well, and so does JSON. For every message, the memory of decoding is bounded by the
size of the input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TIMES = 20
"""Bytes of memory for each byte of the input, at most."""
CONSTANT = 16 * 2**20
"""Bytes of memory beside that, whatever the input."""
KINDS = {"release", "share", "query", "spec", "coordinator", "notes", "client"}


@pytest.mark.parametrize("mutants", [6_000, pytest.param(200_000, marks=pytest.mark.audit)])
def test_decoding_takes_at_most_20_times_the_input(mutants: int) -> None:
    environment = dict(
        os.environ,
        OMP_NUM_THREADS="1",
        MALLOC_MMAP_THRESHOLD_=str(2**20),  # so that large arrays are given back at once
        PYTHONPATH=str(Path(__file__).parents[2]),
    )
    program = [sys.executable, "-m", "tests.attacks.decoding", str(mutants), str(TIMES)]
    finished = subprocess.run(
        program, check=True, capture_output=True, text=True, env=environment, timeout=1_800
    )
    worst = json.loads(finished.stdout)
    assert worst.keys() == KINDS
    assert sum(case["inputs"] for case in worst.values()) > mutants
    for kind, case in worst.items():
        assert case["excess"] <= CONSTANT, (kind, case)
    # The power: the inputs are large enough to exceed the constant.
    assert max(case["peak"] for case in worst.values()) > CONSTANT
