"""EvaluationReport: everything about a classifier that one release answers."""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.auroc import mann_whitney_u
from torchmetrics_fed.functional.band import (
    Band,
    Interval,
    auroc_interval,
    average_precision_interval,
    check_confidence,
    precision_recall_band,
    roc_band,
)
from torchmetrics_fed.functional.calibration import Calibration, calibration_from_counts
from torchmetrics_fed.functional.cumulative_gains import CumulativeGains, cumulative_gains
from torchmetrics_fed.functional.curve import warn_if_tied
from torchmetrics_fed.functional.det import DETCurve, det_from_counts
from torchmetrics_fed.functional.gain import PrecisionRecallGainCurve, precision_recall_gain_from_counts
from torchmetrics_fed.functional.net_benefit import NetBenefit, net_benefit
from torchmetrics_fed.functional.noise import warn_if_drowned
from torchmetrics_fed.functional.operating import OperatingPoint, best_f1, kolmogorov_smirnov, youden
from torchmetrics_fed.functional.precision_recall import (
    PrecisionRecallCurve,
    average_precision_from_curve,
    precision_recall_from_counts,
)
from torchmetrics_fed.functional.roc import ROCCurve, auroc_from_curve, roc_from_counts
from torchmetrics_fed.functional.source import Source, read
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.release.release import Release, no_release
from torchmetrics_fed.report.document import arguments, document
from torchmetrics_fed.report.page import page
from torchmetrics_fed.report.statement import PrivacyStatement, privacy_statement
from torchmetrics_fed.report.summary import summary_figure
from torchmetrics_fed.report.table import Number, markdown, text

