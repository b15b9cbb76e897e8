"""Terms: what a metric tells the exchange."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchmetrics_fed.exchange.plans import Plan
from torchmetrics_fed.privacy import LedgerEntry, PrivacyLedger
from torchmetrics_fed.release import Spec


@dataclass(frozen=True)
class Terms:
    """The settings that a release is made by.

    A metric gives them once, at the border to the exchange.

    Args:
        spec: what all parties agree on.
        plan: which queries a release takes.
        ledger: where releases are charged.
        data: the name of the data in the ledger.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.metrics import terms_of
        >>> terms_of(FederatedROC(data="hospital A")).data
        'hospital A'
    """

    spec: Spec
    plan: Plan
    ledger: PrivacyLedger = field(default_factory=PrivacyLedger)
    data: str = "data"

    def pays_as(self, terms: Terms) -> bool:
        """Whether releases are charged to the same ledger, under the same name."""
        is_same_file = self.ledger.path is not None and self.ledger.path == terms.ledger.path
        return (self.ledger is terms.ledger or is_same_file) and self.data == terms.data

    def entry(self, round: str, client: str = "") -> LedgerEntry:
        """Return the price of a release, as the ledger records it.

        Args:
            round: the name of the round.
            client: the random name of the client that draws; empty before there is one.
        """
        spec = self.spec
        return LedgerEntry(
            self.data,
            round,
            spec.epsilon,
            spec.delta,
            spec.privacy.mechanism,
            spec=spec.digest.hex(),
            client=client,
        )

    def check_ledger(self) -> None:
        """Raise unless the ledger has a limit that lasts: a server decides how often it asks."""
        if self.spec.privacy.charges:
            self.ledger.check_lasting()
