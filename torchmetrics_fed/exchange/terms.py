"""Terms: what a metric tells the exchange."""

from __future__ import annotations

from dataclasses import dataclass

from torchmetrics_fed.exchange.queries import Plan
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.release import Spec


@dataclass(frozen=True)
class Terms:
    """The settings that a release is made by. A metric gives them once, at the border to the exchange.

    Args:
        spec: what all parties agree on.
        plan: which queries a release takes.
        ledger: where releases are charged.
        data: the name of the data in the ledger.
    """

    spec: Spec
    plan: Plan
    ledger: PrivacyLedger
    data: str
