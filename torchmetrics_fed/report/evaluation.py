"""EvaluationReport: everything about a classifier that one release answers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Interval, auroc_interval, average_precision_interval
from torchmetrics_fed.functional.calibration import Calibration, calibration_from_counts
from torchmetrics_fed.functional.curve import warn_if_tied
from torchmetrics_fed.functional.det import DETCurve, det_from_counts
from torchmetrics_fed.functional.gain import PrecisionRecallGainCurve, precision_recall_gain_from_counts
from torchmetrics_fed.functional.noise import warn_if_drowned
from torchmetrics_fed.functional.operating import OperatingPoint, best_f1, kolmogorov_smirnov, youden
from torchmetrics_fed.functional.precision_recall import (
    PrecisionRecallCurve,
    average_precision_from_curve,
    precision_recall_from_counts,
)
from torchmetrics_fed.functional.roc import ROCCurve, auroc_from_curve, mann_whitney_u, roc_from_counts
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.release.release import Release, no_release
from torchmetrics_fed.report.summary import summary_figure


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationReport:
    """What :func:`evaluation_report` found. Values have the class axis of the counts; ``str`` makes a table of them.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import evaluation_report
        >>> report = evaluation_report(torch.tensor([[3, 1], [1, 3]]))
        >>> report.auroc, report.positives
        (tensor(0.7500, dtype=torch.float64), tensor(4., dtype=torch.float64))
    """

    task: str
    """The task of the release; of leaf counts ``"binary"``, or ``"classes"`` where there is a class axis."""
    labels: tuple[str, ...] | None
    privacy: str
    shares: int | None
    """How many shares were summed; None for leaf counts."""
    negatives: Tensor
    """Number of negatives as the release shows it: not a whole number if it is noisy."""
    positives: Tensor
    roc: ROCCurve
    precision_recall: PrecisionRecallCurve
    det: DETCurve
    gain: PrecisionRecallGainCurve
    calibration: Calibration | None
    """None where scores are not probabilities."""
    mann_whitney_u: Tensor
    kolmogorov_smirnov: Tensor
    best_f1: OperatingPoint
    youden: OperatingPoint
    leaf: Tensor
    """Counts that all of this was read from, ``(..., 2, leaves)``."""
    edges: Tensor
    intervals: tuple[Interval, Interval] | None = None
    """Of a private release, 95% intervals of the AUROC and of the average precision of all clients' own scores."""

    @property
    def prevalence(self) -> Tensor:
        """The positives' share."""
        return self.positives / (self.negatives + self.positives).clamp(min=1e-300)

    @property
    def auroc(self) -> Tensor:
        """The area under the ROC curve."""
        return auroc_from_curve(self.roc)

    @property
    def average_precision(self) -> Tensor:
        """The area under the PR curve, read as a step."""
        return average_precision_from_curve(self.precision_recall)

    @property
    def area_under_gain(self) -> Tensor:
        """The area under the PR-gain curve."""
        return self.gain.area

    def plot(self) -> Any:
        """Draw ROC, PR, calibration (or PR gain) and score histograms on one page, and return ``(fig, axes)``."""
        third = self.gain if self.calibration is None else self.calibration
        return summary_figure(self.roc, self.precision_recall, third, self.leaf, self.edges, self.labels)

    def __str__(self) -> str:
        counted = "leaf counts" if self.shares is None else f"{self.shares} share{'s' * (self.shares != 1)}"
        head = f"Evaluation ({self.task}) of {counted}, {self.privacy}"
        columns = list(self._columns())
        if not self.auroc.dim():
            width = max(len(column.name) for column in columns)
            return "\n".join([head, *(f"  {column.name:<{width}}  {column.texts[0]}" for column in columns)])
        names = self.labels or [str(index) for index in range(self.auroc.numel())]
        table = [["class", *names, "mean"], *([column.name, *column.texts, column.mean] for column in columns)]
        widths = [max(map(len, column)) for column in table]
        rows = list(zip(*table, strict=True))
        lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([head, *(f"  {line}".rstrip() for line in lines)])

    def __repr__(self) -> str:
        auroc, precision = float(self.auroc.mean()), float(self.average_precision.nanmean())
        return f"EvaluationReport({self.task}, AUROC {auroc:.4f}, AP {precision:.4f}, {self.privacy})"

    def _columns(self) -> Iterator[_Column]:
        for name, count in (("negatives", self.negatives), ("positives", self.positives)):
            yield _Column(name, [f"{n:,.0f}" if n == round(n) else f"{n:,.1f}" for n in count.flatten().tolist()], "")
        yield _rates("prevalence", self.prevalence)
        auroc, precision = self.intervals or (None, None)
        yield _rates("AUROC", self.auroc, auroc)
        yield _rates("AP", self.average_precision, precision)
        yield _rates("AUPRG", self.area_under_gain)
        yield _rates("KS", self.kolmogorov_smirnov)
        yield _Column("U", [f"{value:,.0f}" for value in self.mann_whitney_u.flatten().tolist()], "")
        for name, at, point in (("best F1", "F1 at", self.best_f1), ("Youden J", "J at", self.youden)):
            yield _rates(name, point.value)
            yield _rates(at, point.threshold)._replace(mean="")  # a mean of thresholds is no threshold
        if self.calibration is not None:
            yield _rates("ECE", self.calibration.expected_calibration_error)
            yield _rates("Brier", self.calibration.brier_score)


