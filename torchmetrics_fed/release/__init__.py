"""The values that leave a client or an aggregator: spec, query, share, sum and release."""

from torchmetrics_fed.release.flags import ReleaseFlag
from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.release.share import Share
from torchmetrics_fed.release.spec import Spec
from torchmetrics_fed.release.sum import Sum

__all__ = ["Query", "Release", "ReleaseFlag", "Share", "Spec", "Sum"]
