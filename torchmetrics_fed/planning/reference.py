"""Reference scores: a public shape of both classes' score distributions, to try a setting on before there is data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.typing import Floats


def check_int(name: str, value: int, least: int = 1, which: str = "", why: str = "") -> None:
    """Raise unless an argument is a whole number, and large enough."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"Expected argument `{name}` to be an int of at least {least}{which} but got {value!r}.{why}")


@dataclass(frozen=True)
class ReferenceScores:
    r"""Scores of a calibrated classifier of two normal classes.

    Something normal with variance 1 is seen of each example, its mean :math:`d` higher for positives, and the score is
    the probability that the example is positive: :math:`\operatorname{logit} s = d x + \log(n^+ / n^-)` with
    :math:`x \sim N(\pm d/2, 1)`. The area under the ROC curve of such scores is :math:`\Phi(d / \sqrt 2)`. They are
    smooth: ties, as of a k-nearest-neighbours classifier, are harder for every plan.

    Example:
        >>> from torchmetrics_fed.planning import ReferenceScores
        >>> ReferenceScores(n_pos=20, n_neg=80).masses([0, 0.25, 0.5, 0.75, 1]).round(2)
        array([[0.82, 0.13, 0.04, 0.01],
               [0.3 , 0.29, 0.25, 0.17]])
    """

    n_pos: int
    n_neg: int
    auroc: float = 0.85

    def __post_init__(self) -> None:
        for name in ("n_pos", "n_neg"):
            check_int(name, getattr(self, name), why=" A class without examples has no curve.")
        if not 0.5 < self.auroc < 1:
            raise InputError(
                f"Expected argument `auroc` between 0.5 and 1 but got {self.auroc!r}: at 0.5 every score is the same, "
                "at 1 there is nothing to tell apart. Give the area that you expect of your model."
            )

    def masses(self, edges: ArrayLike) -> Floats:
        """Return the probability of each bin between edges from 0 to 1, ``(2, bins)``, negatives first."""
        distance = math.sqrt(2) * float(ndtri(self.auroc))
        inner = np.asarray(edges)[1:-1]
        seen = (np.log(inner / (1 - inner)) - math.log(self.n_pos / self.n_neg)) / distance
        below = ndtr(seen + np.array([[0.5], [-0.5]]) * distance)
        masses: Floats = np.diff(below, prepend=0.0, append=1.0, axis=1)
        return masses

    def counts(self, edges: ArrayLike, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return counts of freshly drawn examples, ``(2, bins)``. What it costs does not depend on their number."""
        drawn = [generator.multinomial(n, p) for n, p in zip((self.n_neg, self.n_pos), self.masses(edges), strict=True)]
        return np.stack(drawn).astype(np.int64)
