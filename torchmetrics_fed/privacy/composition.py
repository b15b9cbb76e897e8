"""Composition: what several releases cost together, by addition (exact) or by privacy loss distributions."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

_FINEST = 1e-4  # grid of the losses; coarser for a large sum, so that about 1e5 cells are the most ever held
_CELLS = 1e5
_LARGEST = 50.0  # beyond it e^epsilon is noise in float64, and addition is as good


def exact(value: float) -> Fraction:
    """The decimal that ``value`` prints as, so that a hundred times 0.1 is 10 and not 9.99999999999998.

    It differs from the binary ``value`` by at most half a unit in the last place, 1.2e-16 of it.
    """
    return Fraction(repr(float(value)))


def add_up(amounts: Iterable[tuple[float, float]]) -> tuple[Fraction, Fraction]:
    """Sum of the epsilons and of the deltas: holds for any mechanisms, amounts chosen as one goes along included."""
    epsilon, delta = Fraction(0), Fraction(0)
    for (one, other), times in Counter(amounts).items():
        epsilon += times * exact(one)
        delta += times * exact(other)
    return epsilon, delta


def compose_pld(amounts: Iterable[tuple[float, float]], delta: float) -> float:
    r"""An epsilon that all releases together satisfy at ``delta``; infinite if their own deltas are above it.

    Each release counts as the worst mechanism with its amounts: randomised response, whose privacy loss is
    :math:`\pm\varepsilon` with odds :math:`e^\varepsilon`, and infinite with probability :math:`\delta`. Every
    :math:`(\varepsilon, \delta)` mechanism is a post-processing of it (Kairouz, Oh, Viswanath 2015), so nothing is
    assumed of the noise. Losses are rounded up. Never above the sum where the sum holds at ``delta`` too.

    The releases may depend on earlier results, and so may stopping; the amounts must not (addition allows even that).
    """
    count = Counter(amounts)
    total, deltas = add_up(count.elements())
    added = float(total) if deltas <= exact(delta) else math.inf
    if not count or max(epsilon for epsilon, _ in count) > _LARGEST:
        return added
    library = pld_library()
    interval = max(_FINEST, float(total) / _CELLS)
    composed = None
    for (epsilon, own), times in count.items():
        worst = library.common.DifferentialPrivacyParameters(epsilon, own)
        one = library.privacy_loss_distribution.from_privacy_parameters(worst, interval).self_compose(times)
        composed = one if composed is None else composed.compose(one)
    assert composed is not None
    return min(added, float(composed.get_epsilon_for_delta(delta)))


def pld_library() -> Any:
    """The ``dp_accounting.pld`` package, or an error that says how to get it."""
    try:
        return importlib.import_module("dp_accounting.pld")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Expected the package `dp-accounting` for composition by PLD but it is not installed. "
            "Run `pip install dp-accounting`, or compose by addition.",
            name=error.name,
        ) from error
