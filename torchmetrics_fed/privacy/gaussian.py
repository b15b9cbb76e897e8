r"""Gaussian differential privacy: the price of a release whose noise composes well.

A release is :math:`\mu`-GDP if telling its neighbours apart is never easier than telling
:math:`N(0, 1)` from :math:`N(\mu, 1)` by one draw (Dong, Roth and Su 2022). Two facts make it the
price of a run of many evaluations:

- **Composition.** Releases of :math:`\mu_1, \mu_2, \dots` are together
  :math:`\sqrt{\mu_1^2 + \mu_2^2 + \dots}`-GDP, and nothing is lost. That holds even if queries,
  noise and the decision to go on depend on earlier results, as long as the sum of squares is
  bounded beforehand (Smith and Thakurta 2022).
- **Conversion.** A :math:`\mu`-GDP release is :math:`(\varepsilon, \delta)`-private for

  .. math:: \delta = \Phi(-\varepsilon / \mu + \mu / 2)
      - e^\varepsilon\, \Phi(-\varepsilon / \mu - \mu / 2),

  exactly, for every epsilon.

This module imports no numpy, so that a ledger opens fast.
"""

from __future__ import annotations

import math

_STEPS = 200
"""Steps of a bisection: more than a float64 has digits."""

_LARGEST_MU = 100.0
"""A mu above which nothing is protected: bisections begin here."""

_LARGEST_EXPONENT = 700.0
"""Exponents above this value overflow in float64."""


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta with which mu-GDP is (epsilon, delta)-private.

    Example:
        >>> from torchmetrics_fed.privacy.gaussian import gaussian_delta
        >>> round(gaussian_delta(1.0, 1.0), 4)
        0.1269
    """
    if mu == 0:
        return 0.0
    if epsilon > _LARGEST_EXPONENT:
        return _normal_tail(epsilon / mu - mu / 2)
    excess = _normal_tail(epsilon / mu - mu / 2)
    excess -= math.exp(epsilon) * _normal_tail(epsilon / mu + mu / 2)
    return max(0.0, excess)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon with which mu-GDP is (epsilon, delta)-private.

    It is infinite if delta is 0, or less.
    """
    if mu == 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    if delta <= 0:
        return math.inf
    low = 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if gaussian_delta(mu, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu with which mu-GDP is (epsilon, delta)-private.

    Example:
        >>> from torchmetrics_fed.privacy.gaussian import gaussian_delta, gaussian_mu
        >>> gaussian_delta(gaussian_mu(3.0, 1e-6), 3.0) <= 1e-6
        True
    """
    low = 0.0
    high = _LARGEST_MU
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if gaussian_delta(middle, epsilon) > delta:
            high = middle
        else:
            low = middle
    return low


def _normal_tail(x: float) -> float:
    """Return the probability that a standard normal variable exceeds x."""
    return math.erfc(x / math.sqrt(2)) / 2
