"""One evaluation: everything that a release answers, as text and as a figure."""

from torchmetrics_fed.report.evaluation import EvaluationReport, evaluation_report

__all__ = ["EvaluationReport", "evaluation_report"]
