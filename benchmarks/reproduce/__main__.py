"""The paper's experiments, its figures, and our numbers beside those of its code.

    python -m benchmarks.reproduce --data FOLDER --out FOLDER [--runs 20] [--quick]

The data folder holds adult.data.gz, bank-full.csv.gz, covtype.data.gz and, to save the fits,
scores/DATA_CLASSIFIER.npz (y_true, y_score); missing files are fetched. Called again, the command
continues where it was stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.reproduce.anchors import matches, write_matches
from benchmarks.reproduce.cells import CLASSIFIERS, EXPERIMENTS, QUANTILES, Cell, cells
from benchmarks.reproduce.features import STAND_IN, DataMissingError, cover_name
from benchmarks.reproduce.figures import draw_method, draw_results
from benchmarks.reproduce.page import paste
from benchmarks.reproduce.progress import progress
from benchmarks.reproduce.results import Means, Runs, write_cells
from benchmarks.reproduce.scores import Folders, ScoresKey, truth
from benchmarks.reproduce.summary import summary
from benchmarks.reproduce.work import perform, portions

QUICK_QUANTILES = (16, 64, 256)
"""The values of Q with --quick."""
RUNS = 20
"""Runs of a noisy cell, as in the paper."""
QUICK_RUNS = 2
"""Runs of a noisy cell with --quick."""


def parsed() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reproduce", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--data", type=Path, help="folder with the data sets; fetched if not given")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for results; an earlier one is continued"
    )
    parser.add_argument("--runs", type=int, help="runs of every noisy cell (20; 2 with --quick)")
    parser.add_argument("--experiments", nargs="+", choices=EXPERIMENTS, default=EXPERIMENTS)
    parser.add_argument("--classifiers", nargs="+", choices=CLASSIFIERS, default=CLASSIFIERS)
    parser.add_argument(
        "--quick", action="store_true", help="Adult and Bank, three Q, two runs: under two minutes"
    )
    parser.add_argument(
        "--anchors", type=Path, help="published figures (DATA/../anchors/paper_area_error.csv)"
    )
    parser.add_argument("--figures", type=Path, help="folder for the figures (OUT/figures)")
    parser.add_argument("--page", type=Path, help="document to paste the summary into")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    return parser.parse_args()


def main() -> None:
    """Make the missing runs, then write tables and figures."""
    arguments = parsed()
    folders = Folders(arguments.data, arguments.out)
    if arguments.quick:
        quantiles = QUICK_QUANTILES
        data = ["bank", "adult"]
        default_runs = QUICK_RUNS
    else:
        quantiles = QUANTILES
        data = ["bank", "adult", cover_name(arguments.data)]
        default_runs = RUNS
    if STAND_IN in data:
        print(
            f"Cover is not available: {STAND_IN}, a synthetic set of its size and ratio, "
            "replaces it."
        )
    for name in data:  # fitted once, before several processes ask for it
        for classifier in arguments.classifiers:
            truth(ScoresKey(name, classifier), folders)
    all_cells = [
        cell
        for cell in cells(data, arguments.experiments, quantiles)
        if cell.classifier in arguments.classifiers
    ]
    results = Runs(arguments.out / "runs.csv")
    work = portions(all_cells, arguments.runs or default_runs, results.rows.keys())
    for rows in progress(perform(work, folders, arguments.processes), len(work), "reproduce"):
        results.add(rows)
    selection = set(all_cells)
    means = {cell: mean for cell, mean in results.means().items() if cell in selection}
    figures = arguments.figures or arguments.out / "figures"
    paths = draw_results(means, data, quantiles, figures)
    paths += draw_method(truth(ScoresKey("adult", arguments.classifiers[0]), folders), figures)
    text = write_tables(means, anchors_path(arguments), arguments.out)
    if arguments.page:
        paste(arguments.page, text)
    print(
        f"{text}\n{len(paths)} figures in {figures}; runs.csv, cells.csv, anchors.csv, summary.md "
        f"in {arguments.out}"
    )


def anchors_path(arguments: argparse.Namespace) -> Path | None:
    """Return the file of the published figures: as given, or beside the data."""
    path: Path | None = arguments.anchors
    if path is None and arguments.data is not None:
        path = arguments.data.parent / "anchors" / "paper_area_error.csv"
    if path is None or not path.exists():
        return None
    return path


def write_tables(means: Mapping[Cell, Means], anchors: Path | None, folder: Path) -> str:
    """Write the tables to a folder, and return their summary."""
    write_cells(folder / "cells.csv", means)
    published = [] if anchors is None else matches(anchors, means)
    write_matches(folder / "anchors.csv", published)
    text = summary(means, published)
    (folder / "summary.md").write_text(text)
    return text


if __name__ == "__main__":
    try:
        main()
    except DataMissingError as error:
        sys.exit(f"error: {error}")
