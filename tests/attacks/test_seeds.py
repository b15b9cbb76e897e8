"""Threat 5: one seed everywhere, or a predictable generator. No two clients draw the same noise."""

from __future__ import annotations

import multiprocessing
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.light import LightProcess
from torchmetrics_fed import DistributedDP, FederatedROC
from torchmetrics_fed.privacy import samplers

CELLS = 256
CLIENTS = 64
EPSILON = 0.5


def noise_of_seed(_: int) -> bytes:
    """Return the noise of a library that draws from a seeded generator."""
    return np.random.default_rng(0).negative_binomial(1 / CLIENTS, 0.4, CELLS).tobytes()


def noise_of_package(_: int) -> bytes:
    return samplers.polya(CELLS, EPSILON, CLIENTS).tobytes()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_64_forked_clients_differ() -> None:
    noise_of_package(0)  # the tables are there before the fork; the noise must not be
    with multiprocessing.get_context("fork").Pool(4, maxtasksperchild=1) as pool:
        shares = pool.map(noise_of_package, range(CLIENTS), chunksize=1)
        seeded_shares = pool.map(noise_of_seed, range(CLIENTS), chunksize=1)
    assert len(set(shares)) == CLIENTS
    assert len(set(seeded_shares)) == 1


@pytest.mark.slow
def test_64_new_interpreters_differ() -> None:
    program = f"""
from torchmetrics_fed.privacy import samplers
print(samplers.polya({CELLS}, {EPSILON}, {CLIENTS}).tobytes().hex())
"""
    shares: set[str] = set()
    for _ in range(16):
        clients = [LightProcess(program) for _ in range(4)]
        for client in clients:
            shares.update(client.result())
    assert len(shares) == CLIENTS


def test_seeding_everything_changes_nothing() -> None:
    assert not torch.equal(seeded_share(), seeded_share())


def seeded_share() -> Tensor:
    """Return the share of a client that has seeded every generator."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    privacy = DistributedDP(1.0, min_clients=8, trusted_aggregator=True)
    metric = FederatedROC(privacy=privacy)
    metric.update(torch.linspace(0, 1, 100), torch.arange(100) % 2)
    return metric.share().cells
