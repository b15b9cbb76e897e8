"""Modules that need a trainer which is not installed are left out, their doctests with them, and
a script of a job."""

from importlib.util import find_spec

TRAINERS = {
    "torchmetrics_fed/integrations/flower": "flwr",
    "tests/integrations/flower_grid.py": "flwr",
    "torchmetrics_fed/integrations/nvflare": "nvflare",
    "tests/integrations/nvflare_sites.py": "nvflare",
    "torchmetrics_fed/integrations/declearn.py": "declearn",
    "tests/integrations/declearn_program.py": "declearn",
    "torchmetrics_fed/integrations/pfl.py": "pfl",
    "torchmetrics_fed/app/tables.py": "pyarrow",
    "torchmetrics_fed/integrations/batches.py": "pyarrow",
}

collect_ignore = [path for path, module in TRAINERS.items() if find_spec(module) is None]
collect_ignore.append("tests/integrations/nvflare_dying.py")  # NVFlare runs it, in a site's process
