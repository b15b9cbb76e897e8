"""One home for a release: its queries, the client's side of them, and the aggregator's."""

from torchmetrics_fed.exchange.coordinator import Coordinator
from torchmetrics_fed.exchange.plans import Plan, PlanArgument, PlanName, next_query, plan_from
from torchmetrics_fed.exchange.terms import Terms

__all__ = [
    "Coordinator",
    "Plan",
    "PlanArgument",
    "PlanName",
    "Terms",
    "next_query",
    "plan_from",
]
