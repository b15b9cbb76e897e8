"""Threat 5: the same seed everywhere, a predictable generator. No two clients may draw the same noise."""

from __future__ import annotations

import multiprocessing
import random

import numpy as np
import pytest
import torch

from tests.light import LightProcess
from torchmetrics_fed import DistributedDP, FederatedROC
from torchmetrics_fed.privacy import samplers

ARGUMENTS = (256, 0.5, 64)


def naive(_: int) -> bytes:
    """What a library does that draws from a module-wide generator."""
    return np.random.default_rng(0).negative_binomial(1 / 64, 0.4, 256).tobytes()


def drawn(_: int) -> bytes:
    return samplers.polya(*ARGUMENTS).tobytes()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_64_forked_clients_differ() -> None:
    samplers.polya(*ARGUMENTS)  # the tables are there before the fork; the noise must not be
    with multiprocessing.get_context("fork").Pool(4, maxtasksperchild=1) as pool:
        assert len(set(pool.map(drawn, range(64), chunksize=1))) == 64
        assert len(set(pool.map(naive, range(64), chunksize=1))) == 1


@pytest.mark.slow
def test_64_new_interpreters_differ() -> None:
    program = f"""
from torchmetrics_fed.privacy import samplers
print(samplers.polya(*{ARGUMENTS}).tobytes().hex())
"""
    shares: set[str] = set()
    for _ in range(16):
        clients = [LightProcess(program) for _ in range(4)]
        shares.update(*(client.result() for client in clients))
    assert len(shares) == 64


def test_seeding_everything_changes_nothing() -> None:
    shares = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        metric = FederatedROC(privacy=DistributedDP(1.0, min_clients=8, trusted_aggregator=True))
        metric.update(torch.linspace(0, 1, 100), torch.arange(100) % 2)
        shares.append(metric.share().cells)
    assert not torch.equal(*shares)
