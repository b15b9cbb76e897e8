"""An audit: a lower bound on a mechanism's epsilon, from its outputs on two neighbouring inputs.

    python -m torchmetrics_fed.audit --mechanism polya --epsilon 1 --clients 10 --weights 4 1 1

An audit can refute a claim and never prove it: a mechanism that passes was *audited*, not verified.
The first quarter of the outputs fits scores, the second quarter chooses a score and a threshold,
and the second half counts how often the score passes the threshold. So the bound holds whatever was
fitted and chosen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from torchmetrics_fed.errors import InputError, check_int
from torchmetrics_fed.exchange.client import draw_noise
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.noise import calibrated_noise
from torchmetrics_fed.privacy.sensitivity import Sensitivity
from torchmetrics_fed.typing import Floats

__all__ = ["AuditResult", "Mechanism", "audit", "main"]

Integers = NDArray[np.int64]

Mechanism = Callable[[int], Integers]
"""From a number of trials to that many independent outputs on one fixed input, one per row."""

Score = Callable[[Integers], Floats]
"""From outputs, one per row, to one number each."""

SMOOTHING = 100.0
"""Counts added to each value before its likelihood ratio is taken: rare values say little."""

CANDIDATES = 1000
"""Thresholds that are tried, at even quantiles of the scores."""

LEAST_VARIANCE = 1e-9
"""Below this a cell's variance counts as zero: it divides the difference of two means."""

LEAST_PROBABILITY = 1e-300
"""Stands for a probability of 0, whose logarithm is taken."""

LEAST_TRIALS = 1000
"""Fewer outputs give no bound worth reading."""


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit.

    ``epsilon_lower`` is at most the true epsilon, except in ``1 - confidence`` of all audits.

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
        verdict = "the claim is not refuted, which does not prove it"
        if self.refuted:
            verdict = "the claim is refuted"
        return (
            f"audited with {self.trials} trials on each of two neighbouring inputs: epsilon is at "
            f"least {self.epsilon_lower:.3f} (confidence {self.confidence:g}, delta "
            f"{self.delta:g}), claimed {self.claimed:g}; {verdict}"
        )


def audit(
    mechanism: Mechanism,
    neighbour: Mechanism,
    *,
    claimed: float,
    delta: float = 0.0,
    trials: int = 100_000,
    confidence: float = 0.99,
    score: Score | None = None,
) -> AuditResult:
    r"""Return a lower bound on epsilon from ``trials`` outputs on each of two neighbouring inputs.

    The first half of the outputs chooses a score, a threshold and a direction. The second half
    counts how often the score passes the threshold on either input, and Clopper-Pearson bounds on
    these two probabilities give
    :math:`\varepsilon \ge \ln((p_{lo} - \delta) / q_{hi})`. The bound holds whatever was chosen.

    Args:
        mechanism: gives outputs on one input. It is called once. Cells that never differ may be
            left out.
        neighbour: gives outputs on the neighbouring input.
        claimed: the epsilon that the mechanism claims, at ``delta``.
        delta: the delta that the mechanism claims.
        trials: the number of outputs on each input.
        confidence: the probability with which the bound holds.
        score: from outputs to one number each, large where ``neighbour`` is more likely. By default
            it is the better of two scores that the first quarter of the outputs gives: the sum over
            cells of the logarithm of the ratio in which the cell's value occurred, and the
            projection on the difference of the means.

    Example:
        >>> rng = np.random.default_rng(7)
        >>> def outputs(count, trials):
        ...     return count + rng.geometric(0.5, (trials, 1)) - rng.geometric(0.5, (trials, 1))
        >>> result = audit(lambda n: outputs(3, n), lambda n: outputs(4, n), claimed=0.5)
        >>> result.refuted, 0.6 < result.epsilon_lower < 0.6931
        (True, True)
    """
    check_int("trials", trials, LEAST_TRIALS)
    if not 0 < confidence < 1 or not 0 <= delta < 1:
        raise InputError(
            "Expected `confidence` in (0, 1) and `delta` in [0, 1) but got "
            f"{confidence} and {delta}."
        )
    quarter = trials // 4
    half = trials // 2
    outputs = _Outputs(_rows(mechanism, trials), _rows(neighbour, trials))
    level = (1 - confidence) / 2
    scores: list[Score]
    if score is None:
        fitting = outputs.part(0, quarter)
        scores = [_LogRatioScore(fitting), _ProjectionScore(fitting)]
    else:
        scores = [score]
    choosing = outputs.part(quarter, half)
    events = [_best_event(candidate, choosing, delta=delta, level=level) for candidate in scores]
    event = max(events, key=lambda candidate: candidate.bound)
    lower = event.epsilon(outputs.part(half, trials), delta=delta, level=level)
    return AuditResult(max(0.0, lower), claimed, delta, trials, confidence)


