"""EvaluationReport: everything about a classifier that one release answers."""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from torchmetrics_fed import functional as F
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import check_confidence, warn_if_drowned
from torchmetrics_fed.functional.curve import warn_if_tied
from torchmetrics_fed.functional.figures.canvas import figure, room
from torchmetrics_fed.functional.figures.page import scale
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.reconstruct.histograms import are_probabilities
from torchmetrics_fed.release.release import Release, no_release
from torchmetrics_fed.report.document import document, page
from torchmetrics_fed.report.statement import PrivacyStatement, privacy_statement
from torchmetrics_fed.report.table import NUMBERS, Number, markdown, text

_OF_PROBABILITIES = ("calibration", "net_benefit")


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationReport:
    """What :func:`evaluation_report` found. Values have the class axis of the counts; ``str`` makes a table of them.

    Example:
        >>> import torch
        >>> report = evaluation_report(torch.tensor([[3, 1], [1, 3]]))
        >>> report.auroc, report.positives
        (tensor(0.7500, dtype=torch.float64), tensor(4., dtype=torch.float64))
    """

    source: F.Histograms
    """Counts that all of this was read from."""
    task: str
    """The task of the release; of leaf counts ``"binary"``, or ``"classes"`` where there is a class axis."""
    labels: tuple[str, ...] | None
    confidence: float
    population: bool
    """Whether intervals and bands hold what the examples were drawn from, or what all clients have."""
    privacy: str = "exact counts"
    shares: int | None = None
    """How many shares were summed; None for leaf counts, as are ``calibration_line`` and ``statement``."""
    intervals: dict[str, F.Interval] = field(default_factory=dict)
    """By the name of the number, where noise or sampling leaves it uncertain; of curves the bounds at their points."""
    bands: dict[str, F.Band] = field(default_factory=dict)
    """Of ``"roc"`` and ``"precision_recall"``, likewise."""
    calibration_line: F.CalibrationLine | None = None
    statement: PrivacyStatement | None = None
    """What is protected."""
    groups: dict[str, EvaluationReport] = field(default_factory=dict)
    """The report of each group, by name."""
    gaps: F.GroupGaps | None = None
    """How far the groups are apart at a threshold of 1/2, or None where there are none."""
    roc: F.ROCCurve = field(init=False)
    precision_recall: F.PrecisionRecallCurve = field(
        init=False, metadata={"function": F.precision_recall_from_counts}
    )
    det: F.DETCurve = field(init=False, metadata={"function": F.det_from_counts})
    gain: F.PrecisionRecallGainCurve = field(
        init=False, metadata={"function": F.precision_recall_gain_from_counts}
    )
    cumulative_gains: F.CumulativeGains = field(
        init=False, metadata={"function": F.cumulative_gains}
    )
    calibration: F.Calibration | None = field(
        init=False, metadata={"function": F.calibration_from_counts}
    )
    """None where scores are not probabilities, as are the line and ``net_benefit``."""
    net_benefit: F.NetBenefit | None = field(init=False, metadata={"function": F.net_benefit})
    mann_whitney_u: Tensor = field(init=False, metadata={"function": F.mann_whitney_u})
    kolmogorov_smirnov: Tensor = field(init=False, metadata={"function": F.kolmogorov_smirnov})
    best_f1: F.OperatingPoint = field(init=False, metadata={"function": F.best_f1})
    youden: F.OperatingPoint = field(init=False, metadata={"function": F.youden})
    negatives: Tensor = field(init=False)
    """Number of negatives as the release shows it: not a whole number if it is noisy."""
    positives: Tensor = field(init=False)
    prevalence: Tensor = field(init=False)
    """The positives' share."""
    auroc: Tensor = field(init=False)
    """The area under the ROC curve."""
    average_precision: Tensor = field(init=False)
    """The area under the PR curve, read as a step."""
    area_under_gain: Tensor = field(init=False)
    """The area under the PR-gain curve."""

    def __post_init__(self) -> None:
        negatives, positives = self.source.tails.total.unbind(-1)
        share = positives / (negatives + positives).clamp(min=1e-300)
        results: dict[str, Any] = {
            "negatives": negatives,
            "positives": positives,
            "prevalence": share,
        }
        results["roc"] = F.roc_from_counts(self.source)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # the ROC curve has warned of an empty class
            for name, made in (
                (each.name, each.metadata) for each in fields(self) if each.metadata
            ):
                known = name not in _OF_PROBABILITIES or are_probabilities(self.source.edges)
                results[name] = made["function"](self.source) if known else None
        for name in results.keys() & self.intervals.keys():
            results[name] = results[name]._replace(**self.intervals[name]._asdict())
        for curve in ("roc", "precision_recall", "gain"):
            results |= results[curve].scalars
        self.__dict__.update(results)  # the class is frozen

    @property
    def numbers(self) -> dict[str, Number]:
        """Every number by its name, with its title in tables and its interval, if it has one."""
        plain = ("negatives", "positives", "prevalence", "kolmogorov_smirnov", "mann_whitney_u")
        values: dict[str, Tensor] = {name: getattr(self, name) for name in plain}
        for name, point in (("best_f1", self.best_f1), ("youden", self.youden)):
            values |= {name: point.value, f"{name}_threshold": point.threshold}
        curves = self.roc, self.precision_recall, self.gain, self.cumulative_gains
        for result in (*curves, self.calibration, self.calibration_line, self.net_benefit):
            values |= result.scalars if result is not None else {}
        ends, known = self.intervals, [name for name in NUMBERS if name in values]
        return {
            name: Number(**NUMBERS[name], value=values[name], interval=ends.get(name))
            for name in known
        }

    @property
    def names(self) -> list[str]:
        """The classes' names, or their numbers."""
        return list(self.labels or map(str, range(self.auroc.numel())))

    @property
    def head(self) -> str:
        """What was evaluated, in one line."""
        counted = (
            "leaf counts"
            if self.shares is None
            else f"{self.shares} share{'s' * (self.shares != 1)}"
        )
        return f"Evaluation ({self.task}) of {counted}, {self.privacy}"

    def plot(self) -> Any:
        """Draw ROC, PR, calibration (or PR gain) and score histograms on one page, and return ``(fig, axes)``."""
        fig, axes = figure(2, 2)
        self.roc.plot(ax=axes[0, 0], labels=self.labels, band=self.bands.get("roc"))
        self.precision_recall.plot(
            ax=axes[0, 1], labels=self.labels, band=self.bands.get("precision_recall")
        )
        (self.calibration or self.gain).plot(ax=axes[1, 0], labels=self.labels)
        F.plot_histograms(self.source.leaf, self.source.edges, ax=axes[1, 1])
        axes[1, 1].set_box_aspect(1)
        fig.supxlabel(self.privacy, fontsize=7.5 * scale())
        legends = [[room(ax.get_legend_handles_labels()[1]) for ax in row] for row in axes]
        wide = 6.6 + sum(map(max, zip(*legends, strict=True)))
        fig.set_size_inches(wide * scale(), 6.6 * scale())
        return fig, axes

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report, whole or not at all, as the suffix says.

        Args:
            path: ``.html`` is one page that needs no network, with a threshold to move; ``.json`` has plain numbers for
                programs; ``.md`` has the numbers and the statement; ``.png`` and ``.pdf`` are the summary figure.
        """
        suffix = Path(path).suffix.lower()
        if suffix in (".png", ".pdf"):
            buffer = io.BytesIO()
            self.plot()[0].savefig(buffer, format=suffix[1:], bbox_inches="tight", dpi=200)
            data = buffer.getvalue()
        elif suffix == ".json":
            data = json.dumps(document(self), allow_nan=False).encode()
        elif suffix in (".html", ".md"):
            data = (page if suffix == ".html" else markdown)(self).encode()
        else:
            raise InputError(
                f"Expected argument `path` to end in .html, .json, .md, .png or .pdf but got {os.fspath(path)!r}."
            )
        part = Path(f"{os.fspath(path)}.part")
        part.write_bytes(data)
        os.replace(part, path)

    def __str__(self) -> str:
        return text(self)

    def __repr__(self) -> str:
        auroc, precision = float(self.auroc.mean()), float(self.average_precision.nanmean())
        return (
            f"EvaluationReport({self.task}, AUROC {auroc:.4f}, AP {precision:.4f}, {self.privacy})"
        )


def evaluation_report(
    source: Release | Tensor,
    edges: Tensor | None = None,
    reconstruction: Reconstruction | None = None,
    labels: Sequence[str] | None = None,
    *,
    confidence: float = 0.95,
    population: bool = False,
    ledger: PrivacyLedger | None = None,
) -> EvaluationReport:
    """Return curves, areas, operating points, calibration, net benefit and the privacy statement of one release.

    A private release costs nothing more, however much is read from it: all of this is post-processing.

    Args:
        source: as in :func:`~torchmetrics_fed.functional.roc_from_counts`, and likewise ``edges`` and
            ``reconstruction``.
        labels: names of the classes.
        confidence: probability of every interval and band.
        population: whether they allow for sampling, too, and hold what the examples were drawn from. Exact counts have
            intervals only then; of 4,096 bins they take seconds for each class.
        ledger: the one that the release was charged to, for the statement.

    Example:
        >>> import torch
        >>> print(evaluation_report(torch.tensor([[3, 1], [1, 3]])))  # doctest: +ELLIPSIS
        Evaluation (binary) of leaf counts, exact counts
          negatives                4
          positives                4
          prevalence               0.5000
          AUROC                    0.7500
          AP                       0.6875
          ...
    """
    check_confidence(confidence)
    if isinstance(source, Tensor):
        source = source.clone()  # counts may go on; the report stays
    elif not isinstance(source, Release):
        raise no_release(source)
    else:
        source.check_opened()
    histograms = F.read(source, edges, reconstruction)
    classes = histograms.leaf[..., 0, 0].numel()
    if labels is not None and len(labels) != classes:
        raise InputError(
            f"Expected argument `labels` to name {classes} classes but got {len(labels)}. Name each once."
        )
    about = None if labels is None else tuple(labels), confidence, population
    if isinstance(source, Tensor):
        return EvaluationReport(histograms, "binary" if source.dim() == 2 else "classes", *about)
    spec = source.spec
    found: dict[str, Any] = {"statement": privacy_statement(source, ledger)}
    if not spec.privacy.charges:
        warn_if_tied(histograms, spec.grid)
    else:
        warn_if_drowned(source, None)
    if spec.multi_class != "ovo":
        found |= _of_release(source, are_probabilities(histograms.edges), confidence, population)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the gaps have warned of small groups
        how: dict[str, Any] = {"labels": labels, "confidence": confidence, "population": population}
        groups = {
            n: evaluation_report(part, None, reconstruction, **how)
            for n, part in ({} if source.last.query.pools_groups else source.by_group).items()
        }
    said = ", ".join([str(spec.privacy), *source.remarks]), int(source.shares)
    return EvaluationReport(histograms, spec.task, *about, *said, groups=groups, **found)


def _of_release(
    release: Release, probabilities: bool, confidence: float, population: bool
) -> dict[str, Any]:
    """What counts alone do not tell: the line, gaps and, by the names of numbers and curves, intervals and bands."""
    how, uncertain = (confidence, population), population or release.spec.privacy.charges
    line = (
        F.calibration_line(release, confidence if uncertain else None, population)
        if probabilities
        else None
    )
    has_groups = bool(release.spec.groups) and not release.last.query.pools_groups
    gaps = F.group_gaps(release, confidence=confidence) if has_groups else None
    found: dict[str, Any] = {"calibration_line": line, "gaps": gaps}
    if not uncertain:
        return found
    areas = F.auroc_interval(release, *how), F.average_precision_interval(release, *how)
    intervals = dict(zip(("auroc", "average_precision"), areas, strict=True))
    curves: dict[str, Any] = {"cumulative_gains": F.cumulative_gains(release, None, *how)}
    if line is not None and line.intervals is not None:
        intervals |= dict(zip(line.scalars, line.intervals, strict=True))
        curves["net_benefit"] = F.net_benefit(release, None, *how)
    intervals |= {name: F.Interval(curve.low, curve.high) for name, curve in curves.items()}
    bands = {
        "roc": F.roc_band(release, *how),
        "precision_recall": F.precision_recall_band(release, *how),
    }
    return found | {"intervals": intervals, "bands": bands}
