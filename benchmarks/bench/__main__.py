"""This package beside its peers, as ratios, with the read limit beside them.

    python -m benchmarks.bench [--quick] [--only SECTION ...] [--json FILE] [--check] ...

One process (except for memory and contention), one thread, CPU time, all peers in turn, median of
15. `--quick` measures the cases of the goals alone, median of 5. `--check` fails if a goal is
missed by more than a generous margin.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.bench.binary import (
    EVEN_SECTION,
    PEER_SECTION,
    READ_SECTION,
    SMALL_SECTION,
    beside_even,
    beside_one_read,
    beside_peers,
    small,
)
from benchmarks.bench.chart import draw
from benchmarks.bench.contention import CONTENTION_SECTION, contention
from benchmarks.bench.figure import Figure, markdown
from benchmarks.bench.gate import failures, goals_table
from benchmarks.bench.memory import MEMORY_SECTION, peak_memory
from benchmarks.bench.multiclass import (
    CLASSES_SECTION,
    EPOCH_SECTION,
    many_classes,
    whole_epochs,
)
from benchmarks.bench.peers import missing
from benchmarks.bench.private import ROUND_SECTION, once_a_round
from benchmarks.reproduce.page import paste

SECTIONS = {
    "epochs": whole_epochs,
    "peers": beside_peers,
    "read": beside_one_read,
    "even": beside_even,
    "small": small,
    "classes": many_classes,
    "round": once_a_round,
    "memory": peak_memory,
    "contention": contention,
}
NOTES = {
    EPOCH_SECTION: (
        "CPU time from making a metric to its macro AUROC: updates in batches of 256 softmax rows, "
        "and one compute. The last column above 1: this package is faster."
    ),
    PEER_SECTION: (
        "CPU time of updates and one compute, divided by this package's. Above 1: this package is "
        "faster."
    ),
    READ_SECTION: "CPU time of one update, divided by that of `preds.sum()` and `target.sum()`.",
    EVEN_SECTION: "CPU time of one update of 1e6 examples, divided by that on even bins.",
    SMALL_SECTION: (
        "CPU time of one update, also divided by that of torchmetrics. Below 1: this package is "
        "faster."
    ),
    CLASSES_SECTION: (
        "One update of examples x classes, and one compute. Above 1: this package is slower."
    ),
    ROUND_SECTION: "CPU time of everything that is not an update.",
    MEMORY_SECTION: "Of 1e7 examples in batches of 1e6, beyond the data themselves.",
    CONTENTION_SECTION: (
        "Two busy processes, 1e6 examples at once, torch's default number of threads."
    ),
}
"""The text above the table of each section, in the order of the page."""
ROUNDS = 15
"""Rounds of which the median is taken."""
QUICK_ROUNDS = 5
"""The same with --quick."""
PACKAGES = ("torch", "torchmetrics", "torcheval", "scikit-learn", "numpy", "declearn")


def parsed() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--quick", action="store_true", help="only the cases of the goals, median of 5"
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--chart", type=Path, help="file for the chart")
    parser.add_argument("--page", type=Path, help="document to paste the tables into")
    parser.add_argument(
        "--check", action="store_true", help="exit with status 1 if a goal is missed by far"
    )
    return parser.parse_args()


def main() -> int:
    """Measure, and write the files that the arguments name."""
    arguments = parsed()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of classes without examples
    for name, package in missing().items():
        print(f"{name}: skipped because {package} is not installed")
    rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
    figures: list[Figure] = []
    for section in arguments.only:
        section_figures = list(SECTIONS[section](rounds, arguments.quick))
        figures += section_figures
        print(markdown(section_figures), end="\n\n", flush=True)
    if arguments.json and arguments.json.exists():
        figures = _with_earlier(figures, arguments.json)
    print(goals_table(figures))
    if arguments.json:
        _write_json(figures, arguments.json)
    if arguments.chart:
        draw(figures, arguments.chart)
    if arguments.page:
        paste(arguments.page, markdown(figures, NOTES), "benchmarks.bench")
    misses = list(failures(figures))
    print("\n".join(misses), file=sys.stderr)
    return int(arguments.check and bool(misses))


def _with_earlier(figures: list[Figure], path: Path) -> list[Figure]:
    """Return the figures, with earlier ones of the sections that were not measured now.

    Sections stand in the order of :data:`NOTES`.
    """
    earlier = [Figure(**figure) for figure in json.loads(path.read_text())["figures"]]
    measured = {figure.section for figure in figures}
    unmeasured = [figure for figure in earlier if figure.section not in measured]
    order = list(NOTES)
    return sorted([*unmeasured, *figures], key=lambda figure: order.index(figure.section))


def _write_json(figures: list[Figure], path: Path) -> None:
    """Write the figures, with the versions and the machine they were measured with."""
    absent = missing().values()
    record = {
        "versions": {name: version(name) for name in PACKAGES if name not in absent},
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "figures": [figure._asdict() for figure in figures],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
