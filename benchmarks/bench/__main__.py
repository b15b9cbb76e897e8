"""This package beside its peers, as ratios, with the read limit beside them.

    python -m benchmarks.bench [--quick] [--only SECTION ...] [--json FILE] [--chart FILE] [--page FILE] [--check]

One process but for memory and contention, one thread, CPU time, all peers in turn, median of 15. `--quick` measures
what the goals are about, median of 5; `--check` fails if a goal is missed by more than a generous margin.
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
from benchmarks.bench.multiclass import CLASSES_SECTION, many_classes
from benchmarks.bench.peers import missing
from benchmarks.bench.private import ROUND_SECTION, once_a_round
from benchmarks.reproduce.page import paste

SECTIONS = {
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
    PEER_SECTION: "CPU time of updates and one compute, divided by this package's. Above 1: this package is faster.",
    READ_SECTION: "CPU time of one update, divided by that of `preds.sum()` and `target.sum()`.",
    EVEN_SECTION: "CPU time of one update of 1e6 examples, divided by that on even bins.",
    SMALL_SECTION: "CPU time of one update, also divided by that of torchmetrics. Below 1: this package is faster.",
    CLASSES_SECTION: "One update of examples x classes, and one compute. Above 1: this package is slower.",
    ROUND_SECTION: "CPU time of everything that is not an update.",
    MEMORY_SECTION: "Of 1e7 examples in batches of 1e6, beyond the data themselves.",
    CONTENTION_SECTION: "Two busy processes, 1e6 examples at once, torch's default number of threads.",
}
PACKAGES = ("torch", "torchmetrics", "torcheval", "scikit-learn", "numpy", "declearn")


def parsed() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--quick", action="store_true", help="only what the goals are about, median of 5"
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
    """Measure, and write what was asked for."""
    arguments = parsed()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of classes without examples
    for name, package in missing().items():
        print(f"{name}: skipped because {package} is not installed")
    figures: list[Figure] = []
    for section in arguments.only:
        found = list(SECTIONS[section](5 if arguments.quick else 15, arguments.quick))
        figures += found
        print(markdown(found), end="\n\n", flush=True)
    if (
        arguments.json and arguments.json.exists()
    ):  # sections that were not measured now keep their figures
        measured = {figure.section for figure in figures}
        before = [Figure(**figure) for figure in json.loads(arguments.json.read_text())["figures"]]
        figures = _in_order(
            [figure for figure in before if figure.section not in measured], figures, before
        )
    print(goals_table(figures))
    if arguments.json:
        versions = {name: version(name) for name in PACKAGES if name not in missing().values()}
        machine = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
        record = {
            "versions": versions,
            "machine": machine,
            "figures": [figure._asdict() for figure in figures],
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    if arguments.chart:
        draw(figures, arguments.chart)
    if arguments.page:
        paste(arguments.page, markdown(figures, NOTES), "benchmarks.bench")
    missed = list(failures(figures))
    print("\n".join(missed), file=sys.stderr)
    return 1 if arguments.check and missed else 0


def _in_order(kept: list[Figure], fresh: list[Figure], before: list[Figure]) -> list[Figure]:
    """The figures, section by section as they were before."""
    sections = list(dict.fromkeys(figure.section for figure in [*before, *fresh]))
    return sorted([*kept, *fresh], key=lambda figure: sections.index(figure.section))


if __name__ == "__main__":
    sys.exit(main())
