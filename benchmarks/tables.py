"""A table of 1e8 rows: how fast Parquet is counted beside reading it, in how much memory, by one worker and by two.

    OMP_NUM_THREADS=1 python -m benchmarks.tables --rows 100000000

The files take about 5 bytes a row in a temporary folder, and are deleted. Every figure is from a process of its own,
with one thread for pyarrow; reading and counting take turns, and medians are printed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from torchmetrics_fed import FederatedROC
from torchmetrics_fed.app.tables import PartialCounts, count_table, merge_counts

FILES, BLOCK = 8, 1 << 20


def write(folder: Path, rows: int) -> None:
    """Write the rows as pyarrow does by default: float32 scores, int8 labels, row groups of a million."""
    rng = np.random.default_rng(0)
    schema = pa.schema([("id", pa.int32()), ("score", pa.float32()), ("label", pa.int8())])
    for number in range(FILES):
        with parquet.ParquetWriter(folder / f"{number}.parquet", schema) as writer:
            for start in range(0, rows // FILES, BLOCK):
                size = min(BLOCK, rows // FILES - start)
                scores = rng.random(size, dtype=np.float32)
                labels = (rng.random(size, dtype=np.float32) < scores).astype(np.int8)
                ids = np.zeros(size, dtype=np.int32)
                writer.write_table(pa.table([ids, scores, labels], schema=schema))


def read(path: Path) -> int:
    """Read the same columns in the same batches with pyarrow alone, and return the number of rows."""
    with parquet.ParquetFile(path, buffer_size=1 << 22, pre_buffer=False) as file:
        return sum(
            batch.num_rows for batch in file.iter_batches(1 << 18, columns=["score", "label"])
        )


def count(path: Path) -> int:
    """Count the file, and return the number of rows."""
    return count_table(FederatedROC(), path).rows


def timed(work: Callable[[Path], int], folder: Path) -> dict[str, float]:
    """Return seconds, seconds of CPU and the growth of the peak of memory in MB of all files, after the first one."""
    files = sorted(folder.glob("*.parquet"))
    work(files[0])
    before, start, cpu = _peak(), time.perf_counter(), time.process_time()
    rows = sum(map(work, files))
    return {
        "rows": rows,
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
        "peak": _peak(),
        "growth": _peak() - before,
    }


def spread(folder: Path, workers: int) -> float:
    """Return the seconds that some worker processes take for all files, the merge included, after they are up."""
    metric, files = FederatedROC(), sorted(folder.glob("*.parquet"))
    part = PartialCounts.of(metric)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=pa.set_cpu_count, initargs=(1,)) as pool:
        list(pool.map(part, [files[0]] * 2 * workers))
        start = time.perf_counter()
        merge_counts(metric, list(pool.map(part, files)))
        return time.perf_counter() - start


def _peak() -> float:
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def measured(folder: Path, what: str) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tables", "--folder", str(folder), "--only", what]
    found: dict[str, float] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--folder",
        type=Path,
        help="where files are already (default: they are written, and deleted)",
    )
    parser.add_argument("--only", choices=("read", "count"), help="one measurement, as JSON")
    given = parser.parse_args()
    pa.set_cpu_count(1)
    if given.only:
        print(json.dumps(timed({"read": read, "count": count}[given.only], given.folder)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder: Path = given.folder or Path(place)
        if given.folder is None:
            write(folder, given.rows)
        size = sum(path.stat().st_size for path in folder.glob("*.parquet")) / 1e6
        runs: dict[str, list[dict[str, float]]] = {"read": [], "count": []}
        for _ in range(given.repeats):
            for what, found in runs.items():
                found.append(measured(folder, what))
        print(f"{runs['read'][0]['rows']:,.0f} rows in {FILES} Parquet files, {size:,.0f} MB")
        print("| | seconds | ns of CPU per row | peak memory | its growth from 1/8 to all |")
        print("|---|---|---|---|---|")
        for what, name in (("read", "pyarrow reads"), ("count", "count_table")):
            each: Any = {
                key: statistics.median(run[key] for run in runs[what]) for key in runs[what][0]
            }
            nanoseconds = 1e9 * each["cpu"] / each["rows"]
            line = f"| {name} | {each['seconds']:.2f} | {nanoseconds:.1f} | {each['peak']:.0f} MB |"
            print(f"{line} {each['growth']:.1f} MB |")
        pairs = [(spread(folder, 1), spread(folder, 2)) for _ in range(given.repeats)]
        one, two = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"one worker {one:.2f} s, two workers {two:.2f} s: {one / two:.2f} times as fast")


if __name__ == "__main__":
    main()
