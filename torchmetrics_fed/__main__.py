"""``python -m torchmetrics_fed`` is ``torchmetrics-fed``."""

import sys

from torchmetrics_fed.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
