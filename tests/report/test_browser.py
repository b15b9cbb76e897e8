"""The page in a real browser: it shows what the functions say, and nothing leaves it."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.report.conftest import release_of
from torchmetrics_fed import (
    CentralDP,
    EvaluationReport,
    FederatedROC,
    PrivacyLedger,
    Release,
    evaluation_report,
)
from torchmetrics_fed import functional as F
from torchmetrics_fed.report.document import document

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="the browser's driver is part of the extra `integration`"
)
Keys = webdriver.Keys
waiting = pytest.importorskip("selenium.webdriver.support.ui")
CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
FIGURE_WIDTH = 340
"""Width of a figure in its own coordinates, as in assets/report.js."""
LEFT_MARGIN = 46
RIGHT_MARGIN = 10
PLOT_WIDTH = FIGURE_WIDTH - LEFT_MARGIN - RIGHT_MARGIN
LABELS = ["</script><script>document.title = 'broken'</script>", "<b>bold</b> & plain", "x" * 300]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


Show = Callable[[EvaluationReport], None]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:
    """Save a report and open it. The console stays empty, and the file is the only request."""
    path = tmp_path / "report.html"

    def open_page(report: EvaluationReport) -> None:
        report.save(path)
        browser.get(path.as_uri())

    browser.get("about:blank")
    for name in ("browser", "performance"):
        browser.get_log(name)
    yield open_page
    assert browser.get_log("browser") == []
    assert requested_addresses(browser) == {path.as_uri()}


def requested_addresses(browser: Any) -> set[str]:
    addresses = set()
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            addresses.add(message["params"]["request"]["url"])
    return addresses


def by_id(browser: Any, name: str) -> Any:
    return browser.find_element("id", name)


def value(browser: Any, name: str) -> float:
    return float(by_id(browser, name).get_attribute("value"))


def check(browser: Any, release: Release, report: EvaluationReport, index: int = 0) -> float:
    """Compare all that is shown at the threshold with the functions, and return the threshold."""
    position = int(by_id(browser, "threshold").get_attribute("value"))
    threshold = document(report)["classes"][index]["points"]["threshold"][position]
    values = F.predictive_values(release, threshold)
    matrix = F.confusion_at(release, threshold).matrix.double().reshape(-1, 2, 2)[index]
    assert values.threshold == threshold
    expected = {
        "rate-sensitivity": matrix[1, 1] / matrix[1].sum(),
        "rate-specificity": matrix[0, 0] / matrix[0].sum(),
        "rate-ppv": values.positive,
        "rate-npv": values.negative,
        "tn": matrix[0, 0],
        "fp": matrix[0, 1],
        "fn": matrix[1, 0],
        "tp": matrix[1, 1],
    }
    if threshold < 1:
        expected["rate-benefit"] = F.net_benefit(release, [threshold]).model[..., 0]
    for name, number in expected.items():
        class_number = float(number.reshape(-1)[index if number.dim() else 0])
        assert value(browser, name) == pytest.approx(class_number, rel=1e-9, abs=1e-9), name
    marker = browser.find_element("css selector", "#figure-roc circle.here")
    x = (float(marker.get_attribute("cx")) - LEFT_MARGIN) / PLOT_WIDTH
    assert x == pytest.approx(1 - value(browser, "rate-specificity"), abs=1e-4)
    return float(threshold)


@pytest.mark.parametrize(
    "kind", ["exact binary", "private binary", "private multiclass", "exact multilabel"]
)
def test_the_threshold_moves_and_the_figures_agree(browser: Any, show: Show, kind: str) -> None:
    release = release_of(kind)
    report = evaluation_report(release)
    show(report)
    slider = by_id(browser, "threshold")
    youden_threshold = float(report.youden.threshold.reshape(-1)[0])
    assert check(browser, release, report) == pytest.approx(youden_threshold)
    for name in ("auroc", "average_precision", "brier_score"):
        first_class = float(report.numbers[name].value.reshape(-1)[0])
        assert value(browser, f"card-{name}") == pytest.approx(first_class)
    presses = [
        (Keys.ARROW_RIGHT, 9),
        (Keys.ARROW_LEFT, 40),
        (Keys.HOME, 1),
        (Keys.END, 1),
        (Keys.PAGE_DOWN, 3),
    ]
    thresholds = []
    for key, times in presses:
        for _ in range(times):
            slider.send_keys(key)
        thresholds.append(check(browser, release, report))
    assert len(set(thresholds)) == 5
    assert thresholds[2] == float(report.source.edges[0])
    assert thresholds[3] == float(report.source.edges[-1])
    for title, point in (("Best F1", report.best_f1), ("Youden's J", report.youden)):
        browser.find_element("xpath", f'//button[text()="{title}"]').click()
        assert check(browser, release, report) == point.threshold.reshape(-1)[0]
    j = value(browser, "rate-sensitivity") + value(browser, "rate-specificity") - 1
    assert j == pytest.approx(float(report.youden.value.reshape(-1)[0]), abs=1e-9)


def test_a_click_into_a_figure_sets_the_threshold(browser: Any, show: Show) -> None:
    release = release_of("exact binary")
    report = evaluation_report(release)
    show(report)
    figure = by_id(browser, "figure-histogram")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", figure)
    for threshold in (0.25, 0.75):
        from_center = (LEFT_MARGIN + threshold * PLOT_WIDTH) / FIGURE_WIDTH - 0.5
        actions = webdriver.ActionChains(browser)
        actions.move_to_element_with_offset(figure, int(from_center * figure.rect["width"]), 0)
        actions.click().perform()
        assert check(browser, release, report) == pytest.approx(threshold, abs=0.02)


def test_classes_are_chosen_and_their_names_are_only_text(browser: Any, show: Show) -> None:
    release = release_of("private multiclass")
    report = evaluation_report(release, labels=LABELS)
    show(report)
    options = browser.find_elements("css selector", "#class option")
    assert [option.get_attribute("textContent") for option in options] == LABELS
    assert browser.title != "broken"
    assert len(browser.find_elements("tag name", "script")) == 2
    assert not browser.find_elements("css selector", "#numbers b")
    for index in (2, 1):
        options[index].click()
        assert value(browser, "card-auroc") == pytest.approx(float(report.auroc[index]), abs=1e-12)
        check(browser, release, report, index)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_both_schemes_and_widths(browser: Any, show: Show, width: int, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        show(evaluation_report(release_of("private multiclass"), labels=LABELS))
        assert browser.execute_script("return document.documentElement.scrollWidth") == width
        ink = brightness(browser, "color")
        paper = brightness(browser, "backgroundColor")
        if scheme == "light":
            assert ink < paper - 300
        else:
            assert ink > paper + 300
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def brightness(browser: Any, name: str) -> int:
    """The sum of red, green and blue of a colour of the page."""
    colour = browser.execute_script(f"return getComputedStyle(document.body).{name}")
    channels = colour.removeprefix("rgb(").removesuffix(")").split(",")
    return sum(map(int, channels))


def test_keyboard_and_screen_reader_find_their_way(browser: Any, show: Show) -> None:
    report = evaluation_report(release_of("private binary"))
    show(report)
    slider = by_id(browser, "threshold")
    assert slider.aria_role == "slider"
    assert slider.accessible_name == "Decision threshold"
    before = slider.get_attribute("aria-valuetext")
    assert "Sensitivity" in before
    slider.send_keys(Keys.ARROW_RIGHT)
    assert slider.get_attribute("aria-valuetext") != before
    live = by_id(browser, "live")
    waiting.WebDriverWait(browser, 5).until(
        lambda _: "Threshold" in live.get_attribute("textContent")
    )
    assert "Of 1,000 like these" in live.get_attribute("textContent")
    figures = browser.find_elements("css selector", "figure svg")
    assert len(figures) == 6
    for figure in figures:
        assert figure.aria_role == "image"
        assert "At the threshold" in figure.accessible_name
    for control in browser.find_elements("css selector", "button, select, input"):
        assert control.accessible_name or not control.is_displayed()
    reached = []
    browser.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
    for _ in range(9):
        webdriver.ActionChains(browser).send_keys(Keys.TAB).perform()
        element = browser.switch_to.active_element
        reached.append(element.get_attribute("id") or element.text)
    assert "threshold" in reached
    assert "Table of all thresholds" in reached
    assert {"Youden's J", "Best F1", "0.5"} <= set(reached)


def test_the_table_has_every_threshold(browser: Any, show: Show) -> None:
    report = evaluation_report(release_of("exact binary"))
    show(report)
    browser.find_element("css selector", "#table-details summary").send_keys(Keys.ENTER)
    # the page fills the table when it hears that it was opened, which is a moment later
    rows = waiting.WebDriverWait(browser, 10).until(
        lambda page: page.find_elements("css selector", "#table tbody tr")
    )
    assert len(rows) == len(document(report)["classes"][0]["points"]["threshold"])


def test_it_prints_with_its_statement(browser: Any, show: Show) -> None:
    ledger = PrivacyLedger(budget=3.0)
    metric = FederatedROC(privacy=CentralDP(1.0), ledger=ledger, data="validation")
    metric.update(torch.rand(900), torch.randint(0, 2, (900,)))
    report = evaluation_report(metric.release(), ledger=ledger)
    show(report)
    assert report.statement is not None
    elements = browser.find_elements("css selector", "#statement dd")
    words = [words for _, words in report.statement.fields["words"]]
    assert [element.text for element in elements] == words
    printed = base64.b64decode(browser.print_page())
    assert printed.startswith(b"%PDF")
    assert 2 <= printed.count(b"/Type /Page\n") <= 6
