"""How far one has to walk to follow the code: files of the package, and switches between its packages.

    python -m benchmarks.walk

A profiler notes every call inside the package. A switch is a call, or the return from one, that leads from one package
(or loose module) of it to another. Two walks: one score from the metric's constructor to its curve, and a private
release over ranks, from ``compute`` to the curve.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import torchmetrics_fed
from torchmetrics_fed import DistributedDP, FederatedROC

PACKAGE = Path(torchmetrics_fed.__file__).parent


class Walk(NamedTuple):
    """What a call goes through."""

    files: int
    switches: int


def walk(call: Callable[[], object]) -> Walk:
    """Return the files and switches of a call."""
    files: set[str] = set()
    where, switches = "", 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal where, switches
        if event not in ("call", "return"):
            return
        at = frame if event == "call" else frame.f_back
        path = "" if at is None else at.f_code.co_filename
        if not path.startswith(str(PACKAGE)):
            return
        files.add(path)
        here = Path(path).relative_to(PACKAGE).parts[0]
        switches += bool(where) and here != where
        where = here

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Walk(len(files), switches)


def one_score() -> Walk:
    """One score from the constructor to the curve."""

    def call() -> None:
        metric = FederatedROC()
        metric.update(torch.tensor([0.2, 0.7]), torch.tensor([0, 1]))
        metric.compute()

    call()  # tables and caches are made once
    return walk(call)


def over_ranks() -> Walk:
    """A private release over the ranks of a process group; one rank is enough to see the way."""
    privacy = DistributedDP(1.0, min_clients=1, max_colluding=0)

    def metric() -> FederatedROC:
        made = FederatedROC(privacy=privacy)
        made.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
        return made

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            metric().compute()
            return walk(metric().compute)
        finally:
            dist.destroy_process_group()


if __name__ == "__main__":
    for name, found in (("one score", one_score()), ("private compute over ranks", over_ranks())):
        print(f"{name}: {found.files} files, {found.switches} switches")
