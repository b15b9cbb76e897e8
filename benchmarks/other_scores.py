"""Scores that no constant of the package was tuned on: real models, trained on made data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import make_classification, make_hastie_10_2, make_moons
from sklearn.ensemble import (
    AdaBoostClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier

from benchmarks.hard_scores import Scores

__all__ = ["OTHER"]

_TRAINING_ROWS = 5_000
_TEST_ROWS = 20_000
_ROWS = _TRAINING_ROWS + _TEST_ROWS


def _classes(seed: int) -> Any:
    return make_classification(
        _ROWS,
        20,
        n_informative=8,
        weights=[0.8],
        class_sep=0.7,
        flip_y=0.03,
        random_state=seed,
    )


def _scored(model: Any, data: Any) -> Scores:
    """Train on the first rows, and return targets and scores of the test rows."""
    features, labels = data
    target = (labels > 0).astype(np.int64)
    model.fit(features[:_TRAINING_ROWS], target[:_TRAINING_ROWS])
    scores = model.predict_proba(features[_TRAINING_ROWS:])[:, 1]
    return target[_TRAINING_ROWS:], np.ascontiguousarray(scores, dtype=np.float64)


OTHER: dict[str, Callable[[], Scores]] = {
    "naive Bayes": lambda: _scored(GaussianNB(), _classes(0)),
    "15 neighbours": lambda: _scored(KNeighborsClassifier(15), _classes(1)),
    "random forest": lambda: _scored(RandomForestClassifier(100, random_state=0), _classes(2)),
    "network": lambda: _scored(MLPClassifier((32,), max_iter=80, random_state=0), _classes(3)),
    "network, overfitted": lambda: _scored(
        MLPClassifier((128, 128), max_iter=200, random_state=0), _classes(4)
    ),
    "boosted trees": lambda: _scored(
        HistGradientBoostingClassifier(random_state=0),
        make_hastie_10_2(_ROWS, random_state=0),
    ),
    "AdaBoost": lambda: _scored(
        AdaBoostClassifier(random_state=0),
        make_moons(_ROWS, noise=0.35, random_state=0),
    ),
}
