"""Look at every page of the built site in a browser, as a part of `make docs`.

Saves each page at two widths, light and dark, and fails where a page scrolls sideways, where code
or a table is wider than its column on a desktop, on a word on the console, a request that leaves
the site, or a formula left as TeX.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DESKTOP = 1280
"""The width of a desktop's window, in pixels."""
PHONE = 390
"""The width of a phone, in pixels."""
WIDTHS = (PHONE, 1024, DESKTOP, 1320)
"""Widths to look at: the navigation appears at 1008, the page's contents at 1312."""
TALLEST = 16_000
"""The largest height of a screenshot, in pixels."""
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars "
    "--allow-file-access-from-files"
)
WIDE = """
const column = document.querySelector("article") || document.body;
const right = column.getBoundingClientRect().right + 1;
const shown = element => element.textContent.trim().split("\\n")[0].slice(0, 60);
const blocks = [...column.querySelectorAll("pre, .table-wrapper, table, .output")];
return blocks.filter(block => block.scrollWidth > block.clientWidth + 1 && block.tagName != "TABLE"
    || block.getBoundingClientRect().right > right).map(shown);
"""
TEX = """
const column = (document.querySelector("article") || document.body).cloneNode(true);
column.querySelectorAll("pre, code, script, style").forEach(element => element.remove());
return ["\\\\frac", "$$", "\\\\("].filter(tex => column.textContent.includes(tex));
"""


@contextmanager
def browser(chromium: str, chromedriver: str) -> Iterator[Any]:
    """A browser without a network."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
        try:
            driver.execute_cdp_cmd("Network.enable", {})
            offline = {
                "offline": True,
                "latency": 0,
                "downloadThroughput": 0,
                "uploadThroughput": 0,
            }
            driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
            driver.get("about:blank")
            driver.get_log("performance")  # of the browser's own first page
            yield driver
        finally:
            driver.quit()


def size(driver: Any, width: int, height: int) -> None:
    """Give the window a size."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width == PHONE}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def left_the_site(driver: Any) -> list[str]:
    """Return the addresses outside of the site that a page has asked for."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in urls if not url.startswith(("file:", "data:", "about:"))]


def look(driver: Any, page: Path, shot: Path) -> list[str]:
    """Open one page, save what it looks like, and return what is wrong with it."""
    size(driver, DESKTOP, 900)
    driver.get(page.as_uri())
    wrong = [f"raw TeX: {tex}" for tex in driver.execute_script(TEX)]
    shot.parent.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        size(driver, width, 900)
        wide, high = driver.execute_script(
            "const page = document.body.parentNode; return [page.scrollWidth, page.scrollHeight]"
        )
        if wide > width:
            wrong.append(f"{wide} px wide in a window of {width}")
        if width == DESKTOP:
            wrong += [f"wider than its column: {block}" for block in driver.execute_script(WIDE)]
        size(driver, width, min(high, TALLEST))
        schemes = ("light", "dark") if width in (PHONE, DESKTOP) else ()
        for scheme in schemes:
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            driver.save_screenshot(f"{shot}.{width}.{scheme}.png")
    wrong += [f"console: {entry['message']}" for entry in driver.get_log("browser")]
    return wrong + [f"request: {url}" for url in left_the_site(driver)]


def main(site: Path, out: Path) -> int:
    """Look at every page, and return how many of them have something wrong."""
    chromium = shutil.which("chromium")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        sys.stdout.write("screenshots skipped: they need chromium and chromedriver\n")
        return 0
    bad = 0
    with browser(chromium, chromedriver) as driver:
        for page in sorted(site.resolve().rglob("*.html")):
            name = page.relative_to(site.resolve())
            if name.parts[0] != "_modules":  # the package's own source, in lines of 120
                wrong = look(driver, page, out / name.with_suffix(""))
                sys.stdout.writelines(f"{name}: {words}\n" for words in wrong)
                bad += bool(wrong)
    return bad


if __name__ == "__main__":
    sys.exit(1 if main(Path(sys.argv[1]), Path(sys.argv[2])) else 0)
