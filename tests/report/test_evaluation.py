"""The report: what the functions say of one release, in one place."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
from torch import Tensor

from tests.grids import even
from tests.report.conftest import release_of
from torchmetrics_fed import CentralDP, FederatedROC, InputError, LocalDP, Release
from torchmetrics_fed import functional as F
from torchmetrics_fed.paper import Quantiles
from torchmetrics_fed.reconstruct import Aligned, Reconstruction
from torchmetrics_fed.reconstruct.histograms import Readable
from torchmetrics_fed.report.document import document
from torchmetrics_fed.report.evaluation import EvaluationReport, evaluation_report
from torchmetrics_fed.typing import GridName

mpl.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")

Data = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture
def exact(scored: Data) -> Release:
    """The release of two clients."""
    preds, target = scored
    halves = zip(preds.chunk(2), target.chunk(2), strict=True)
    return Release.sum([_updated(*half).share() for half in halves])


def _updated(
    preds: Tensor, target: Tensor, privacy: LocalDP | None = None, grid: GridName = "two_sided"
) -> FederatedROC:
    metric = FederatedROC(quantiles=64, grid=grid, privacy=privacy)
    metric.update(preds, target)
    return metric


# --- values


VALUES: dict[str, Any] = {
    "roc": F.roc_from_counts,
    "precision_recall": F.precision_recall_from_counts,
    "det": F.det_from_counts,
    "gain": F.precision_recall_gain_from_counts,
    "calibration": F.calibration_from_counts,
    "auroc": F.auroc_from_counts,
    "average_precision": F.average_precision_from_counts,
    "mann_whitney_u": F.mann_whitney_u,
    "area_under_gain": F.area_under_gain,
    "kolmogorov_smirnov": F.kolmogorov_smirnov,
    "best_f1": F.best_f1,
    "youden": F.youden,
}
"""By name of a value, its function."""


def check_values(
    report: EvaluationReport, source: Readable, reconstruction: Reconstruction | None = None
) -> None:
    """Every value is that of its function for the same source, to the bit."""
    histograms = F.read(source, None, reconstruction)
    total = histograms.tails.total
    expected = {name: function(histograms) for name, function in VALUES.items()}
    expected["negatives"] = total[..., 0]
    expected["positives"] = total[..., 1]
    expected["prevalence"] = total[..., 1] / total.sum(-1)
    for name, value in expected.items():
        reported = getattr(report, name)
        torch.testing.assert_close(reported, value, rtol=0, atol=0, equal_nan=True)


def test_values_are_those_of_the_functions(exact: Release, class_counts: Tensor) -> None:
    check_values(evaluation_report(exact), exact)
    check_values(evaluation_report(even(class_counts)), even(class_counts))


@pytest.mark.parametrize(
    ("reconstruction", "grid"),
    [(Aligned(), "two_sided"), (Quantiles(64), "even")],
    ids=["aligned", "quantiles"],
)
def test_a_private_release_is_read_as_the_functions_read_it(
    scored: Data, reconstruction: Reconstruction, grid: GridName
) -> None:
    metric = _updated(*scored, privacy=LocalDP(epsilon=1.0), grid=grid)
    private = Release.sum([metric.share()])
    report = evaluation_report(private, reconstruction=reconstruction)
    check_values(report, private, reconstruction)
    assert report.privacy == str(private.spec.privacy)
    assert report.privacy in str(report)
    assert report.negatives.item() == pytest.approx(3_500, rel=0.1)


def test_reading_a_private_release_spends_nothing_and_changes_nothing(scored: Data) -> None:
    metric = _updated(*scored, privacy=LocalDP(epsilon=1.0))
    release = Release.sum([metric.share()])
    cells = release.last.cells.clone()
    entries = len(metric.ledger)
    text = str(evaluation_report(release))
    assert str(evaluation_report(release)) == text
    assert torch.equal(release.last.cells, cells)
    assert len(metric.ledger) == entries


def test_a_report_stays_as_it_was_when_the_counts_go_on(class_counts: Tensor) -> None:
    report = evaluation_report(even(class_counts))
    leaf = report.source.leaf.clone()
    text = str(report)
    class_counts += 1
    assert torch.equal(report.source.leaf, leaf)
    assert str(report) == text


def test_the_representation_has_both_areas(exact: Release) -> None:
    report = evaluation_report(exact)
    assert repr(report) == (
        f"EvaluationReport(binary, AUROC {report.auroc:.4f}, AP {report.average_precision:.4f}, "
        "exact counts)"
    )


def test_one_versus_one_has_numbers_and_no_intervals() -> None:
    generator = torch.Generator().manual_seed(1)
    metric = FederatedROC(
        task="multiclass",
        num_classes=3,
        multi_class="ovo",
        privacy=CentralDP(3.0),
        quantiles=64,
    )
    metric.update(
        torch.rand(900, 3, generator=generator).softmax(-1),
        torch.randint(0, 3, (900,), generator=generator),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = evaluation_report(metric.release())
    assert not report.intervals
    assert document(report)["classes"][0]["numbers"].keys() == report.numbers.keys()


def test_an_empty_class_is_warned_of_once() -> None:
    with pytest.warns(UserWarning, match="No positive examples") as caught:
        report = evaluation_report(even(torch.tensor([[3, 1], [0, 0]])))
    assert len(caught) == 1
    assert report.prevalence == 0
    assert "AUROC" in str(report)


def test_labels_name_every_class(class_counts: Tensor) -> None:
    with pytest.raises(InputError, match="name 3 classes but got 2"):
        evaluation_report(even(class_counts), labels=["cat", "dog"])


# --- the summary figure


def test_scores_that_are_no_probabilities_have_no_calibration(class_counts: Tensor) -> None:
    report = evaluation_report(class_counts, torch.linspace(-4, 4, 17, dtype=torch.float64))
    assert report.calibration is None
    assert "Brier" not in str(report)
    _, axes = report.plot()
    ax = axes[1, 0]
    assert ax.get_xlabel() == "Recall gain"
    first_class = ax.get_legend().get_texts()[1].get_text()
    assert f"AUPRG {report.area_under_gain[0]:.4f}" in first_class


def test_the_summary_figure_shows_the_numbers_of_the_report(exact: Release) -> None:
    report = evaluation_report(exact)
    fig, axes = report.plot()
    assert list(fig.axes) == list(axes.flat)
    legends = [ax.get_legend().get_texts() for ax in axes.flat]
    texts = " ".join(text.get_text() for legend in legends for text in legend)
    assert report.calibration is not None
    calibration_error = report.calibration.expected_calibration_error
    for value in (report.auroc, report.average_precision, calibration_error):
        assert f"{value:.4f}" in texts


# --- files


FIRST_BYTES = {
    "png": b"\x89PNG",
    "pdf": b"%PDF",
    "md": b"# Evaluation",
    "html": b"<!doctype html>",
    "json": b"{",
}


@pytest.mark.parametrize("suffix", FIRST_BYTES)
def test_files_are_written_whole(tmp_path: Path, suffix: str) -> None:
    report = evaluation_report(release_of("private binary"))
    path = tmp_path / f"report.{suffix}"
    report.save(path)
    assert path.read_bytes().startswith(FIRST_BYTES[suffix])
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_with_another_suffix_is_refused(tmp_path: Path) -> None:
    report = evaluation_report(even(torch.tensor([[3, 1], [1, 3]])))
    with pytest.raises(InputError, match=r"to end in \.html, \.json"):
        report.save(tmp_path / "report.docx")
    assert not list(tmp_path.iterdir())
