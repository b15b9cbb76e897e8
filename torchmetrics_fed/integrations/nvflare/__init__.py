"""Inside NVFlare: clients attach their share to the model that they send, the server sums them. Extra ``nvflare``."""

from torchmetrics_fed.integrations.nvflare.aggregator import FederatedMetricAggregator
from torchmetrics_fed.integrations.nvflare.archive import load_releases
from torchmetrics_fed.integrations.nvflare.client import META_KEY, attach, payload, round_name

__all__ = ["META_KEY", "FederatedMetricAggregator", "attach", "load_releases", "payload", "round_name"]
