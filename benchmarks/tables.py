"""A table of 1e8 rows: counting Parquet beside reading it, its memory, and one worker beside two.

    OMP_NUM_THREADS=1 python -m benchmarks.tables --rows 100000000

The files take about 5 bytes a row in a temporary folder, and are deleted. Every figure is from a
process of its own, with one thread for pyarrow; reading and counting take turns, and medians are
printed.
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
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from torchmetrics_fed import FederatedROC
from torchmetrics_fed.app.tables import PartialCounts, count_table, merge_counts

FILES = 8
ROW_GROUP = 1 << 20
"""Rows of a group, as pyarrow writes by default."""
READ_BATCH = 1 << 18
"""Rows that are read at a time, as `count_table` does."""
READ_BUFFER = 1 << 22
"""Bytes of the read buffer, as in `count_table`."""


class Measurement(NamedTuple):
    """The work on all files, after the first file."""

    rows: int
    seconds: float
    cpu: float
    """CPU time, in seconds."""
    peak: float
    """The highest resident memory, in MB."""
    growth: float
    """The growth of the peak, in MB."""


def write(folder: Path, rows: int) -> None:
    """Write float32 scores and int8 labels."""
    rng = np.random.default_rng(0)
    schema = pa.schema([("id", pa.int32()), ("score", pa.float32()), ("label", pa.int8())])
    for number in range(FILES):
        with parquet.ParquetWriter(folder / f"{number}.parquet", schema) as writer:
            for start in range(0, rows // FILES, ROW_GROUP):
                size = min(ROW_GROUP, rows // FILES - start)
                scores = rng.random(size, dtype=np.float32)
                labels = (rng.random(size, dtype=np.float32) < scores).astype(np.int8)
                ids = np.zeros(size, dtype=np.int32)
                writer.write_table(pa.table([ids, scores, labels], schema=schema))


def read(path: Path) -> int:
    """Read the same columns in the same batches with pyarrow, and return the number of rows."""
    with parquet.ParquetFile(path, buffer_size=READ_BUFFER, pre_buffer=False) as file:
        batches = file.iter_batches(READ_BATCH, columns=["score", "label"])
        return sum(batch.num_rows for batch in batches)


def count(path: Path) -> int:
    """Count the file, and return the number of rows."""
    return count_table(FederatedROC(), path).rows


def timed(work: Callable[[Path], int], folder: Path) -> Measurement:
    """Measure some work on all files, after the first one."""
    files = sorted(folder.glob("*.parquet"))
    work(files[0])
    before = _peak()
    start = time.perf_counter()
    cpu_start = time.process_time()
    rows = sum(map(work, files))
    return Measurement(
        rows=rows,
        seconds=time.perf_counter() - start,
        cpu=time.process_time() - cpu_start,
        peak=_peak(),
        growth=_peak() - before,
    )


def spread(folder: Path, workers: int) -> float:
    """Return the seconds of worker processes for all files and the merge, after their start."""
    metric = FederatedROC()
    files = sorted(folder.glob("*.parquet"))
    part = PartialCounts.of(metric)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=pa.set_cpu_count, initargs=(1,)) as pool:
        list(pool.map(part, [files[0]] * 2 * workers))
        start = time.perf_counter()
        merge_counts(metric, list(pool.map(part, files)))
        return time.perf_counter() - start


def _peak() -> float:
    """Return the highest resident memory so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":  # in bytes
        return peak / (1 << 20)
    return peak / (1 << 10)


def measured(folder: Path, work: str) -> Measurement:
    """Run one measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tables", "--folder", str(folder), "--only", work]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    return Measurement(**json.loads(process.stdout))


def compare(folder: Path, repeats: int) -> None:
    """Print reading beside counting, and one worker beside two."""
    reads = []
    counts = []
    for _ in range(repeats):
        reads.append(measured(folder, "read"))
        counts.append(measured(folder, "count"))
    size = sum(path.stat().st_size for path in folder.glob("*.parquet")) / 1e6
    print(f"{reads[0].rows:,} rows in {FILES} Parquet files, {size:,.0f} MB")
    print("| | seconds | ns of CPU per row | peak memory | its growth from 1/8 to all |")
    print("|---|---|---|---|---|")
    print_medians("pyarrow reads", reads)
    print_medians("count_table", counts)
    one_worker = []
    two_workers = []
    for _ in range(repeats):
        one_worker.append(spread(folder, 1))
        two_workers.append(spread(folder, 2))
    slow = statistics.median(one_worker)
    fast = statistics.median(two_workers)
    print(f"one worker {slow:.2f} s, two workers {fast:.2f} s: {slow / fast:.2f} times as fast")


def print_medians(name: str, runs: list[Measurement]) -> None:
    seconds = statistics.median(run.seconds for run in runs)
    nanoseconds = statistics.median(1e9 * run.cpu / run.rows for run in runs)
    peak = statistics.median(run.peak for run in runs)
    growth = statistics.median(run.growth for run in runs)
    print(f"| {name} | {seconds:.2f} | {nanoseconds:.1f} | {peak:.0f} MB | {growth:.1f} MB |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--folder",
        type=Path,
        help="a folder with the files (default: they are written, and deleted)",
    )
    parser.add_argument("--only", choices=("read", "count"), help="one measurement, as JSON")
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    if arguments.only:
        work = {"read": read, "count": count}[arguments.only]
        print(json.dumps(timed(work, arguments.folder)._asdict()))
    elif arguments.folder:
        compare(arguments.folder, arguments.repeats)
    else:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), arguments.rows)
            compare(Path(folder), arguments.repeats)


if __name__ == "__main__":
    main()
