r"""Trend: the value of every epoch, from all releases so far. It costs no privacy.

**Model.** A training loop releases a value :math:`y_t` per epoch, the true value :math:`x_t` and
noise. The prior says that x is smooth: its slope is a random walk (the local linear trend), with
any level and slope at the beginning,

.. math:: x_t = \beta_0 + \beta_1 t + u_t, \qquad u \sim N(0, \lambda r\, G), \qquad
    y_t = x_t + e_t, \qquad e_t \sim N(0, r\, d_t^2),

with :math:`G_{st} = m^2 (3 M - m) / 6` for :math:`m = \min(s, t)` and :math:`M = \max(s, t)`. The
mean of x given y is a cubic smoothing spline. The deviations :math:`d_t` come from the intervals of
the releases. Their scale r and the smoothness :math:`\lambda` are those of the largest restricted
likelihood. So a curve that turns is followed, and a curve that does not is averaged.

**Interval.** The weights W of the spline are those of the model. The variance is that of the errors
which the releases allow for, :math:`W D W^\top` with :math:`D = \mathrm{diag}(d_t^2)`, and of what
the spline smooths away, :math:`\lambda r\, (I - W) G (I - W)^\top`. The intervals of releases are
wider than their noise, because they allow for the order of scores within leaves, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from torchmetrics_fed.errors import InputError, check_choice
from torchmetrics_fed.functional.band import check_confidence
from torchmetrics_fed.functional.figures.canvas import Labels, plot_curves
from torchmetrics_fed.functional.intervals import auroc_interval, average_precision_interval
from torchmetrics_fed.functional.precision_recall import average_precision_from_counts
from torchmetrics_fed.functional.roc import auroc_from_counts
from torchmetrics_fed.reconstruct.histograms import read
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats

TrendMeasure = Literal["auroc", "average_precision"]

FEWEST_EPOCHS = 3
"""A line fits fewer epochs exactly: their values stay as they are."""

SMOOTHNESS: Floats = np.geomspace(1e-8, 1e2, 41)
"""The values of lambda that are tried: from a straight line to hardly any smoothing."""

DEVIATION_CONFIDENCE = 0.95
"""Confidence of the interval whose width is read as a deviation."""

LEAST_DEVIATION = 1e-9
"""Standard deviation of a value at least: that of an exact release is 0."""


class Trend(NamedTuple):
    """A value with an interval for each epoch, ``(epochs, ...)``, from all epochs so far.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.trend import smoothed
        >>> values = torch.tensor([0.70, 0.74, 0.73, 0.77, 0.78])
        >>> smoothed(values, deviations=torch.full((5,), 0.01)).value.diff().gt(0).all()
        tensor(True)
    """

    value: Tensor
    """The smoothed values. The last one is that of the present epoch."""
    lower: Tensor
    """The lower ends of their intervals."""
    upper: Tensor
    """The upper ends."""
    raw: Tensor
    """The values of the releases."""

    @property
    def scalars(self) -> dict[str, Tensor]:
        """The smoothed value of the last epoch."""
        return {"trend": self.value[-1]}

    def plot(
        self,
        ax: Any = None,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw the trend over the epochs with its interval, and return ``(fig, ax)``.

        Arguments are those of :meth:`ROCCurve.plot`.
        """
        value = self.value.movedim(0, -1)
        epochs = torch.arange(1, value.shape[-1] + 1)
        fig, ax = plot_curves(
            epochs.expand_as(value),
            value,
            ax=ax,
            xlabel="Epoch",
            ylabel="Value",
            name="trend",
            label=label,
            labels=labels,
            curve_score=value[..., -1],
            score_format="{:.4f}",
            rates=False,
            line_kwargs=line_kwargs,
        )
        if value.ndim == 1:
            ax.fill_between(epochs, self.lower, self.upper, alpha=0.2, linewidth=0)
            ax.plot(epochs, self.raw, linestyle="", marker=".", alpha=0.6, color="gray")
        lowest = min(float(self.raw.min()), float(self.lower.min()))
        highest = max(float(self.raw.max()), float(self.upper.max()))
        margin = 0.05 * (highest - lowest) + 1e-6
        ax.set(xlim=(1, max(len(epochs), 2)), ylim=(lowest - margin, highest + margin))
        return fig, ax


def trend(
    releases: Sequence[Release], measure: TrendMeasure = "auroc", confidence: float = 0.95
) -> Trend:
    """Return the smoothed value of every epoch, with an interval, from one release per epoch.

    Args:
        releases: one for each epoch, in their order, of the same metric.
        measure: ``"auroc"`` or ``"average_precision"``, of each class.
        confidence: the probability with which an interval holds the value of the same examples.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> from torchmetrics_fed.functional import trend
        >>> privacy = CentralDP.for_run(epsilon=3.0, evaluations=4)
        >>> releases = []
        >>> for epoch in range(4):
        ...     metric = FederatedROC(privacy=privacy)
        ...     target = torch.arange(3000) % 2
        ...     metric.update((torch.randn(3000) + (1 + epoch) * target / 2).sigmoid(), target)
        ...     releases.append(metric.release())
        >>> trend(releases).value.shape
        torch.Size([4])
    """
    check_choice("measure", measure, get_args(TrendMeasure))
    check_confidence(confidence)
    if not releases:
        raise InputError("Expected argument `releases` to hold at least one release but got none.")
    values = torch.stack([value_of(release, measure) for release in releases])
    deviations = torch.stack([deviation_of(release, measure) for release in releases])
    return smoothed(values, deviations=deviations, confidence=confidence)


