"""Modules that need a trainer which is not installed are left out, their doctests with them."""

from importlib.util import find_spec

TRAINERS = {
    "torchmetrics_fed/integrations/flower": "flwr",
    "torchmetrics_fed/integrations/nvflare": "nvflare",
    "torchmetrics_fed/integrations/declearn.py": "declearn",
    "tests/integrations/declearn_program.py": "declearn",
    "torchmetrics_fed/integrations/pfl.py": "pfl",
}

collect_ignore = [path for path, module in TRAINERS.items() if find_spec(module) is None]
