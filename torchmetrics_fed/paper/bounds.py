r"""The paper's bounds of the Area Error, Theorems 4.2 to 4.5, with the constants of their proofs.

The theorems are stated in :math:`O`; where a proof leaves a constant open the function says which one it takes. They
are worst cases for the paper's estimator (Q quantiles per class, both ends included): expect a small part of them, and
ask :func:`~torchmetrics_fed.planning.expected_area_error` how small.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torchmetrics_fed.errors import InputError, check_int

__all__ = ["AreaErrorBound", "area_error_bound_pr", "area_error_bound_private"]
__all__ += ["area_error_bound_roc", "area_error_bound_summed"]


class AreaErrorBound(NamedTuple):
    """Bounds of the Area Error of both curves; at most 1, which no error exceeds.

    Example:
        >>> area_error_bound_summed(1024, ratio=0.3).precision_recall < 1
        True
    """

    roc: float
    precision_recall: float


def area_error_bound_roc(
    quantiles: int, positive_quantiles: int | None = None, *, strict: bool = False
) -> float:
    r"""Return Theorem 4.2: exact quantiles, :math:`Q^-` of the negatives and as many, or :math:`Q^+`, of the positives.

    .. math:: AE_{ROC} \le \frac{1}{2(Q^+ - 1)} + \frac{1}{2(Q^- - 1)},

    or, where positive quantiles lie in every strip, :math:`\frac{1}{4(Q^+ - 1)} + \frac{3}{4(Q^- - 1)}`, if that is
    larger. The proof takes an estimated rate between two quantiles to be off by at most *half* of their distance. An
    interpolation can be off by all of it: on scores without ties, in clumps, 1.4 times this bound was measured.

    ``strict``, which is not in the paper, covers any monotone interpolation of scores without ties. Both curves pass
    the same cells of the lattice of quantiles, at most :math:`Q^- + Q^+ - 3` of them, whose area is
    :math:`\frac{1}{Q^- - 1} + \frac{1}{Q^+ - 1} - \frac{1}{(Q^- - 1)(Q^+ - 1)}`.

    Example:
        >>> area_error_bound_roc(101), round(area_error_bound_roc(101, strict=True), 4)
        (0.01, 0.0199)
    """
    positive_quantiles = quantiles if positive_quantiles is None else positive_quantiles
    negative, positive = (1 / _intervals(q) for q in (quantiles, positive_quantiles))
    if strict:
        return min(negative + positive - negative * positive, 1.0)
    return min(max(positive / 2 + negative / 2, positive / 4 + 3 * negative / 4), 1.0)


def area_error_bound_pr(quantiles: int, ratio: float, *, alpha: float | None = None) -> float:
    r"""Return Theorem 4.3: with :math:`|F(t) - \hat F(t)| \le \alpha` at every recall t, and :math:`r = n^+ / n^-`,

    .. math:: AE_{PR} \le \frac{2\alpha}{r} + \frac{\alpha}{r} \log \frac{r}{\alpha},

    with 1 in the place of r where :math:`r > 1`. If not given, :math:`\alpha` is :math:`1/(Q - 1)`, as Theorem 4.2 has
    it on average; that it holds at every t takes scores that are well-behaved (Definition E.1), which clumps and ties
    are not.

    Example:
        >>> round(area_error_bound_pr(10_000, ratio=1.0), 4)  # the paper: "Q = 10^4 gives AE = 10^-3"
        0.0011
    """
    alpha = 1 / _intervals(quantiles) if alpha is None else alpha
    _check_positive(ratio=ratio, alpha=alpha)
    return _both(alpha, ratio).precision_recall


def area_error_bound_summed(
    quantiles: int,
    ratio: float,
    *,
    lipschitz: float = 1.0,
    branching: int = 2,
    height: int | None = None,
) -> AreaErrorBound:
    r"""Return Theorem 4.4: quantiles from summed histograms of :math:`b^h` bins, without noise.

    A quantile is off by up to the width of a bin, :math:`b^{-h}`, and a rate by :math:`\ell` times that; Lemma E.3 adds
    one such error of T and one of F:

    .. math:: \alpha = \frac{1}{Q - 1} + 2 \ell b^{-h}, \qquad AE_{ROC} \le \alpha,

    and :math:`AE_{PR}` as in Theorem 4.3 with this :math:`\alpha`. Constants: those of Theorem 4.2 and of the lemma.

    Args:
        quantiles: Q.
        ratio: :math:`r = n^+ / n^-`.
        lipschitz: :math:`\ell`, of both classes' distributions over scores from 0 to 1 (the paper's "well-behaved"). On
            data, :math:`\ell b^{-h}` is the largest fraction of a class in one bin.
        branching: b.
        height: h, the number of levels; the paper's :math:`\lceil \log_b Q \rceil + 2` if not given.

    Example:
        >>> round(area_error_bound_summed(1024, ratio=0.3, lipschitz=3.0).roc, 5)
        0.00244
    """
    _check_positive(ratio=ratio, lipschitz=lipschitz)
    return _both(
        _binned(quantiles, lipschitz, branching, _height(quantiles, branching, height)), ratio
    )


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
    r"""Return Theorem 4.5: quantiles from summed hierarchical histograms with noise for epsilon, in expectation.

    Each of h levels has :math:`\varepsilon / h`, so the noise of a bin has variance :math:`2 h^2 / \varepsilon^2`, and
    a quantile adds up to b bins of each level: :math:`\sigma^2 = 2 b h^3 / \varepsilon^2`. Relative to a class's size

    .. math:: \alpha = \frac{1}{Q - 1} + 2 \ell b^{-h} + \sigma \Big( \frac{1}{n^+} + \frac{1}{n^-} \Big)
        = \tilde O \Big( \frac{1}{Q} + \frac{1}{n \varepsilon} \Big), \qquad AE_{ROC} \le \alpha,

    and :math:`AE_{PR}` as in Theorem 4.3. The theorem speaks of n; here each class has its own size and noise. It
    bounds the scale of a release's error, not a single release, and assumes :math:`n \gg \sqrt b h^{3/2}`. Arguments
    are those of :func:`area_error_bound_summed`, the class sizes, and the ``epsilon`` of the whole release.

    Example:
        >>> round(area_error_bound_private(1024, epsilon=1.0, n_pos=6_000, n_neg=24_000).roc, 4)
        0.0188
    """
    _check_positive(epsilon=epsilon, n_pos=n_pos, n_neg=n_neg, lipschitz=lipschitz)
    levels = _height(quantiles, branching, height)
    noise = math.sqrt(2 * branching * levels**3) / epsilon * (1 / n_pos + 1 / n_neg)
    return _both(_binned(quantiles, lipschitz, branching, levels) + noise, n_pos / n_neg)


def _binned(quantiles: int, lipschitz: float, branching: int, levels: int) -> float:
    return 1 / _intervals(quantiles) + 2 * lipschitz * float(branching) ** -levels


def _both(alpha: float, ratio: float) -> AreaErrorBound:
    scaled = min(alpha / min(ratio, 1.0), 0.5)  # from there on the bound of PR is no less than 1
    return AreaErrorBound(min(alpha, 1.0), min(2 * scaled - scaled * math.log(scaled), 1.0))


def _height(quantiles: int, branching: int, height: int | None) -> int:
    check_int("branching", branching, 2)
    if height is not None:
        check_int("height", height, 1)
        return height
    needed = 0
    while branching**needed <= _intervals(quantiles):  # no logarithm: it would round
        needed += 1
    return needed + 2


def _intervals(quantiles: int) -> int:
    check_int("quantiles", quantiles, 2, which=", both ends included,")
    return quantiles - 1


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(
                f"Expected argument `{name}` to be a positive finite number but got {value!r}."
            )
