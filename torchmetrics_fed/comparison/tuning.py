"""The tuned constants of the comparison of two models, in one place.

Every constant here was chosen by measurement, with ``python -m benchmarks.comparison``: coverage
and width of the interval of the difference of two AUROCs. Its docstring says the unit and the
effect. A module reads a constant as ``tuning.NAME`` at the time of the call, so that a benchmark
can vary it.
"""

# Queries, in torchmetrics_fed.comparison.queries.

PILOT_FRACTION = 5 / 64
"""Fraction of epsilon that a pilot query spends. A multiple of 1/64: fractions add up to 1 exactly.

Tuned by ``benchmarks.comparison``.
"""

PILOT_LEAVES = 32
"""Leaves of each model in a pilot query. Tuned by ``benchmarks.comparison``."""

EVEN_LEAVES = 12
"""Leaves of each model in the table of a single query. Tuned by ``benchmarks.comparison``."""

LEAVES_PER_FOURTH_ROOT = 1.3
"""Leaves of each model in a placed table per fourth root of (sampling variance / noise variance).

Tuned by ``benchmarks.comparison``.
"""

FEWEST_LEAVES = 6
"""Fewest leaves of each model in a placed table. Tuned by ``benchmarks.comparison``."""

FEWEST_LEAVES_OF_MUCH_DATA = 10
"""As :data:`FEWEST_LEAVES`, where what leaves do not resolve outweighs noise.

Tuned by ``benchmarks.comparison``.
"""

MUCH_DATA = 4000.0
"""Examples of the smaller class times epsilon above which there is much data.

Tuned by ``benchmarks.comparison``.
"""

MOST_LEAVES = 24
"""Most leaves of each model in a placed table. Tuned by ``benchmarks.comparison``."""

LEAST_CLASS_SIZE = 10.0
"""Examples that a class is taken to have at least when leaves are placed.

Tuned by ``benchmarks.comparison``.
"""

# Statistics, in torchmetrics_fed.comparison.statistics.

LOST_CLASS_DEVIATIONS = 5.0
"""Standard deviations of the noise in its size below which a class is lost in noise.

Tuned by ``benchmarks.comparison``.
"""

ORDER_DOUBT = 0.003
"""Doubt about the order of scores within leaves where a model holds.

A part of the largest effect that the order can have. Tuned by ``benchmarks.comparison``.
"""

ORDER_DOUBT_OF_NOISE = 0.45
"""How much of the relative noise of a leaf is added to :data:`ORDER_DOUBT`.

Tuned by ``benchmarks.comparison``.
"""

MOST_ORDER_DOUBT_OF_NOISE = 0.015
"""Limit of the doubt that noise adds to :data:`ORDER_DOUBT`. Tuned by ``benchmarks.comparison``."""

ORDER_DOUBT_OF_ROUGH_SCORES = 0.05
"""As :data:`ORDER_DOUBT`, where no model holds. Tuned by ``benchmarks.comparison``."""

NOISE_OF_NOISE = 1.5
"""How much of the relative noise of a leaf is added to the noise variance, relative to it.

The estimated rates that the variance is made of are noisy themselves. Tuned by
``benchmarks.comparison``.
"""

LEAST_COPULA_FACTOR = 0.2
"""Lower limit of the sampling variance over that which the leaves show.

Tuned by ``benchmarks.comparison``.
"""

COPULA_POINTS = 64
"""Points of the normal law, for each model, by which the factor of a copula is computed.

Tuned by ``benchmarks.comparison``.
"""
