"""The tuned constants of placement and reconstruction, in one place.

Every constant here was chosen by measurement. Its docstring says the unit, the effect, and the
benchmark that tunes it, with the options that select the data on which the constant matters.
Constants that follow from a proof, a format or the precision of floats stand where they are used.

Modules read a constant as ``tuning.NAME`` at the time of a call, so that a benchmark can vary it::

    python -m benchmarks.plans --shared FOLDER --set PILOT_LEAVES=32 --set PILOT_FRACTION=4/64

No constant was chosen on the scores of ``benchmarks.other_scores``. Measure a new value there, too,
before you keep it: ``python -m benchmarks.plans --data --other``.
"""

# Queries: how leaves are placed, in torchmetrics_fed.exchange.placement.

PILOT_FRACTION = 3 / 64
"""Fraction of epsilon that a pilot query spends.

A multiple of 1/64, so that the fractions of a release add up to 1 exactly. A smaller fraction
raises the ROC error where the classes are small, a larger one raises every error. Tuned by
``benchmarks.plans --plans adaptive``.
"""

PILOT_LEAVES = 24
"""Leaves of a pilot query. Tuned by ``benchmarks.plans --plans adaptive``."""

SINGLE_BRANCHING: tuple[int, ...] = (16, 4, 16)
"""Branching of the tree of a single query, which has to do for any data.

The few nodes of the upper levels are well known and feed the smooth model. The many leaves below
them resolve scores that crowd somewhere in the range. Tuned by ``benchmarks.plans --plans single``,
with ``--hard``.
"""

SINGLE_WEIGHTS: tuple[int, ...] = (4, 1, 1)
"""How many times each level of :data:`SINGLE_BRANCHING` counts an example, the :math:`w_i`.

Tuned by ``benchmarks.plans --plans single``.
"""

SINGLE_BRANCHING_OF_LARGE_EPSILON: tuple[int, ...] = (8, 8, 8)
"""Branching of a single query that needs no model; every level counts an example once.

Tuned by ``benchmarks.plans --plans single --epsilons 3``.
"""

SINGLE_LARGE_EPSILON = 2.0
"""Epsilon above which a single query needs no model.

Tuned by ``benchmarks.plans --epsilons 1 3``.
"""

LEAVES_PER_ROOT = 0.35
r"""Leaves of a placed query per :math:`z = \sqrt{\min(n^+, n^-)\,\varepsilon}`, if the model fits.

Tuned by ``benchmarks.plans --plans adaptive carry_over``.
"""

FEWEST_LEAVES = 8
"""Fewest leaves of a placed query if the smooth model fits, or if there are groups.

Tuned by ``benchmarks.plans --data --hard "50 examples" "200 examples"`` and by
``benchmarks.groups``.
"""

ROUGH_LEAVES_PER_ROOT = 0.4
"""As :data:`LEAVES_PER_ROOT`, if the smooth model does not fit, or if the tree has two levels.

Tuned by ``benchmarks.plans --data --hard``.
"""

ROUGH_FEWEST_LEAVES = 10
"""As :data:`FEWEST_LEAVES`, if the smooth model does not fit.

Tuned by ``benchmarks.plans --hard``.
"""

LARGE_EPSILON_EXPONENT = 1.5
r"""Above epsilon 1, the number of leaves grows by :math:`\varepsilon` to the power of this.

The noise of a leaf is less than an example there, so the error is made within leaves. Tuned by
``benchmarks.plans --epsilons 1 3``.
"""

MOST_FLAT_LEAVES = 40
"""Most leaves on one level. More leaves make a tree of two levels.

Two levels make sums over many leaves less noisy, and so much data needs no model. Tuned by
``benchmarks.plans --data synthcover``.
"""

CROWDED_LEAF_MASS = 0.4
"""Part of the mass in one leaf of the pilot above which the pilot does not resolve the scores.

The second query then has two levels. Tuned by ``benchmarks.plans --data --hard "inside [0.4,
0.42]"``.
"""

