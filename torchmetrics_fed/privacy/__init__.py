"""Noise that makes a release private, and the ledger of what was spent."""

from torchmetrics_fed.privacy.budget import LedgerEntry
from torchmetrics_fed.privacy.ledger import PrivacyLedger
from torchmetrics_fed.privacy.settings import CentralDP, DistributedDP, Exact, LocalDP, Privacy

__all__ = [
    "CentralDP",
    "DistributedDP",
    "Exact",
    "LedgerEntry",
    "LocalDP",
    "Privacy",
    "PrivacyLedger",
]