def value_of(release: Release, measure: TrendMeasure) -> Tensor:
    """Return the value of a release, of each class."""
    if measure == "auroc":
        return auroc_from_counts(read(release)).double()
    return average_precision_from_counts(read(release)).double()


def deviation_of(release: Release, measure: TrendMeasure) -> Tensor:
    """Return the standard deviation of a value that the interval of its release allows for."""
    if measure == "auroc":
        low, high = auroc_interval(release, DEVIATION_CONFIDENCE, of="examples")
    else:
        low, high = average_precision_interval(release, DEVIATION_CONFIDENCE, of="examples")
    deviation: Tensor = (high - low).double() / (2 * _quantile(DEVIATION_CONFIDENCE))
    return deviation


def smoothed(
    values: Tensor, *, deviations: Tensor | None = None, confidence: float = 0.95
) -> Trend:
    """Return the trend of values, ``(epochs, ...)``.

    Args:
        values: one for each epoch.
        deviations: the standard deviation of each value. If not given, the values themselves tell,
            and intervals know nothing of errors that all values share.
        confidence: as in :func:`trend`.
    """
    check_confidence(confidence)
    raw = values.double().cpu()
    columns = raw.reshape(len(raw), -1).numpy()
    if deviations is None:
        spread = np.ones_like(columns)
    else:
        spread = deviations.double().cpu().reshape(len(raw), -1).numpy()
    paths = []
    for number in range(columns.shape[1]):
        path = _smoothed_column(columns[:, number], spread[:, number], deviations is None)
        paths.append(path)
    value = torch.from_numpy(np.stack([mean for mean, _ in paths], -1)).reshape(raw.shape)
    width = torch.from_numpy(np.stack([deviation for _, deviation in paths], -1)).reshape(raw.shape)
    half = _quantile(confidence) * width
    return Trend(value=value, lower=value - half, upper=value + half, raw=raw)


def _quantile(confidence: float) -> float:
    """Return the number of deviations on each side of an interval."""
    return float(ndtri((1 + confidence) / 2))


def _smoothed_column(values: Floats, spread: Floats, scales: bool) -> tuple[Floats, Floats]:
    """Return the smoothed values and their standard deviations.

    Args:
        values: one for each epoch. Where one is not finite, nothing is smoothed.
        spread: the standard deviation of each value, or 1.
        scales: whether the scale of the spread is unknown.
    """
    spread = np.maximum(spread, LEAST_DEVIATION)
    if len(values) < FEWEST_EPOCHS or not (np.isfinite(values) & np.isfinite(spread)).all():
        return values, np.full_like(values, np.nan) if scales else spread
    fits = [_Spline.fitted(values, spread, smoothness) for smoothness in SMOOTHNESS]
    best = max(fits, key=lambda fit: fit.likelihood)
    error_variance = spread**2
    if scales:
        error_variance = best.scale * error_variance
    residual = np.eye(len(values)) - best.weights
    variance = (best.weights**2) @ error_variance
    variance += np.einsum("ij,jk,ik->i", residual, best.signal, residual)
    return best.weights @ values, np.sqrt(variance)


class _Spline(NamedTuple):
    """The fit of one smoothness."""

    weights: Floats
    """The smoothed values are these weights times the values."""
    signal: Floats
    """Covariance of the true values around a line."""
    scale: float
    """Scale r of the variance of errors."""
    likelihood: float
    """Logarithm of the restricted likelihood, but for a constant."""

    @classmethod
    def fitted(cls, values: Floats, spread: Floats, smoothness: float) -> _Spline:
        """Return the fit, with the scale r of the largest restricted likelihood."""
        epochs = len(values)
        # in units of the mean spread, so that the smoothness has no unit
        unit = float(np.exp(np.mean(np.log(spread))))
        relative = np.diag((spread / unit) ** 2)
        signal = smoothness * _walk(epochs)
        covariance = relative + signal
        line = np.stack([np.ones(epochs), np.arange(epochs)], -1)
        inverse = np.linalg.inv(covariance)
        information = line.T @ inverse @ line
        projection = inverse - inverse @ line @ np.linalg.solve(information, line.T @ inverse)
        freedom = epochs - line.shape[-1]
        misfit = max(float(values @ projection @ values), np.finfo(np.float64).tiny)
        scale = misfit / freedom
        likelihood = -freedom * np.log(scale) / 2
        likelihood -= np.linalg.slogdet(covariance)[1] / 2
        likelihood -= np.linalg.slogdet(information)[1] / 2
        weights = np.eye(epochs) - relative @ projection
        return cls(
            weights=weights,
            signal=scale * signal,
            scale=scale / unit**2,
            likelihood=float(likelihood),
        )


def _walk(epochs: int) -> Floats:
    """Return the covariance of a path whose slope is a random walk with steps of variance 1."""
    time = np.arange(1.0, epochs + 1)
    earlier = np.minimum.outer(time, time)
    later = np.maximum.outer(time, time)
    return np.asarray(earlier**2 * (3 * later - earlier) / 6)