CROWDED_BRANCHING_PER_ROOT = 0.7
"""Branching of both levels, per square root as in :data:`LEAVES_PER_ROOT`, after a crowded pilot.

Tuned by ``benchmarks.plans --data --hard "inside [0.4, 0.42]"``.
"""

CROWDED_MOST_BRANCHING = 16
"""Largest branching of both levels after a crowded pilot.

Tuned by ``benchmarks.plans --data --hard "inside [0.4, 0.42]"``.
"""

CROWDED_END_MASS = 0.1
"""Part of the mass in an end leaf above which its scores may be exactly 0, or exactly 1.

The end bin then becomes a leaf. Tuned by ``benchmarks.plans --data --hard constant "saturated
network"``.
"""

# Weights of the cells of several classes, in torchmetrics_fed.exchange.weights.

SOFT_PLATEAU = 0.5
"""Lowest score of a negative that its weight follows, in units of 1 / K for K classes.

Negatives with a lower score have one weight. Tuned by ``benchmarks.classes``.
"""

SOFT_UNIT = 8
"""Weight of a negative with a low score: weights are integers, and this is their resolution.

A larger one makes messages longer. Tuned by ``benchmarks.classes``.
"""

MOST_SIZE_RATIO = 1000.0
"""Most negatives per positive that weights are made for, because the pilot's estimate is noisy.

Tuned by ``benchmarks.classes --labels 14``.
"""

# The mass of the scores that an earlier sum shows, in torchmetrics_fed.reconstruct.smooth.mass.

PILOT_SLOPE = 3.0
"""Prior mean of the slope of b(x) in the fit of a pilot: positives have the higher scores.

In units of log-density over the whole range of x. Tuned by ``benchmarks.plans --plans adaptive``.
"""

EVEN_MASS = 0.3
"""Even mass that is mixed into the mass that leaves are placed by, if the smooth model fits.

Relative to the mass of the scores. It leaves no stretch of the range without edges. Tuned by
``benchmarks.plans --plans adaptive``.
"""

EVEN_MASS_OF_ROUGH_SCORES = 0.15
"""As :data:`EVEN_MASS`, if the smooth model does not fit: spikes deserve more of the edges.

Tuned by ``benchmarks.plans --data --hard``.
"""

# The smooth model, in torchmetrics_fed.reconstruct.smooth.density.

SERIES_TERMS = 14
"""Terms of each of the series a(x) and b(x): a constant, a line and cosines.

Tuned by ``benchmarks.plans --plans adaptive carry_over``.
"""

CONSTANT_VARIANCE = 9.0
"""Prior variance of the constant of a series, in squared log-density.

Tuned by ``benchmarks.plans``.
"""

LINE_VARIANCE = 4.0
"""Prior variance of the line of a series, in squared log-density. Tuned by ``benchmarks.plans``."""

ROUGHNESS = 3.0
r"""Prior guess of :math:`\rho`, in log-density. Tuned by ``benchmarks.plans``."""

ROUGHNESS_WORTH = 4.0
r"""Number of cosines that the prior guess of :math:`\rho` is worth.

Tuned by ``benchmarks.plans``.
"""

ALIKE_CONSTANT_VARIANCE = 4.0
"""As :data:`CONSTANT_VARIANCE`, for one class around the fit of all classes.

Tuned by ``benchmarks.classes``.
"""

ALIKE_LINE_VARIANCE = 2.0
"""As :data:`LINE_VARIANCE`, for one class around the fit of all classes.

Tuned by ``benchmarks.classes``.
"""

ALIKE_ROUGHNESS = 2.0
"""As :data:`ROUGHNESS`, for one class around the fit of all classes.

Tuned by ``benchmarks.classes``.
"""

