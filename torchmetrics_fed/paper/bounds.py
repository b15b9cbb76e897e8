r"""The paper's bounds of the Area Error, Theorems 4.2 to 4.5, with the constants of their proofs.

The theorems are stated in :math:`O`. Where a proof leaves a constant open, the function says which
constant it takes. They are worst cases for the paper's estimator (Q quantiles per class, both ends
included). The error of a release is a small part of them:
:func:`~torchmetrics_fed.planning.expected_area_error` estimates it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torchmetrics_fed.errors import InputError, check_int

__all__ = [
    "AreaErrorBound",
    "area_error_bound_pr",
    "area_error_bound_private",
    "area_error_bound_roc",
    "area_error_bound_summed",
]


class AreaErrorBound(NamedTuple):
    """Bounds of the Area Error of both curves. No error exceeds 1, so they are at most 1.

    Example:
        >>> area_error_bound_summed(1024, ratio=0.3).precision_recall < 1
        True
    """

    roc: float
    """Bound for the ROC curve."""
    precision_recall: float
    """Bound for the precision-recall curve."""


def area_error_bound_roc(
    quantiles: int, positive_quantiles: int | None = None, *, strict: bool = False
) -> float:
    r"""Return the bound of Theorem 4.2, for exact quantiles.

    .. math:: AE_{ROC} \le \frac{1}{2(Q^+ - 1)} + \frac{1}{2(Q^- - 1)},

    or :math:`\frac{1}{4(Q^+ - 1)} + \frac{3}{4(Q^- - 1)}` if that is larger, which covers the case
    that positive quantiles lie in every strip. The proof takes an estimated rate between two
    quantiles to be off by at most *half* of their distance. An interpolation can be off by all of
    it: on scores without ties, in clumps, 1.4 times this bound was measured.

    The strict bound, which is not in the paper, covers any monotone interpolation of scores without
    ties. Both curves pass the same cells of the lattice of quantiles, at most
    :math:`Q^- + Q^+ - 3` of them, whose area is
    :math:`\frac{1}{Q^- - 1} + \frac{1}{Q^+ - 1} - \frac{1}{(Q^- - 1)(Q^+ - 1)}`.

    Args:
        quantiles: :math:`Q^-`, of the negatives.
        positive_quantiles: :math:`Q^+`, of the positives; as many if not given.
        strict: whether to return the strict bound.

    Example:
        >>> area_error_bound_roc(101), round(area_error_bound_roc(101, strict=True), 4)
        (0.01, 0.0199)
    """
    if positive_quantiles is None:
        positive_quantiles = quantiles
    negative = 1 / _intervals(quantiles)
    positive = 1 / _intervals(positive_quantiles)
    if strict:
        return min(negative + positive - negative * positive, 1.0)
    general = positive / 2 + negative / 2
    in_every_strip = positive / 4 + 3 * negative / 4
    return min(max(general, in_every_strip), 1.0)


def area_error_bound_pr(quantiles: int, ratio: float, *, alpha: float | None = None) -> float:
    r"""Return the bound of Theorem 4.3, for exact quantiles.

    With :math:`|F(t) - \hat F(t)| \le \alpha` at every recall t, and :math:`r = n^+ / n^-`,

    .. math:: AE_{PR} \le \frac{2\alpha}{r} + \frac{\alpha}{r} \log \frac{r}{\alpha},

    with 1 in the place of r where :math:`r > 1`.

    Args:
        quantiles: Q.
        ratio: :math:`r = n^+ / n^-`.
        alpha: :math:`\alpha`; if not given :math:`1/(Q - 1)`, as Theorem 4.2 has it on average. It
            holds at every t if scores are well-behaved (Definition E.1). Clumps and ties are not.

    Example:
        >>> round(area_error_bound_pr(10_000, ratio=1.0), 4)  # the paper: 10^-3
        0.0011
    """
    if alpha is None:
        alpha = 1 / _intervals(quantiles)
    _check_positive(ratio=ratio, alpha=alpha)
    return _bound(alpha, ratio).precision_recall


def area_error_bound_summed(
    quantiles: int,
    ratio: float,
    *,
    lipschitz: float = 1.0,
    branching: int = 2,
    height: int | None = None,
) -> AreaErrorBound:
    r"""Return the bounds of Theorem 4.4, for summed histograms of :math:`b^h` bins without noise.

    A quantile is off by up to the width of a bin, :math:`b^{-h}`, and a rate by :math:`\ell` times
    that. Lemma E.3 adds one such error of T and one of F:

    .. math:: \alpha = \frac{1}{Q - 1} + 2 \ell b^{-h}, \qquad AE_{ROC} \le \alpha,

    and :math:`AE_{PR}` as in Theorem 4.3 with this :math:`\alpha`. The constants are those of
    Theorem 4.2 and of the lemma.

    Args:
        quantiles: Q.
        ratio: :math:`r = n^+ / n^-`.
        lipschitz: :math:`\ell`, of both classes' distributions over scores from 0 to 1 (the paper's
            "well-behaved"). On data, :math:`\ell b^{-h}` is the largest fraction of a class in one
            bin.
        branching: b.
        height: h, the number of levels; if not given the paper's
            :math:`\lceil \log_b Q \rceil + 2`.

    Example:
        >>> round(area_error_bound_summed(1024, ratio=0.3, lipschitz=3.0).roc, 5)
        0.00244
    """
    _check_positive(ratio=ratio, lipschitz=lipschitz)
    levels = _height(quantiles, branching, height)
    alpha = _binned_alpha(quantiles, lipschitz, branching=branching, levels=levels)
    return _bound(alpha, ratio)


def area_error_bound_private(
    quantiles: int,
    epsilon: float,
    n_pos: int,
    n_neg: int,
    *,
    lipschitz: float = 1.0,
    branching: int = 2,
    height: int | None = None,
) -> AreaErrorBound:
    r"""Return the bounds of Theorem 4.5, for summed hierarchical histograms with noise.

    Each of h levels has :math:`\varepsilon / h`, so the noise of a bin has variance
    :math:`2 h^2 / \varepsilon^2`. A quantile adds up to b bins of each level, so its noise has
    variance :math:`\sigma^2 = 2 b h^3 / \varepsilon^2`. Relative to the size of a class,

    .. math:: \alpha = \frac{1}{Q - 1} + 2 \ell b^{-h}
        + \sigma \Big( \frac{1}{n^+} + \frac{1}{n^-} \Big)
        = \tilde O \Big( \frac{1}{Q} + \frac{1}{n \varepsilon} \Big), \qquad AE_{ROC} \le \alpha,

    and :math:`AE_{PR}` as in Theorem 4.3. The theorem speaks of n; here each class has its own size
    and noise. It bounds the expected error, not that of a single release, and assumes
    :math:`n \gg \sqrt b h^{3/2}`.

    Args:
        quantiles: Q.
        epsilon: :math:`\varepsilon` of the whole release.
        n_pos: :math:`n^+`.
        n_neg: :math:`n^-`.
        lipschitz: as in :func:`area_error_bound_summed`.
        branching: b.
        height: h, as in :func:`area_error_bound_summed`.

    Example:
        >>> round(area_error_bound_private(1024, epsilon=1.0, n_pos=6_000, n_neg=24_000).roc, 4)
        0.0188
    """
    _check_positive(epsilon=epsilon, n_pos=n_pos, n_neg=n_neg, lipschitz=lipschitz)
    levels = _height(quantiles, branching, height)
    noise = math.sqrt(2 * branching * levels**3) / epsilon * (1 / n_pos + 1 / n_neg)
    alpha = _binned_alpha(quantiles, lipschitz, branching=branching, levels=levels)
    return _bound(alpha + noise, n_pos / n_neg)


def _binned_alpha(quantiles: int, lipschitz: float, *, branching: int, levels: int) -> float:
    """Return alpha of Theorem 4.4: quantiles, and the width of bins."""
    return 1 / _intervals(quantiles) + 2 * lipschitz * float(branching) ** -levels


def _bound(alpha: float, ratio: float) -> AreaErrorBound:
    """Return the bounds of both curves for alpha: of ROC it is alpha, of PR that of Theorem 4.3."""
    scaled = min(alpha / min(ratio, 1.0), 0.5)  # from 0.5 on, the bound of PR is no less than 1
    return AreaErrorBound(
        roc=min(alpha, 1.0),
        precision_recall=min(2 * scaled - scaled * math.log(scaled), 1.0),
    )


def _height(quantiles: int, branching: int, height: int | None) -> int:
    """Return the number of levels: as given, or the paper's rule."""
    check_int("branching", branching, 2)
    if height is not None:
        check_int("height", height, 1)
        return height
    exponent = 0
    while branching**exponent <= _intervals(quantiles):  # no logarithm: it would round
        exponent += 1
    return exponent + 2


def _intervals(quantiles: int) -> int:
    """Return the number of intervals between quantiles."""
    check_int("quantiles", quantiles, 2, which=", both ends included,")
    return quantiles - 1


def _check_positive(**values: float) -> None:
    """Raise unless these arguments are positive and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(
                f"Expected argument `{name}` to be a positive finite number but got {value!r}."
            )
