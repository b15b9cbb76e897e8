"""An audit: a lower bound on the epsilon of any mechanism, from its outputs on two neighbouring inputs.

    python -m torchmetrics_fed.audit --mechanism polya --epsilon 1 --clients 10 --weights 4 1 1 --trials 100000

An audit can refute a claim and never prove it. A mechanism that passes was *audited*, which is no more than that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from torchmetrics_fed.errors import InputError, check_int
from torchmetrics_fed.exchange.client import draw_noise
from torchmetrics_fed.privacy.noise import calibrated_noise
from torchmetrics_fed.privacy.sensitivity import Sensitivity
from torchmetrics_fed.typing import Floats

__all__ = ["AuditResult", "Mechanism", "audit", "main"]

Integers = NDArray[np.int64]

Mechanism = Callable[[int], Integers]
"""From a number of trials to that many independent outputs on one fixed input, one per row."""

# Counts added to each value before its likelihood ratio is taken, so that rare values say little.
SMOOTHING = 100.0


@dataclass(frozen=True)
class AuditResult:
    """What an audit found. ``epsilon_lower`` is at most the true epsilon, but for ``1 - confidence`` of all audits.

    Example:
        >>> AuditResult(1.2, claimed=1.0, delta=0.0, trials=1000, confidence=0.99).refuted
        True
    """

    epsilon_lower: float
    claimed: float
    delta: float
    trials: int
    confidence: float

    @property
    def refuted(self) -> bool:
        """Whether the outputs contradict the claim."""
        return self.epsilon_lower > self.claimed

    def __str__(self) -> str:
        verdict = (
            "the claim is refuted"
            if self.refuted
            else "the claim is not refuted, which does not prove it"
        )
        return (
            f"audited with {self.trials} trials on each of two neighbouring inputs: epsilon is at least "
            f"{self.epsilon_lower:.3f} (confidence {self.confidence:g}, delta {self.delta:g}), claimed "
            f"{self.claimed:g}; {verdict}"
        )


def audit(
    mechanism: Mechanism,
    neighbour: Mechanism,
    *,
    claimed: float,
    delta: float = 0.0,
    trials: int = 100_000,
    confidence: float = 0.99,
    score: Callable[[Integers], Floats] | None = None,
) -> AuditResult:
    r"""Return a lower bound on epsilon from ``trials`` outputs on each of two neighbouring inputs.

    On the first half of the outputs a score, then a threshold and a direction are chosen. The second half counts how
    often the score passes the threshold on either input, and Clopper-Pearson bounds on these two probabilities give
    :math:`\varepsilon \ge \ln((p_{lo} - \delta) / q_{hi})`. Whatever was chosen, the bound holds.

    Args:
        mechanism: outputs on the one input, and ``neighbour`` on the other. Each is called once. Cells that never
            differ may be left out.
        claimed: the epsilon that the mechanism claims, at ``delta``.
        confidence: probability with which the bound holds.
        score: from outputs to one number each, large where ``neighbour`` is more likely. Left out, it is the better
            of two that the first quarter of the outputs gives: the sum over cells of the logarithm of the ratio in
            which the cell's value occurred, and the projection on the difference of the means.

    Example:
        >>> rng = np.random.default_rng(7)
        >>> def outputs(count, trials):
        ...     return count + rng.geometric(0.5, (trials, 1)) - rng.geometric(0.5, (trials, 1))
        >>> found = audit(lambda n: outputs(3, n), lambda n: outputs(4, n), claimed=0.5)
        >>> found.refuted, 0.6 < found.epsilon_lower < 0.6931
        (True, True)
    """
    check_int("trials", trials, 1000)
    if not 0 < confidence < 1 or not 0 <= delta < 1:
        raise InputError(
            f"Expected `confidence` in (0, 1) and `delta` in [0, 1) but got {confidence} and {delta}."
        )
    quarter, half = trials // 4, trials // 2
    outputs = [_rows(draw, trials) for draw in (mechanism, neighbour)]
    fitted, chosen, counted = zip(
        *(np.split(rows, [quarter, half]) for rows in outputs), strict=True
    )
    scores = (_log_ratio(fitted), _projection(fitted)) if score is None else (score,)
    level = (1 - confidence) / 2
    cuts = [_cut([score(rows) for rows in chosen], delta, level) for score in scores]
    score, (_, threshold, flipped) = max(
        zip(scores, cuts, strict=True), key=lambda candidate: candidate[1][0]
    )
    passed = np.array([np.count_nonzero((score(rows) > threshold) != flipped) for rows in counted])
    seldom, often = passed[::-1] if flipped else passed
    lower = float(_epsilon(often, seldom, trials - half, delta, level))
    return AuditResult(max(0.0, lower), claimed, delta, trials, confidence)


def _rows(draw: Mechanism, trials: int) -> Integers:
    outputs = draw(trials)
    if outputs.shape[:1] != (trials,):
        raise InputError(
            f"Expected mechanisms to return {trials} outputs, one per row, but got shape {outputs.shape}."
        )
    return outputs.reshape(trials, -1)


def _log_ratio(chosen: Sequence[Integers]) -> Callable[[Integers], Floats]:
    """Return the score that sums each cell's smoothed log ratio; values not seen before score 0."""
    tables = []
    for mine, theirs in zip(*(rows.T for rows in chosen), strict=True):
        values, index = np.unique(np.concatenate([mine, theirs]), return_inverse=True)
        here = np.bincount(index[: mine.size], minlength=values.size) + SMOOTHING
        there = np.bincount(index[mine.size :], minlength=values.size) + SMOOTHING
        tables.append((values, np.log(there / here)))

    def score(outputs: Integers) -> Floats:
        total = np.zeros(len(outputs))
        for cell, (values, ratio) in zip(outputs.T, tables, strict=True):
            place = np.minimum(np.searchsorted(values, cell), values.size - 1)
            total += np.where(values[place] == cell, ratio[place], 0.0)
        return total

    return score


