"""The page in a real browser: the threshold moves, what it shows is what the functions say, and nothing leaves it."""

from __future__ import annotations

import base64
import json
import shutil
import time
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
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)
LABELS = ["</script><script>document.title = 'broken'</script>", "<b>bold</b> & plain", "x" * 300]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


Show = Callable[[EvaluationReport], None]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:
    """Save a report and open it; afterwards there was no word on the console, and no request but for the file."""

    def shown(report: EvaluationReport) -> None:
        report.save(tmp_path / "report.html")
        browser.get((tmp_path / "report.html").as_uri())

    browser.get("about:blank")
    for name in ("browser", "performance"):
        browser.get_log(name)
    yield shown
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert set(sent) == {(tmp_path / "report.html").as_uri()}


def by_id(browser: Any, name: str) -> Any:
    return browser.find_element("id", name)


def value(browser: Any, name: str) -> float:
    return float(by_id(browser, name).get_attribute("value"))


def check(browser: Any, release: Release, report: EvaluationReport, index: int = 0) -> float:
    """Compare all that is shown at the threshold with the functions, and return the threshold."""
    at = int(by_id(browser, "threshold").get_attribute("value"))
    threshold = document(report)["classes"][index]["points"]["threshold"][at]
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
        own = float(number.reshape(-1)[index if number.dim() else 0])
        assert value(browser, name) == pytest.approx(own, rel=1e-9, abs=1e-9), (name, threshold)
    marker = browser.find_element("css selector", "#figure-roc circle.here")
    x = (float(marker.get_attribute("cx")) - 46) / (340 - 46 - 10)
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
    assert check(browser, release, report) == pytest.approx(
        float(report.youden.threshold.reshape(-1)[0])
    )
    for name in ("auroc", "average_precision", "brier_score"):
        assert value(browser, f"card-{name}") == pytest.approx(
            float(report.numbers[name].value.reshape(-1)[0])
        )
    seen = []
    for key, times in (
        (Keys.ARROW_RIGHT, 9),
        (Keys.ARROW_LEFT, 40),
        (Keys.HOME, 1),
        (Keys.END, 1),
        (Keys.PAGE_DOWN, 3),
    ):
        for _ in range(times):
            slider.send_keys(key)
        seen.append(check(browser, release, report))
    assert len(set(seen)) == 5
    assert seen[2:4] == [float(report.source.edges[0]), float(report.source.edges[-1])]
    for title, point in (("Best F1", report.best_f1), ("Youden's J", report.youden)):
        browser.find_element("xpath", f'//button[text()="{title}"]').click()
        assert check(browser, release, report) == point.threshold.reshape(-1)[0]
    assert value(browser, "rate-sensitivity") + value(
        browser, "rate-specificity"
    ) - 1 == pytest.approx(float(report.youden.value.reshape(-1)[0]), abs=1e-9)


def test_a_click_into_a_figure_sets_the_threshold(browser: Any, show: Show) -> None:
    release = release_of("exact binary")
    report = evaluation_report(release)
    show(report)
    figure = by_id(browser, "figure-histogram")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", figure)
    wide = figure.rect["width"]
    for part in (0.25, 0.75):
        place = (46 + part * (340 - 46 - 10)) / 340 - 0.5
        webdriver.ActionChains(browser).move_to_element_with_offset(
            figure, int(place * wide), 0
        ).click().perform()
        assert check(browser, release, report) == pytest.approx(part, abs=0.02)


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
        style = "return getComputedStyle(document.body)"
        ink, paper = (
            sum(map(int, browser.execute_script(f"{style}.{name}")[4:-1].split(",")))
            for name in ("color", "backgroundColor")
        )
        assert (ink < paper - 300) if scheme == "light" else (ink > paper + 300)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_keyboard_and_screen_reader_find_their_way(browser: Any, show: Show) -> None:
    report = evaluation_report(release_of("private binary"))
    show(report)
    slider = by_id(browser, "threshold")
    assert (slider.aria_role, slider.accessible_name) == ("slider", "Decision threshold")
    before = slider.get_attribute("aria-valuetext")
    assert "Sensitivity" in before
    slider.send_keys(Keys.ARROW_RIGHT)
    assert slider.get_attribute("aria-valuetext") != before
    deadline, live = time.monotonic() + 5, by_id(browser, "live")
    while "Threshold" not in live.get_attribute("textContent") and time.monotonic() < deadline:
        time.sleep(0.05)
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
        reached.append(
            browser.switch_to.active_element.get_attribute("id")
            or browser.switch_to.active_element.text
        )
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
    shown = [element.text for element in browser.find_elements("css selector", "#statement dd")]
    assert shown == [words for _, words in report.statement.fields["words"]]
    printed = base64.b64decode(browser.print_page())
    assert printed.startswith(b"%PDF")
    assert 2 <= printed.count(b"/Type /Page\n") <= 6
