"""The report: what the functions say of one release, in one place."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import pytest
import torch
from torch import Tensor

from torchmetrics_fed import FederatedROC, InputError, LocalDP, Release
from torchmetrics_fed.functional import (
    kolmogorov_smirnov,
    precision_recall_from_counts,
    roc_from_counts,
)
from torchmetrics_fed.functional.calibration import calibration_from_counts
from torchmetrics_fed.functional.operating import best_f1, youden
from torchmetrics_fed.functional.precision_recall import average_precision_from_counts
from torchmetrics_fed.functional.roc import auroc_from_counts, mann_whitney_u
from torchmetrics_fed.functional.tradeoffs import (
    area_under_gain,
    det_from_counts,
    precision_recall_gain_from_counts,
)
from torchmetrics_fed.paper import Quantiles
from torchmetrics_fed.reconstruct import Aligned, Reconstruction
from torchmetrics_fed.reconstruct.histograms import read
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
    halves = zip(*(values.chunk(2) for values in scored), strict=True)
    return Release.sum(_share(preds, target) for preds, target in halves)


@pytest.fixture
def classes() -> Tensor:
    """Counts of three classes, each better separated than the one before."""
    generator = torch.Generator().manual_seed(1)
    low, high = torch.linspace(9, 1, 16), torch.linspace(1, 9, 16)
    rates = torch.stack(
        [torch.stack([30 * low, 5 * ((3 - k) * low + k * high)]) for k in (1, 2, 3)]
    )
    return torch.poisson(rates, generator=generator).long()


def _share(
    preds: Tensor, target: Tensor, privacy: LocalDP | None = None, grid: GridName = "two_sided"
) -> Release:
    metric = FederatedROC(quantiles=64, grid=grid, privacy=privacy)
    metric.update(preds, target)
    return Release.sum([metric.share()])


def _check(
    report: EvaluationReport, source: Release | Tensor, reconstruction: Reconstruction | None = None
) -> None:
    """Every number is the one that its function gives for the same source, to the bit."""
    histograms = read(source, None, reconstruction)
    expected: dict[str, object] = {
        "negatives": histograms.tails.total[..., 0],
        "positives": histograms.tails.total[..., 1],
        "prevalence": histograms.tails.total[..., 1] / histograms.tails.total.sum(-1),
    }
    for name, function in {
        "roc": roc_from_counts,
        "precision_recall": precision_recall_from_counts,
        "det": det_from_counts,
        "gain": precision_recall_gain_from_counts,
        "calibration": calibration_from_counts,
        "auroc": auroc_from_counts,
        "average_precision": average_precision_from_counts,
        "mann_whitney_u": mann_whitney_u,
        "area_under_gain": area_under_gain,
        "kolmogorov_smirnov": kolmogorov_smirnov,
        "best_f1": best_f1,
        "youden": youden,
    }.items():
        expected[name] = function(histograms)  # type: ignore[operator]
    for name, value in expected.items():
        torch.testing.assert_close(getattr(report, name), value, rtol=0, atol=0)


def test_numbers_are_the_functions(exact: Release, classes: Tensor) -> None:
    _check(evaluation_report(exact), exact)
    _check(evaluation_report(classes), classes)


@pytest.mark.parametrize(
    ("reconstruction", "grid"),
    [(Aligned(), "two_sided"), (Quantiles(64), "even")],
    ids=["aligned", "quantiles"],
)
def test_private_release_is_read_as_the_functions_read_it(
    scored: Data, reconstruction: Reconstruction, grid: GridName
) -> None:
    private = Release.sum([_share(*scored, privacy=LocalDP(epsilon=1.0), grid=grid)])
    report = evaluation_report(private, reconstruction=reconstruction)
    _check(report, private, reconstruction)
    assert report.privacy == str(private.spec.privacy)
    assert report.privacy in str(report)
    assert report.negatives.item() == pytest.approx(3_500, rel=0.1)


def test_reading_a_private_release_spends_nothing_and_changes_nothing(scored: Data) -> None:
    metric = FederatedROC(quantiles=64, privacy=LocalDP(epsilon=1.0))
    metric.update(*scored)
    release = Release.sum([metric.share()])
    before, spent = release.last.cells.clone(), len(metric.ledger)
    first, second = (str(evaluation_report(release)) for _ in range(2))
    assert first == second
    assert torch.equal(release.last.cells, before)
    assert len(metric.ledger) == spent


def test_text_of_a_binary_release(exact: Release, scored: Data) -> None:
    report = evaluation_report(exact)
    head, *lines = str(report).splitlines()
    assert head == "Evaluation (binary) of 2 shares, exact counts"
    table = {line[2:].rsplit(maxsplit=1)[0].strip(): line.split()[-1] for line in lines}
    assert table["positives"] == f"{int(scored[1].sum()):,}"
    assert table["AUROC"] == f"{report.auroc:.4f}"
    assert table["AP"] == f"{report.average_precision:.4f}"
    assert table["best F1"] == f"{report.best_f1.value:.4f}"
    assert table["F1 at"] == f"{report.best_f1.threshold:.4f}"
    assert float(table["U"].replace(",", "")) == report.mann_whitney_u
    assert report.calibration is not None
    assert table["Brier"] == f"{report.calibration.brier_score:.4f}"
    assert repr(report) == (
        f"EvaluationReport(binary, AUROC {report.auroc:.4f}, AP {report.average_precision:.4f}, exact counts)"
    )


def test_text_has_a_row_per_class_and_their_mean(classes: Tensor) -> None:
    report = evaluation_report(classes, labels=["cat", "dog", "sea lion"])
    head, names, *rows, mean = str(report).splitlines()
    assert head == "Evaluation (classes) of leaf counts, exact counts"
    assert [row.strip().split("  ")[0] for row in rows] == ["cat", "dog", "sea lion"]
    assert {len(line) for line in (names, *rows)} == {len(mean)}
    end = names.index("AUROC") + len("AUROC")
    assert [row[:end].split()[-1] for row in rows] == [f"{value:.4f}" for value in report.auroc]
    assert mean[:end].split() == [
        "mean",
        f"{report.prevalence.mean():.4f}",
        f"{report.auroc.mean():.4f}",
    ]
    assert str(evaluation_report(classes)).splitlines()[2].split()[0] == "0"


def test_scores_that_are_not_probabilities_have_no_calibration(classes: Tensor) -> None:
    report = evaluation_report(classes, torch.linspace(-4, 4, 17, dtype=torch.float64))
    assert report.calibration is None
    assert "Brier" not in str(report)
    _, axes = report.plot()
    assert axes[1, 0].get_xlabel() == "Recall gain"
    assert (
        f"AUPRG {report.area_under_gain[0]:.4f}"
        in axes[1, 0].get_legend().get_texts()[1].get_text()
    )


def test_the_summary_figure_shows_the_reports_numbers(exact: Release) -> None:
    report = evaluation_report(exact)
    fig, axes = report.plot()
    assert list(fig.axes) == list(axes.flat)
    texts = " ".join(text.get_text() for ax in axes.flat for text in ax.get_legend().get_texts())
    assert report.calibration is not None
    for value in (
        report.auroc,
        report.average_precision,
        report.calibration.expected_calibration_error,
    ):
        assert f"{value:.4f}" in texts


def test_report_stays_as_it_was_when_the_counts_go_on(classes: Tensor) -> None:
    report = evaluation_report(classes)
    leaf, text = report.source.leaf.clone(), str(report)
    classes += 1
    assert torch.equal(report.source.leaf, leaf)
    assert str(report) == text


def test_an_empty_class_is_warned_of_once() -> None:
    with pytest.warns(UserWarning, match="No positive examples") as caught:
        report = evaluation_report(torch.tensor([[3, 1], [0, 0]]))
    assert len(caught) == 1
    assert report.prevalence == 0
    assert "AUROC" in str(report)


def test_labels_must_fit(classes: Tensor) -> None:
    with pytest.raises(InputError, match="name 3 classes but got 2"):
        evaluation_report(classes, labels=["cat", "dog"])
