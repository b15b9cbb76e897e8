"""The tuned constants of plausible counts, in one place.

Every constant here was chosen by measurement, on the cells of ``python -m benchmarks.bands
--population`` without a star. The cells with a star measure what was chosen on the others.
"""

SPREAD = 1.03
"""Factor of all errors of a private release: the estimate adapts to its own noise.

A larger factor makes every interval wider. Tuned by ``benchmarks.bands --population``.
"""

NOISE_SPREAD = 0.6
"""Relative variance that is added where noise is all there is.

It is multiplied by the part that noise has in the variance of a leaf, of the class with more of it.
There the smooth model is pulled most towards its prior, and its roughness is known least. Tuned by
``benchmarks.bands --population --only 1,000``.
"""

ROUGH_NOISE_SPREAD = 1.8
"""As :data:`NOISE_SPREAD`, where the smooth model does not fit.

Counts that noise has made negative are projected away, and draws have less noise after that. Tuned
by ``benchmarks.bands --population --only positives``.
"""

TILT = 0.35
"""Standard deviation of the slope of the scores within a leaf, relative to their mean density.

No leaf shows how its scores run from one edge to the other. Tuned by ``benchmarks.bands
--population``, for average precision.
"""

GRAINS = 2
"""Places within a leaf that all of its scores may crowd in, instead of running through evenly.

Fewer places make the intervals of average precision, and PR bands, wider. Tuned by
``benchmarks.bands --population --only values``.
"""

STRAINED = 2.0
"""Misfit of the smooth model from which on scores may crowd within leaves, in standard deviations.

On smooth scores the misfit is about 0, on 50 distinct values about 9. Tuned by ``benchmarks.bands
--population --only values``.
"""

UNSTRAINED_PART = 0.25
"""Part of the scores that may crowd where the smooth model is not strained.

Tuned by ``benchmarks.bands --population --only smooth``.
"""

ALTERNATIVE_PART = 0.6
"""Standard deviation, relative to the effect of other scores within leaves on a number.

Scores that crowd in few places of their leaves have such an effect, and scores that run through
leaves that look tied. Tuned by ``benchmarks.bands --population --only values``.
"""

UNTIED_DECAY = 1.5
"""How fast the doubt that a leaf is tied fades with its mass, per multiple of the least mass.

Tuned by ``benchmarks.bands --population --only saturated``.
"""

CLASS_CORRELATION = 0.25
"""Correlation of the errors of two classes in an average over classes.

Tuned by ``benchmarks.bands --population --only classes``.
"""
