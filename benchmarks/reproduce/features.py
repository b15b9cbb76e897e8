"""The paper's three data sets: from a folder or fetched; Cover has a synthetic stand-in."""

from __future__ import annotations

import csv
import gzip
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import fetch_covtype, fetch_openml, make_classification
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

__all__ = ["STAND_IN", "DataMissingError", "Features", "cover_name", "features"]

STAND_IN = "synthcover"
"""The name of the synthetic set of Cover's size and ratio."""
_FILES = {"adult": "adult.data.gz", "bank": "bank-full.csv.gz", "cover": "covtype.data.gz"}
_OPENML = {"adult": 1590, "bank": 1461}
"""The ids of the data sets at OpenML."""
_COVER_ROWS = 581_012
"""Rows of Cover, which the stand-in has, too."""
_COVER_POSITIVES = 211_840
"""Rows of Cover's first class, the positive one in the paper."""
_LABEL_NOISE = 0.02
"""The fraction of the stand-in's labels that are random."""


class DataMissingError(FileNotFoundError):
    """Neither a file nor a network to fetch it with."""


class Features(NamedTuple):
    """Columns of mean 0 and variance 1, and 0 or 1 for each row."""

    x: NDArray[np.float64]
    y: NDArray[np.int64]


def cover_name(folder: Path | None) -> str:
    """Return ``"cover"`` if the real set is available, else the name of its stand-in."""
    if folder is not None:
        if (folder / _FILES["cover"]).exists() or list(folder.glob("scores/cover_*.npz")):
            return "cover"
        if list(folder.glob(f"scores/{STAND_IN}_*.npz")):
            return STAND_IN
    try:
        fetch_covtype()
    except OSError:
        return STAND_IN
    return "cover"


@lru_cache(maxsize=1)
def features(data: str, folder: Path | None) -> Features:
    """Return a data set. Words are numbered, then columns are scaled, as in the paper's code."""
    if data == STAND_IN:
        return _synthetic()
    path = Path("FOLDER", _FILES[data])
    if folder is not None:
        path = folder / _FILES[data]
        if path.exists():
            return _read(path, data)
    try:
        if data == "cover":
            fetched = fetch_covtype()
            return _scaled(fetched.data, fetched.target == 1)
        fetched = fetch_openml(data_id=_OPENML[data], as_frame=False, parser="liac-arff")
        is_positive = np.isin(fetched.target, [">50K", "2"])
        return _scaled(np.nan_to_num(fetched.data, nan=-1.0), is_positive)
    except OSError as error:
        raise DataMissingError(
            f"Expected {_FILES[data]} in the folder that --data names, or a network to fetch it, "
            f"but got neither ({error}). Get it from the UCI repository (adult: adult.data, bank "
            "marketing: bank-full.csv, covertype: covtype.data), compress it with gzip, and put it "
            f"at {path}."
        ) from error


def _read(path: Path, data: str) -> Features:
    delimiter = ","
    if data == "bank":
        delimiter = ";"
    with gzip.open(path, "rt", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
        rows = np.array([row for row in reader if row], dtype=object)
    if data == "bank":
        rows = rows[1:]
    words = [column for column in range(rows.shape[1] - 1) if not _is_number(rows[0, column])]
    if words:
        rows[:, words] = OrdinalEncoder().fit_transform(rows[:, words])
    return _scaled(rows[:, :-1].astype(np.float64), np.isin(rows[:, -1], [">50K", "yes", "1"]))


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdigit()


def _scaled(x: NDArray[np.float64], positive: NDArray[np.bool_]) -> Features:
    return Features(StandardScaler().fit_transform(x), positive.astype(np.int64))


def _synthetic() -> Features:
    """Return as many rows and positives as Cover has, with 54 columns, 12 of them informative."""
    positive = (_COVER_POSITIVES / _COVER_ROWS - _LABEL_NOISE / 2) / (1 - _LABEL_NOISE)
    x, y = make_classification(
        _COVER_ROWS,
        54,
        n_informative=12,
        n_redundant=8,
        n_clusters_per_class=4,
        class_sep=0.8,
        weights=[1 - positive],
        flip_y=_LABEL_NOISE,
        random_state=0,
    )
    return _scaled(x, y == 1)
