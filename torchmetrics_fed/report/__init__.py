"""One evaluation: everything that a release answers, as text and as a figure."""

from torchmetrics_fed.report.evaluation import EvaluationReport, evaluation_report
from torchmetrics_fed.report.statement import PrivacyStatement, privacy_statement

__all__ = ["EvaluationReport", "PrivacyStatement", "evaluation_report", "privacy_statement"]
