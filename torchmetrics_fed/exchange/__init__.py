"""One home for a release: which queries it takes, the client's side of them, and the aggregator's."""

from torchmetrics_fed.exchange.coordinator import Coordinator
from torchmetrics_fed.exchange.queries import Plan, PlanName, next_query

__all__ = ["Coordinator", "Plan", "PlanName", "next_query"]