END_CELL_VARIANCE = 4.0
"""Prior variance of the terms of the first and of the last leaf of a pilot, in squared log-density.

Networks that are sure of themselves crowd their scores there. Tuned by ``benchmarks.plans --data
--hard "saturated network"``.
"""

MOST_MISFIT = 6.0
"""Misfit up to which a model holds, in standard deviations of a sum of squares.

Tuned by ``benchmarks.plans``, with ``--hard``.
"""

MOST_EXCESS = 0.1
"""Part of its counts by which a model may be off and still hold, if its misfit is larger.

Ties exceed both bounds, much smooth data only the first. Tuned by ``benchmarks.plans --data
synthcover``.
"""

NEWTON_STEPS = 12
"""Most steps of Gauss-Newton. Tuned by ``benchmarks.plans``."""

NEWTON_LONGEST_STEP = 1.5
"""Longest step of a log-density. Tuned by ``benchmarks.plans --data --hard``."""

NEWTON_SMALL_STEP = 0.03
"""Step of a log-density after which the fit ends. Tuned by ``benchmarks.plans``."""

NEWTON_SETTLING_STEPS = 2
r"""First steps, in which the fit settles before :math:`\rho` is estimated.

Tuned by ``benchmarks.plans``.
"""

# Counts on bins, in torchmetrics_fed.reconstruct.smooth.estimate.

SLOPE = 6.0
"""As :data:`PILOT_SLOPE`, in the fit of a release. Tuned by ``benchmarks.plans``."""

CELLS_PER_LEAF = 3
"""Cells of equal mass of each leaf in the smooth model. Tuned by ``benchmarks.plans``."""

LOGIT_ROUNDING = 0.01
"""Mass that is added at both ends before the logit of the mass becomes the coordinate x.

Tuned by ``benchmarks.plans``.
"""

TREE_MOST_EXCESS = 0.6
"""As :data:`MOST_EXCESS`, for the many small leaves of a tree of a single query.

Tuned by ``benchmarks.plans --plans single``, with ``--hard``.
"""

JUMP = 0.55
r"""Change :math:`\tau` since the release before, relative to the counts, that makes a jump.

Training moves a model by 0.1 to 0.5. Tuned by ``benchmarks.plans --plans carry_over earlier jump``.
"""

ATOM_DEVIATIONS = 3.0
"""Standard deviations of its noise above which an end bin holds scores of exactly 0, or exactly 1.

Tuned by ``benchmarks.plans --data --hard``.
"""

# Leaves without a model, in torchmetrics_fed.reconstruct.leaves.

TIED_LEAF_PARTS = 2.0
"""Times its part of the mass above which a placed leaf holds tied scores.

Tuned by ``benchmarks.plans --data --hard``.
"""

LONE_LEAF_RATIO = 4.0
"""Times the mass of a neighbour above which a leaf holds tied scores.

Tuned by ``benchmarks.plans --data --hard``.
"""

LONE_LEAF_PARTS = 0.5
"""Least mass of a tied leaf with a far lighter neighbour, in times its part of the mass.

Tuned by ``benchmarks.plans --data --hard``.
"""

EMPTY_END_DEVIATIONS = 2.5
"""Standard deviations of their noise within which the partial sums of an empty end stay.

Tuned by ``benchmarks.plans --data --hard separated``.
"""

EMPTY_END_SCALES = 4.0
"""Scales of the noise by which a partial sum of an empty end may exceed the largest expected noise.

Tuned by ``benchmarks.plans --data --hard separated``.
"""

EMPTY_END_LEAVES = 0.25
"""Part of all leaves that an empty end has at least: a shorter one may be empty by chance.

Tuned by ``benchmarks.plans --data --hard separated``.
"""

EMPTY_END_CLASS_DEVIATIONS = 100.0
"""Standard deviations of its noisy size that a class has at least, if it has an empty end.

The end of a smaller class may look empty and still hold all of it. Tuned by ``benchmarks.plans
--data --hard separated "20 positives"``.
"""
