"""A release through files in a folder that all parties can reach: no server, no locks."""

from torchmetrics_fed.app.folder.coordinator import run_coordinator, status
from torchmetrics_fed.app.folder.site import run_site

__all__ = ["run_coordinator", "run_site", "status"]
