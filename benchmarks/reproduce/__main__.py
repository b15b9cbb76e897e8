"""The paper's experiments, its figures, and our numbers beside those of its code.

    python -m benchmarks.reproduce --data FOLDER --out FOLDER [--runs 20] [--experiments range ...] [--quick]

The data folder holds adult.data.gz, bank-full.csv.gz, covtype.data.gz and, to save the fits, scores/DATA_CLASSIFIER.npz
(y_true, y_score); what is missing is fetched. Called again, it continues where it was stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.reproduce.anchors import matches, write_matches
from benchmarks.reproduce.cells import CLASSIFIERS, EXPERIMENTS, QUANTILES, cells
from benchmarks.reproduce.features import STAND_IN, DataMissingError, cover_name
from benchmarks.reproduce.figures import draw_method, draw_results
from benchmarks.reproduce.page import paste
from benchmarks.reproduce.progress import progress
from benchmarks.reproduce.results import Runs, write_cells
from benchmarks.reproduce.scores import Folders, ScoresKey, truth
from benchmarks.reproduce.summary import summary
from benchmarks.reproduce.work import perform, portions

QUICK_QUANTILES = (16, 64, 256)


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
    """Run what is missing, then write tables and figures."""
    arguments = parsed()
    folders = Folders(arguments.data, arguments.out)
    quantiles = QUICK_QUANTILES if arguments.quick else QUANTILES
    data = ["bank", "adult"] if arguments.quick else ["bank", "adult", cover_name(arguments.data)]
    if STAND_IN in data:
        print(
            f"Cover is not available: {STAND_IN}, a synthetic set of its size and ratio, replaces it."
        )
    for name in data:  # fitted once, before several processes ask for it
        for classifier in arguments.classifiers:
            truth(ScoresKey(name, classifier), folders)
    wanted = [
        c
        for c in cells(data, arguments.experiments, quantiles)
        if c.classifier in arguments.classifiers
    ]
    results = Runs(arguments.out / "runs.csv")
    work = portions(wanted, arguments.runs or (2 if arguments.quick else 20), results.rows.keys())
    for rows in progress(perform(work, folders, arguments.processes), len(work), "reproduce"):
        results.add(rows)

    chosen = set(wanted)
    means = {cell: found for cell, found in results.means().items() if cell in chosen}
    write_cells(arguments.out / "cells.csv", means)
    figures = arguments.figures or arguments.out / "figures"
    drawn = draw_results(means, data, quantiles, figures)
    drawn += draw_method(truth(ScoresKey("adult", arguments.classifiers[0]), folders), figures)
    anchors = arguments.anchors or (
        arguments.data and arguments.data.parent / "anchors" / "paper_area_error.csv"
    )
    found = matches(anchors, means) if anchors and anchors.exists() else []
    write_matches(arguments.out / "anchors.csv", found)
    text = summary(means, found)
    (arguments.out / "summary.md").write_text(text)
    if arguments.page:
        paste(arguments.page, text)
    print(
        f"{text}\n{len(drawn)} figures in {figures}; runs.csv, cells.csv, anchors.csv, summary.md in {arguments.out}"
    )


if __name__ == "__main__":
    try:
        main()
    except DataMissingError as error:
        sys.exit(f"error: {error}")
