"""NVFlare: clients attach their data to the model, the server makes one release a round.

Extra ``nvflare``. Shares travel with the models; what is private or secure is asked for, if the job
has the filter.
"""

from torchmetrics_fed.integrations.nvflare.aggregator import FederatedMetricAggregator
from torchmetrics_fed.integrations.nvflare.client import META_KEY, FederatedMetricFilter, attach

__all__ = [
    "META_KEY",
    "FederatedMetricAggregator",
    "FederatedMetricFilter",
    "attach",
]