_RESULTS: dict[str, Callable[[Source], Any]] = {
    "roc": roc_from_counts,
    "precision_recall": precision_recall_from_counts,
    "det": det_from_counts,
    "gain": precision_recall_gain_from_counts,
    "cumulative_gains": cumulative_gains,
    "mann_whitney_u": mann_whitney_u,
    "kolmogorov_smirnov": kolmogorov_smirnov,
    "best_f1": best_f1,
    "youden": youden,
}


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

    source: Source
    """Counts that all of this was read from."""
    task: str
    """The task of the release; of leaf counts ``"binary"``, or ``"classes"`` where there is a class axis."""
    labels: tuple[str, ...] | None
    privacy: str
    shares: int | None
    """How many shares were summed; None for leaf counts."""
    confidence: float
    population: bool
    """Whether intervals and bands hold what the examples were drawn from, or what all clients have."""
    intervals: dict[str, Interval]
    """By the name of the number, where noise or sampling leaves it uncertain; of curves the bounds at their points."""
    bands: dict[str, Band]
    """Of ``"roc"`` and ``"precision_recall"``, likewise."""
    statement: PrivacyStatement | None
    roc: ROCCurve = field(init=False)
    precision_recall: PrecisionRecallCurve = field(init=False)
    det: DETCurve = field(init=False)
    gain: PrecisionRecallGainCurve = field(init=False)
    cumulative_gains: CumulativeGains = field(init=False)
    calibration: Calibration | None = field(init=False)
    """None where scores are not probabilities, as is ``net_benefit``."""
    net_benefit: NetBenefit | None = field(init=False)
    mann_whitney_u: Tensor = field(init=False)
    kolmogorov_smirnov: Tensor = field(init=False)
    best_f1: OperatingPoint = field(init=False)
    youden: OperatingPoint = field(init=False)

    def __post_init__(self) -> None:
        source, probabilities = self.source, self.source.edges[0] >= 0 and self.source.edges[-1] <= 1
        results = {"roc": _RESULTS["roc"](source)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the ROC curve has warned of an empty class
            results |= {name: function(source) for name, function in _RESULTS.items() if name != "roc"}
            results["calibration"] = calibration_from_counts(source) if probabilities else None
            results["net_benefit"] = net_benefit(source) if probabilities else None
        for name, result in results.items():
            bounds = self.intervals.get(name)
            known = result if bounds is None else result._replace(low=bounds.low, high=bounds.high)
            object.__setattr__(self, name, known)

    @property
    def negatives(self) -> Tensor:
        """Number of negatives as the release shows it: not a whole number if it is noisy."""
        return self.source.tails.total[..., 0]

    @property
    def positives(self) -> Tensor:
        """Number of positives, likewise."""
        return self.source.tails.total[..., 1]

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

    @property
    def numbers(self) -> dict[str, Number]:
        """Every number by its name, with its title in tables and its interval, if it has one."""
        values = {
            "negatives": ("negatives", self.negatives, 0),
            "positives": ("positives", self.positives, 0),
            "prevalence": ("prevalence", self.prevalence, 4),
            "auroc": ("AUROC", self.auroc, 4),
            "average_precision": ("AP", self.average_precision, 4),
            "area_under_gain": ("AUPRG", self.area_under_gain, 4),
            "kolmogorov_smirnov": ("KS", self.kolmogorov_smirnov, 4),
            "mann_whitney_u": ("U", self.mann_whitney_u, 0),
            "best_f1": ("best F1", self.best_f1.value, 4),
            "best_f1_threshold": ("F1 at", self.best_f1.threshold, 4),
            "youden": ("Youden J", self.youden.value, 4),
            "youden_threshold": ("J at", self.youden.threshold, 4),
            "lift_top_decile": ("lift of top tenth", self.cumulative_gains.scalars["lift_top_decile"], 2),
        }
        if self.calibration is not None and self.net_benefit is not None:
            values |= {
                "expected_calibration_error": ("ECE", self.calibration.expected_calibration_error, 4),
                "brier_score": ("Brier", self.calibration.brier_score, 4),
                "mean_advantage": ("mean net benefit gained", self.net_benefit.scalars["mean_advantage"], 4),
            }
        return {name: Number(*value, self.intervals.get(name)) for name, value in values.items()}

    @property
    def names(self) -> list[str]:
        """The classes' names, or their numbers."""
        return list(self.labels or map(str, range(self.auroc.numel())))

    @property
    def head(self) -> str:
        """What was evaluated, in one line."""
        counted = "leaf counts" if self.shares is None else f"{self.shares} share{'s' * (self.shares != 1)}"
        return f"Evaluation ({self.task}) of {counted}, {self.privacy}"

    def plot(self) -> Any:
        """Draw ROC, PR, calibration (or PR gain) and score histograms on one page, and return ``(fig, axes)``."""
        third = self.gain if self.calibration is None else self.calibration
        bands = self.bands.get("roc"), self.bands.get("precision_recall")
        leaf, edges = self.source.leaf, self.source.edges
        return summary_figure(self.roc, self.precision_recall, third, leaf, edges, self.labels, bands, self.privacy)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report, whole or not at all, as the suffix says.

        Args:
            path: ``.html`` is one page that needs no network, with a threshold to move; ``.json`` can be read back;
                ``.md`` has the numbers and the statement; ``.png`` and ``.pdf`` are the summary figure.

        Example:
            >>> import tempfile
            >>> import torch
            >>> from torchmetrics_fed import EvaluationReport, evaluation_report
            >>> report = evaluation_report(torch.tensor([[3, 1], [1, 3]]))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     report.save(f"{folder}/report.json")
            ...     EvaluationReport.from_json(Path(f"{folder}/report.json").read_text()).auroc
            tensor(0.7500, dtype=torch.float64)
        """
        suffix, written = Path(path).suffix.lower(), {".html": page, ".json": _json, ".md": markdown}
        if suffix in written:
            data = written[suffix](self).encode()
        elif suffix in (".png", ".pdf"):
            figure, buffer = self.plot()[0], io.BytesIO()
            figure.savefig(buffer, format=suffix[1:], bbox_inches="tight", dpi=200)
            data = buffer.getvalue()
        else:
            raise InputError(
                f"Expected argument `path` to end in .html, .json, .md, .png or .pdf but got {os.fspath(path)!r}."
            )
        part = Path(f"{os.fspath(path)}.part")
        part.write_bytes(data)
        os.replace(part, path)

    @classmethod
    def from_json(cls, data: str | bytes) -> EvaluationReport:
        """Return the report whose JSON this is: equal in every number; bands may be wider by a little."""
        return cls(**arguments(json.loads(data)))

    def __str__(self) -> str:
        return text(self)

    def __repr__(self) -> str:
        auroc, precision = float(self.auroc.mean()), float(self.average_precision.nanmean())
        return f"EvaluationReport({self.task}, AUROC {auroc:.4f}, AP {precision:.4f}, {self.privacy})"


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
        source: a release, or leaf counts ``(..., 2, leaves)``.
        edges: of leaf counts; even over [0, 1] if not given.
        reconstruction: how to read between the edges; ``"aligned"`` if not given.
        labels: names of the classes.
        confidence: probability of every interval and band.
        population: whether they allow for sampling, too, and hold what the examples were drawn from. Exact counts have
            intervals only then; of 4,096 bins they take seconds for each class.
        ledger: the one that the release was charged to, for the statement.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.report.evaluation import evaluation_report
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
    statement, intervals, bands = None, {}, {}
    if isinstance(source, Release):
        task, privacy = str(source.spec.task), str(source.spec.privacy or "exact counts")
        shares, statement = int(source.shares), privacy_statement(source, ledger)
    elif not isinstance(source, Tensor):
        raise no_release(source)
    else:
        task, privacy, shares = "binary" if source.dim() == 2 else "classes", "exact counts", None
        source = source.clone()  # counts may go on; the report stays
    histograms = read(source, edges, reconstruction)
    classes = histograms.leaf[..., 0, 0].numel()
    if labels is not None and len(labels) != classes:
        raise InputError(f"Expected argument `labels` to name {classes} classes but got {len(labels)}. Name each once.")
    if isinstance(source, Release) and source.spec.privacy is None:
        warn_if_tied(histograms, source.spec.grid)
    elif isinstance(source, Release):
        warn_if_drowned(source, None)
    if isinstance(source, Release) and source.spec.multi_class != "ovo" and (population or source.spec.privacy):
        how = confidence, population
        intervals = {
            "auroc": auroc_interval(source, *how),
            "average_precision": average_precision_interval(source, *how),
        }
        bands = {"roc": roc_band(source, *how), "precision_recall": precision_recall_band(source, *how)}
        curves: list[CumulativeGains | NetBenefit] = [cumulative_gains(source, None, *how)]
        if histograms.edges[0] >= 0 and histograms.edges[-1] <= 1:
            curves.append(net_benefit(source, None, *how))
        for name, curve in zip(("cumulative_gains", "net_benefit"), curves, strict=False):
            assert curve.low is not None
            assert curve.high is not None
            intervals[name] = Interval(curve.low, curve.high)
    names = None if labels is None else tuple(labels)
    return EvaluationReport(
        histograms, task, names, privacy, shares, confidence, population, intervals, bands, statement
    )


def _json(report: EvaluationReport) -> str:
    return json.dumps(document(report), allow_nan=False)
