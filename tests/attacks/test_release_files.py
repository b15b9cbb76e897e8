"""Release files that tell more than is said of them, and what is refused a file."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from torchmetrics_fed import (
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    LocalDP,
    Release,
    ReleaseError,
    ScoreGrid,
    Spec,
)
from torchmetrics_fed.app.cli import main
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange.client import draw_noise
from torchmetrics_fed.release import Query, Sum
from torchmetrics_fed.report import evaluation_report, privacy_statement
from torchmetrics_fed.simulate import simulate

ALPHA = 1e-6
TRIALS = 20_000


def lower_bound(hits: int, misses: int) -> float:
    """The epsilon that an attacker has shown who is right ``hits`` times, and wrong ``misses`` times, of TRIALS."""
    least = stats.beta.ppf(ALPHA, hits, TRIALS - hits + 1)
    most = stats.beta.ppf(1 - ALPHA, misses + 1, TRIALS - misses)
    return math.log(least / most)


def test_a_file_with_a_prior_is_audited_above_epsilon_and_within_its_statement() -> None:
    """One person in both evaluations: the file holds two sums with their cell, each with noise for epsilon."""
    spec = Spec("binary", 1, ScoreGrid(bins=16), LocalDP(1.0))
    query = Query(Tree.flat(16))
    cells = torch.zeros(spec.shape(query), dtype=torch.int64)
    release = Release((Sum(spec, query, cells),), prior=Sum(spec, query, cells))
    law = spec.noise(query).law
    assert law is not None
    without = draw_noise(law, (TRIALS, 2))
    present = draw_noise(law, (TRIALS, 2)) + 1
    both_cells = lower_bound(int((present >= 1).all(1).sum()), int((without >= 1).all(1).sum()))
    last_cell = lower_bound(int((present >= 1)[:, 0].sum()), int((without >= 1)[:, 0].sum()))
    assert last_cell < spec.epsilon < both_cells
    stated = privacy_statement(release).fields["prior"]["both_epsilon"]
    assert both_cells < stated == spec.epsilon + release.prior_epsilon
    alone = privacy_statement(Release(release.sums))
    assert alone.fields["prior"] is None
    assert last_cell < alone.fields["epsilon"]


WAYS: dict[str, Callable[[Release, Path], Any]] = {
    "bytes": lambda release, _: bytes(release),
    "save": lambda release, folder: release.save(folder / "few.release"),
    "pickle": lambda release, _: pickle.dumps(release),
    "pickle of its sum": lambda release, _: pickle.dumps(release.last),
    "torch.save": lambda release, folder: torch.save(release, folder / "few.pt"),
    "curve": lambda release, _: FederatedROC.from_release(release).compute(),
    "area": lambda release, _: FederatedAUROC.from_release(release).compute(),
    "report": lambda release, _: evaluation_report(release),
    "statement": lambda release, _: privacy_statement(release),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_release_of_fewer_shares_than_needed_goes_nowhere(
    way: str, scored: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    """With a trusted aggregator, too: hardly any noise is in one share, so most cells are the exact counts."""
    metric = FederatedROC(
        privacy=DistributedDP(1.0, min_clients=100, trusted_aggregator=True), plan="single"
    )
    metric.update(*scored)
    share = metric.share()
    exact = metric.spec.cells(share.query, metric.counts)
    assert (share.cells == exact).double().mean() > 0.5
    alone = Release.sum([share])
    with pytest.raises(ReleaseError, match="min_clients=100"):
        WAYS[way](alone, tmp_path)
    assert all(b"TMFD" not in path.read_bytes() for path in tmp_path.iterdir())
    assert "tensor" not in repr(alone)


def test_a_damaged_file_is_said_to_be_damaged(
    tmp_path: Path, scored: tuple[Tensor, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    """In every command that reads a release."""
    metric = FederatedROC(quantiles=16)
    metric.update(*scored)
    path = tmp_path / "a.release"
    metric.release().save(path)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    for command in ("inspect", "report"):
        assert main([command, str(path)]) != 0
        assert "the file was damaged" in capsys.readouterr().err


def test_a_simulation_is_not_taken_for_secure_aggregation(
    scored: tuple[Tensor, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = list(zip(*(part.chunk(5) for part in scored), strict=True))
    metric = FederatedROC(quantiles=64, privacy=DistributedDP(1.0, min_clients=3))
    path = tmp_path / "a.release"
    simulate(clients, metric).release.save(path)
    said = str(privacy_statement(Release.load(path)))
    assert "ecure aggregation" not in said
    assert "all clients' data was in one process" in said
    assert main(["inspect", str(path)]) == 0
    assert "note: simulated in one process" in capsys.readouterr().out
