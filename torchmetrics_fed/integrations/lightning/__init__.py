"""Lightning: metrics of every validation and test, released and logged once each. Extra ``lightning``."""

from torchmetrics_fed.integrations.lightning.callback import FederatedEvaluation

__all__ = ["FederatedEvaluation"]
