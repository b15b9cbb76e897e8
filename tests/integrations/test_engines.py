"""Engines feed tables for real: pandas, Polars, DuckDB in this process, Ray Data on workers, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchmetrics_fed import FederatedROC, LocalDP, PrivacyLedger

pytestmark = pytest.mark.integration
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
tables = pytest.importorskip("torchmetrics_fed.app.tables")
ROWS = 200_000


@pytest.fixture(scope="module")
def table() -> Any:
    rng = np.random.default_rng(0)
    scores = rng.random(ROWS, dtype=np.float32)
    return pa.table({"score": scores, "label": (rng.random(ROWS) < scores).astype(np.int8)})


@pytest.fixture(scope="module")
def alone(table: Any) -> FederatedROC:
    metric = FederatedROC()
    metric.update(torch.tensor(table["score"].to_numpy()), torch.tensor(table["label"].to_numpy()))
    return metric


@pytest.mark.parametrize("engine", ["pandas", "polars", "duckdb"])
def test_frames_have_the_counts_of_their_tensors(
    engine: str, table: Any, alone: FederatedROC
) -> None:
    library = pytest.importorskip(engine)
    frame = {
        "pandas": lambda: table.to_pandas(),
        "polars": lambda: library.from_arrow(table),
        "duckdb": lambda: library.from_arrow(table).filter("score >= 0"),
    }[engine]()
    metric = FederatedROC()
    assert tables.count_table(metric, frame) == (ROWS, 0)
    assert torch.equal(metric.counts, alone.counts)


@pytest.mark.filterwarnings("ignore")  # Ray's own, of its dependencies
def test_ray_workers_count_and_the_driver_releases_once(
    table: Any, alone: FederatedROC, tmp_path: Path
) -> None:
    ray = pytest.importorskip("ray")
    for number in range(4):
        parquet.write_table(
            table[number * 50_000 : (number + 1) * 50_000], tmp_path / f"{number}.parquet"
        )
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        ledger = PrivacyLedger(budget=1.0, path=tmp_path / "ledger")  # a file of the driver's
        for privacy in (None, LocalDP(epsilon=1.0)):
            metric = FederatedROC(privacy=privacy, ledger=ledger)
            part = tables.PartialCounts.of(metric)
            parts = ray.data.read_parquet(str(tmp_path)).map_batches(
                part, batch_format="pyarrow", batch_size=None
            )
            found = tables.merge_counts(
                metric, parts.iter_batches(batch_format="pyarrow", batch_size=None)
            )
            assert found == (ROWS, 0)
            assert torch.equal(metric.counts, alone.counts)
        assert not len(ledger)
        share = metric.share(round="1")
        assert len(ledger) == 1
        assert bytes(metric.share(round="1")) == bytes(share)
        assert len(ledger) == 1
    finally:
        ray.shutdown()
