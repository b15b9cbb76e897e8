"""Scores of the paper's two classifiers, on the rows they were fitted to, as in its experiments."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.reproduce.errors import Truth
from benchmarks.reproduce.features import Features, features

__all__ = ["Folders", "ScoresKey", "truth"]


class Folders(NamedTuple):
    """Where data comes from, if from a folder, and where results go."""

    data: Path | None
    out: Path


class ScoresKey(NamedTuple):
    """The name of scores. With a ``ratio``, positives are subsampled to this many per negative."""

    data: str
    classifier: str
    ratio: str = ""
    sample: int = 0


@lru_cache(maxsize=2)
def truth(key: ScoresKey, folders: Folders) -> Truth:
    """Return scores and labels: from ``scores/`` of either folder, or fitted.

    Fitted scores are stored, unless the data is subsampled.
    """
    name = Path("scores", f"{key.data}_{key.classifier}.npz")
    if not key.ratio:
        for folder in folders:
            if folder is not None and (folder / name).exists():
                with np.load(folder / name) as stored:
                    return Truth(
                        stored["y_true"].astype(np.int64), stored["y_score"].astype(np.float64)
                    )
    rows = features(key.data, folders.data)
    if key.ratio:
        rows = _subsampled(rows, float(key.ratio), key.sample)
    fitted = Truth(rows.y, _fitted(rows, key.classifier))
    if not key.ratio:
        (folders.out / "scores").mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folders.out / name, y_true=fitted.target, y_score=fitted.score)
    return fitted


def _fitted(rows: Features, classifier: str) -> Any:
    if classifier == "LogisticRegression":
        model: Any = LogisticRegression()
    else:
        from xgboost import XGBClassifier

        model = XGBClassifier(n_jobs=1)
    return model.fit(rows.x, rows.y).predict_proba(rows.x)[:, 1].astype(np.float64)


def _subsampled(rows: Features, ratio: float, sample: int) -> Features:
    """Return all negatives, and ``ratio`` times as many positives: others for each ``sample``."""
    negatives = np.flatnonzero(rows.y == 0)
    positives = np.flatnonzero(rows.y == 1)
    size = round(len(negatives) * ratio)
    if not 0 < size <= len(positives):
        raise ValueError(
            f"Expected 1 to {len(positives)} positives but ratio {ratio} asks for {size}."
        )
    subsample = np.random.default_rng(sample).choice(positives, size, replace=False)
    selection = np.sort(np.concatenate([negatives, subsample]))
    return Features(rows.x[selection], rows.y[selection])