def evaluation_report(
    source: Release | Tensor,
    edges: Tensor | None = None,
    reconstruction: Reconstruction | None = None,
    labels: Sequence[str] | None = None,
) -> EvaluationReport:
    """Return curves, areas, operating points and calibration of one release, to print, plot or pick from.

    A private release costs nothing more, however much is read from it: all of this is post-processing.

    Args:
        source: a release, or leaf counts ``(..., 2, leaves)``.
        edges: of leaf counts; even over [0, 1] if not given.
        reconstruction: how to read between the edges; ``"aligned"`` if not given.
        labels: names of the classes.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.report.evaluation import evaluation_report
        >>> print(evaluation_report(torch.tensor([[3, 1], [1, 3]])))
        Evaluation (binary) of leaf counts, exact counts
          negatives   4
          positives   4
          prevalence  0.5000
          AUROC       0.7500
          AP          0.6875
          AUPRG       0.5556
          KS          0.5000
          U           12
          best F1     0.7500
          F1 at       0.5000
          Youden J    0.5000
          J at        0.5000
          ECE         0.0000
          Brier       0.1875
    """
    if isinstance(source, Release):
        task: str = source.spec.task
        privacy, shares = str(source.spec.privacy or "exact counts"), int(source.shares)
    elif not isinstance(source, Tensor):
        raise no_release(source)
    else:
        task, privacy, shares = "binary" if source.dim() == 2 else "classes", "exact counts", None
        source = source.clone()  # counts may go on; the report stays
    histograms = read(source, edges, reconstruction)
    intervals = None
    if isinstance(source, Release) and source.spec.privacy is None:
        warn_if_tied(histograms, source.spec.grid)
    elif isinstance(source, Release) and source.spec.multi_class != "ovo":
        warn_if_drowned(source, None)
        intervals = auroc_interval(source), average_precision_interval(source)
    total = histograms.tails.total
    probabilities = bool(histograms.edges[0] >= 0 and histograms.edges[-1] <= 1)
    classes = total[..., 0].numel()
    if labels is not None and len(labels) != classes:
        raise InputError(f"Expected argument `labels` to name {classes} classes but got {len(labels)}. Name each once.")
    roc = roc_from_counts(histograms)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the ROC curve has warned of an empty class
        curve, gain = precision_recall_from_counts(histograms), precision_recall_gain_from_counts(histograms)
        return EvaluationReport(
            task=task,
            labels=None if labels is None else tuple(labels),
            privacy=privacy,
            shares=shares,
            negatives=total[..., 0],
            positives=total[..., 1],
            roc=roc,
            precision_recall=curve,
            det=det_from_counts(histograms),
            gain=gain,
            calibration=calibration_from_counts(histograms) if probabilities else None,
            mann_whitney_u=mann_whitney_u(histograms),
            kolmogorov_smirnov=kolmogorov_smirnov(histograms),
            best_f1=best_f1(histograms),
            youden=youden(histograms),
            leaf=histograms.leaf,
            edges=histograms.edges,
            intervals=intervals,
        )


class _Column(NamedTuple):
    name: str
    texts: list[str]
    mean: str


def _rates(name: str, values: Tensor, interval: Interval | None = None) -> _Column:
    texts = [f"{value:.4f}" for value in values.flatten().tolist()]
    if interval is not None:
        ends = zip(interval.low.flatten().tolist(), interval.high.flatten().tolist(), strict=True)
        texts = [f"{text} ({low:.4f} to {high:.4f})" for text, (low, high) in zip(texts, ends, strict=True)]
    return _Column(name, texts, f"{values.nanmean().item():.4f}")
