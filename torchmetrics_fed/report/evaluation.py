"""EvaluationReport: everything about a classifier that one release answers.

- Every value is read from the same histograms, ``source``, by the function of its name in
  :mod:`torchmetrics_fed.functional`.
- Reading costs nothing: a release was paid for when it was made.
- A report does not change, even if the counts that it was made from do.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from torchmetrics_fed import functional as F
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import check_confidence
from torchmetrics_fed.functional.curve import warn_if_tied
from torchmetrics_fed.functional.figures.canvas import figure, room
from torchmetrics_fed.functional.figures.notebook import figure_html
from torchmetrics_fed.functional.figures.page import scale
from torchmetrics_fed.functional.intervals import (
    check_of,
    is_wide,
    warn_if_drowned,
    warn_of_persons,
)
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.reconstruct.histograms import Readable, are_probabilities
from torchmetrics_fed.release.release import Release, no_release
from torchmetrics_fed.report.document import document, page
from torchmetrics_fed.report.statement import PrivacyStatement, privacy_statement
from torchmetrics_fed.report.table import NUMBERS, Number, markdown, notebook, text
from torchmetrics_fed.typing import IntervalOf

_MIN_EXAMPLES = 1e-300
"""Divisor of a prevalence at least, so that the prevalence of no examples is 0 and not NaN."""

_FONT_SIZE = 7.5
"""Points of the line below the summary figure, before scaling."""

_FIGURE_SIZE = 6.6
"""Inches of the summary figure without its legends, before scaling."""


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationReport:
    """The result of :func:`evaluation_report`. Values have the class axis of the counts.

    ``str`` makes a table of the numbers.

    Example:
        >>> import torch
        >>> edges = torch.tensor([0, 0.5, 1])
        >>> report = evaluation_report(torch.tensor([[3, 1], [1, 3]]), edges=edges)
        >>> report.auroc, report.positives
        (tensor(0.7500, dtype=torch.float64), tensor(4., dtype=torch.float64))
    """

    source: F.Histograms
    """The counts that all values were read from."""
    task: str
    """The task of the release; for leaf counts ``"binary"``, or ``"classes"`` with a class axis."""
    labels: tuple[str, ...] | None
    confidence: float
    of: IntervalOf
    """Whether intervals and bands hold the values of the population that the examples were drawn
    from, or those of all clients' own examples."""
    privacy: str = "exact counts"
    shares: int | None = None
    """The number of shares in the sum; None for leaf counts, as are ``calibration_line`` and
    ``statement``."""
    intervals: dict[str, F.Interval] = field(default_factory=dict)
    """By the name of the number, where noise or sampling leaves it uncertain; for curves the bounds
    at their points."""
    bands: dict[str, F.Band] = field(default_factory=dict)
    """For ``"roc"`` and ``"precision_recall"``, likewise."""
    calibration_line: F.CalibrationLine | None = None
    statement: PrivacyStatement | None = None
    groups: dict[str, EvaluationReport] = field(default_factory=dict)
    """The report of each group, by name."""
    gaps: F.GroupGaps | None = None
    """The gaps between the groups at a threshold of 1/2, or None where there are no groups."""
    roc: F.ROCCurve = field(init=False)
    precision_recall: F.PrecisionRecallCurve = field(init=False)
    det: F.DETCurve = field(init=False)
    gain: F.PrecisionRecallGainCurve = field(init=False)
    cumulative_gains: F.CumulativeGains = field(init=False)
    calibration: F.Calibration | None = field(init=False)
    """None where scores are not probabilities, as are the line and ``net_benefit``."""
    net_benefit: F.NetBenefit | None = field(init=False)
    mann_whitney_u: Tensor = field(init=False)
    kolmogorov_smirnov: Tensor = field(init=False)
    best_f1: F.OperatingPoint = field(init=False)
    youden: F.OperatingPoint = field(init=False)
    negatives: Tensor = field(init=False)
    """Number of negatives as the release shows it: not a whole number if it is noisy."""
    positives: Tensor = field(init=False)
    prevalence: Tensor = field(init=False)
    """Fraction of positives among the examples."""
    auroc: Tensor = field(init=False)
    """The area under the ROC curve."""
    average_precision: Tensor = field(init=False)
    """The area under the PR curve, read as a step."""
    area_under_gain: Tensor = field(init=False)
    """The area under the PR-gain curve."""

    def __post_init__(self) -> None:
        values = _values(self.source)
        for name in ("cumulative_gains", "net_benefit"):
            if name in self.intervals:
                low, high = self.intervals[name]
                values[name] = values[name]._replace(low=low, high=high)
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the class is frozen

    @property
    def numbers(self) -> dict[str, Number]:
        """Every number by its name, with its title in tables and its interval, if it has one."""
        values = {
            "negatives": self.negatives,
            "positives": self.positives,
            "prevalence": self.prevalence,
            "kolmogorov_smirnov": self.kolmogorov_smirnov,
            "mann_whitney_u": self.mann_whitney_u,
            "best_f1": self.best_f1.value,
            "best_f1_threshold": self.best_f1.threshold,
            "youden": self.youden.value,
            "youden_threshold": self.youden.threshold,
        }
        results = (
            self.roc,
            self.precision_recall,
            self.gain,
            self.cumulative_gains,
            self.calibration,
            self.calibration_line,
            self.net_benefit,
        )
        for result in results:
            if result is not None:
                values |= result.scalars
        numbers = {}
        for name, description in NUMBERS.items():
            if name in values:
                interval = self.intervals.get(name)
                numbers[name] = Number(**description, value=values[name], interval=interval)
        return numbers

    @property
    def names(self) -> list[str]:
        """The names of the classes, or their numbers."""
        if self.labels:
            return list(self.labels)
        return [str(index) for index in range(self.auroc.numel())]

    @property
    def head(self) -> str:
        """The evaluation, in one line."""
        if self.shares is None:
            counts = "leaf counts"
        elif self.shares == 1:
            counts = "1 share"
        else:
            counts = f"{self.shares} shares"
        return f"Evaluation ({self.task}) of {counts}, {self.privacy}"

    def plot(self) -> Any:
        """Draw ROC, PR, calibration (or PR gain) and histograms, and return ``(fig, axes)``."""
        fig, axes = figure(2, 2)
        self.roc.plot(ax=axes[0, 0], labels=self.labels, band=self.bands.get("roc"))
        self.precision_recall.plot(
            ax=axes[0, 1], labels=self.labels, band=self.bands.get("precision_recall")
        )
        (self.calibration or self.gain).plot(ax=axes[1, 0], labels=self.labels)
        F.plot_histograms(self.source.leaf, self.source.edges, ax=axes[1, 1])
        axes[1, 1].set_box_aspect(1)
        fig.supxlabel(self.privacy, fontsize=_FONT_SIZE * scale())
        legend_widths = [[room(ax.get_legend_handles_labels()[1]) for ax in row] for row in axes]
        width = _FIGURE_SIZE + sum(max(column) for column in zip(*legend_widths, strict=True))
        fig.set_size_inches(width * scale(), _FIGURE_SIZE * scale())
        return fig, axes

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report, whole or not at all, in the format of the suffix.

        Args:
            path: ``.html`` is one page that needs no network, with a threshold to move; ``.json``
                has plain numbers for programs; ``.md`` has the numbers and the statement; ``.png``
                and ``.pdf`` are the summary figure.
        """
        data = self._encoded(Path(path))
        unfinished = Path(f"{os.fspath(path)}.part")
        unfinished.write_bytes(data)
        os.replace(unfinished, path)

    def _encoded(self, path: Path) -> bytes:
        """Return the content of the file."""
        suffix = path.suffix.lower()
        if suffix in (".png", ".pdf"):
            buffer = io.BytesIO()
            fig, _ = self.plot()
            fig.savefig(buffer, format=suffix[1:], bbox_inches="tight", dpi=200)
            return buffer.getvalue()
        if suffix == ".json":
            return json.dumps(document(self), allow_nan=False).encode()
        if suffix == ".html":
            return page(self).encode()
        if suffix == ".md":
            return markdown(self).encode()
        raise InputError(
            "Expected argument `path` to end in .html, .json, .md, .png or .pdf but got "
            f"{os.fspath(path)!r}."
        )

    def __str__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        return notebook(self) + figure_html(self)

    def __repr__(self) -> str:
        auroc = self._mean_text("auroc")
        average_precision = self._mean_text("average_precision")
        return (
            f"EvaluationReport({self.task}, AUROC {auroc}, AP {average_precision}, {self.privacy})"
        )

    def _mean_text(self, name: str) -> str:
        """Return the mean of an area over classes, with its interval where that is wide."""
        text = f"{float(getattr(self, name).nanmean()):.4f}"
        interval = self.intervals.get(name)
        if interval is not None and not interval.low.ndim and is_wide(interval):
            text += f" ({interval})"
        return text


def _values(histograms: F.Histograms) -> dict[str, Any]:
    """Return the values that histograms alone give, by their names in the report."""
    negatives, positives = histograms.tails.total.unbind(-1)
    values: dict[str, Any] = {
        "negatives": negatives,
        "positives": positives,
        "prevalence": positives / (negatives + positives).clamp(min=_MIN_EXAMPLES),
        "roc": F.roc_from_counts(histograms),
        "calibration": None,
        "net_benefit": None,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the ROC curve has warned of an empty class
        values |= {
            "precision_recall": F.precision_recall_from_counts(histograms),
            "det": F.det_from_counts(histograms),
            "gain": F.precision_recall_gain_from_counts(histograms),
            "cumulative_gains": F.cumulative_gains(histograms),
            "mann_whitney_u": F.mann_whitney_u(histograms),
            "kolmogorov_smirnov": F.kolmogorov_smirnov(histograms),
            "best_f1": F.best_f1(histograms),
            "youden": F.youden(histograms),
        }
        if are_probabilities(histograms.edges):
            values["calibration"] = F.calibration_from_counts(histograms)
            values["net_benefit"] = F.net_benefit(histograms)
    for curve in ("roc", "precision_recall", "gain"):
        values |= values[curve].scalars
    return values


def evaluation_report(
    source: Readable,
    edges: Tensor | None = None,
    reconstruction: Reconstruction | None = None,
    labels: Sequence[str] | None = None,
    *,
    confidence: float = 0.95,
    of: IntervalOf = "population",
    ledger: PrivacyLedger | None = None,
) -> EvaluationReport:
    """Return curves, areas, operating points, calibration, net benefit and the privacy statement.

    A private release costs nothing more, however much is read from it: all of this is
    post-processing.

    Args:
        source: as in :func:`~torchmetrics_fed.functional.roc_from_counts`, and likewise ``edges``
            and ``reconstruction``.
        labels: names of the classes.
        confidence: probability of every interval and band.
        of: ``"population"`` for the values of the population that the examples were drawn from:
            sampling and noise together. ``"examples"`` for those of all clients' own examples: then
            exact counts have no intervals, and of private ones only areas and curves do.
        ledger: the ledger that the release was charged to, for the statement.

    Example:
        >>> import torch
        >>> edges = torch.tensor([0, 0.5, 1])
        >>> report = evaluation_report(torch.tensor([[3, 1], [1, 3]]), edges=edges)
        >>> print(report)  # doctest: +ELLIPSIS
        Evaluation (binary) of leaf counts, exact counts
          negatives                4
          positives                4
          prevalence               0.5000
          AUROC                    0.7500
          AP                       0.6875
          ...
    """
    check_confidence(confidence)
    check_of(of)
    if isinstance(source, Release):
        source.check_opened()
    elif not isinstance(source, Tensor | F.Histograms):
        raise no_release(source)
    histograms = F.read(source, edges, reconstruction)
    class_names = _class_names(labels, histograms)
    if not isinstance(source, Release):
        # counts may go on; the report stays
        histograms = histograms._replace(levels=[level.clone() for level in histograms.levels])
        return EvaluationReport(
            histograms,
            "binary" if histograms.leaf.dim() == 2 else "classes",
            class_names,
            confidence=confidence,
            of=of,
        )
    statement = privacy_statement(source, ledger)
    _warn(source, histograms)
    uncertainty = _uncertainty(
        source,
        is_probability=are_probabilities(histograms.edges),
        confidence=confidence,
        of=of,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the gaps have warned of small groups
        groups = {
            name: evaluation_report(
                part,
                reconstruction=reconstruction,
                labels=labels,
                confidence=confidence,
                of=of,
            )
            for name, part in _releases_by_group(source).items()
        }
    return EvaluationReport(
        histograms,
        source.spec.task,
        class_names,
        confidence=confidence,
        of=of,
        privacy=", ".join([str(source.spec.privacy), *source.remarks]),
        shares=int(source.shares),
        intervals=uncertainty.intervals,
        bands=uncertainty.bands,
        calibration_line=uncertainty.calibration_line,
        statement=statement,
        groups=groups,
        gaps=uncertainty.gaps,
    )


def _class_names(labels: Sequence[str] | None, histograms: F.Histograms) -> tuple[str, ...] | None:
    """Return the names of the classes, or raise if there are too few or too many."""
    if labels is None:
        return None
    classes = histograms.leaf[..., 0, 0].numel()
    if len(labels) != classes:
        raise InputError(
            f"Expected argument `labels` to name {classes} classes but got {len(labels)}. Name "
            "each once."
        )
    return tuple(labels)


def _warn(release: Release, histograms: F.Histograms) -> None:
    """Warn if ties or noise leave little of the curves."""
    if release.spec.privacy.charges:
        warn_if_drowned(release, None)
    else:
        warn_if_tied(histograms, release.spec.grid)


def _releases_by_group(release: Release) -> Mapping[str, Release]:
    """Return the release of each group; none where the last query pools the groups."""
    if release.last.query.pools_groups:
        return {}
    return release.by_group


@dataclass(frozen=True)
class _Uncertainty:
    """The values that counts alone do not give. Fields are those of the report."""

    calibration_line: F.CalibrationLine | None = None
    gaps: F.GroupGaps | None = None
    intervals: dict[str, F.Interval] = field(default_factory=dict)
    bands: dict[str, F.Band] = field(default_factory=dict)


def _uncertainty(
    release: Release, *, is_probability: bool, confidence: float, of: IntervalOf
) -> _Uncertainty:
    """Return the line, the gaps and, by the names of numbers and curves, intervals and bands.

    Args:
        release: one-vs-one counts have none of these.
        is_probability: whether scores are probabilities.
        confidence: probability of every interval and band.
        of: the population or the examples.
    """
    spec = release.spec
    if spec.multi_class == "ovo":
        return _Uncertainty()
    is_uncertain = of == "population" or spec.privacy.charges
    line = None
    if is_probability:
        line = F.calibration_line(release, confidence if is_uncertain else None, of)
    gaps = None
    if spec.groups and not release.last.query.pools_groups:
        gaps = F.group_gaps(release, confidence=confidence)
    if not is_uncertain:
        return _Uncertainty(line, gaps)
    intervals = {
        "auroc": F.auroc_interval(release, confidence, of),
        "average_precision": F.average_precision_interval(release, confidence, of),
    }
    if of == "population":
        warn_of_persons(release)
        intervals |= _number_intervals(release, is_probability, confidence)
    gains = F.cumulative_gains(release, confidence=confidence, of=of)
    curves: dict[str, Any] = {"cumulative_gains": gains}
    if line is not None and line.intervals is not None:
        intervals |= dict(zip(line.scalars, line.intervals, strict=True))
        benefit = F.net_benefit(release, confidence=confidence, of=of)
        curves["net_benefit"] = benefit
    for name, curve in curves.items():
        intervals[name] = F.Interval(curve.low, curve.high)
    bands = {
        "roc": F.roc_band(release, confidence, of),
        "precision_recall": F.precision_recall_band(release, confidence, of),
    }
    return _Uncertainty(line, gaps, intervals, bands)


def _number_intervals(
    release: Release, is_probability: bool, confidence: float
) -> dict[str, F.Interval]:
    """Return the intervals of the population for the numbers beside areas, by their names."""
    functions: list[Callable[[F.Histograms], Any]] = [
        _counted_numbers,
        F.precision_recall_gain_from_counts,
        F.cumulative_gains,
    ]
    if is_probability:
        functions += [F.calibration_from_counts, F.net_benefit]
    intervals: dict[str, F.Interval] = {}
    for function in functions:
        intervals |= F.intervals(release, function, confidence)
    return intervals


class _CountedNumbers(NamedTuple):
    """Numbers of the report that no other result has."""

    scalars: dict[str, Tensor]


def _counted_numbers(histograms: F.Histograms) -> _CountedNumbers:
    negatives, positives = histograms.tails.total.unbind(-1)
    best_f1 = F.best_f1(histograms)
    youden = F.youden(histograms)
    return _CountedNumbers(
        {
            "prevalence": positives / (negatives + positives).clamp(min=_MIN_EXAMPLES),
            "kolmogorov_smirnov": F.kolmogorov_smirnov(histograms),
            "best_f1": best_f1.value,
            "youden": youden.value,
        }
    )
