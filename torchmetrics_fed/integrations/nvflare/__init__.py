"""Inside NVFlare: clients attach their share to the model that they send, the server sums them. Extra ``nvflare``."""

from torchmetrics_fed.integrations.nvflare.aggregator import FederatedMetricAggregator
from torchmetrics_fed.integrations.nvflare.client import META_KEY, attach

__all__ = ["META_KEY", "FederatedMetricAggregator", "attach"]
