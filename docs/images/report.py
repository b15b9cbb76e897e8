"""Draw report.png for docs/report.md. It needs Chromium, and `docs` on the path.

The first block of the page makes the report; this opens its HTML file and takes a screenshot of
what a desktop shows.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from screenshots import DESKTOP, browser, size

HERE = Path(__file__).resolve()
TALL = 1_700
"""Pixels, down to the end of the figures."""


def main() -> None:
    """Draw the figure."""
    chromium = shutil.which("chromium")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        sys.exit("report.png needs chromium and chromedriver")
    page = (HERE.parents[1] / "report.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert block is not None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(block[1], {})
        with browser(chromium, chromedriver) as driver:
            size(driver, DESKTOP, TALL)
            driver.get((Path(folder) / "report.html").as_uri())
            shot = Image.open(BytesIO(driver.get_screenshot_as_png()))
    shot.quantize(128).save(HERE.with_suffix(".png"), optimize=True)


if __name__ == "__main__":
    main()
