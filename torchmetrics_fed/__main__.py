"""``python -m torchmetrics_fed`` is ``torchmetrics-fed``."""

import sys

from torchmetrics_fed.cli import main

if __name__ == "__main__":
    sys.exit(main())
