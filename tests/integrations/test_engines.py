"""Real engines feed tables: pandas, Polars and DuckDB in this process, Ray Data on workers."""

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
def reference(table: Any) -> FederatedROC:
    """A metric with the same data as tensors."""
    metric = FederatedROC()
    preds = torch.tensor(table["score"].to_numpy())
    target = torch.tensor(table["label"].to_numpy())
    metric.update(preds, target)
    return metric


@pytest.mark.parametrize("engine", ["pandas", "polars", "duckdb"])
def test_frames_have_the_counts_of_their_tensors(
    engine: str, table: Any, reference: FederatedROC
) -> None:
    library = pytest.importorskip(engine)
    if engine == "pandas":
        frame = table.to_pandas()
    elif engine == "polars":
        frame = library.from_arrow(table)
    else:
        frame = library.from_arrow(table).filter("score >= 0")
    metric = FederatedROC()
    assert tables.count_table(metric, frame) == (ROWS, 0)
    assert torch.equal(metric.counts, reference.counts)


@pytest.mark.filterwarnings("ignore")  # Ray's own, of its dependencies
def test_ray_workers_count_and_the_driver_releases_once(
    table: Any, reference: FederatedROC, tmp_path: Path
) -> None:
    ray = pytest.importorskip("ray")
    rows = ROWS // 4
    for number in range(4):
        part = table[number * rows : (number + 1) * rows]
        parquet.write_table(part, tmp_path / f"{number}.parquet")
    ledger = PrivacyLedger(budget=1.0, path=tmp_path / "ledger")  # a file of the driver
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        for privacy in (None, LocalDP(epsilon=1.0)):
            metric = FederatedROC(privacy=privacy, ledger=ledger)
            dataset = ray.data.read_parquet(str(tmp_path)).map_batches(
                tables.PartialCounts.of(metric), batch_format="pyarrow", batch_size=None
            )
            parts = dataset.iter_batches(batch_format="pyarrow", batch_size=None)
            assert tables.merge_counts(metric, parts) == (ROWS, 0)
            assert torch.equal(metric.counts, reference.counts)
        assert len(ledger) == 0
        share = metric.share(round="1")
        assert len(ledger) == 1
        assert bytes(metric.share(round="1")) == bytes(share)
        assert len(ledger) == 1
    finally:
        ray.shutdown()
