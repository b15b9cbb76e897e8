"""Write the test vectors of the specifications: `python docs/specifications/vectors.py`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import aggregation_vectors
import wire_vectors

from torchmetrics_fed.release.wire import VERSION

FOLDER = Path(__file__).with_suffix("")


def main(folder: Path) -> None:
    """Write both files, lists of numbers on one line each."""
    for name, vectors in (
        ("wire_format", wire_vectors.vectors()),
        ("secure_aggregation", aggregation_vectors.vectors()),
    ):
        text = json.dumps({"version": VERSION, **vectors}, indent=1, ensure_ascii=False)
        text = re.sub(r"\[[\s\d,-]+\]", lambda match: re.sub(r"\s+", " ", match[0]), text)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
