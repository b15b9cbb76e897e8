"""Noise that makes a release private, and the books about it."""

from torchmetrics_fed.privacy.ledger import LedgerEntry, PrivacyLedger
from torchmetrics_fed.privacy.mechanisms import CentralDP, DistributedDP, LocalDP, Noise, Privacy

__all__ = ["CentralDP", "DistributedDP", "LedgerEntry", "LocalDP", "Noise", "Privacy", "PrivacyLedger"]
