"""Terms: what a metric tells the exchange."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchmetrics_fed.errors import BudgetExceededError, ReleaseError
from torchmetrics_fed.exchange.plans import Plan
from torchmetrics_fed.privacy import LedgerEntry, PrivacyLedger
from torchmetrics_fed.release import Spec

MOST_UNLIMITED_EPSILON = 10.0
"""An epsilon that a run without a budget may plan to spend without a remark."""

FEWEST_RUN_EVALUATIONS = 12
"""Evaluations from which on a setting made by ``for_run`` has less noise than added epsilons, at
epsilon 3 and delta 1e-6 for all of them."""


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
            mu_squared=spec.privacy.mu_squared,
        )

    def check_ledger(self) -> None:
        """Raise unless the ledger has a limit that lasts: a server decides how often it asks."""
        if self.spec.privacy.charges:
            self.ledger.check_lasting()

    def check_run(self, evaluations: int | None, clients: int | None = None) -> str:
        """Raise if a run cannot make one release; return a remark if it cannot make all.

        Nothing is charged. The remark is empty if the budget lasts.

        Args:
            evaluations: the planned number of releases; None if it is open.
            clients: the number of clients that will take part; None if it is open.
        """
        privacy = self.spec.privacy
        if not privacy.charges:
            return ""
        if clients is not None and clients < self.spec.clients_needed:
            raise ReleaseError(
                f"Cannot begin: every release needs min_clients={self.spec.clients_needed} clients "
                f"but there are {clients}. Start more processes, or agree on fewer `min_clients`."
            )
        left = self.ledger.evaluations_left(privacy)
        if left == 0:
            raise BudgetExceededError(
                f"Cannot begin: an evaluation needs epsilon {self.spec.epsilon:g}, and of the "
                f"budget of {self.ledger.budget:g} epsilon {self.ledger.remaining:g} is left. "
                "Evaluate other data, or build the ledger with a larger `budget`."
            )
        if evaluations is None:
            return ""
        return self._remark(evaluations, left)

    def _remark(self, evaluations: int, left: int | None) -> str:
        """Return what is wrong with a planned number of evaluations; empty if nothing is."""
        privacy = self.spec.privacy
        cost = f"{self.ledger.forecast(privacy, evaluations).epsilon:.4g}"
        planned = f"This run plans {evaluations} evaluations and would spend epsilon {cost}"
        remedy = "Plan fewer evaluations, or a smaller epsilon for each."
        if evaluations >= FEWEST_RUN_EVALUATIONS:
            kind = type(privacy).__name__
            remedy = f"`{kind}.for_run(..., evaluations={evaluations})` shares one epsilon."
        if left is not None and left < evaluations:
            budget = f"{self.ledger.budget:g}"
            return f"{planned} of {budget}: the budget ends after {left} of them. {remedy}"
        if left is None and privacy.evaluations is not None and evaluations > privacy.evaluations:
            return (
                f"{planned}: its setting promises {privacy.epsilon:g} for "
                f"{privacy.evaluations} evaluations. {remedy}"
            )
        if left is None and float(cost) > MOST_UNLIMITED_EPSILON:
            return f"{planned}, and no budget limits it. Pass a ledger with a budget. {remedy}"
        return ""
