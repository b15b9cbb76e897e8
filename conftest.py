"""Modules that need a trainer which is not installed are left out, their doctests with them."""

from importlib.util import find_spec

TRAINERS = {
    "flwr": "torchmetrics_fed/integrations/flower",
    "nvflare": "torchmetrics_fed/integrations/nvflare",
    "declearn": "torchmetrics_fed/integrations/declearn.py",
    "pfl": "torchmetrics_fed/integrations/pfl.py",
}

collect_ignore = [folder for module, folder in TRAINERS.items() if find_spec(module) is None]