class _Outputs(NamedTuple):
    """_Outputs on two neighbouring inputs, ``(trials, cells)`` each."""

    mechanism: Integers
    neighbour: Integers

    def part(self, start: int, end: int) -> _Outputs:
        """Return the outputs of some of the trials."""
        return _Outputs(self.mechanism[start:end], self.neighbour[start:end])


def _rows(draw: Mechanism, trials: int) -> Integers:
    outputs = draw(trials)
    if outputs.shape[:1] != (trials,):
        raise InputError(
            f"Expected mechanisms to return {trials} outputs, one per row, but got shape "
            f"{outputs.shape}."
        )
    return outputs.reshape(trials, -1)


class _LogRatioScore:
    """The sum of each cell's smoothed log likelihood ratio. Values not seen before score 0."""

    def __init__(self, fitting: _Outputs) -> None:
        self._values: list[Integers] = []
        """The values of each cell, ascending."""
        self._log_ratios: list[Floats] = []
        """Of each value, the logarithm of its frequency on ``neighbour`` over the other one."""
        for on_mechanism, on_neighbour in zip(
            fitting.mechanism.T, fitting.neighbour.T, strict=True
        ):
            pooled = np.concatenate([on_mechanism, on_neighbour])
            values, index = np.unique(pooled, return_inverse=True)
            trials = on_mechanism.size
            denominator = np.bincount(index[:trials], minlength=values.size) + SMOOTHING
            numerator = np.bincount(index[trials:], minlength=values.size) + SMOOTHING
            self._values.append(values)
            self._log_ratios.append(np.log(numerator / denominator))

    def __call__(self, outputs: Integers) -> Floats:
        total = np.zeros(len(outputs))
        for cell, values, log_ratio in zip(outputs.T, self._values, self._log_ratios, strict=True):
            place = np.minimum(np.searchsorted(values, cell), values.size - 1)
            total += np.where(values[place] == cell, log_ratio[place], 0.0)
        return total


class _ProjectionScore:
    """Weighs each cell by its mean difference over its variance: better for many weak cells."""

    def __init__(self, fitting: _Outputs) -> None:
        difference = fitting.neighbour.mean(0) - fitting.mechanism.mean(0)
        variance = fitting.mechanism.var(0) + fitting.neighbour.var(0)
        self._weight = difference / np.maximum(variance, LEAST_VARIANCE)

    def __call__(self, outputs: Integers) -> Floats:
        return np.asarray(outputs @ self._weight)


class _Event(NamedTuple):
    """The event that a score passes a threshold, and the bound that it gave when it was chosen."""

    score: Score
    threshold: float
    flipped: bool
    """Whether the event is that the score does *not* pass, which ``mechanism`` does more often."""
    bound: float

    def epsilon(self, outputs: _Outputs, *, delta: float, level: float) -> float:
        """Return the bound that this event gives for outputs it was not chosen by."""
        often = self._count(outputs.neighbour)
        seldom = self._count(outputs.mechanism)
        if self.flipped:
            often, seldom = seldom, often
        trials = len(outputs.mechanism)
        return float(_epsilon(often, seldom, trials, delta=delta, level=level))

    def _count(self, outputs: Integers) -> Integers:
        passes = self.score(outputs) > self.threshold
        return np.asarray(np.count_nonzero(passes != self.flipped))


