"""Lightning: each validation and each test is released and logged once. Extra ``lightning``."""

from torchmetrics_fed.integrations.lightning.callback import FederatedEvaluation

__all__ = ["FederatedEvaluation"]
