"""Threat 9: bytes that were made to fill the memory of whoever decodes them.

Zeros compress well, and JSON does, too. What decoding takes is bounded by the size of the input, for every message.
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
    done = subprocess.run(
        program, check=True, capture_output=True, text=True, env=environment, timeout=1_800
    )
    worst = json.loads(done.stdout)
    assert worst.keys() == KINDS
    assert sum(kind["inputs"] for kind in worst.values()) > mutants
    for kind, found in worst.items():
        assert found["excess"] <= CONSTANT, (kind, found)
    # the inputs are large enough to show it: old codes of zeros took 1,000 times their size
    assert max(found["peak"] for found in worst.values()) > CONSTANT
