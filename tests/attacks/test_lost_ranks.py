"""Threat 13: a dead or a stalled rank. The others get a clear error before the deadline, and
nothing is released."""

from __future__ import annotations

import multiprocessing
import os
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from torchmetrics_fed import DistributedDP, FederatedROC
from torchmetrics_fed.errors import SyncError

pytestmark = pytest.mark.slow

DEADLINE = 5.0  # the group's timeout, in seconds


def work(rank: int, store: str, fault: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=4,
        timeout=timedelta(seconds=DEADLINE),
    )
    metric = FederatedROC(quantiles=16, privacy=DistributedDP(1.0, min_clients=3))
    metric.update(torch.rand(100), torch.randint(0, 2, (100,)))
    dist.barrier()
    if rank == 3:
        if fault == "dead":
            os._exit(1)
        time.sleep(60)
    start = time.monotonic()
    try:
        metric.compute()
        outcome = "computed"
    except SyncError as error:
        outcome = str(error)
    client = metric._current_client()
    connection.send(
        (outcome, time.monotonic() - start, client is not None and client.release is not None)
    )
    connection.recv()  # stay until all have reported


@pytest.mark.parametrize("fault", ["dead", "stalled"])
def test_the_others_hear_of_it_in_time(fault: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(4)]
    processes = [
        context.Process(
            target=work, args=(rank, str(tmp_path / "store"), fault, pipes[rank][1]), daemon=True
        )
        for rank in range(4)
    ]
    for process in processes:
        process.start()
    try:
        for ours, _ in pipes[:3]:
            assert ours.poll(60)
            outcome, seconds, is_released = ours.recv()
            assert "one is gone or did not answer" in outcome
            assert seconds < 2 * DEADLINE
            assert not is_released
    finally:
        for process in processes:
            process.kill()
            process.join()
