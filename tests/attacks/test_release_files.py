"""Threat: release files that disclose more than their statement says."""

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


def lower_bound(hits: int, false_alarms: int) -> float:
    """Return the epsilon that an attacker shows with these hits and false alarms."""
    least_hit_rate = stats.beta.ppf(ALPHA, hits, TRIALS - hits + 1)
    largest_alarm_rate = stats.beta.ppf(1 - ALPHA, false_alarms + 1, TRIALS - false_alarms)
    return math.log(least_hit_rate / largest_alarm_rate)


def test_a_file_with_a_prior_is_audited_above_epsilon_and_within_its_statement() -> None:
    """The file holds two noisy cells of a person in both evaluations, each for one epsilon."""
    spec = Spec("binary", 1, ScoreGrid(bins=16), LocalDP(1.0))
    query = Query(Tree.flat(16))
    cells = torch.zeros(spec.shape(query), dtype=torch.int64)
    release = Release((Sum(spec, query, cells),), prior=Sum(spec, query, cells))
    law = spec.noise(query).law
    assert law is not None
    alarms_without = draw_noise(law, (TRIALS, 2)) >= 1
    alarms_with = draw_noise(law, (TRIALS, 2)) + 1 >= 1
    both_cells = lower_bound(
        hits=int(alarms_with.all(1).sum()),
        false_alarms=int(alarms_without.all(1).sum()),
    )
    last_cell = lower_bound(
        hits=int(alarms_with[:, 0].sum()),
        false_alarms=int(alarms_without[:, 0].sum()),
    )
    assert last_cell < spec.epsilon < both_cells
    stated = privacy_statement(release).fields["prior"]["both_epsilon"]
    assert both_cells < stated == spec.epsilon + release.prior_epsilon
    statement = privacy_statement(Release(release.sums))
    assert statement.fields["prior"] is None
    assert last_cell < statement.fields["epsilon"]


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
    """Also with a trusted aggregator: one share has little noise, so that most cells are exact."""
    metric = FederatedROC(
        privacy=DistributedDP(1.0, min_clients=100, trusted_aggregator=True), plan="single"
    )
    metric.update(*scored)
    share = metric.share()
    exact = metric.spec.cells(share.query, metric.counts)
    assert (share.cells == exact).double().mean() > 0.5
    sum_of_one = Release.sum([share])
    with pytest.raises(ReleaseError, match="min_clients=100"):
        WAYS[way](sum_of_one, tmp_path)
    assert all(b"TMFD" not in path.read_bytes() for path in tmp_path.iterdir())
    assert "tensor" not in repr(sum_of_one)


def test_a_damaged_file_is_said_to_be_damaged(
    tmp_path: Path, scored: tuple[Tensor, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    """This holds for every command that reads a release."""
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
    statement = str(privacy_statement(Release.load(path)))
    assert "ecure aggregation" not in statement
    assert "all clients' data was in one process" in statement
    assert main(["inspect", str(path)]) == 0
    assert "note: simulated in one process" in capsys.readouterr().out