def _best_event(score: Score, outputs: _Outputs, *, delta: float, level: float) -> _Event:
    """Return the event of a score, among the candidate thresholds, with the largest bound."""
    on_mechanism = np.sort(score(outputs.mechanism))
    on_neighbour = np.sort(score(outputs.neighbour))
    values = np.unique(np.concatenate([on_mechanism, on_neighbour]))
    places = np.linspace(0, values.size - 1, CANDIDATES).astype(np.int64)
    thresholds = values[np.unique(places)]
    trials = on_mechanism.size
    mechanism_above = trials - np.searchsorted(on_mechanism, thresholds, side="right")
    neighbour_above = trials - np.searchsorted(on_neighbour, thresholds, side="right")
    upward = _epsilon(neighbour_above, mechanism_above, trials, delta=delta, level=level)
    downward = _epsilon(
        trials - mechanism_above, trials - neighbour_above, trials, delta=delta, level=level
    )
    flipped = bool(downward.max() > upward.max())
    bound = downward if flipped else upward
    best = np.flatnonzero(bound == bound.max())
    middle = best[best.size // 2]
    return _Event(
        score=score,
        threshold=float(thresholds[middle]),
        flipped=flipped,
        bound=float(bound.max()),
    )


def _epsilon(
    often: Integers, seldom: Integers, trials: int, *, delta: float, level: float
) -> Floats:
    """Return the bound from two counts out of ``trials``.

    Clopper-Pearson bounds on both probabilities are wrong with a probability of at most ``level``.
    """
    lower = beta.ppf(level, np.maximum(often, 1), trials - often + 1)
    low = np.where(often > 0, lower, 0.0)
    upper = beta.isf(level, seldom + 1, np.maximum(trials - seldom, 1))
    high = np.where(seldom < trials, upper, 1.0)
    log_low = np.log(np.maximum(low - delta, LEAST_PROBABILITY))
    return np.asarray(log_low - np.log(high))


class _NoisyCells:
    """The package's own noise on fixed cells, as a :data:`Mechanism`.

    Args:
        law: the law of one client's share of the noise.
        shares: how many shares of noise are added.
        cells: the cells without noise.
    """

    def __init__(self, law: Law, shares: int, cells: Integers) -> None:
        self._law = law
        self._shares = shares
        self._cells = cells

    def __call__(self, trials: int) -> Integers:
        shape = (trials, len(self._cells))
        total = self._cells
        for _ in range(self._shares):
            total = total + draw_noise(self._law, shape).numpy().astype(np.int64)
        return total


def main(argv: Sequence[str] | None = None) -> int:
    """Audit a mechanism of the package; the exit status is 1 if the claim is refuted.

    Example:
        >>> main(["--epsilon", "1", "--trials", "2000"])
        audited with 2000 trials on each of two neighbouring inputs: epsilon is at least ...
        0
    """
    options = _parser().parse_args(argv)
    delta = options.delta
    if options.mechanism == "polya":
        delta = 0.0
    weights = np.array(options.weights)
    law = calibrated_noise(
        options.mechanism,
        Fraction(options.epsilon),
        delta,
        Sensitivity.of("binary", 1, tuple(options.weights)),
        options.clients,
        len(weights),
    ).law
    assert law is not None
    shares = options.survivors
    if shares is None:
        shares = options.clients
    result = audit(
        _NoisyCells(law, shares, np.zeros_like(weights)),
        _NoisyCells(law, shares, weights),
        claimed=options.epsilon,
        delta=delta,
        trials=options.trials,
        confidence=options.confidence,
    )
    sys.stdout.write(f"{result}\n")
    return int(result.refuted)


def _parser() -> argparse.ArgumentParser:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m torchmetrics_fed.audit", description=summary)
    parser.add_argument(
        "--mechanism",
        choices=("polya", "skellam", "discrete_gaussian"),
        default="polya",
    )
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument(
        "--delta",
        type=float,
        default=1e-6,
        help="not used by polya, which is pure",
    )
    parser.add_argument(
        "--clients",
        type=int,
        default=10,
        help="clients that the noise is calibrated for",
    )
    parser.add_argument(
        "--survivors",
        type=int,
        help="clients whose shares arrive; all, unless given",
    )
    parser.add_argument(
        "--weights",
        type=int,
        nargs="+",
        default=[1],
        help="how many times each level is counted",
    )
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--confidence", type=float, default=0.99)
    return parser


if __name__ == "__main__":
    sys.exit(main())