def _projection(fitted: Sequence[Integers]) -> Callable[[Integers], Floats]:
    """Return the score that weighs each cell by its mean difference over its variance: better for many weak cells."""
    mine, theirs = fitted
    weight = (theirs.mean(0) - mine.mean(0)) / np.maximum(mine.var(0) + theirs.var(0), 1e-9)
    return lambda outputs: np.asarray(outputs @ weight)


def _cut(scores: Sequence[Floats], delta: float, level: float) -> tuple[float, float, bool]:
    """Return the largest bound that these scores give at one of 1000 thresholds, the threshold and the direction."""
    mine, theirs = (np.sort(values) for values in scores)
    both = np.unique(np.concatenate([mine, theirs]))
    candidates = both[np.unique(np.linspace(0, both.size - 1, 1000).astype(np.int64))]
    above = [
        values.size - np.searchsorted(values, candidates, side="right") for values in (mine, theirs)
    ]
    upward = _epsilon(above[1], above[0], mine.size, delta, level)
    downward = _epsilon(mine.size - above[0], mine.size - above[1], mine.size, delta, level)
    flipped = bool(downward.max() > upward.max())
    bound = downward if flipped else upward
    best = np.flatnonzero(bound == bound.max())
    return float(bound.max()), float(candidates[best[best.size // 2]]), flipped


def _epsilon(often: Integers, seldom: Integers, trials: int, delta: float, level: float) -> Floats:
    """Return the bound from two counts out of ``trials``: Clopper-Pearson, each side wrong with at most ``level``."""
    low = np.where(often > 0, beta.ppf(level, np.maximum(often, 1), trials - often + 1), 0.0)
    high = np.where(
        seldom < trials, beta.isf(level, seldom + 1, np.maximum(trials - seldom, 1)), 1.0
    )
    return np.asarray(np.log(np.maximum(low - delta, 1e-300)) - np.log(high))


def main(argv: Sequence[str] | None = None) -> int:
    """Audit one mechanism of the package from the command line; the exit status is 1 where the claim is refuted.

    Example:
        >>> main(["--epsilon", "1", "--trials", "2000"])
        audited with 2000 trials on each of two neighbouring inputs: epsilon is at least ...
        0
    """
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m torchmetrics_fed.audit", description=about)
    parser.add_argument(
        "--mechanism", choices=("polya", "skellam", "discrete_gaussian"), default="polya"
    )
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument(
        "--delta", type=float, default=1e-6, help="not used by polya, which is pure"
    )
    parser.add_argument(
        "--clients", type=int, default=10, help="clients that the noise is calibrated for"
    )
    parser.add_argument(
        "--survivors", type=int, help="clients whose shares arrive; all, unless given"
    )
    parser.add_argument(
        "--weights", type=int, nargs="+", default=[1], help="how many times each level is counted"
    )
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--confidence", type=float, default=0.99)
    options = parser.parse_args(argv)
    delta, weights = (
        0.0 if options.mechanism == "polya" else options.delta,
        np.array(options.weights),
    )
    sensitivity, epsilon = (
        Sensitivity.of("binary", 1, tuple(options.weights)),
        Fraction(options.epsilon),
    )
    law = calibrated_noise(
        options.mechanism, epsilon, delta, sensitivity, options.clients, len(weights)
    ).law
    assert law is not None
    arriving = range(options.clients if options.survivors is None else options.survivors)

    def outputs(cells: Integers) -> Mechanism:
        return lambda trials: sum(
            (draw_noise(law, (trials, len(cells))).numpy().astype(np.int64) for _ in arriving),
            cells,
        )

    rules = {"trials": options.trials, "confidence": options.confidence}
    found = audit(
        outputs(0 * weights), outputs(weights), claimed=options.epsilon, delta=delta, **rules
    )
    sys.stdout.write(f"{found}\n")
    return int(found.refuted)


if __name__ == "__main__":
    sys.exit(main())
