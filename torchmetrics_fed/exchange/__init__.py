"""One home for a release: which queries it takes, the client's side of them, and the aggregator's."""

from torchmetrics_fed.exchange.coordinator import Coordinator
from torchmetrics_fed.exchange.queries import Plan, PlanName, check_plan, first_query, make_release, next_query
from torchmetrics_fed.exchange.session import Session
from torchmetrics_fed.exchange.sessions import Sessions

__all__ = [
    "Coordinator",
    "Plan",
    "PlanName",
    "Session",
    "Sessions",
    "check_plan",
    "first_query",
    "make_release",
    "next_query",
]
